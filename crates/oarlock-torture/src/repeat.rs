//! Tells a driver some things twice, as a client does that repeats a request whose reply was lost.
//!
//! A request that is delivered twice cannot be made on the network without knowledge of each protocol. Here the verbs
//! are known: the repetition has the same claim id, and its answer is ignored.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oarlock_core::driver::{Attempt, BoxFuture, End, Info, Interest, Release, Renewal, Renewed, Watch};
use oarlock_core::state::{Page, Query};
use oarlock_core::{Claim, ClaimId, DynDriver, ResourceName, Result};

/// A driver that repeats one request in so many.
pub(crate) struct Repeating {
    inner: Arc<dyn DynDriver>,
    random: Mutex<fastrand::Rng>,
    one_in: u32,
    told: Box<dyn Fn(&'static str) + Send + Sync>,
}

impl Repeating {
    /// Repeats one request in `one_in`, and tells of each by the name of its verb.
    pub(crate) fn new(
        inner: Arc<dyn DynDriver>,
        seed: u64,
        one_in: u32,
        told: impl Fn(&'static str) + Send + Sync + 'static,
    ) -> Self {
        Self { inner, random: Mutex::new(fastrand::Rng::with_seed(seed)), one_in, told: Box::new(told) }
    }

    fn is_due(&self, verb: &'static str) -> bool {
        let due = self.random.lock().unwrap_or_else(PoisonError::into_inner).u32(0..self.one_in.max(1)) == 0;
        if due {
            (self.told)(verb);
        }
        due
    }

    /// How late the second request of a pair is sent.
    fn lag(&self) -> Duration {
        Duration::from_millis(self.random.lock().unwrap_or_else(PoisonError::into_inner).u64(0..30))
    }
}

impl DynDriver for Repeating {
    fn info(&self) -> Info {
        self.inner.info()
    }

    /// At once and not later: a repetition that arrives after the release would take the lock again until its lease
    /// ends, which no rule forbids.
    fn attempt(self: Arc<Self>, claim: Arc<Claim>) -> BoxFuture<Result<Attempt>> {
        let first = self.inner.clone().attempt(claim.clone());
        if !self.is_due("attempt") {
            return first;
        }
        let second = self.inner.clone().attempt(claim);
        Box::pin(async move {
            // The first answer is the one that was lost.
            let _ = first.await;
            second.await
        })
    }

    fn renew(self: Arc<Self>, batch: Vec<Renewal>) -> BoxFuture<Vec<Result<Renewed>>> {
        if self.is_due("renew") {
            let (late, lag) = (self.inner.clone().renew(batch.clone()), self.lag());
            tokio::spawn(async move {
                tokio::time::sleep(lag).await;
                late.await
            });
        }
        self.inner.clone().renew(batch)
    }

    fn release(self: Arc<Self>, resource: ResourceName, id: ClaimId, end: End) -> BoxFuture<Result<Release>> {
        if self.is_due("release") {
            let (late, lag) = (self.inner.clone().release(resource.clone(), id, end.clone()), self.lag());
            tokio::spawn(async move {
                tokio::time::sleep(lag).await;
                late.await
            });
        }
        self.inner.clone().release(resource, id, end)
    }

    fn release_and_attempt(
        self: Arc<Self>,
        resource: ResourceName,
        id: ClaimId,
        end: End,
        next: Arc<Claim>,
    ) -> BoxFuture<(Result<Release>, Result<Attempt>)> {
        self.inner.clone().release_and_attempt(resource, id, end, next)
    }

    fn watch(self: Arc<Self>, interest: Interest) -> BoxFuture<Result<Watch>> {
        self.inner.clone().watch(interest)
    }

    fn inspect(self: Arc<Self>, query: Query) -> BoxFuture<Result<Page>> {
        self.inner.clone().inspect(query)
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        self.inner.clone().close()
    }
}
