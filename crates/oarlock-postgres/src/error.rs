//! What the server says, in the words of the library.

use oarlock_core::{Error, ErrorKind};
use tokio_postgres::error::SqlState;

/// The URL scheme of this store.
pub(crate) const SCHEME: &str = "postgres";

/// The state that our own functions raise for a row of a newer format.
const NEWER: &str = "OAR01";

/// A request that failed. What the server refused had no effect; what it did not answer may have had one.
pub(crate) fn failed(error: tokio_postgres::Error) -> Error {
    let Some(code) = error.code() else {
        return Error::unreachable("the connection failed").on(SCHEME).because(error);
    };
    let (kind, what) = match *code {
        ref state if state.code() == NEWER => (ErrorKind::NewerFormat, "this server's locks are newer"),
        SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED => {
            return Error::new(ErrorKind::Unreachable, "the server undid it")
                .on(SCHEME)
                .retry_now()
                .because(told(error));
        }
        SqlState::READ_ONLY_SQL_TRANSACTION => (ErrorKind::Unreachable, "this server only reads"),
        SqlState::FEATURE_NOT_SUPPORTED => (ErrorKind::Unsupported, "the server is set up in another way"),
        SqlState::INVALID_CATALOG_NAME | SqlState::UNDEFINED_OBJECT => (ErrorKind::Config, "the server refused"),
        SqlState::UNDEFINED_TABLE | SqlState::UNDEFINED_FUNCTION | SqlState::INVALID_SCHEMA_NAME => {
            (ErrorKind::Foreign, "the tables of the schema oarlock are missing or another's")
        }
        SqlState::INSUFFICIENT_PRIVILEGE => (ErrorKind::Denied, "a right is missing"),
        ref state => match state.code().get(..2) {
            Some("28") => (ErrorKind::Denied, "the server refused the credentials"),
            // Out of connections or memory, cancelled or shutting down, a lock not to be had.
            Some("53" | "55" | "57" | "58") => (ErrorKind::Unreachable, "the server cannot do it now"),
            Some("08") => return Error::unreachable("the connection failed").on(SCHEME).because(told(error)),
            _ => (ErrorKind::Internal, "the server refused"),
        },
    };
    let refused = Error::new(kind, what).on(SCHEME).because(told(error));
    if kind == ErrorKind::Unreachable { refused.retry_later() } else { refused }
}

/// A connection that was not made: nothing was asked yet.
pub(crate) fn no_connection(error: tokio_postgres::Error) -> Error {
    if error.code().is_some() {
        return failed(error);
    }
    Error::new(ErrorKind::Unreachable, "no connection").on(SCHEME).retry_later().because(error)
}

/// A connection that was begun and not made in time: nothing was asked yet.
pub(crate) fn no_answer() -> Error {
    Error::new(ErrorKind::Unreachable, "no connection in time").on(SCHEME).retry_later()
}

/// An answer that this version does not understand.
pub(crate) fn strange(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Foreign, what).on(SCHEME).applied_unknown()
}

pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "this store was closed").on(SCHEME)
}

/// What the server said: the client's own words leave that out.
fn told(error: tokio_postgres::Error) -> Box<dyn std::error::Error + Send + Sync> {
    match error.as_db_error() {
        Some(told) => format!("{} ({})", told.message(), told.code().code()).into(),
        None => error.into(),
    }
}
