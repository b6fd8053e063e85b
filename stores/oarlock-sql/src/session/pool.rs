//! The connections of one client, and what is done on each.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use oarlock_core::{ClaimId, Error, ErrorKind, Label, Result};
use tokio::runtime::Handle;
use tokio::sync::OwnedMutexGuard;

use crate::session::connection::{Connection as _, Mailbox, Seen, Server};
use crate::session::wait::Waiting;

/// So many connections are kept although nothing is done on them, for the next ones who have to wait.
const IDLE_CONNECTIONS: usize = 4;

#[derive(Debug)]
pub(crate) struct Pool<S: Server> {
    pub(crate) server: Arc<S>,
    /// The runtime of all connections, whichever task opens one.
    pub(crate) runtime: Handle,
    pub(crate) mailbox: Mailbox,
    closed: AtomicBool,
    inner: Mutex<Inner<S>>,
}

#[derive(Debug)]
struct Inner<S: Server> {
    members: Vec<Member<S>>,
    claims: HashMap<ClaimId, Arc<tokio::sync::Mutex<ClaimState<S>>>>,
    /// What is held, for those who look: they must not wait for a request of another claim.
    holds: HashMap<ClaimId, Weak<Hold<S>>>,
}

/// One connection.
#[derive(Debug)]
struct Member<S: Server> {
    connection: Arc<S::Connection>,
    /// What is tried, waited for or held on it.
    keys: HashSet<S::Key>,
    /// Questions under way, besides.
    peeks: usize,
    /// A claim waits on it, so that no other request can use it.
    alone: bool,
    used: Instant,
}

/// The state of a claim.
#[derive(Debug, Default)]
pub(crate) enum ClaimState<S: Server> {
    #[default]
    Absent,
    Waiting(Waiting<S>),
    Holding(Arc<Hold<S>>),
}

/// What a claim holds.
#[derive(Debug)]
pub(crate) struct Hold<S: Server> {
    pub(crate) id: ClaimId,
    pub(crate) lease: Arc<ConnectionLease<S>>,
    pub(crate) number: u64,
    pub(crate) since: Instant,
    pub(crate) label: Arc<Label>,
}

impl<S: Server> Drop for Hold<S> {
    fn drop(&mut self) {
        self.lease.pool.lock().holds.remove(&self.id);
    }
}

/// A lease of a connection, for one key.
#[derive(Debug)]
pub(crate) struct ConnectionLease<S: Server> {
    pool: Arc<Pool<S>>,
    connection: Arc<S::Connection>,
    key: S::Key,
}

impl<S: Server> ConnectionLease<S> {
    pub(crate) fn connection(&self) -> &Arc<S::Connection> {
        &self.connection
    }

    pub(crate) fn key(&self) -> &S::Key {
        &self.key
    }

    /// The wait is over: others may use the connection too.
    pub(crate) fn share(&self) {
        if let Some(member) = self.pool.lock().member(&self.connection) {
            member.alone = false;
        }
    }
}

impl<S: Server> Drop for ConnectionLease<S> {
    fn drop(&mut self) {
        let mut inner = self.pool.lock();
        if let Some(member) = inner.member(&self.connection) {
            member.keys.remove(&self.key);
            (member.alone, member.used) = (false, Instant::now());
        }
        inner.prune();
    }
}

impl<S: Server> Inner<S> {
    fn member(&mut self, connection: &Arc<S::Connection>) -> Option<&mut Member<S>> {
        self.members.iter_mut().find(|member| Arc::ptr_eq(&member.connection, connection))
    }

    fn prune(&mut self) {
        let mut idle = 0;
        self.members.retain(|member| {
            idle += usize::from(member.is_idle());
            !member.connection.is_over() && (!member.is_idle() || idle <= IDLE_CONNECTIONS)
        });
    }
}

impl<S: Server> Member<S> {
    fn is_idle(&self) -> bool {
        self.keys.is_empty() && self.peeks == 0 && !self.alone
    }
}

impl<S: Server> Pool<S> {
    pub(crate) fn new(server: S, runtime: Handle) -> Arc<Self> {
        let inner = Mutex::new(Inner { members: Vec::new(), claims: HashMap::new(), holds: HashMap::new() });
        let (server, mailbox, closed) = (Arc::new(server), Mailbox::default(), AtomicBool::new(false));
        Arc::new(Self { server, runtime, mailbox, closed, inner })
    }

    fn lock(&self) -> MutexGuard<'_, Inner<S>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let closed = || Error::new(ErrorKind::Closed, "this store was closed").on(S::SCHEME);
        if self.closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    /// A lease of a connection on which `key` is not in use.
    pub(crate) async fn lease_shared(self: &Arc<Self>, key: &S::Key) -> Result<Arc<ConnectionLease<S>>> {
        self.lease(key, false).await
    }

    /// A connection that no other claim shares, to wait for `key`.
    pub(crate) async fn lease_alone(self: &Arc<Self>, key: &S::Key) -> Result<Arc<ConnectionLease<S>>> {
        self.lease(key, true).await
    }

