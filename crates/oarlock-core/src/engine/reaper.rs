//! Finishes what callers have walked away from.
//!
//! A driver future is never cancelled half way: whoever drops an acquisition or a guard hands it over here, where the
//! request runs to its end and the claim is released.

use std::sync::Arc;
use std::time::Duration;

use super::Core;
use super::leaving::Leaving;
use crate::claim::Claim;
use crate::driver::{Attempt, BoxFuture, End, Release};
use crate::error::Result;
use crate::event::{Observers, Step};

/// A claim without a caller.
pub(crate) struct Orphan {
    pub(crate) claim: Arc<Claim>,
    /// The attempt that was under way.
    pub(crate) attempt: Option<BoxFuture<Result<Attempt>>>,
    /// The release that was under way.
    pub(crate) release: Option<BoxFuture<Result<Release>>>,
    pub(crate) end: End,
    /// How long it was held; `None` for one that was never handed out.
    pub(crate) held_for: Option<Duration>,
}

impl Orphan {
    /// Takes care of it in the background. Neither blocks nor panics, in or out of a runtime.
    pub(crate) fn adopt(self, core: &Core) {
        core.home.spawn(self.reap(core.leaving.clone(), core.observers.clone()));
    }

    async fn reap(self, leaving: Leaving, observers: Observers) {
        let Self { claim, attempt, release, end, held_for } = self;
        if let Some(attempt) = attempt {
            // Whatever it answers, the claim is not wanted any more.
            let _ = attempt.await;
        }
        match leaving.release(&claim, &end, release).await {
            Ok(Release { outcome, .. }) => observers.emit(&claim, || match held_for {
                Some(held_for) => Step::Released { outcome, held_for },
                None => Step::Withdrawn,
            }),
            Err(error) => observers.emit(&claim, || Step::ReleaseFailed { error }),
        }
    }
}
