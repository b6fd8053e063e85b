//! Errors of ZooKeeper as errors of Oarlock.

use oarlock_core::{Error, ErrorKind};
use zookeeper_client as zk;

/// The URL scheme of this store.
pub(crate) const SCHEME: &str = "zk";

/// An answer of the client crate that is not the one hoped for.
pub(crate) fn from_zk(error: zk::Error) -> Error {
    use zk::Error as E;
    let failed = match &error {
        E::ClientClosed => Error::new(ErrorKind::Closed, "the session was closed").applied_unknown(),
        // Whatever it left was ephemeral, and the next attempt opens another session.
        E::SessionExpired => Error::unreachable("the session has expired").retry_now(),
        E::NoAuth => Error::new(
            ErrorKind::Denied,
            "the user lacks a right on a node: `oarlock init --print` prints the commands that give it all it needs",
        ),
        E::AuthFailed | E::InvalidAcl => Error::new(ErrorKind::Denied, "not allowed by the server"),
        E::QuotaExceeded => Error::new(ErrorKind::Denied, "a quota of the server is used up").retry_later(),
        // Another client was faster; the request had no effect.
        E::NoNode | E::NodeExists | E::BadVersion | E::NotEmpty => return changed_meanwhile(),
        E::Unimplemented => Error::new(ErrorKind::Unsupported, "the server is too old: 3.5 or newer is needed"),
        E::BadArguments(_) | E::MarshallingError | E::NoChildrenForEphemerals => {
            Error::new(ErrorKind::Internal, "the server refused the request as malformed")
        }
        _ => Error::unreachable("no answer"),
    };
    failed.because(error).on(SCHEME)
}

/// Two steps of one operation saw different states: nothing was done, and doing it again will do.
pub(crate) fn changed_meanwhile() -> Error {
    Error::new(ErrorKind::Unreachable, "another client changed the lock at the same time").retry_now().on(SCHEME)
}

/// A name has had so many claims that its server soon has no number for another, and numbers are their order.
pub(crate) fn numbers_used_up(parent: &str) -> Error {
    let message = format!("{parent} has had two billion claims: delete the node while no client uses it");
    Error::new(ErrorKind::FenceExhausted, message).on(SCHEME)
}

/// The driver was closed.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "this connection was closed").on(SCHEME)
}

/// A record that is not ours.
pub(crate) fn not_ours(path: &str) -> Error {
    Error::new(ErrorKind::Foreign, format!("{path} has data that Oarlock did not write")).on(SCHEME)
}
