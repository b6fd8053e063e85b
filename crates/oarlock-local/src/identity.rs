//! Whether an open file is still the one that others find by its name.
//!
//! A cleaner of old files (systemd-tmpfiles, tmpreaper) or a person may remove, move or replace what this process has
//! open. A lock on such a file excludes no process that comes later, so it is looked at after it was had; and files that
//! are locked but never written are touched now and then, so that they do not look unused.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use oarlock_core::{Error, ErrorKind};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, futimens, utimensat};

use crate::error::{SCHEME, closed};

/// A file that is found removed this often in turn is removed all the time.
pub(crate) const REOPENS: usize = 8;
/// Files are touched when they are this old: far less than the hours after which cleaners remove them.
pub(crate) const TOUCH_AFTER: Duration = Duration::from_secs(300);

/// Whether no name leads to this file any more.
pub(crate) fn is_unlinked(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.nlink() == 0)
}

/// Whether this path leads to this very file.
pub(crate) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(found) => {
            let open = file.metadata()?;
            Ok((open.dev(), open.ino()) == (found.dev(), found.ino()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes a file look used.
pub(crate) fn touch(file: &File) -> io::Result<()> {
    Ok(futimens(file, &now())?)
}

/// The kernel's own now: whoever may write to a file may set that, any other time only its owner.
fn now() -> Timestamps {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    Timestamps { last_access: now, last_modification: now }
}

/// Makes what is found by this name look used, also if it cannot be opened.
pub(crate) fn touch_path(path: &Path) -> io::Result<()> {
    Ok(utimensat(CWD, path, &now(), AtFlags::SYMLINK_NOFOLLOW)?)
}

/// What is answered once the whole store is gone.
pub(crate) fn directory_removed() -> Error {
    closed("its directory was removed while it was in use")
}

/// What is answered when another program removes a file as fast as it is made.
pub(crate) fn removed_all_the_time(path: &Path) -> Error {
    let message = format!("another program removes {} all the time", path.display());
    Error::new(ErrorKind::Os, message).on(SCHEME).retry_later()
}
