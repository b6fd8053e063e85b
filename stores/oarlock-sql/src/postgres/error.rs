//! What the server says, in the words of the library.

use oarlock_core::{Error, ErrorKind};
use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_rustls::rustls;

use crate::error::Store;

/// The URL scheme of this store.
pub(crate) const SCHEME: &str = "postgres";

pub(crate) const STORE: Store = Store(SCHEME);

/// The state that our own functions raise for a row of a newer format.
const NEWER: &str = "OAR01";

const NOT_NOW: (ErrorKind, &str) = (ErrorKind::Unreachable, "the server cannot serve the request now");

const READ_ONLY: (ErrorKind, &str) = (ErrorKind::Unreachable, "the server is read-only; it may be a replica");

const STALE: (ErrorKind, &str) =
    (ErrorKind::Unreachable, "a prepared statement is out of date; the connection is replaced");

/// A request that failed. What the server refused had no effect; what it did not answer may have had one.
pub fn failed(error: tokio_postgres::Error) -> Error {
    let Some(code) = error.code() else {
        return Error::unreachable("the connection failed").on(SCHEME).because(error);
    };
    let doubtful = is_doubtful(code, error.as_db_error().and_then(DbError::parsed_severity));
    let is_stale = is_stale(&error);
    let (kind, what) = match error.as_db_error() {
        Some(told) if is_full_queue(told) => NOT_NOW,
        _ if is_stale => STALE,
        _ => meaning(code),
    };
    let at_once = is_stale || matches!(*code, SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED);
    let refused = Error::new(kind, what).on(SCHEME).because(told(error));
    let refused = if doubtful { refused.applied_unknown() } else { refused };
    match kind {
        ErrorKind::Unreachable if at_once => refused.retry_now(),
        ErrorKind::Unreachable => refused.retry_later(),
        _ => refused,
    }
}

/// Whether a request failed with its connection, which is of no more use, also if that is not known yet elsewhere.
pub(crate) fn ends_connection(error: &tokio_postgres::Error) -> bool {
    error.code().is_none_or(|code| is_doubtful(code, error.as_db_error().and_then(DbError::parsed_severity)))
}

/// Whether the server takes no writes.
pub(crate) fn is_read_only(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
}

/// Whether the server refused to run a prepared statement, because it has forgotten it or its result has other columns
/// now. The statement is refused on this connection for ever. On a new one the format is checked again.
pub(crate) fn is_stale(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|told| is_stale_statement(told.code(), told.file()))
}

/// The second state is also that of what the server cannot do at all.
fn is_stale_statement(code: &SqlState, file: Option<&str>) -> bool {
    *code == SqlState::INVALID_SQL_STATEMENT_NAME
        || (*code == SqlState::FEATURE_NOT_SUPPORTED && file == Some("plancache.c"))
}

/// Whether it may have taken effect all the same: the server did not refuse the request, but ended the connection,
/// perhaps between the commit and its answer.
fn is_doubtful(code: &SqlState, severity: Option<Severity>) -> bool {
    matches!(severity, Some(Severity::Fatal | Severity::Panic))
        || *code == SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN
        || code.code().starts_with("08")
        || code.code().starts_with("57P")
}

/// Whether the queue of notices is full, which passes. Its state is also that of what never goes well, such as a row
/// too long for an index; and its words depend on the language, which the file that it comes from does not.
fn is_full_queue(told: &DbError) -> bool {
    *told.code() == SqlState::PROGRAM_LIMIT_EXCEEDED
        && (told.file() == Some("async.c") || told.message().contains("NOTIFY"))
}

