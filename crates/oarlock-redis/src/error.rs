//! What the client crate and the server say, in the words of the library.

use oarlock_core::{Error, ErrorKind, Limit};
use redis::{ErrorKind as Cause, RedisError};

/// The URL scheme of this store.
pub(crate) const SCHEME: &str = "redis";

/// No connection could be had: nothing was sent.
pub(crate) fn unconnected(error: RedisError) -> Error {
    match error.kind() {
        Cause::RESP3NotSupported => config("Redis 6 or later, or Valkey, is needed").because(error),
        Cause::InvalidClientConfig => config("the server cannot be addressed").because(error),
        Cause::AuthenticationFailed => denied(error),
        Cause::Server(_) | Cause::Extension => failed(error),
        _ => Error::new(ErrorKind::Unreachable, "no connection").on(SCHEME).retry_later().because(error),
    }
}

/// A request failed.
pub(crate) fn failed(error: RedisError) -> Error {
    match error.code() {
        Some("NOAUTH" | "WRONGPASS" | "NOPERM") => denied(error),
        // The server refused before it did anything, and may think better of it.
        Some(
            "LOADING" | "BUSY" | "MASTERDOWN" | "READONLY" | "OOM" | "MISCONF" | "NOREPLICAS" | "TRYAGAIN"
            | "CLUSTERDOWN",
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

pub(crate) fn newer(format: &str) -> Error {
    Error::new(ErrorKind::NewerFormat, format!("its key was written by a newer version, in format {format}")).on(SCHEME)
}

pub(crate) fn too_heavy(limit: Limit) -> Error {
    Error::new(ErrorKind::TooHeavy, format!("more than {limit} can never be had")).on(SCHEME)
}

pub(crate) fn upgrade() -> Error {
    Error::new(ErrorKind::Upgrade, "a held claim cannot become heavier").on(SCHEME)
}

pub(crate) fn exhausted() -> Error {
    Error::new(ErrorKind::FenceExhausted, "the next fence would be past 2^53").on(SCHEME)
}
