//! Errors of etcd as errors of Oarlock.

use oarlock_core::{Error, ErrorKind};
use tonic::{Code, Status};

use crate::login::is_stale;

/// The URL scheme of this store.
pub(crate) const SCHEME: &str = "etcd";

/// The server does not say which: there is one, to read and write the prefix.
const LACKS_RIGHT: &str = "the user lacks the right to read and write the keys of the locks: `oarlock init --print` \
                           prints the commands that give it";

/// The error for a failed request.
pub(crate) fn failed(status: Status) -> Error {
    let message = status.message().to_owned();
    let error = match status.code() {
        // A lease that is over, found before anything was done; or a revision that is no longer kept.
        Code::NotFound | Code::OutOfRange => return ended(&message),
        Code::PermissionDenied => Error::new(ErrorKind::Denied, LACKS_RIGHT),
        Code::Unauthenticated => return denied(status),
        Code::InvalidArgument if is_stale(&status) => return denied(status),
        // Recognised by the text of a cause: the transport has no kind for it.
        Code::Unavailable | Code::Unknown if mentions(&status, "invalid peer certificate") => {
            Error::new(ErrorKind::Config, "the certificate of the server is not trusted")
        }
        Code::Unavailable | Code::Unknown if mentions(&status, "fatal alert") => {
            Error::new(ErrorKind::Denied, "the server refused the client certificate, or requires one")
        }
        Code::ResourceExhausted if message.contains("space exceeded") => {
            let advice = "the database of the cluster is full: compact it, defragment its members and disarm the alarm";
            Error::new(ErrorKind::Denied, advice)
        }
        Code::InvalidArgument | Code::Unimplemented => Error::new(ErrorKind::Unsupported, message),
        _ => Error::unreachable(message),
    };
    error.on(SCHEME).because(status)
}

/// The user lacks a permission, or its credentials were refused.
pub(crate) fn denied(status: Status) -> Error {
    Error::new(ErrorKind::Denied, status.message().to_owned()).on(SCHEME).because(status)
}

fn mentions(status: &Status, words: &str) -> bool {
    let mut causes = std::iter::successors(std::error::Error::source(status), |cause| cause.source());
    causes.any(|cause| cause.to_string().contains(words))
}

/// The state that the request depended on has changed; a new attempt can succeed at once. An earlier step may have
/// been applied.
pub(crate) fn ended(what: &str) -> Error {
    Error::unreachable(what).on(SCHEME).retry_now()
}

/// An answer lacks a field that the request asked for.
pub(crate) fn missing(what: &str) -> Error {
    Error::new(ErrorKind::Internal, format!("etcd answered without {what}")).on(SCHEME).applied_unknown()
}

/// The store was closed.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the store was closed").on(SCHEME)
}

#[cfg(test)]
mod tests {
    use oarlock_core::Retry;

    use super::*;

    #[test]
    fn a_full_database_is_not_a_matter_of_waiting() {
        let full = failed(Status::resource_exhausted("etcdserver: mvcc: database space exceeded"));
        assert_eq!((full.kind(), full.retry()), (ErrorKind::Denied, Retry::Never));
        let busy = failed(Status::resource_exhausted("etcdserver: too many requests"));
        assert_eq!((busy.kind(), busy.retry()), (ErrorKind::Unreachable, Retry::Later));
    }

    #[test]
    fn what_was_compacted_is_read_again_at_once() {
        let compacted = failed(Status::out_of_range("etcdserver: mvcc: required revision has been compacted"));
        assert_eq!((compacted.kind(), compacted.retry()), (ErrorKind::Unreachable, Retry::Now));
        assert_eq!(failed(Status::unimplemented("no")).retry(), Retry::Never);
    }
}
