//! What the operating system says, in the words of the library.

use std::io;
use std::path::Path;

use oarlock_core::{Error, ErrorKind};

/// The URL scheme of this store.
pub(crate) const SCHEME: &str = "local";

/// A failed call that changed nothing.
pub(crate) fn os(what: impl Into<String>, error: io::Error) -> Error {
    let kind = if error.kind() == io::ErrorKind::PermissionDenied { ErrorKind::Denied } else { ErrorKind::Os };
    let failed = Error::new(kind, what).on(SCHEME).because(error);
    // Full disks and descriptor tables get emptied again; permissions stay as they are.
    if kind == ErrorKind::Os { failed.retry_later() } else { failed }
}

/// [`os`], naming the file.
pub(crate) fn os_at(what: &str, path: &Path, error: io::Error) -> Error {
    os(format!("cannot {what} {}", path.display()), error)
}

/// A file that is not ours, or no longer whole. It is left as it is.
pub(crate) fn foreign(path: &Path, why: &str) -> Error {
    let message = format!("{} {why}; move it away once nobody uses this lock", path.display());
    Error::new(ErrorKind::Foreign, message).on(SCHEME)
}

/// A file written by a later version of this library.
pub(crate) fn newer(path: &Path) -> Error {
    let message = format!("{} was written by a newer version", path.display());
    Error::new(ErrorKind::NewerFormat, message).on(SCHEME)
}

/// The session is over: nothing can be tethered to it any more.
pub(crate) fn closed(why: &str) -> Error {
    Error::new(ErrorKind::Closed, why).on(SCHEME)
}
