//! One claim's wait in the server's queue, on a connection of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use oarlock_core::driver::{Hint, HintSender, Watch};
use oarlock_core::{ClaimId, Result};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::session::connection::{Connection as _, Server};
use crate::session::pool::ConnectionLease;

/// How a wait ended: with the lock, or without.
type Outcome = Option<Result<bool>>;

#[derive(Debug)]
pub(crate) struct Wait<S: Server> {
    claim: ClaimId,
    pub(crate) lease: Arc<ConnectionLease<S>>,
    /// It is not to begin anew.
    stopped: AtomicBool,
    hints: Mutex<Option<HintSender>>,
    outcome: watch::Receiver<Outcome>,
}

/// Ends the wait when it is dropped.
#[derive(Debug)]
pub(crate) struct Waiting<S: Server>(pub(crate) Arc<Wait<S>>, AbortHandle);

impl<S: Server> Drop for Waiting<S> {
    fn drop(&mut self) {
        self.1.abort();
    }
}

impl<S: Server> Wait<S> {
    pub(crate) fn begin(claim: ClaimId, lease: Arc<ConnectionLease<S>>, runtime: &Handle) -> Waiting<S> {
        let (tell, outcome) = watch::channel(None);
        let wait = Arc::new(Self { claim, lease, stopped: AtomicBool::new(false), hints: Mutex::default(), outcome });
        let task = runtime.spawn(run(wait.clone(), tell));
        Waiting(wait, task.abort_handle())
    }

    /// `None` while it goes on.
    pub(crate) fn outcome(&self) -> Outcome {
        self.outcome.borrow().clone()
    }

    /// Hears of its end, also if that was before.
    pub(crate) fn watch(&self) -> Watch {
        let (hints, watch) = Watch::channel();
        *self.hints.lock().unwrap_or_else(PoisonError::into_inner) = Some(hints);
        if self.outcome().is_some() {
            self.notify();
        }
        watch
    }

    fn notify(&self) {
        if let Some(hints) = &*self.hints.lock().unwrap_or_else(PoisonError::into_inner) {
            hints.send(Hint::about(self.claim));
        }
    }

    /// Ends the wait: whether it ended with the lock. If not, it is best to close the connection.
    ///
    /// # Errors
    /// If the server was not told: the connection is closed then.
    pub(crate) async fn stop(&self) -> Result<bool> {
        let connection = self.lease.connection();
        self.stopped.store(true, Ordering::Release);
        if connection.is_over() {
            return Ok(false);
        }
        let mut outcome = self.outcome.clone();
        if outcome.borrow().is_none() {
            connection.stop().await.inspect_err(|_| connection.end())?;
        }
        // The connection bounds the wait for its last answer.
        let ended = outcome.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
        Ok(matches!(ended, Ok(Some(Ok(true)))))
    }
}

async fn run<S: Server>(wait: Arc<Wait<S>>, tell: watch::Sender<Outcome>) {
    let outcome = loop {
        let queued = wait.lease.connection().queue(wait.lease.key()).await;
        if !matches!(queued, Ok(false)) || wait.stopped.load(Ordering::Acquire) {
            break queued;
        }
    };
    let _ = tell.send(Some(outcome));
    wait.notify();
}
