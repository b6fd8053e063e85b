//! What the server says, in the words of the library.

use mysql_async::{DriverError, IoError, ServerError};
use oarlock_core::{Error, ErrorKind};

use crate::error::Store;

/// The URL scheme of this store.
pub(crate) const SCHEME: &str = "mysql";

pub(crate) const STORE: Store = Store(SCHEME);

/// The state that our own procedures raise for a row of a newer format.
const NEWER: &str = "OAR01";

/// The state that our own procedures raise where the client has to count who was killed.
pub(crate) const DOUBT: &str = "OAR03";

/// A table that is not there.
pub(crate) const NO_SUCH_TABLE: u16 = 1146;

/// A column that must have a value and was given none.
pub(crate) const NOT_NULL: u16 = 1048;

/// A setting that this server does not have.
pub(crate) const UNKNOWN_VARIABLE: u16 = 1193;

/// A name that is longer than the server allows, and what MySQL 8 and 9 say of one that they do not allow for a lock.
pub(crate) const NO_NAME: [u16; 3] = [1059, 3057, 4163];

/// A change that group replication does not take.
pub(crate) const NOT_ALLOWED_IN_GROUP: u16 = 3098;

const LOCK_WAIT_TIMEOUT: u16 = 1205;
const DEADLOCK: u16 = 1213;

/// A request that failed. What the server refused had no effect; what it did not answer may have had one.
pub fn failed(error: mysql_async::Error) -> Error {
    let mysql_async::Error::Server(told) = error else {
        return Error::unreachable("the connection failed").on(SCHEME).because(error);
    };
    let (kind, what) = meaning(&told);
    let refused = Error::new(kind, what).on(SCHEME);
    let refused = if is_doubtful(told.code) { refused.applied_unknown() } else { refused };
    let refused = match (kind, told.code) {
        (ErrorKind::Unreachable, DEADLOCK) => refused.retry_now(),
        (ErrorKind::Unreachable, _) if told.state == DOUBT => refused.retry_now(),
        (ErrorKind::Unreachable, _) => refused.retry_later(),
        _ => refused,
    };
    refused.because(told)
}

/// Whether it may have taken effect all the same: the server did not refuse the request, but was interrupted, perhaps
/// between the commit and its answer.
fn is_doubtful(code: u16) -> bool {
    matches!(
        code,
        1053 // server shutdown
        | 1180 // error during COMMIT
        | 1317 // query interrupted
        | 1927 // connection killed
        | 1969 | 3024 // statement took too long: MariaDB, MySQL
        | 3169 | 4031 // session killed, idle for too long
        | 1105 // unknown
    )
}

/// Whether a connection or statement was killed on request, which the server counts.
pub(crate) fn is_killed(code: u16) -> bool {
    matches!(code, 1317 | 1927 | 3169)
}

fn meaning(told: &ServerError) -> (ErrorKind, &'static str) {
    if told.state == NEWER {
        return (ErrorKind::NewerFormat, "a newer version of oarlock wrote the row of this lock");
    }
    if told.state == DOUBT {
        return (
            ErrorKind::Unreachable,
            "connections were killed on the server at the same time; the step is repeated",
        );
    }
    match told.code {
        1044 | 1142 | 1143 | 1227 | 1370 => {
            (ErrorKind::Denied, "the user lacks a right: run `oarlock init --grant USER`")
        }
        ACCESS_DENIED | 1698 => (ErrorKind::Denied, "the server refused the credentials"),
        1049 => (ErrorKind::Config, "there is no such database"),
        NO_SUCH_TABLE | 1054 | 1305 | 1318 => {
            (ErrorKind::Foreign, "the tables of oarlock are missing or have another layout: run `oarlock init`")
        }
        LOCK_WAIT_TIMEOUT | DEADLOCK => (
            ErrorKind::Unreachable,
            "the server rolled the step back (deadlock, lock time-out or serialization failure)",
        ),
        code if READ_ONLY.contains(&code) => (ErrorKind::Unreachable, IS_READ_ONLY),
        // Without its own log of changes, or with one that cannot tell what a step did.
        1665 => (
            ErrorKind::Unsupported,
            "the server's configuration does not support this: see the set-up section of the store's page",
        ),
        1040 | 1041 | 1203 | 1206 | 1226 | 1047 | OFFLINE => {
            (ErrorKind::Unreachable, "the server cannot serve the request now")
        }
        code if is_doubtful(code) => {
            (ErrorKind::Unreachable, "the server interrupted the request, which may have taken effect")
        }
        _ => (ErrorKind::Internal, "the server refused the request"),
    }
}

