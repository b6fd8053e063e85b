//! Who waits for news inside this process, and the streams on which they get it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use oarlock_core::ClaimId;
use oarlock_core::driver::{Hint, Watch};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// Everyone who listens to one session. When it ends, so do their streams.
#[derive(Debug, Default)]
pub(crate) struct Hub(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    ended: bool,
    mailbox: Option<UnboundedSender<Hint>>,
    turns: HashMap<ClaimId, UnboundedSender<Hint>>,
    observers: HashMap<String, Vec<UnboundedSender<Hint>>>,
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whatever concerns the claims of this session, and its end; with something to look at already, if `now`.
    pub(crate) fn mailbox(&self, now: bool) -> Watch {
        let (hints, watch) = unbounded_channel();
        let mut inner = self.lock();
        if inner.ended || now {
            let _ = hints.send(Hint { claim: None });
        }
        if !inner.ended {
            inner.mailbox = Some(hints);
        }
        Watch::from_channel(watch)
    }

    /// The turn of one claim.
    pub(crate) fn turn(&self, id: ClaimId) -> Watch {
        let (hints, watch) = unbounded_channel();
        let mut inner = self.lock();
        if !inner.ended {
            inner.turns.insert(id, hints);
        }
        Watch::from_channel(watch)
    }

    /// The next change of the name that is written so in hexadecimal.
    pub(crate) fn resource(&self, name: String) -> Watch {
        let (hints, watch) = unbounded_channel();
        let mut inner = self.lock();
        if !inner.ended {
            let ears = inner.observers.entry(name).or_default();
            ears.retain(|ear| !ear.is_closed());
            ears.push(hints);
        }
        Watch::from_channel(watch)
    }

    /// Passes on what the server sent: the id of a claim, or `r` and a name.
    pub(crate) fn tell(&self, news: &str) {
        let mut inner = self.lock();
        if let Some(name) = news.strip_prefix('r') {
            // The server tells once, and each of these streams ends with it.
            for ear in inner.observers.remove(name).into_iter().flatten() {
                let _ = ear.send(Hint { claim: None });
            }
        } else if let Ok(id) = news.parse() {
            let hint = Hint { claim: Some(id) };
            let heard = inner.turns.get(&id).is_some_and(|ear| ear.send(hint).is_ok());
            if !heard && let Some(mailbox) = &inner.mailbox {
                let _ = mailbox.send(hint);
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
        if let Some(mailbox) = &inner.mailbox {
            let _ = mailbox.send(Hint { claim: None });
        }
        *inner = Inner { ended: true, ..Inner::default() };
    }
}
