//! A driver whose requests cannot be recalled.
//!
//! On a network, a request that was sent arrives, whatever becomes of its sender. A driver in memory hides that: its
//! requests happen in one poll or not at all. Through a [`Wire`] every request travels for a while, arrives even if its
//! future was dropped, and its answer travels back. Attempts take a longer way, so that a release that is sent too early
//! overtakes the attempt it should undo.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Attempt, BoxFuture, End, Info, Interest, Release, Renewal, Renewed, Watch};
use oarlock_core::state::{Page, Query};
use oarlock_core::{Claim, ClaimId, DynDriver, Error, ResourceName, Result};
use tokio::sync::watch;

/// A line with latency before another driver.
pub struct Wire {
    inner: Arc<dyn DynDriver>,
    latency: Duration,
    travelling: watch::Sender<usize>,
}

impl Wire {
    /// A line on which every message takes about `latency`.
    #[must_use]
    pub fn new(inner: Arc<dyn DynDriver>, latency: Duration) -> Self {
        Self { inner, latency, travelling: watch::Sender::default() }
    }

    /// Waits until no request is on its way any more, wanted or not.
    pub async fn quiet(&self) {
        // The sender lives as long as `self`, so this cannot fail.
        let _ = self.travelling.subscribe().wait_for(|travelling| *travelling == 0).await;
    }

    /// Sends `request` on its way with the first poll; from then on it cannot be recalled.
    fn send<T: Send + 'static>(
        &self,
        request: BoxFuture<T>,
        way: u32,
    ) -> impl Future<Output = Result<T>> + Send + use<T> {
        let there = self.latency.mul_f64(0.5 + fastrand::f64()) * way;
        let back = self.latency.mul_f64(0.5 + fastrand::f64());
        let travelling = self.travelling.clone();
        async move {
            travelling.send_modify(|travelling| *travelling += 1);
            let arrived = tokio::spawn(async move {
                tokio::time::sleep(there).await;
                let answer = request.await;
                travelling.send_modify(|travelling| *travelling -= 1);
                answer
            });
            let answer = arrived.await.map_err(|error| Error::unreachable("the line is gone").because(error))?;
            tokio::time::sleep(back).await;
            Ok(answer)
        }
    }
}

impl DynDriver for Wire {
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
