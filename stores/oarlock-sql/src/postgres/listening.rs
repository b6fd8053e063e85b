//! A client listens while it has claims, or watches a name: a notification costs the server time for each listener of
//! the database, also for one that has nothing to hear.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use oarlock_core::{ClaimId, Result};

use crate::postgres::connection::Session;
use crate::postgres::error::failed;

/// A client without claims stops listening after so long, and after twice that at the latest.
const IDLE: Duration = Duration::from_secs(5);

/// Whether a session listens, and for which claims.
#[derive(Debug, Default)]
pub(crate) struct Listening {
    state: Mutex<State>,
    /// Held while a statement is under way, so that they are sent in order.
    statements: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    is_on: bool,
    /// The claims that may be in the store, and until when at the latest.
    claims: HashMap<ClaimId, Instant>,
    /// Once a name was watched, the session listens until it ends: a change may take any time.
    watches: bool,
    /// When the last claim was added or removed.
    used: Option<Instant>,
}

impl Listening {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a claim that is about to be sent or was renewed, and lives for so long. Answers whether its notifications
    /// will be heard; if not, the session has to [start](start).
    pub(crate) fn expect(&self, id: ClaimId, span: Duration) -> bool {
        let (mut state, now) = (self.lock(), Instant::now());
        state.claims.insert(id, now + span);
        state.used = Some(now);
        state.is_on
    }

    /// Whether the claim may be in the store.
    pub(crate) fn knows(&self, id: ClaimId) -> bool {
        self.lock().claims.contains_key(&id)
    }

    /// A name is about to be watched. Answers as [`expect`](Self::expect).
    pub(crate) fn watch(&self) -> bool {
        let mut state = self.lock();
        state.watches = true;
        state.is_on
    }

    /// The claim is not in the store any more.
    pub(crate) fn forget(&self, id: ClaimId) {
        let mut state = self.lock();
        if state.claims.remove(&id).is_some() {
            state.used = Some(Instant::now());
        }
    }

    /// The session is over for this client: there is nothing to hear any more.
    pub(crate) fn give_up(&self) {
        let mut state = self.lock();
        state.claims.clear();
        state.watches = false;
    }

    /// Notes that it does not listen any more, unless there is something to hear.
    fn ends(&self) -> bool {
        let (mut state, now) = (self.lock(), Instant::now());
        state.claims.retain(|_, until| *until > now);
        let is_idle = state.used.is_none_or(|used| now.saturating_duration_since(used) >= IDLE);
        if is_idle && state.claims.is_empty() && !state.watches {
            state.is_on = false;
        }
        !state.is_on
    }
}

/// Lets the session listen. What is committed after this is heard.
pub(crate) async fn start(session: &Arc<Session>) -> Result<()> {
    let listening = &session.listening;
    let _in_order = listening.statements.lock().await;
    if !listening.lock().is_on {
        session.execute(&format!("LISTEN oarlock_{:x}", session.number)).await.map_err(failed)?;
        listening.lock().is_on = true;
        tokio::spawn(stop(Arc::downgrade(session)));
    }
    Ok(())
}

/// Lets it stop once there is nothing to hear.
async fn stop(session: Weak<Session>) {
    loop {
        tokio::time::sleep(IDLE).await;
        let Some(session) = session.upgrade() else { return };
        let _in_order = session.listening.statements.lock().await;
        if session.listening.ends() {
            // A connection that fails here has ended, and its session with it.
            let _ = session.execute("UNLISTEN *").await;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_only_without_claims_and_watches_and_some_time_after_the_last() {
        let (listening, id) = (Listening::default(), ClaimId::from_bits(1));
        assert!(!listening.expect(id, Duration::from_secs(60)));
        listening.lock().is_on = true;
        assert!(listening.expect(id, Duration::from_secs(60)));
        let long_ago = Instant::now().checked_sub(IDLE);
        listening.lock().used = long_ago;
        assert!(!listening.ends(), "a claim is there");
        listening.forget(id);
        assert!(!listening.ends(), "it was there a moment ago");
        listening.lock().used = long_ago;
        assert!(listening.ends());
        assert!(!listening.expect(id, Duration::ZERO));
        listening.lock().is_on = true;
        listening.lock().used = long_ago;
        listening.watch();
        assert!(!listening.ends(), "a name is watched");
        listening.lock().watches = false;
        assert!(listening.ends(), "the claim has run out");
    }
}
