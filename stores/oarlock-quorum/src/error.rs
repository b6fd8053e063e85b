//! Errors of a quorum. Those of its nodes are their cause.

use oarlock_core::claim::ResourceName;
use oarlock_core::error::{Error, ErrorKind};

/// The URL scheme of this store.
pub(crate) const SCHEME: &str = "redlock";

/// The store of a node could not be connected, so the request was not sent.
pub(crate) fn unsent(error: Error) -> Error {
    Error::new(ErrorKind::Unreachable, "the node cannot be reached").on(SCHEME).retry_later().because(error)
}

pub(crate) fn about(verb: &'static str, resource: &ResourceName, error: Error) -> Error {
    error.during(verb).about(resource)
}
