//! Who waits for news inside this process, and the streams on which they get it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use oarlock_core::ClaimId;
use oarlock_core::driver::{Hint, HintSender, Listeners, Watch};

/// Everyone who listens to one session. When it ends, so do their streams.
#[derive(Debug, Default)]
pub(crate) struct Hub(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    ended: bool,
    mailboxes: Listeners,
    turns: HashMap<ClaimId, HintSender>,
    observers: HashMap<String, Listeners>,
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whatever concerns the claims of this session, and its end.
    pub(crate) fn mailbox(&self) -> Watch {
        let inner = self.lock();
        if inner.ended { Watch::ended() } else { inner.mailboxes.watch() }
    }

    /// The turn of one claim.
    pub(crate) fn turn(&self, id: ClaimId) -> Watch {
        let (hints, watch) = Watch::channel();
        let mut inner = self.lock();
        if !inner.ended {
            inner.turns.insert(id, hints);
        }
        watch
    }

    /// The next change of the name that is written so in hexadecimal.
    pub(crate) fn resource(&self, name: String) -> Watch {
        let mut inner = self.lock();
        if inner.ended { Watch::ended() } else { inner.observers.entry(name).or_default().watch() }
    }

    /// Passes on what the server sent: the id of a claim, or `r` and a name.
    pub(crate) fn tell(&self, news: &str) {
        let mut inner = self.lock();
        if let Some(name) = news.strip_prefix('r') {
            // The server tells once, and each of these streams ends with it.
            if let Some(observers) = inner.observers.remove(name) {
                observers.tell(Hint::ANY);
            }
        } else if let Ok(id) = news.parse() {
            let hint = Hint::about(id);
            if !inner.turns.get(&id).is_some_and(|ear| ear.send(hint)) {
                inner.mailboxes.tell(hint);
            }
        }
    }

    /// Whether somebody waits for this claim's turn.
    pub(crate) fn listens(&self, id: ClaimId) -> bool {
        self.lock().turns.get(&id).is_some_and(|ear| !ear.is_closed())
    }

    /// Nobody waits for this claim's turn any more.
    pub(crate) fn forget(&self, id: ClaimId) {
        self.lock().turns.remove(&id);
    }

    /// The session is over: every claim of its may be gone.
    pub(crate) fn end(&self) {
        let mut inner = self.lock();
        inner.mailboxes.tell(Hint::ANY);
        *inner = Inner { ended: true, ..Inner::default() };
    }
}
