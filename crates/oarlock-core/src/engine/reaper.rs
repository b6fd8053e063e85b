//! Finishes what callers have walked away from.
//!
//! A driver future is never cancelled half way: whoever drops an acquisition or a guard hands it over here, where the
//! request runs to its end and the claim is released.

use std::sync::Arc;

use super::Core;
use super::backoff::Backoff;
use crate::claim::Claim;
use crate::clock::nap_until;
use crate::driver::{Attempt, BoxFuture, End, Release};
use crate::error::{Result, Retry};
use crate::event::Step;

/// A claim without a caller.
pub(crate) struct Orphan {
    pub(crate) claim: Arc<Claim>,
    /// The attempt that was under way.
    pub(crate) attempt: Option<BoxFuture<Result<Attempt>>>,
    /// The release that was under way.
    pub(crate) release: Option<BoxFuture<Result<Release>>>,
    pub(crate) end: End,
}

impl Orphan {
    /// Takes care of it in the background. Neither blocks nor panics, in or out of a runtime.
    pub(crate) fn adopt(self, core: &Arc<Core>) {
        let work = self.reap(core.clone());
        core.home.spawn(work);
    }

    async fn reap(self, core: Arc<Core>) {
        let Self { claim, attempt, release, end } = self;
        if let Some(attempt) = attempt {
            // Whatever it answers, the claim is not wanted any more.
            let _ = attempt.await;
        }
        // After a lease nothing is left to release; before that it is worth trying.
        let until = core.clock.now() + claim.ttl;
        let mut backoff = Backoff::for_errors(claim.ttl);
        let mut under_way = release;
        loop {
            let request = under_way.take().unwrap_or_else(|| core.release(&claim, end.clone()));
            match request.await {
                Ok(_) => return core.observers.emit(&claim, || Step::Withdrawn),
                Err(error) if error.retry() == Retry::Never || core.clock.now() >= until => {
                    return core.observers.emit(&claim, || Step::ReleaseFailed { error });
                }
                Err(_) => {
                    let pause = core.entropy.jitter(backoff.next());
                    nap_until(&*core.clock, core.clock.now() + pause).await;
                }
            }
        }
    }
}
