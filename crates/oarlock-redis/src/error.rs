//! What the client crate and the server say, in the words of the library.

use std::fmt::Display;

use oarlock_core::{Error, ErrorKind, Limit};
use redis::{ErrorKind as Cause, RedisError};

/// The URL scheme of this store.
pub(crate) const SCHEME: &str = "redis";

/// No connection to this server could be had: nothing was sent.
pub(crate) fn no_connection(to: impl Display, error: RedisError) -> Error {
    match error.kind() {
        Cause::RESP3NotSupported => config("Redis 6 or later, or Valkey, is needed").because(error),
        Cause::InvalidClientConfig => config("the server cannot be addressed").because(error),
        Cause::AuthenticationFailed => denied(error),
        Cause::Server(_) | Cause::Extension => failed(error),
        _ => {
            Error::new(ErrorKind::Unreachable, format!("no connection to {to}")).on(SCHEME).retry_later().because(error)
        }
    }
}

/// A request failed.
pub(crate) fn failed(error: RedisError) -> Error {
    match error.code() {
        Some("NOAUTH" | "WRONGPASS" | "NOPERM") => denied(error),
        // The server refused before it did anything, and may think better of it.
        Some(
            "LOADING" | "BUSY" | "MASTERDOWN" | "READONLY" | "OOM" | "MISCONF" | "NOREPLICAS" | "TRYAGAIN"
            | "CLUSTERDOWN" | "NOSCRIPT" | "MOVED" | "ASK" | "UNBLOCKED",
        ) => Error::new(ErrorKind::Unreachable, "the server cannot serve").on(SCHEME).retry_later().because(error),
        Some(_) => {
            Error::new(ErrorKind::Internal, "the server refused a script").on(SCHEME).applied_unknown().because(error)
        }
        None => Error::unreachable("the connection was lost").on(SCHEME).because(error),
    }
}

fn denied(error: RedisError) -> Error {
    Error::new(ErrorKind::Denied, "the server refused this user").on(SCHEME).because(error)
}

fn config(message: &str) -> Error {
    Error::new(ErrorKind::Config, message).on(SCHEME)
}

/// The script could not be brought to the server, so it did nothing.
pub(crate) fn untaught(error: RedisError) -> Error {
    match failed(error.clone()) {
        denied if denied.kind() == ErrorKind::Denied => denied,
        _ => {
            let message = "the server does not know the script, and could not be taught it";
            Error::new(ErrorKind::Unreachable, message).on(SCHEME).retry_later().because(error)
        }
    }
}

/// Too few replicas have what was written.
pub(crate) fn unconfirmed(confirmed: u32, wanted: u32) -> Error {
    let message = format!("{confirmed} of the {wanted} replicas wanted have confirmed it in time");
    Error::unreachable(message).on(SCHEME)
}

/// The store was closed.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "this store was closed").on(SCHEME)
}

/// A script answered with something that this driver does not understand.
pub(crate) fn unexpected() -> Error {
    Error::new(ErrorKind::Internal, "a script answered in a way that makes no sense").on(SCHEME).applied_unknown()
}

/// The key is taken by something that is not ours. It is left as it is.
pub(crate) fn foreign(what: &str) -> Error {
    Error::new(ErrorKind::Foreign, format!("its key holds {what}")).on(SCHEME)
}

/// The key is as an earlier version left it, which this one cannot read.
pub(crate) fn older(format: &str) -> Error {
    let message = format!("its key was written by an older version, in format {format}: delete it when nobody uses it");
    Error::new(ErrorKind::Foreign, message).on(SCHEME)
}

pub(crate) fn newer(format: &str) -> Error {
    Error::new(ErrorKind::NewerFormat, format!("its key was written by a newer version, in format {format}")).on(SCHEME)
}

pub(crate) fn too_heavy(limit: Limit) -> Error {
    Error::new(ErrorKind::TooHeavy, format!("more than {limit} can never be had")).on(SCHEME)
}

/// The holder is a program that does not know how to be asked.
pub(crate) fn deaf() -> Error {
    let message = "its holder is another program, which cannot be asked to let go: break it without a grace";
    Error::new(ErrorKind::Unsupported, message).on(SCHEME)
}

pub(crate) fn upgrade() -> Error {
    Error::new(ErrorKind::Upgrade, "a held claim cannot become heavier").on(SCHEME)
}

pub(crate) fn exhausted() -> Error {
    Error::new(ErrorKind::FenceExhausted, "the next fence would be past 2^53").on(SCHEME)
}

#[cfg(test)]
mod tests {
    use oarlock_core::{Applied, Retry};

    use super::*;

    fn said(line: &str) -> RedisError {
        redis::parse_redis_value(line.as_bytes()).unwrap().extract_error().unwrap_err()
    }

    #[test]
    fn what_a_server_refuses_before_doing_anything_had_no_effect() {
        let refusals = [
            "-NOSCRIPT No matching script",
            "-OOM command not allowed when used memory > 'maxmemory'",
            "-READONLY You can't write against a read only replica",
            "-MISCONF Redis is configured to save RDB snapshots",
            "-LOADING Redis is loading the dataset in memory",
            "-CLUSTERDOWN Hash slot not served",
            "-MOVED 1 127.0.0.1:1",
            "-NOREPLICAS Not enough good replicas to write",
        ];
        for line in refusals {
            let error = failed(said(&format!("{line}\r\n")));
            let wanted = (ErrorKind::Unreachable, Applied::No, Retry::Later);
            assert_eq!((error.kind(), error.applied(), error.retry()), wanted, "{line}");
        }
        let error = failed(said("-NOPERM this user has no permissions\r\n"));
        assert_eq!((error.kind(), error.applied(), error.retry()), (ErrorKind::Denied, Applied::No, Retry::Never));
        let error = failed(said("-ERR something else\r\n"));
        assert_eq!((error.kind(), error.applied()), (ErrorKind::Internal, Applied::Unknown));
    }

    #[test]
    fn a_script_that_cannot_be_taught_had_no_effect() {
        let error = untaught(said("-ERR no\r\n"));
        assert_eq!((error.kind(), error.applied()), (ErrorKind::Unreachable, Applied::No));
        assert_eq!(untaught(said("-NOPERM no\r\n")).kind(), ErrorKind::Denied);
    }
}