fn meaning(code: &SqlState) -> (ErrorKind, &'static str) {
    match *code {
        ref state if state.code() == NEWER => {
            (ErrorKind::NewerFormat, "a newer version of oarlock wrote the row of this lock")
        }
        SqlState::READ_ONLY_SQL_TRANSACTION => READ_ONLY,
        SqlState::FEATURE_NOT_SUPPORTED => (
            ErrorKind::Unsupported,
            "the server's configuration does not support this: see the set-up section of the store's page",
        ),
        SqlState::INVALID_CATALOG_NAME | SqlState::UNDEFINED_OBJECT => {
            (ErrorKind::Config, "the server refused the request")
        }
        SqlState::UNDEFINED_TABLE | SqlState::UNDEFINED_FUNCTION | SqlState::INVALID_SCHEMA_NAME => (
            ErrorKind::Foreign,
            "the tables of the schema oarlock are missing or have another layout: run `oarlock init`",
        ),
        SqlState::INSUFFICIENT_PRIVILEGE => {
            (ErrorKind::Denied, "the user lacks a right: run `oarlock init --grant USER`")
        }
        ref state => match state.code().get(..2) {
            Some("28") => (ErrorKind::Denied, "the server refused the credentials"),
            Some("08") => (ErrorKind::Unreachable, "the connection failed"),
            Some("40") => (
                ErrorKind::Unreachable,
                "the server rolled the step back (deadlock, lock time-out or serialization failure)",
            ),
            // Out of connections or memory, cancelled or shutting down, a lock not to be had.
            Some("53" | "55" | "57" | "58") => NOT_NOW,
            _ => (ErrorKind::Internal, "the server refused the request"),
        },
    }
}

/// A connection that was not made: nothing was asked yet.
pub(crate) fn no_connection(error: tokio_postgres::Error) -> Error {
    // Today as tomorrow.
    match handshake_error(&error) {
        Some(rustls::Error::InvalidCertificate(_)) => {
            return Error::new(ErrorKind::Config, "the server's certificate is not trusted").on(SCHEME).because(error);
        }
        Some(rustls::Error::AlertReceived(_)) => {
            let message = "the server refused the client certificate, or requires one";
            return Error::new(ErrorKind::Denied, message).on(SCHEME).because(error);
        }
        _ => {}
    }
    let unreached = if refuses_writes(&error) { READ_ONLY } else { (ErrorKind::Unreachable, "no connection") };
    let (kind, what) = error.code().map_or(unreached, meaning);
    let refused = Error::new(kind, what).on(SCHEME).because(told(error));
    if kind == ErrorKind::Unreachable { refused.retry_later() } else { refused }
}

/// Whether another server may serve: this one was not reached, takes no writes, or is on its way up or down.
pub(crate) fn is_elsewhere(error: &tokio_postgres::Error) -> bool {
    error.code().map_or_else(|| handshake_error(error).is_none(), |code| code.code().starts_with("57P"))
}

/// A server that takes no writes, where another may.
pub(crate) fn read_only() -> Error {
    STORE.error(READ_ONLY.0, READ_ONLY.1).retry_later()
}

/// Whether the client crate left a server that takes no writes.
fn refuses_writes(error: &tokio_postgres::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::PermissionDenied && cause.raw_os_error().is_none())
}

fn handshake_error(error: &tokio_postgres::Error) -> Option<&rustls::Error> {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    cause.and_then(std::io::Error::get_ref).and_then(|cause| cause.downcast_ref::<rustls::Error>())
}

/// An answer to a request that we did not send.
pub(crate) fn not_ours() -> Error {
    Error::unreachable("received the reply to another request; the connection is replaced").on(SCHEME)
}

/// What the server said: the client's own words leave that out.
fn told(error: tokio_postgres::Error) -> Box<dyn std::error::Error + Send + Sync> {
    match error.as_db_error() {
        Some(told) => format!("{} ({})", told.message(), told.code().code()).into(),
        None => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_of_the_connection_leaves_doubt_and_a_refusal_none() {
        for (code, severity, doubtful) in [
            ("40003", Severity::Error, true),
            ("57P01", Severity::Fatal, true),
            ("57P02", Severity::Fatal, true),
            ("08P01", Severity::Fatal, true),
            ("XX000", Severity::Panic, true),
            ("40001", Severity::Error, false),
            ("40P01", Severity::Error, false),
            ("55P03", Severity::Error, false),
            ("57014", Severity::Error, false),
            ("42501", Severity::Error, false),
        ] {
            assert_eq!(is_doubtful(&SqlState::from_code(code), Some(severity)), doubtful, "{code}");
        }
    }

    #[test]
    fn what_the_server_cannot_do_is_no_stale_statement() {
        for (code, file, stale) in [
            ("26000", "prepare.c", true),
            ("0A000", "plancache.c", true),
            ("0A000", "pl_exec.c", false),
            ("42883", "parse_func.c", false),
        ] {
            assert_eq!(is_stale_statement(&SqlState::from_code(code), Some(file)), stale, "{code} of {file}");
        }
    }
}
