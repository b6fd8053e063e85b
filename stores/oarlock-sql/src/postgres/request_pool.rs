//! The pool of connections for requests: the first is always there, spares are opened while all are busy.
//!
//! A connection serves one request at a time, so that a request that waits in the server, for a row that a stranger has
//! locked or for the disk, delays no other.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use oarlock_core::Result;
use oarlock_core::reconnect::{Ends as _, Reopened};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::postgres::connection::{Connection, Pool};
use crate::postgres::error::{SCHEME, STORE};
use crate::postgres::left_open::LeftOpen;

/// The most connections of a client for requests.
pub const CONNECTIONS: usize = 4;

/// The most requests of one name under way at once: the server serves them one after the other, and another name must
/// find a connection.
const OF_A_NAME: usize = 2;

/// A connection besides the first is closed when it was not used for so long.
const IDLE: Duration = Duration::from_secs(10);

/// After a failure no other connection is opened for so long: the server may have none to spare.
const PAUSE: Duration = Duration::from_secs(10);

/// The connections, and the requests that want one.
pub(super) struct RequestPool {
    /// Opened by the request that needs it, which gets the error if that fails. It stands for the session.
    pub(super) first: Reopened<Connection>,
    /// As many as there are connections that no request has.
    permits: Arc<Semaphore>,
    state: Mutex<State>,
    left: LeftOpen,
    names: Mutex<HashMap<Box<[u8]>, Arc<Semaphore>>>,
}

#[derive(Default)]
struct State {
    first_is_taken: bool,
    idle: Vec<Spare>,
    /// How many there are besides the first, idle or not.
    spares: usize,
    is_opening: bool,
    /// How many requests wait for a connection.
    waiting: usize,
    pause_until: Option<Instant>,
    /// When the first connection, or that for renewals, last stood for the session that the client has now.
    stood: Option<Instant>,
    is_closed: bool,
}

struct Spare {
    connection: Arc<Connection>,
    used: Instant,
    /// When it last stood for a session.
    stood: Option<Instant>,
    is_sound: bool,
}

impl Spare {
    fn is_of_use(&self) -> bool {
        self.is_sound && !self.connection.is_ended()
    }
}

/// A connection that is being opened, one at a time. Dropped, however its task ends, it lets another one begin.
struct Opening {
    pool: Arc<RequestPool>,
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.pool.lock().is_opening = false;
    }
}

/// A connection, for one request.
pub(super) struct ConnectionLease {
    pool: Arc<RequestPool>,
    /// `None`: the first.
    spare: Option<Spare>,
    permit: Option<OwnedSemaphorePermit>,
}

/// One of the requests of a name that may be under way.
pub(super) struct NamePermit {
    pool: Arc<RequestPool>,
    name: Box<[u8]>,
    permit: Option<OwnedSemaphorePermit>,
}

