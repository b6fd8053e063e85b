//! A driver future that is finished in the background when its caller drops it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::runtime::Runtime;
use crate::driver::BoxFuture;

/// Polls a request in place. If the caller drops it, the request runs to its end in the background and its answer is
/// dropped.
///
/// Only for requests whose answer leaves nothing to undo. Attempts and releases go to the reaper instead.
pub(crate) struct FinishOnDrop<T: Send + 'static> {
    request: Option<BoxFuture<T>>,
    runtime: Runtime,
}

impl<T: Send + 'static> FinishOnDrop<T> {
    pub(crate) fn new(runtime: &Runtime, request: BoxFuture<T>) -> Self {
        Self { request: Some(request), runtime: runtime.clone() }
    }
}

impl<T: Send + 'static> Future for FinishOnDrop<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(request) = &mut self.request else { return Poll::Pending };
        let answer = ready!(request.as_mut().poll(cx));
        self.request = None;
        Poll::Ready(answer)
    }
}

impl<T: Send + 'static> Drop for FinishOnDrop<T> {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.runtime.spawn_daemon(async move { drop(request.await) });
        }
    }
}