/// A server that takes no writes: by its option, in its transactions, in its mode.
const READ_ONLY: [u16; 3] = [1290, 1792, 1836];

const IS_READ_ONLY: &str = "the server is read-only; it may be a replica";

/// Whether the server refused a write because it takes none.
pub(crate) fn says_read_only(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(told) if READ_ONLY.contains(&told.code))
}

/// Whether another server may serve: this one was not reached, or is on its way down.
pub(crate) fn is_elsewhere(error: &mysql_async::Error) -> bool {
    !matches!(error, mysql_async::Error::Server(told) if !matches!(told.code, SHUTDOWN | OFFLINE))
}

const SHUTDOWN: u16 = 1053;

/// A server on which an administrator has set `offline_mode`.
const OFFLINE: u16 = 3032;

/// Nothing was asked of a server that takes no writes.
pub(crate) fn read_only() -> Error {
    STORE.error(ErrorKind::Unreachable, IS_READ_ONLY).retry_later()
}

/// A user that the server does not let in.
const ACCESS_DENIED: u16 = 1045;

/// A connection that was not made, `encrypted` or not: nothing was asked yet.
pub(crate) fn no_connection(error: mysql_async::Error, encrypted: bool) -> Error {
    let (kind, what) = match &error {
        // MySQL says the same of a wrong password, of a user who must encrypt, and of a password that it could not be
        // sent.
        mysql_async::Error::Server(told) if told.code == ACCESS_DENIED && !encrypted => {
            (ErrorKind::Denied, "access denied; if the user requires TLS, add sslmode=require, and its certificate")
        }
        mysql_async::Error::Server(told) => meaning(told),
        // Today as tomorrow.
        mysql_async::Error::Io(IoError::Tls(_)) => (ErrorKind::Config, "the server's certificate is not trusted"),
        mysql_async::Error::Io(IoError::Io(cause)) if is_refusal(cause) => {
            (ErrorKind::Denied, "the server refused the client certificate, or requires one")
        }
        mysql_async::Error::Io(IoError::Io(cause)) if is_not_trusted(cause) => {
            (ErrorKind::Config, "the server's certificate is not trusted")
        }
        // A server is not found so: these are the files of certificates.
        mysql_async::Error::Io(IoError::Io(cause)) if encrypted && is_missing(cause) => {
            (ErrorKind::Config, "a file of certificates cannot be read")
        }
        mysql_async::Error::Driver(DriverError::NoKeyFound) => {
            (ErrorKind::Config, "the file of the key has no private key")
        }
        mysql_async::Error::Driver(DriverError::NoClientSslFlagFromServer) => {
            (ErrorKind::Config, "the server does not encrypt")
        }
        _ => (ErrorKind::Unreachable, "no connection"),
    };
    let refused = Error::new(kind, what).on(SCHEME);
    let refused = if kind == ErrorKind::Unreachable { refused.retry_later() } else { refused };
    refused.because(error)
}

fn is_refusal(cause: &std::io::Error) -> bool {
    let cause = cause.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::AlertReceived(_)))
}

fn is_missing(cause: &std::io::Error) -> bool {
    matches!(cause.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::PermissionDenied)
}

fn is_not_trusted(cause: &std::io::Error) -> bool {
    cause.kind() == std::io::ErrorKind::InvalidData
}

/// Nothing was asked: the session that was to ask is over. There will be another.
pub(crate) fn ended() -> Error {
    Error::new(ErrorKind::Unreachable, "its session has ended").on(SCHEME).retry_now()
}

#[cfg(test)]
mod tests {
    use oarlock_core::error::{Applied, Retry};

    use super::*;

    fn of(code: u16, state: &str) -> Error {
        failed(mysql_async::Error::Server(ServerError { code, message: String::new(), state: state.to_owned() }))
    }

    #[test]
    fn an_interruption_leaves_doubt_and_a_refusal_none() {
        for code in [1053, 1180, 1317, 1927, 1969, 3024] {
            assert_eq!(of(code, "HY000").applied(), Applied::Unknown, "{code}");
            assert_eq!(of(code, "HY000").kind(), ErrorKind::Unreachable, "{code}");
        }
        for code in [1205, 1213, 1142, 1290] {
            assert_eq!(of(code, "HY000").applied(), Applied::No, "{code}");
        }
    }

    #[test]
    fn what_was_undone_is_worth_another_try() {
        assert_eq!(of(1213, "40001").retry(), Retry::Now);
        assert_eq!(of(1205, "HY000").retry(), Retry::Later);
        assert_eq!(of(1142, "42000").retry(), Retry::Never);
        assert_eq!(of(1644, NEWER).kind(), ErrorKind::NewerFormat);
    }
}
