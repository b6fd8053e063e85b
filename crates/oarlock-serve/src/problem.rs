//! What went wrong, as `application/problem+json` (RFC 9457), in the words of the command line.

use std::time::Duration;

use http::{HeaderValue, StatusCode, header};
use oarlock::{Error, ErrorKind};
use serde_json::{Map, Value, json};

use crate::answer::{self, Answer};

/// Each problem has a section of this page.
const PAGE: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/serve.md");

/// An answer that says what failed, and what to do next.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    /// One word for programs; stable.
    pub(crate) code: &'static str,
    pub(crate) detail: String,
    pub(crate) more: Map<String, Value>,
    pub(crate) retry_after: Option<Duration>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), more: Map::new(), retry_after: None }
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", detail)
    }

    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }

    pub(crate) fn lost(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "lost", detail)
    }

    pub(crate) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.more.insert(key.to_owned(), value.into());
        self
    }

    pub(crate) fn retry_after(mut self, pause: Duration) -> Self {
        self.retry_after = Some(pause);
        self
    }

    pub(crate) fn json(&self) -> Value {
        let mut body = Map::from_iter([
            ("type".to_owned(), json!(format!("{PAGE}#{}", self.code))),
            ("title".to_owned(), json!(self.code.replace('-', " "))),
            ("status".to_owned(), json!(self.status.as_u16())),
            ("code".to_owned(), json!(self.code)),
            ("detail".to_owned(), json!(self.detail)),
        ]);
        body.extend(self.more.clone());
        Value::Object(body)
    }

    pub(crate) fn answer(&self) -> Answer {
        let mut answer = answer::json(self.status, &self.json());
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(pause) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(pause.as_secs().max(1)));
        }
        if let Some(allow) = self.more.get("allow").and_then(Value::as_array) {
            let methods: Vec<_> = allow.iter().filter_map(Value::as_str).collect();
            headers.extend(HeaderValue::try_from(methods.join(", ")).ok().map(|methods| (header::ALLOW, methods)));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"oarlock\""));
        }
        answer
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let kind = error.kind();
        let (status, code) = match kind {
            ErrorKind::Busy => (StatusCode::CONFLICT, "busy"),
            ErrorKind::Lost => (StatusCode::GONE, "lost"),
            ErrorKind::TooManyWaiters => (StatusCode::TOO_MANY_REQUESTS, "too-many-waiters"),
            ErrorKind::InvalidName => (StatusCode::BAD_REQUEST, "invalid-name"),
            ErrorKind::InvalidClaim | ErrorKind::TooHeavy => (StatusCode::BAD_REQUEST, "bad-request"),
            ErrorKind::SpecMismatch => (StatusCode::CONFLICT, "other-capacity"),
            ErrorKind::Unsupported => (StatusCode::NOT_IMPLEMENTED, "unsupported"),
            ErrorKind::Config => (StatusCode::BAD_REQUEST, "config"),
            ErrorKind::Foreign | ErrorKind::NewerFormat => (StatusCode::CONFLICT, "other-format"),
            ErrorKind::Unreachable | ErrorKind::Closed => (StatusCode::SERVICE_UNAVAILABLE, "unreachable"),
            ErrorKind::Denied => (StatusCode::BAD_GATEWAY, "store-denied"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        };
        let mut detail = error.to_string();
        // The library's hint names a method.
        let hint = match kind {
            ErrorKind::SpecMismatch => "Use the number of permits that the holders use.",
            _ => error.hint(),
        };
        if !hint.is_empty() {
            detail.push_str(if detail.ends_with(['.', '?', '!']) { " " } else { ". " });
            detail.push_str(hint);
        }
        let mut problem = Self::new(status, code, detail);
        if let Some(busy) = error.busy() {
            problem.more.insert("holders".to_owned(), json!(busy.holders));
            problem.more.insert("ahead".to_owned(), json!(busy.ahead));
            problem.more.insert("fence".to_owned(), json!(busy.holder.as_ref().and_then(|holder| holder.fence)));
        }
        if kind == ErrorKind::Unreachable {
            problem.retry_after = Some(Duration::from_secs(1));
        }
        problem
    }
}