impl RequestPool {
    pub(super) fn new(runtime: Handle, left: LeftOpen) -> Self {
        let (first, permits) = (Reopened::new(SCHEME).on(runtime), Arc::new(Semaphore::new(1)));
        Self { first, permits, state: Mutex::default(), left, names: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, Arc<Semaphore>>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until another request of `name` may be sent.
    pub(super) async fn permit(self: &Arc<Self>, name: &[u8]) -> Result<NamePermit> {
        let mut held = NamePermit { pool: self.clone(), name: name.into(), permit: None };
        let permits = self.names().entry(name.into()).or_insert_with(|| Arc::new(Semaphore::new(OF_A_NAME))).clone();
        held.permit = Some(permits.acquire_owned().await.map_err(|error| STORE.closed().because(error))?);
        Ok(held)
    }

    /// A connection that no other request has. If all are taken, `pool` opens another one.
    pub(super) async fn take(self: &Arc<Self>, pool: &Arc<Pool>) -> Result<ConnectionLease> {
        loop {
            let permit = match self.permits.clone().try_acquire_owned() {
                Ok(permit) => permit,
                Err(_) => {
                    let _waiting = Waiting::new(self);
                    self.grow(pool);
                    self.permits.clone().acquire_owned().await.map_err(|error| STORE.closed().because(error))?
                }
            };
            let mut state = self.lock();
            // To open the first anew may take long, or fail: an idle spare comes before that.
            let is_ready = state.idle.is_empty() || self.first.current().is_some();
            if !state.first_is_taken && is_ready {
                state.first_is_taken = true;
                return Ok(ConnectionLease { pool: self.clone(), spare: None, permit: Some(permit) });
            }
            let spare = state.idle.pop();
            drop(state);
            if !is_ready {
                self.reopen_first(pool);
            }
            let Some(spare) = spare else { return Err(STORE.unexpected("a permit without a connection")) };
            let is_of_use = spare.is_of_use();
            let lease = ConnectionLease { pool: self.clone(), spare: Some(spare), permit: Some(permit) };
            if is_of_use {
                return Ok(lease);
            }
        }
    }

    /// Opens another connection in a task, and more as long as requests wait.
    fn grow(self: &Arc<Self>, pool: &Arc<Pool>) {
        if pool.is_pooled() {
            return;
        }
        let mut next = self.may_open(CONNECTIONS - 1);
        if next.is_some() {
            let (requests, pool) = (self.clone(), pool.clone());
            pool.runtime().clone().spawn(async move {
                while let Some(opening) = next {
                    let opened = pool.open_connection::<Connection>().await;
                    next = requests.opened(opening, opened);
                }
            });
        }
    }

    /// Opens the first connection in a task: the spares serve meanwhile.
    fn reopen_first(self: &Arc<Self>, pool: &Arc<Pool>) {
        if let Some(opening) = self.may_open(CONNECTIONS) {
            let pool = pool.clone();
            pool.runtime().clone().spawn(async move {
                let requests = opening.pool.clone();
                if pool.ready(&requests.first).await.is_err() {
                    requests.pause();
                }
                drop(opening);
                if requests.lock().waiting > 0 {
                    requests.grow(&pool);
                }
            });
        }
    }

    /// Whether a connection may be opened now, while there are less than so many spares.
    fn may_open(self: &Arc<Self>, spares: usize) -> Option<Opening> {
        let mut state = self.lock();
        let pauses = state.pause_until.is_some_and(|until| Instant::now() < until);
        if state.is_opening || pauses || state.spares >= spares {
            return None;
        }
        state.is_opening = true;
        Some(Opening { pool: self.clone() })
    }

    /// Adds a connection. Answers whether another one is needed.
    fn opened(self: &Arc<Self>, opening: Opening, opened: Result<Connection>) -> Option<Opening> {
        match opened {
            Ok(connection) => self.add(connection),
            Err(_) => self.pause(),
        }
        drop(opening);
        let is_enough = self.lock().waiting == 0;
        if is_enough { None } else { self.may_open(CONNECTIONS - 1) }
    }

    fn add(self: &Arc<Self>, connection: Connection) {
        let mut state = self.lock();
        if !state.is_closed {
            let connection = Arc::new(connection);
            tokio::spawn(retire(Arc::downgrade(self), Arc::downgrade(&connection)));
            state.idle.push(Spare { connection, used: Instant::now(), stood: None, is_sound: true });
            state.spares += 1;
            self.permits.add_permits(1);
        }
    }

    fn pause(&self) {
        self.lock().pause_until = Some(Instant::now() + PAUSE);
    }

    /// Gives up all connections, for good. Requests that have one drop it.
    pub(super) fn close(&self) {
        drop(self.first.close());
        let mut state = self.lock();
        state.is_closed = true;
        while !state.idle.is_empty() {
            // A request that has got the permit takes the connection, and drops it.
            let Ok(permit) = self.permits.clone().try_acquire_owned() else { return };
            permit.forget();
            state.idle.pop();
            state.spares -= 1;
        }
    }

    /// Whether there is another connection than the first.
    pub(super) fn has_spares(&self) -> bool {
        self.lock().spares > 0
    }

    /// The client has another session, for which no connection has stood yet.
    pub(super) fn begin_session(&self) {
        self.lock().stood = None;
    }

    /// The first connection, or that for renewals, stood for the session with a request that was sent then.
    pub(super) fn stood(&self, sent: Instant) {
        let mut state = self.lock();
        state.stood = state.stood.max(Some(sent));
    }

    /// Closes a connection that was not used for a while, unless it stands for a session. Answers whether it is still
    /// there.
    fn retire(&self, connection: &Arc<Connection>) -> bool {
        let mut state = self.lock();
        let stood = state.stood;
        let is_free = |spare: &Spare| spare.stood.is_none_or(|before| stood.is_some_and(|after| after > before));
        let is_this = |spare: &Spare| {
            Arc::ptr_eq(&spare.connection, connection) && spare.used.elapsed() >= IDLE && is_free(spare)
        };
        let Some(at) = state.idle.iter().position(is_this) else { return true };
        let Ok(permit) = self.permits.clone().try_acquire_owned() else { return true };
        permit.forget();
        state.idle.remove(at);
        state.spares -= 1;
        false
    }
}

impl fmt::Debug for RequestPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestPool").field("spares", &self.lock().spares).finish_non_exhaustive()
    }
}

