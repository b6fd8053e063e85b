//! A driver with network latency, whose requests cannot be cancelled.
//!
//! On a network, a request that was sent arrives also if its sender gives up. A driver in memory hides that: its
//! requests are done in one poll or not at all. Through a [`DelayedDriver`] every request takes time, arrives even if
//! its future was dropped, and its answer takes time too. Attempts take longer than releases, so that a release that is
//! sent too early overtakes its attempt.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Attempt, BoxFuture, End, Info, Interest, Release, Renewal, Renewed, Watch};
use oarlock_core::state::{Page, Query};
use oarlock_core::{Claim, ClaimId, DynDriver, Error, ResourceName, Result};
use tokio::sync::watch;

/// Adds latency to another driver.
pub struct DelayedDriver {
    inner: Arc<dyn DynDriver>,
    latency: Duration,
    in_flight: watch::Sender<usize>,
}

impl DelayedDriver {
    /// Delays every message of `inner` by about `latency`.
    #[must_use]
    pub fn new(inner: Arc<dyn DynDriver>, latency: Duration) -> Self {
        Self { inner, latency, in_flight: watch::Sender::default() }
    }

    /// Waits until no request is in flight, also none whose future was dropped.
    pub async fn quiet(&self) {
        // The sender lives as long as `self`, so this cannot fail.
        let _ = self.in_flight.subscribe().wait_for(|in_flight| *in_flight == 0).await;
    }

    /// Sends `request` with the first poll. After that it cannot be cancelled.
    fn send<T: Send + 'static>(
        &self,
        request: BoxFuture<T>,
        way: u32,
    ) -> impl Future<Output = Result<T>> + Send + use<T> {
        let there = self.latency.mul_f64(0.5 + fastrand::f64()) * way;
        let back = self.latency.mul_f64(0.5 + fastrand::f64());
        let in_flight = self.in_flight.clone();
        async move {
            in_flight.send_modify(|in_flight| *in_flight += 1);
            let arrived = tokio::spawn(async move {
                tokio::time::sleep(there).await;
                let answer = request.await;
                in_flight.send_modify(|in_flight| *in_flight -= 1);
                answer
            });
            let answer = arrived.await.map_err(|error| Error::unreachable("the connection is gone").because(error))?;
            tokio::time::sleep(back).await;
            Ok(answer)
        }
    }
}

impl DynDriver for DelayedDriver {
    fn info(&self) -> Info {
        self.inner.info()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>) -> BoxFuture<Result<Attempt>> {
        let answer = self.send(self.inner.clone().attempt(claim), 4);
        Box::pin(async move { answer.await? })
    }

    fn renew(self: Arc<Self>, batch: Vec<Renewal>) -> BoxFuture<Vec<Result<Renewed>>> {
        let count = batch.len();
        let answer = self.send(self.inner.clone().renew(batch), 1);
        Box::pin(async move { answer.await.unwrap_or_else(|error| vec![Err(error); count]) })
    }

    fn release(self: Arc<Self>, resource: ResourceName, id: ClaimId, end: End) -> BoxFuture<Result<Release>> {
        let answer = self.send(self.inner.clone().release(resource, id, end), 1);
        Box::pin(async move { answer.await? })
    }

    fn release_and_attempt(
        self: Arc<Self>,
        resource: ResourceName,
        id: ClaimId,
        end: End,
        next: Arc<Claim>,
    ) -> BoxFuture<(Result<Release>, Result<Attempt>)> {
        let answer = self.send(self.inner.clone().release_and_attempt(resource, id, end, next), 1);
        Box::pin(async move { answer.await.unwrap_or_else(|error| (Err(error.clone()), Err(error))) })
    }

    fn watch(self: Arc<Self>, interest: Interest) -> BoxFuture<Result<Watch>> {
        let answer = self.send(self.inner.clone().watch(interest), 1);
        Box::pin(async move { answer.await? })
    }

    fn inspect(self: Arc<Self>, query: Query) -> BoxFuture<Result<Page>> {
        let answer = self.send(self.inner.clone().inspect(query), 1);
        Box::pin(async move { answer.await? })
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        self.inner.clone().close()
    }
}
