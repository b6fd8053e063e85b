//! Whether a path still leads to the file that this process has open.
//!
//! A cleaner of old files (systemd-tmpfiles, tmpreaper) or a user can remove, move or replace an open file. A lock on
//! such a file does not exclude processes that come later. So the path is checked after each lock, and files that are
//! locked but never written are touched from time to time, so that they do not look unused.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use oarlock_core::{Error, ErrorKind};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, futimens, utimensat};

use crate::error::{SCHEME, closed};

/// After so many removals in a row, give up.
pub(crate) const REOPENS: usize = 8;
/// Files are touched when they are this old. Cleaners remove files after hours.
pub(crate) const TOUCH_AFTER: Duration = Duration::from_secs(300);

/// Whether the file was removed.
pub(crate) fn is_unlinked(file: &File) -> io::Result<bool> {
    Ok(links_and_size(file)?.0 == 0)
}

/// How many names lead to the file, and how long it is.
///
/// Linux is asked for nothing else. After a question for the time of the last change, the next write has to record a
/// new time in the inode, which takes longer than the write itself.
pub(crate) fn links_and_size(file: &File) -> io::Result<(u64, u64)> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        use rustix::fs::{StatxFlags, statx};
        // It fails on old kernels and in some sandboxes.
        if let Ok(stat) = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::NLINK | StatxFlags::SIZE) {
            return Ok((stat.stx_nlink.into(), stat.stx_size));
        }
    }
    let stat = file.metadata()?;
    Ok((stat.nlink(), stat.len()))
}

/// Whether this path leads to this file.
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

/// Sets the modification time of a file to now.
pub(crate) fn touch(file: &File) -> io::Result<()> {
    Ok(futimens(file, &now())?)
}

/// The kernel's current time. Each process that may write to a file may set that; only its owner may set another time.
fn now() -> Timestamps {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    Timestamps { last_access: now, last_modification: now }
}

/// Sets the modification time of the file at this path to now, also if it cannot be opened.
pub(crate) fn touch_path(path: &Path) -> io::Result<()> {
    Ok(utimensat(CWD, path, &now(), AtFlags::SYMLINK_NOFOLLOW)?)
}

/// The error after the directory of the store was removed.
pub(crate) fn directory_removed() -> Error {
    closed("the directory of the store was removed while it was in use")
}

/// The error when another program keeps removing a file.
pub(crate) fn removed_all_the_time(path: &Path) -> Error {
    let message = format!("another program keeps removing {}", path.display());
    Error::new(ErrorKind::Os, message).on(SCHEME).retry_later()
}