/// Closes a connection once it is not needed any more.
async fn retire(requests: Weak<RequestPool>, connection: Weak<Connection>) {
    loop {
        tokio::time::sleep(IDLE).await;
        let (Some(requests), Some(connection)) = (requests.upgrade(), connection.upgrade()) else { return };
        if !requests.retire(&connection) {
            return;
        }
    }
}

/// Counts a request that waits for a connection.
struct Waiting<'a>(&'a RequestPool);

impl<'a> Waiting<'a> {
    fn new(requests: &'a RequestPool) -> Self {
        requests.lock().waiting += 1;
        Self(requests)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}

impl ConnectionLease {
    /// The connection; `None` for the first, which may have to be opened.
    pub(super) fn spare(&self) -> Option<Arc<Connection>> {
        self.spare.as_ref().map(|spare| spare.connection.clone())
    }

    /// Whether this connection has to stand for the session. The first always does. A spare does while the first is
    /// gone, or has not stood for this session yet: a process that lives must be seen to live.
    pub(super) fn stands(&self) -> bool {
        self.spare.is_none() || self.pool.lock().stood.is_none() || self.pool.first.current().is_none()
    }

    /// This spare may stand for the session now.
    pub(super) fn stood(&mut self) {
        if let Some(spare) = &mut self.spare {
            spare.stood = Some(Instant::now());
        }
    }

    /// This connection is of no more use.
    pub(super) fn discard(&mut self, connection: &Arc<Connection>) {
        match &mut self.spare {
            None => self.pool.first.discard(connection),
            Some(spare) => spare.is_sound = false,
        }
    }
}

impl Drop for ConnectionLease {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        match self.spare.take() {
            None => state.first_is_taken = false,
            Some(spare) if !state.is_closed && spare.is_of_use() => {
                state.idle.push(Spare { used: Instant::now(), ..spare });
            }
            Some(spare) => {
                state.spares -= 1;
                if let Some(permit) = self.permit.take() {
                    permit.forget();
                }
                drop(state);
                // One to the server before this one may still stand for the session there.
                if spare.is_sound && !spare.connection.client.is_closed() {
                    self.pool.left.keep(spare.connection);
                }
            }
        }
        // Not before its connection is there.
        drop(self.permit.take());
    }
}

impl Drop for NamePermit {
    fn drop(&mut self) {
        drop(self.permit.take());
        let mut names = self.pool.names();
        if names.get(&self.name).is_some_and(|permits| Arc::strong_count(permits) == 1) {
            names.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_opening_that_is_given_up_lets_another_begin() {
        let runtime = Handle::current();
        let pool = Arc::new(RequestPool::new(runtime.clone(), LeftOpen::new(runtime)));
        let opening = pool.may_open(1);
        assert!(opening.is_some() && pool.may_open(1).is_none(), "one at a time");
        drop(opening);
        assert!(pool.may_open(1).is_some(), "its task ended without an answer");
        pool.pause();
        assert!(pool.may_open(1).is_none(), "the server has none to spare");
    }
}
