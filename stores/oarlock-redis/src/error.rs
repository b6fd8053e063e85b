//! Errors of the client crate and the server, as errors of this library.

use std::fmt::Display;

use oarlock_core::{Error, ErrorKind, Limit};
use redis::{ErrorKind as Cause, RedisError};

/// The URL scheme of this store.
pub(crate) const SCHEME: &str = "redis";

/// The server could not be connected to: nothing was sent.
pub(crate) fn no_connection(to: impl Display, error: RedisError) -> Error {
    match error.kind() {
        Cause::RESP3NotSupported => config("the server is too old: use Redis 6 or later, or Valkey").because(error),
        Cause::InvalidClientConfig => config("the address of the server is not valid").because(error),
        Cause::AuthenticationFailed => denied(error),
        Cause::Server(_) | Cause::Extension => failed(error),
        _ => {
            Error::new(ErrorKind::Unreachable, format!("no connection to {to}")).on(SCHEME).retry_later().because(error)
        }
    }
}

/// A request failed.
pub fn failed(error: RedisError) -> Error {
    match code(&error) {
        Some("NOAUTH" | "WRONGPASS") => denied(error),
        Some("NOPERM") => {
            let inside = error.detail().is_some_and(is_refused_inside);
            let message =
                "the user lacks a right: `oarlock init --print` prints the command that gives it all it needs";
            let denied = Error::new(ErrorKind::Denied, message).on(SCHEME).because(error);
            // The script has done what comes before that command.
            if inside { denied.applied_unknown() } else { denied }
        }
        // The server refused before it did anything, and may accept the request later.
        Some(
            "LOADING" | "BUSY" | "MASTERDOWN" | "READONLY" | "OOM" | "MISCONF" | "NOREPLICAS" | "TRYAGAIN"
            | "CLUSTERDOWN" | "NOSCRIPT" | "MOVED" | "ASK" | "UNBLOCKED",
        ) => Error::new(ErrorKind::Unreachable, "the server cannot serve requests now")
            .on(SCHEME)
            .retry_later()
            .because(error),
        Some(_) => {
            Error::new(ErrorKind::Internal, "the server refused a script").on(SCHEME).applied_unknown().because(error)
        }
        None => Error::unreachable("the connection was lost").on(SCHEME).because(error),
    }
}

/// The code of an error. Before version 7 a server reports the error of a command inside a script as `ERR Error running
/// script (call to …): @user_script: 1: -READONLY You can't write …`.
fn code(error: &RedisError) -> Option<&str> {
    let outer = error.code();
    if outer == Some("ERR") && error.detail().is_some_and(is_refused_inside) {
        return Some("NOPERM");
    }
    let inner = error.detail().filter(|text| outer == Some("ERR") && text.starts_with("Error running script"));
    let inner = inner.and_then(|text| text.split_once(": -")).and_then(|(_, inner)| inner.split(' ').next());
    inner.filter(|code| code.bytes().all(|byte| byte.is_ascii_uppercase())).or(outer)
}

/// Whether a script may not call one of its commands. Before version 7.2 the server does not say which.
fn is_refused_inside(text: &str) -> bool {
    text.contains("ACL failure in script") || text.contains("The user executing the script can't")
}

fn denied(error: RedisError) -> Error {
    Error::new(ErrorKind::Denied, "the server refused this user").on(SCHEME).because(error)
}

fn config(message: &str) -> Error {
    Error::new(ErrorKind::Config, message).on(SCHEME)
}

/// The script could not be loaded, so it did not run.
pub(crate) fn not_loaded(error: RedisError) -> Error {
    match failed(error.clone()) {
        denied if denied.kind() == ErrorKind::Denied => denied,
        _ if error.detail().is_some_and(|text| text.starts_with("unknown command")) => {
            config("the server has no command SCRIPT, which locks need: it was renamed or disabled").because(error)
        }
        _ => {
            let message = "the script could not be loaded into the server";
            Error::new(ErrorKind::Unreachable, message).on(SCHEME).retry_later().because(error)
        }
    }
}

/// Too few replicas have confirmed a write.
pub(crate) fn unconfirmed(confirmed: u32, required: u32) -> Error {
    let message = format!("{confirmed} of {required} required replicas confirmed the write in time");
    Error::unreachable(message).on(SCHEME)
}

