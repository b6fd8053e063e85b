//! Errors of the operating system and of state files, as errors of the library.

use std::io;
use std::path::Path;

use oarlock_core::{Error, ErrorKind};

/// The URL scheme of this store.
pub(crate) const SCHEME: &str = "local";

/// A failed system call that changed nothing.
pub(crate) fn os(what: impl Into<String>, error: io::Error) -> Error {
    let kind = if error.kind() == io::ErrorKind::PermissionDenied { ErrorKind::Denied } else { ErrorKind::Os };
    let failed = Error::new(kind, what).on(SCHEME).because(error);
    // A full disk or descriptor table can have room later; permissions do not change by themselves.
    if kind == ErrorKind::Os { failed.retry_later() } else { failed }
}

/// [`os`], with the path of the file.
pub(crate) fn os_at(what: &str, path: &Path, error: io::Error) -> Error {
    os(format!("cannot {what} {}", path.display()), error)
}

/// A file that this library did not write, or that is damaged. It is left as it is.
pub(crate) fn foreign(path: &Path, why: &str) -> Error {
    let message = format!("{} {why}; stop all programs that use this lock, then move the file away", path.display());
    Error::new(ErrorKind::Foreign, message).on(SCHEME)
}

/// A file written by a later version of this library.
pub(crate) fn newer(path: &Path) -> Error {
    let message = format!("{} was written by a newer version", path.display());
    Error::new(ErrorKind::NewerFormat, message).on(SCHEME)
}

/// The session has ended: it can own no more claims.
pub(crate) fn closed(why: &str) -> Error {
    Error::new(ErrorKind::Closed, why).on(SCHEME)
}
