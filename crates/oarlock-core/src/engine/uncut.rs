//! A driver future that is never cut off half way.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::home::Home;
use crate::driver::BoxFuture;

/// Polls a request in place; if its caller goes away, the request is finished elsewhere and its answer dropped.
///
/// For requests whose answer, once unwanted, leaves nothing to undo. Attempts and releases have owners that know more.
pub(crate) struct Uncut<T: Send + 'static> {
    request: Option<BoxFuture<T>>,
    home: Home,
}

impl<T: Send + 'static> Uncut<T> {
    pub(crate) fn new(home: &Home, request: BoxFuture<T>) -> Self {
        Self { request: Some(request), home: home.clone() }
    }
}

impl<T: Send + 'static> Future for Uncut<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(request) = &mut self.request else { return Poll::Pending };
        let answer = ready!(request.as_mut().poll(cx));
        self.request = None;
        Poll::Ready(answer)
    }
}

impl<T: Send + 'static> Drop for Uncut<T> {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.home.spawn_daemon(async move { drop(request.await) });
        }
    }
}