    async fn lease(self: &Arc<Self>, key: &S::Key, alone: bool) -> Result<Arc<ConnectionLease<S>>> {
        self.check()?;
        if let Some(connection) = self.find(alone, Some(key)) {
            return Ok(Arc::new(ConnectionLease { pool: self.clone(), connection, key: key.clone() }));
        }
        let connection = self.open().await?;
        let (keys, used) = (HashSet::from([key.clone()]), Instant::now());
        self.lock().members.push(Member { connection: connection.clone(), keys, peeks: 0, alone, used });
        let lease = Arc::new(ConnectionLease { pool: self.clone(), connection, key: key.clone() });
        // Closed meanwhile: `close` did not see this connection.
        self.check().inspect_err(|_| lease.connection.end())?;
        Ok(lease)
    }

    fn find(&self, alone: bool, key: Option<&S::Key>) -> Option<Arc<S::Connection>> {
        // The server ends a connection on which nothing was asked for so long: not that it happens just now.
        let fresh = self.server.session_ttl() / 2;
        let mut inner = self.lock();
        inner
            .members
            .retain(|member| !member.connection.is_over() && (!member.is_idle() || member.used.elapsed() < fresh));
        let fits = |member: &&mut Member<S>| {
            !member.alone && (!alone || member.is_idle()) && key.is_none_or(|key| !member.keys.contains(key))
        };
        let member = inner.members.iter_mut().find(fits)?;
        member.alone = alone;
        match key {
            Some(key) => drop(member.keys.insert(key.clone())),
            None => member.peeks += 1,
        }
        Some(member.connection.clone())
    }

    async fn open(self: &Arc<Self>) -> Result<Arc<S::Connection>> {
        let opening = self.server.clone().open(self.mailbox.clone());
        let gone = |error| {
            Error::new(ErrorKind::Closed, "the tokio runtime of this client has ended").on(S::SCHEME).because(error)
        };
        Ok(Arc::new(self.runtime.spawn(opening).await.map_err(gone)??))
    }

    /// Opens the first connection.
    pub(crate) async fn open_first(self: &Arc<Self>) -> Result<()> {
        self.open_idle(0).await.map(drop)
    }

    async fn open_idle(self: &Arc<Self>, peeks: usize) -> Result<Arc<S::Connection>> {
        let connection = self.open().await?;
        let (keys, used) = (HashSet::new(), Instant::now());
        self.lock().members.push(Member { connection: connection.clone(), keys, peeks, alone: false, used });
        Ok(connection)
    }

    /// Shows who holds a lock, on any connection that is free.
    pub(crate) async fn peek(self: &Arc<Self>, key: &S::Key) -> Result<Seen> {
        self.check()?;
        let found = self.find(false, None);
        let connection = match found {
            Some(connection) => connection,
            None => self.open_idle(1).await?,
        };
        let answer = connection.peek(key).await;
        if let Some(member) = self.lock().member(&connection) {
            member.peeks = member.peeks.saturating_sub(1);
            member.used = Instant::now();
        }
        answer
    }

    /// The state of a claim, for one task at a time.
    pub(crate) async fn claim(&self, id: ClaimId) -> OwnedMutexGuard<ClaimState<S>> {
        loop {
            let state = self.lock().claims.entry(id).or_default().clone();
            let guard = state.clone().lock_owned().await;
            // The task that had it before may have removed it.
            if self.lock().claims.get(&id).is_some_and(|current| Arc::ptr_eq(current, &state)) {
                return guard;
            }
        }
    }

    /// The same, if the claim is known.
    pub(crate) async fn known_claim(&self, id: ClaimId) -> Option<OwnedMutexGuard<ClaimState<S>>> {
        let known = self.lock().claims.contains_key(&id);
        if known { Some(self.claim(id).await) } else { None }
    }

    /// Forgets a claim that neither holds nor waits.
    pub(crate) fn clear(&self, id: ClaimId, state: &OwnedMutexGuard<ClaimState<S>>) {
        if matches!(**state, ClaimState::Absent) {
            self.lock().claims.remove(&id);
        }
    }

    /// Notes that a claim holds the lock of its lease.
    pub(crate) fn hold(
        &self,
        id: ClaimId,
        lease: Arc<ConnectionLease<S>>,
        number: u64,
        label: Arc<Label>,
    ) -> Arc<Hold<S>> {
        let hold = Arc::new(Hold { id, lease, number, since: Instant::now(), label });
        self.lock().holds.insert(id, Arc::downgrade(&hold));
        hold
    }

    /// What the claims of this client hold of `key`.
    pub(crate) fn holds(&self, key: &S::Key) -> Vec<Arc<Hold<S>>> {
        // Dropped after the mutex is released: the last owner of a hold locks it again.
        let holds: Vec<_> = self.lock().holds.values().filter_map(Weak::upgrade).collect();
        holds.into_iter().filter(|hold| hold.lease.key() == key).collect()
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.mailbox.end();
        let (members, claims) = {
            let mut inner = self.lock();
            (std::mem::take(&mut inner.members), std::mem::take(&mut inner.claims))
        };
        for member in &members {
            member.connection.end();
        }
        drop(claims);
    }
}
