//! Releases a claim reliably: retries until the store confirms it, or until the claim has ended by itself.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::backoff::Backoff;
use super::entropy::Entropy;
use crate::claim::Claim;
use crate::clock::{Clock, nap_until};
use crate::driver::{BoxFuture, DynDriver, End, Release};
use crate::error::{Result, Retry};

/// What a release needs, without keeping the client alive.
#[derive(Clone)]
pub(crate) struct Releaser {
    pub(crate) driver: Arc<dyn DynDriver>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<Entropy>,
    /// Cancelled when the client is gone, and its session with it.
    pub(crate) over: CancellationToken,
    /// Whether claims stay in the store after belief in them has ended, because their session lives on.
    pub(crate) outlasts_leases: bool,
}

impl Releaser {
    /// Releases `claim`, beginning with the request that is `in_flight`.
    ///
    /// # Errors
    /// The last error of the store, when a retry is useless: after a lease the store has released the claim by itself.
    /// Where claims live as long as their session, that is after the client is gone.
    pub(crate) async fn release(
        &self,
        claim: &Claim,
        end: &End,
        in_flight: Option<BoxFuture<Result<Release>>>,
    ) -> Result<Release> {
        let until = self.clock.now() + claim.ttl;
        let mut pauses = Backoff::for_errors(claim.ttl);
        let mut in_flight = in_flight;
        loop {
            let request = in_flight
                .take()
                .unwrap_or_else(|| self.driver.clone().release(claim.resource.clone(), claim.id, end.clone()));
            match request.await {
                Err(error) if error.retry() != Retry::Never && self.is_worthwhile(until) => {
                    nap_until(&*self.clock, self.clock.now() + self.entropy.jitter(pauses.pause())).await;
                }
                answer => return answer,
            }
        }
    }

    fn is_worthwhile(&self, lease_end: crate::clock::Moment) -> bool {
        self.clock.now() < lease_end || (self.outlasts_leases && !self.over.is_cancelled())
    }
}
