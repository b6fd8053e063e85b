//! Waits until the claim that stands before one of ours has left: a connection asks for the [named
//! lock](crate::mysql::wake) of that claim. What it hears is only a hint, and a wait that hears nothing for a second
//! counts as one too.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, params};
use oarlock_core::{ClaimId, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::mysql::connection::Pool;
use crate::mysql::error::{STORE, failed};
use crate::mysql::session::dial_patient;
use crate::mysql::wake::lock_name;

/// The most connections of a client that wait. Further waiters poll.
pub(crate) const LISTENERS: usize = 4;

/// So many stay open for the next waiter.
const KEPT: usize = 1;

/// How long one wait lasts at the server. A server does not notice that the client of such a wait is gone, so it must
/// be short; MySQL takes whole seconds.
const SPAN: Duration = Duration::from_secs(1);

/// After a failure, waiters poll for so long.
const PAUSE: Duration = Duration::from_secs(1);

/// Answers 1 once the lock was free. It is not kept: others may wait for it too.
const LISTEN: &str = "SELECT IF(GET_LOCK(:lock, :seconds) = 1, RELEASE_LOCK(:lock), 0)";

/// The connections that wait, and for whom.
pub(crate) struct Listener {
    slots: Arc<Semaphore>,
    state: Mutex<State>,
    over: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    idle: Vec<Conn>,
    waits: HashMap<ClaimId, Wait>,
    quiet_until: Option<Instant>,
}

struct Wait {
    before: ClaimId,
    /// Its lock is free. If the claim still stands there, it has none.
    ended: bool,
}

impl Default for Listener {
    fn default() -> Self {
        Self { slots: Arc::new(Semaphore::new(LISTENERS)), state: Mutex::default(), over: watch::Sender::new(false) }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the connections themselves: they show the password.
        f.debug_struct("Listener").field("waits", &self.lock().waits.len()).finish_non_exhaustive()
    }
}

impl Listener {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claim does not wait any more: it gets no hint after this.
    pub(crate) fn left(&self, id: ClaimId) {
        self.lock().waits.remove(&id);
    }

    /// Idle connections may lead to a server that is not in charge any more.
    pub(crate) fn forget_idle(&self) {
        self.lock().idle.clear();
    }

    /// Ends all waits.
    pub(crate) fn end(&self) {
        self.over.send_replace(true);
        let mut state = self.lock();
        state.idle.clear();
        state.waits.clear();
    }

    /// Notes that `id` is to have a hint when `before` leaves. Answers whether it will have one, and the permit for a
    /// new wait if it needs one.
    fn note(&self, id: ClaimId, before: ClaimId) -> (bool, Option<OwnedSemaphorePermit>) {
        let mut state = self.lock();
        if let Some(wait) = state.waits.get(&id).filter(|wait| wait.before == before) {
            return (!wait.ended, None);
        }
        state.waits.remove(&id);
        let is_quiet = state.quiet_until.is_some_and(|until| Instant::now() < until);
        let permit = if is_quiet { None } else { self.slots.clone().try_acquire_owned().ok() };
        if permit.is_some() {
            state.waits.insert(id, Wait { before, ended: false });
        }
        (permit.is_some(), permit)
    }
}

/// Lets the claim `id` have a hint when `before` leaves, or sooner. False if it will have none: then it has to look by
/// itself.
pub(crate) fn listen(pool: &Arc<Pool>, id: ClaimId, before: ClaimId) -> bool {
    let (is_told, permit) = pool.listener.note(id, before);
    if let Some(permit) = permit {
        let pool = pool.clone();
        pool.runtime().clone().spawn(async move { wait(&pool, id, before, permit).await });
    }
    is_told
}

async fn wait(pool: &Arc<Pool>, id: ClaimId, before: ClaimId, permit: OwnedSemaphorePermit) {
    let mut over = pool.listener.over.subscribe();
    let limit = pool.config().connect_timeout + SPAN;
    let answer = tokio::select! {
        answer = tokio::time::timeout(limit, wait_until_free(pool, before)) => answer.unwrap_or_else(|_| Err(STORE.no_answer())).ok(),
        _ = over.wait_for(|is_over| *is_over) => return,
    };
    let mut state = pool.listener.lock();
    let is_free = answer.as_ref().is_some_and(|(_, is_free)| *is_free);
    match answer {
        Some((conn, _)) if state.idle.len() < KEPT && pool.check().is_ok() => state.idle.push(conn),
        Some(_) => {}
        // Without a pause the next attempt would fail here at once, and the next.
        None => state.quiet_until = Some(Instant::now() + PAUSE),
    }
    // The next attempt may need it.
    drop(permit);
    if let Some(wait) = state.waits.get_mut(&id).filter(|wait| wait.before == before) {
        wait.ended = is_free;
        if !is_free {
            state.waits.remove(&id);
        }
        // Under the lock, so not after the claim has left: its hint would be kept for ever.
        pool.hub.notify(id, |()| ());
    }
}

/// Whether the lock of `before` was free within the time.
async fn wait_until_free(pool: &Pool, before: ClaimId) -> Result<(Conn, bool)> {
    let idle = pool.listener.lock().idle.pop();
    let mut conn = match idle {
        Some(conn) => conn,
        None => dial_patient(pool.config()).await?,
    };
    let asked = params! { "lock" => lock_name(before), "seconds" => SPAN.as_secs() };
    let began = Instant::now();
    let ended: Option<Option<i64>> = conn.exec_first(LISTEN, asked).await.map_err(failed)?;
    let is_free = ended.flatten() == Some(1);
    // A server that does not wait would be asked over and over.
    if is_free || began.elapsed() >= SPAN / 2 {
        Ok((conn, is_free))
    } else {
        Err(STORE.unexpected("GET_LOCK returned before its time-out"))
    }
}
