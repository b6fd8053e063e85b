//! One claim's wait in the server's queue, on a connection of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use oarlock_core::driver::{Hint, HintSender, Watch};
use oarlock_core::{ClaimId, Result};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::desk::Seat;
use crate::line::{Line as _, Server};

/// How a wait ended: with the lock, or without.
type Outcome = Option<Result<bool>>;

#[derive(Debug)]
pub(crate) struct Wait<S: Server> {
    claim: ClaimId,
    pub(crate) seat: Arc<Seat<S>>,
    /// It is not to begin anew.
    stopped: AtomicBool,
    ear: Mutex<Option<HintSender>>,
    outcome: watch::Receiver<Outcome>,
}

/// Ends the wait when nobody is interested any more.
#[derive(Debug)]
pub(crate) struct Waiting<S: Server>(pub(crate) Arc<Wait<S>>, AbortHandle);

impl<S: Server> Drop for Waiting<S> {
    fn drop(&mut self) {
        self.1.abort();
    }
}

impl<S: Server> Wait<S> {
    pub(crate) fn begin(claim: ClaimId, seat: Arc<Seat<S>>, runtime: &Handle) -> Waiting<S> {
        let (tell, outcome) = watch::channel(None);
        let wait = Arc::new(Self { claim, seat, stopped: AtomicBool::new(false), ear: Mutex::default(), outcome });
        let task = runtime.spawn(run(wait.clone(), tell));
        Waiting(wait, task.abort_handle())
    }

    /// `None` while it goes on.
    pub(crate) fn outcome(&self) -> Outcome {
        self.outcome.borrow().clone()
    }

    /// Hears of its end, also if that was before.
    pub(crate) fn watch(&self) -> Watch {
        let (ear, watch) = Watch::channel();
        *self.ear.lock().unwrap_or_else(PoisonError::into_inner) = Some(ear);
        if self.outcome().is_some() {
            self.ring();
        }
        watch
    }

    fn ring(&self) {
        if let Some(ear) = &*self.ear.lock().unwrap_or_else(PoisonError::into_inner) {
            ear.send(Hint::about(self.claim));
        }
    }

    /// Ends the wait: whether it ended with the lock. If not, it is best to close the connection.
    ///
    /// # Errors
    /// If the server was not told: the connection is closed then.
    pub(crate) async fn stop(&self) -> Result<bool> {
        let line = self.seat.line();
        self.stopped.store(true, Ordering::Release);
        if line.is_over() {
            return Ok(false);
        }
        let mut outcome = self.outcome.clone();
        if outcome.borrow().is_none() {
            line.stop().await.inspect_err(|_| line.end())?;
        }
        // The connection bounds the wait for its last answer.
        let ended = outcome.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
        Ok(matches!(ended, Ok(Some(Ok(true)))))
    }
}

async fn run<S: Server>(wait: Arc<Wait<S>>, tell: watch::Sender<Outcome>) {
    let outcome = loop {
        let queued = wait.seat.line().queue(wait.seat.key()).await;
        if !matches!(queued, Ok(false)) || wait.stopped.load(Ordering::Acquire) {
            break queued;
        }
    };
    let _ = tell.send(Some(outcome));
    wait.ring();
}
