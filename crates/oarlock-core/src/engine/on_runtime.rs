//! Runs requests in the context of the client's runtime, although the caller polls them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

use crate::claim::{Claim, ClaimId, ResourceName};
use crate::driver::{Attempt, BoxFuture, DynDriver, End, Info, Interest, Release, Renewal, Renewed, Watch};
use crate::error::Result;
use crate::state::{Page, Query};

/// A driver whose requests run in the context of the client's runtime. Connections and tasks that a request starts live
/// there, and not on a runtime of the caller that may be blocked or gone.
pub(crate) struct OnRuntime {
    pub(crate) driver: Arc<dyn DynDriver>,
    pub(crate) handle: Handle,
}

impl OnRuntime {
    fn run<T: 'static>(&self, request: impl FnOnce(Arc<dyn DynDriver>) -> BoxFuture<T>) -> BoxFuture<T> {
        let _context = self.handle.enter();
        Box::pin(Entered { request: Some(request(self.driver.clone())), handle: self.handle.clone() })
    }
}

/// A request that is polled and dropped within the context of another runtime.
struct Entered<T> {
    request: Option<BoxFuture<T>>,
    handle: Handle,
}

impl<T> Future for Entered<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Self { request, handle } = &mut *self;
        let _context = handle.enter();
        match request {
            Some(request) => request.as_mut().poll(context),
            None => Poll::Pending,
        }
    }
}

impl<T> Drop for Entered<T> {
    fn drop(&mut self) {
        let _context = self.handle.enter();
        self.request = None;
    }
}

impl DynDriver for OnRuntime {
    fn info(&self) -> Info {
        self.driver.info()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>) -> BoxFuture<Result<Attempt>> {
        self.run(|driver| driver.attempt(claim))
    }

    fn renew(self: Arc<Self>, batch: Vec<Renewal>) -> BoxFuture<Vec<Result<Renewed>>> {
        self.run(|driver| driver.renew(batch))
    }

    fn release(self: Arc<Self>, resource: ResourceName, id: ClaimId, end: End) -> BoxFuture<Result<Release>> {
        self.run(|driver| driver.release(resource, id, end))
    }

    fn release_and_attempt(
        self: Arc<Self>,
        resource: ResourceName,
        id: ClaimId,
        end: End,
        next: Arc<Claim>,
    ) -> BoxFuture<(Result<Release>, Result<Attempt>)> {
        self.run(|driver| driver.release_and_attempt(resource, id, end, next))
    }

    fn watch(self: Arc<Self>, interest: Interest) -> BoxFuture<Result<Watch>> {
        self.run(|driver| driver.watch(interest))
    }

    fn inspect(self: Arc<Self>, query: Query) -> BoxFuture<Result<Page>> {
        self.run(|driver| driver.inspect(query))
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        self.run(DynDriver::close)
    }
}
