//! The waiters and watchers of this process, and the streams on which they are notified.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use oarlock_core::ClaimId;
use oarlock_core::driver::{Handed, Hint, HintSender, Listeners, Watch};

use crate::postgres::notification::Notification;

/// The streams of one session. They end with it.
#[derive(Debug, Default)]
pub(crate) struct Hub(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    ended: bool,
    mailboxes: Listeners,
    turns: HashMap<ClaimId, HintSender>,
    /// Claims that wait, from before their attempt was sent.
    expected: HashMap<ClaimId, Expected>,
    observers: HashMap<String, Listeners>,
}

/// What was told of a claim that waits, and not asked for yet.
#[derive(Debug, Default)]
struct Expected {
    called: bool,
    handed: Option<Handed>,
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
            // What came since the last attempt was sent was told to the watch before this one, or to none.
            if inner.expected.get(&id).is_some_and(|expected| expected.called) {
                hints.send(Hint::about(id));
            }
            inner.turns.insert(id, hints);
        }
        watch
    }

    /// The next change of the name that is written so in hexadecimal.
    pub(crate) fn resource(&self, name: String) -> Watch {
        let mut inner = self.lock();
        if inner.ended { Watch::ended() } else { inner.observers.entry(name).or_default().watch() }
    }

    /// Keeps what is told of a claim whose attempt is about to be sent. False if nothing is told any more.
    pub(crate) fn expect(&self, id: ClaimId) -> bool {
        let mut inner = self.lock();
        if !inner.ended {
            // The attempt sees what this was about.
            inner.expected.entry(id).or_default().called = false;
        }
        !inner.ended
    }

    /// Whether all that was told of this claim since its last attempt was sent is kept.
    pub(crate) fn expects(&self, id: ClaimId) -> bool {
        self.lock().expected.contains_key(&id)
    }

    /// The grant that was handed to this claim. Only once: a second attempt is a question to the server.
    pub(crate) fn handed(&self, id: ClaimId) -> Option<Handed> {
        self.lock().expected.get_mut(&id)?.handed.take()
    }

    /// Passes on what the server sent: news of a claim, or `r` and a name.
    pub(crate) fn tell(&self, news: &str) {
        let mut inner = self.lock();
        if let Some(name) = news.strip_prefix('r') {
            // The server tells once, and each of these streams ends with it.
            if let Some(observers) = inner.observers.remove(name) {
                observers.tell(Hint::ANY);
            }
        } else if let Some(Notification { id, handed }) = Notification::read(news) {
            if let Some(expected) = inner.expected.get_mut(&id) {
                // The last one counts: the claim may have been broken since it was granted.
                (expected.called, expected.handed) = (true, handed);
            }
            let hint = Hint::about(id);
            if !inner.turns.get(&id).is_some_and(|ear| ear.send(hint)) {
                inner.mailboxes.tell(hint);
            }
        }
    }

    /// Whether a task waits for this claim's turn.
    pub(crate) fn listens(&self, id: ClaimId) -> bool {
        self.lock().turns.get(&id).is_some_and(|ear| !ear.is_closed())
    }

    /// The claim does not wait any more.
    pub(crate) fn forget(&self, id: ClaimId) {
        let mut inner = self.lock();
        inner.turns.remove(&id);
        inner.expected.remove(&id);
    }

    /// The session is over: every claim of its may be gone.
    pub(crate) fn end(&self) {
        let mut inner = self.lock();
        inner.mailboxes.tell(Hint::ANY);
        *inner = Inner { ended: true, ..Inner::default() };
    }
}
