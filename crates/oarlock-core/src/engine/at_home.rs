//! Requests that are polled by whoever waits for them, and belong to the home of their client all the same.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

use crate::claim::{Claim, ClaimId, ResourceName};
use crate::driver::{Attempt, BoxFuture, DynDriver, End, Info, Interest, Release, Renewal, Renewed, Watch};
use crate::error::Result;
use crate::state::{Page, Query};

/// A driver whose requests find the runtime of their home around them. A connection that one of them makes anew, and what
/// it leaves to be finished, live there, and not on a runtime of the caller's that may be blocked or gone.
pub(crate) struct AtHome {
    pub(crate) driver: Arc<dyn DynDriver>,
    pub(crate) handle: Handle,
}

impl AtHome {
    fn run<T: 'static>(&self, request: impl FnOnce(Arc<dyn DynDriver>) -> BoxFuture<T>) -> BoxFuture<T> {
        let _home = self.handle.enter();
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
        let _home = handle.enter();
        match request {
            Some(request) => request.as_mut().poll(context),
            None => Poll::Pending,
        }
    }
}

impl<T> Drop for Entered<T> {
    fn drop(&mut self) {
        let _home = self.handle.enter();
        self.request = None;
    }
}

impl DynDriver for AtHome {
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
