//! Answers that no caller waits for, handled together every few milliseconds.
//!
//! A round is won, and a release is done, when a majority has answered. A task for the other answers would cost as much
//! as a request, and its wake-ups would take the processor from the next round.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::runtime::Handle;

use super::Core;
use oarlock_core::driver::BoxFuture;

/// How long an answer may lie there.
pub(super) const PAUSE: Duration = Duration::from_millis(10);

/// Requests whose answers are still to be handled.
#[derive(Default)]
pub(super) struct LateAnswers {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: Vec<BoxFuture<()>>,
    /// Whether a task handles them.
    served: bool,
}

impl LateAnswers {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles these when they are answered.
    pub(super) fn add(&self, mut requests: Vec<BoxFuture<()>>, core: &Arc<Core>, handle: &Handle) {
        // One that no caller has waited for yet is not sent yet.
        poll_all(&mut requests);
        if requests.is_empty() {
            return;
        }
        let mut state = self.lock();
        state.open.extend(requests);
        if !std::mem::replace(&mut state.served, true) {
            let serving = Serving { core: core.clone(), over: false };
            core.tasks.spawn_on(serving.run(), handle);
        }
    }

    /// Handles what was answered. Whether that is all.
    fn sweep(&self) -> bool {
        let mut open = std::mem::take(&mut self.lock().open);
        poll_all(&mut open);
        let mut state = self.lock();
        state.open.append(&mut open);
        state.served = !state.open.is_empty();
        !state.served
    }
}

/// Keeps those that are not done. Nothing is woken by their answers: the task comes again by itself.
fn poll_all(requests: &mut Vec<BoxFuture<()>>) {
    let mut cx = Context::from_waker(Waker::noop());
    requests.retain_mut(|request| request.as_mut().poll(&mut cx).is_pending());
}

/// The task that handles them, until none is left or its runtime ends.
struct Serving {
    core: Arc<Core>,
    over: bool,
}

impl Serving {
    async fn run(mut self) {
        while !self.over {
            tokio::time::sleep(PAUSE).await;
            self.over = self.core.late_answers.sweep();
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if !self.over {
            // The runtime ends, and what it would have answered ends with it.
            let ended = std::mem::take(&mut *self.core.late_answers.lock());
            drop(ended);
        }
    }
}
