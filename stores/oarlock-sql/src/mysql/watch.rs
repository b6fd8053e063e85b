//! Who waits for news inside this process: of what its own requests did, and of what its
//! [listener](crate::mysql::listener) heard.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use oarlock_core::ClaimId;
use oarlock_core::driver::{Hint, HintSender, Listeners, Watch};

/// Everyone who listens to one client.
#[derive(Debug, Default)]
pub(crate) struct Hub(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    mailboxes: Listeners,
    turns: HashMap<ClaimId, HintSender>,
    /// Called before they listened.
    missed: HashSet<ClaimId>,
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whatever concerns the claims of this client.
    pub(crate) fn mailbox(&self) -> Watch {
        self.lock().mailboxes.watch()
    }

    /// The turn of one claim, also if it came before.
    pub(crate) fn turn(&self, id: ClaimId) -> Watch {
        let (hints, watch) = Watch::channel();
        let mut inner = self.lock();
        if inner.missed.remove(&id) {
            hints.send(Hint::about(id));
        }
        inner.turns.insert(id, hints);
        watch
    }

    /// Passes on whom a step called: `<id in hexadecimal>@<session>,` for each, of which those of `session` are ours.
    pub(crate) fn tell(&self, called: &str, session: i64) {
        let called = called.split_terminator(',').filter_map(|one| one.split_once('@'));
        let ours = called.filter(|(_, theirs)| theirs.parse() == Ok(session)).filter_map(|(id, _)| id.parse().ok());
        for id in ours {
            self.notify(id);
        }
    }

    /// Notifies the waiter of this claim's turn.
    pub(crate) fn notify(&self, id: ClaimId) {
        let hint = Hint::about(id);
        let mut inner = self.lock();
        if inner.turns.get(&id).is_some_and(|waiter| waiter.send(hint)) {
            return;
        }
        inner.missed.insert(id);
        inner.mailboxes.tell(hint);
    }

    /// The claim does not wait any more.
    pub(crate) fn forget(&self, id: ClaimId) {
        let mut inner = self.lock();
        inner.turns.remove(&id);
        inner.missed.remove(&id);
    }

    /// The session is over: every claim of its may be gone.
    pub(crate) fn end_mailbox(&self) {
        let inner = self.lock();
        inner.mailboxes.tell(Hint::ANY);
        inner.mailboxes.end();
    }

    /// Ends all streams.
    pub(crate) fn end(&self) {
        *self.lock() = Inner::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_turn_that_came_before_is_told() {
        let (hub, id) = (Hub::default(), ClaimId::from_bits(1));
        hub.notify(id);
        assert_eq!(hub.turn(id).changed().await, Some(Hint::about(id)));
        hub.notify(ClaimId::from_bits(2));
        hub.forget(ClaimId::from_bits(2));
        assert!(hub.lock().missed.is_empty());
    }

    #[tokio::test]
    async fn only_our_own_are_told() {
        let hub = Hub::default();
        let (mine, theirs) = (ClaimId::from_bits(1), ClaimId::from_bits(2));
        let (mut turn, mut other) = (hub.turn(mine), hub.turn(theirs));
        hub.tell(&format!("{theirs}@8,{mine}@7,"), 7);
        assert_eq!(turn.changed().await, Some(Hint::about(mine)));
        hub.end();
        assert_eq!(other.changed().await, None, "told of another's turn");
    }
}
