//! A span for each request (feature `tracing`). Without the feature nothing of this does anything.

use http::{Method, StatusCode};
use oarlock::state::ResourceName;

/// The span of a request, from its head to its answer. What its endpoint does with locks is a part of it.
#[derive(Clone, Debug)]
pub(crate) struct RequestSpan(#[cfg(feature = "tracing")] tracing::Span);

#[cfg(feature = "tracing")]
impl RequestSpan {
    pub(crate) fn new(method: &Method) -> Self {
        use tracing::field::Empty;
        // A method is what the client writes; the known ones are few.
        let known = [Method::GET, Method::HEAD, Method::POST, Method::DELETE];
        let method = known.iter().find(|known| *known == method).map_or("other", Method::as_str);
        Self(tracing::info_span!(target: "oarlock", "http request", http.request.method = method, http.route = Empty,
            lock.name = Empty, http.response.status_code = Empty))
    }

    /// Notes what is asked for, once the client was let in: names that it made up are not recorded.
    pub(crate) fn asks_for(&self, route: &str, name: Option<&ResourceName>) {
        self.0.record("http.route", route);
        if let Some(name) = name {
            self.0.record("lock.name", name.as_str());
        }
    }

    pub(crate) async fn around<T>(&self, answer: impl Future<Output = T>) -> T {
        tracing::Instrument::instrument(answer, self.0.clone()).await
    }

    pub(crate) fn answered(&self, status: StatusCode) {
        self.0.record("http.response.status_code", status.as_u16());
    }
}

#[cfg(not(feature = "tracing"))]
#[allow(clippy::unused_self, reason = "the same as with the feature")]
impl RequestSpan {
    pub(crate) fn new(_: &Method) -> Self {
        Self()
    }

    pub(crate) fn asks_for(&self, _: &str, _: Option<&ResourceName>) {}

    pub(crate) async fn around<T>(&self, answer: impl Future<Output = T>) -> T {
        answer.await
    }

    pub(crate) fn answered(&self, _: StatusCode) {}
}