/// The store was closed.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "this store was closed").on(SCHEME)
}

/// A reply that this driver does not understand.
pub(crate) fn unexpected() -> Error {
    Error::new(ErrorKind::Internal, "unexpected reply from a Lua script").on(SCHEME).applied_unknown()
}

/// The key holds a value of another program, which stays as it is.
pub(crate) fn foreign(what: &str) -> Error {
    Error::new(ErrorKind::Foreign, format!("its key holds {what}")).on(SCHEME)
}

/// The key has the format of an earlier version, which this one cannot read.
pub(crate) fn older(format: &str) -> Error {
    let message =
        format!("its key was written by an older version, in format {format}: delete it when no program uses it");
    Error::new(ErrorKind::Foreign, message).on(SCHEME)
}

pub(crate) fn newer(format: &str) -> Error {
    Error::new(ErrorKind::NewerFormat, format!("its key was written by a newer version, in format {format}")).on(SCHEME)
}

pub(crate) fn too_heavy(limit: Limit) -> Error {
    Error::new(ErrorKind::TooHeavy, format!("the claim is heavier than the capacity of {limit}")).on(SCHEME)
}

/// The holder is another program, which does not read requests to end.
pub(crate) fn cannot_ask() -> Error {
    let message =
        "the holder is another program, which cannot be asked to release the lock: break the lock without a grace";
    Error::new(ErrorKind::Unsupported, message).on(SCHEME)
}

pub(crate) fn upgrade() -> Error {
    Error::new(ErrorKind::Upgrade, "a held claim cannot become heavier").on(SCHEME)
}

pub(crate) fn exhausted() -> Error {
    Error::new(ErrorKind::FenceExhausted, "the next fence would be larger than 2^53").on(SCHEME)
}

#[cfg(test)]
mod tests {
    use oarlock_core::{Applied, Retry};

    use super::*;

    fn said(line: &str) -> RedisError {
        redis::parse_redis_value(line.as_bytes()).unwrap().extract_error().unwrap_err()
    }

    #[test]
    fn a_request_that_a_server_refuses_had_no_effect() {
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
            // Version 6, inside a script.
            let inside = format!("-ERR Error running script (call to f_2e02): @user_script:1: @user_script: 1: {line}");
            let error = failed(said(&format!("{inside}\r\n")));
            assert_eq!((error.kind(), error.applied(), error.retry()), wanted, "{inside}");
        }
        let broken = "-ERR Error running script (call to f_2e02): @user_script:1: attempt to index a nil value (-X)";
        assert_eq!(failed(said(&format!("{broken}\r\n"))).kind(), ErrorKind::Internal);
        let error = failed(said("-NOPERM this user has no permissions\r\n"));
        assert_eq!((error.kind(), error.applied(), error.retry()), (ErrorKind::Denied, Applied::No, Retry::Never));
        for inside in [
            "-ERR ACL failure in script: User app has no permissions to run the 'hset' command script: 4a, on @user_script:1.",
            "-ERR The user executing the script can't run this command or subcommand script: 4a, on @user_script:175.",
            "-ERR Error running script (call to f_2e02): @user_script:1: @user_script: 1: The user executing the script \
             can't run this command or subcommand",
        ] {
            let error = failed(said(&format!("{inside}\r\n")));
            let wanted = (ErrorKind::Denied, Applied::Unknown, Retry::Never);
            assert_eq!((error.kind(), error.applied(), error.retry()), wanted, "{inside}");
        }
        let error = failed(said("-ERR something else\r\n"));
        assert_eq!((error.kind(), error.applied()), (ErrorKind::Internal, Applied::Unknown));
    }

    #[test]
    fn a_script_that_cannot_be_loaded_had_no_effect() {
        let error = not_loaded(said("-ERR no\r\n"));
        assert_eq!((error.kind(), error.applied()), (ErrorKind::Unreachable, Applied::No));
        assert_eq!(not_loaded(said("-NOPERM no\r\n")).kind(), ErrorKind::Denied);
        let renamed = not_loaded(said("-ERR unknown command 'SCRIPT', with args beginning with: 'LOAD'\r\n"));
        assert_eq!((renamed.kind(), renamed.retry()), (ErrorKind::Config, Retry::Never));
    }
}
