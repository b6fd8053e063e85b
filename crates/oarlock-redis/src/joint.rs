//! Work that one task does for all who need it.

use std::sync::{Mutex, PoisonError};

use oarlock_core::{Error, ErrorKind, Result};
use tokio::sync::watch;

use crate::error::SCHEME;

/// The last such work. Whoever waits for it holds nothing that others need, and need not be polled for it to go on.
#[derive(Default)]
pub(crate) struct Joint(Mutex<Option<Outcome>>);

type Outcome = watch::Receiver<Option<Result<()>>>;

/// Work that was joined. It goes on whether or not this is waited for.
pub(crate) struct Joined(Outcome);

impl Joint {
    /// Joins what is under way, or starts `work`.
    pub(crate) fn join<F>(&self, work: impl FnOnce() -> F) -> Joined
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let under_way = |outcome: &&Outcome| outcome.borrow().is_none() && outcome.has_changed().is_ok();
        if let Some(outcome) = last.as_ref().filter(under_way) {
            return Joined(outcome.clone());
        }
        let ((done, outcome), work) = (watch::channel(None), work());
        tokio::spawn(async move { done.send_replace(Some(work.await)) });
        Joined(last.insert(outcome).clone())
    }
}

impl Joined {
    pub(crate) async fn done(mut self) -> Result<()> {
        let outcome = self.0.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
        outcome.unwrap_or_else(|| Err(given_up()))
    }
}

/// The runtime that worked on it has ended.
fn given_up() -> Error {
    Error::new(ErrorKind::Unreachable, "a connection was given up while it was opened").on(SCHEME).retry_later()
}
