//! Finishes requests whose caller has dropped them.
//!
//! A driver future is never cancelled. When an acquisition or a guard is dropped, its request comes here, runs to its
//! end, and the claim is released.

use std::sync::Arc;
use std::time::Duration;

use super::Core;
use super::releaser::Releaser;
use crate::claim::Claim;
use crate::driver::{Attempt, BoxFuture, End, Release};
use crate::error::Result;
use crate::event::{Observers, Step};

/// A claim without a caller.
pub(crate) struct Orphan {
    pub(crate) claim: Arc<Claim>,
    /// The attempt that was in flight.
    pub(crate) attempt: Option<BoxFuture<Result<Attempt>>>,
    /// The release that was in flight.
    pub(crate) release: Option<BoxFuture<Result<Release>>>,
    pub(crate) end: End,
    /// How long it was held; `None` for a claim that no guard had.
    pub(crate) held_for: Option<Duration>,
}

impl Orphan {
    /// Releases it in the background. Neither blocks nor panics, in or out of a runtime.
    pub(crate) fn reap(self, core: &Core) {
        core.runtime.spawn(self.finish(core.releaser.clone(), core.observers.clone()));
    }

    /// The same without spawning.
    pub(crate) async fn finish(self, releaser: Releaser, observers: Observers) {
        let Self { claim, attempt, release, end, held_for } = self;
        if let Some(attempt) = attempt {
            // The claim is released whatever the answer is.
            let _ = attempt.await;
        }
        match releaser.release(&claim, &end, release).await {
            Ok(Release { outcome, .. }) => observers.emit(&claim, || match held_for {
                Some(held_for) => Step::Released { outcome, held_for },
                None => Step::Withdrawn,
            }),
            Err(error) => observers.emit(&claim, || Step::ReleaseFailed { error }),
        }
    }
}
