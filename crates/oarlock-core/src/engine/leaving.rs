//! Letting a claim go for certain: asked again until the store says so, or until nothing can be left of it.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::backoff::Backoff;
use super::entropy::Entropy;
use crate::claim::Claim;
use crate::clock::{Clock, nap_until};
use crate::driver::{BoxFuture, DynDriver, End, Release};
use crate::error::{Result, Retry};

/// What it takes to let go, without keeping the client alive.
#[derive(Clone)]
pub(crate) struct Leaving {
    pub(crate) driver: Arc<dyn DynDriver>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<Entropy>,
    /// The client is gone, and its session with it.
    pub(crate) over: CancellationToken,
    /// Whether claims live on in the store after belief in them has ended, because their session does.
    pub(crate) outlasts_leases: bool,
}

impl Leaving {
    /// Releases `claim`, beginning with the request that is `under_way`.
    ///
    /// # Errors
    /// What the store said last, when asking again is no use: after a lease the store has let go by itself, or, where
    /// claims live as long as their session, after the client is gone.
    pub(crate) async fn release(
        &self,
        claim: &Claim,
        end: &End,
        under_way: Option<BoxFuture<Result<Release>>>,
    ) -> Result<Release> {
        let until = self.clock.now() + claim.ttl;
        let mut pauses = Backoff::for_errors(claim.ttl);
        let mut under_way = under_way;
        loop {
            let request = under_way
                .take()
                .unwrap_or_else(|| self.driver.clone().release(claim.resource.clone(), claim.id, end.clone()));
            match request.await {
                Err(error) if error.retry() != Retry::Never && self.is_worthwhile(until) => {
                    nap_until(&*self.clock, self.clock.now() + self.entropy.jitter(pauses.next())).await;
                }
                answer => return answer,
            }
        }
    }

    fn is_worthwhile(&self, lease_end: crate::clock::Moment) -> bool {
        self.clock.now() < lease_end || (self.outlasts_leases && !self.over.is_cancelled())
    }
}
