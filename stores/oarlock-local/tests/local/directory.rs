//! Directories that are accepted and refused.

use std::os::unix::fs::{PermissionsExt as _, chown};

use oarlock_core::ErrorKind;
use oarlock_local::{Config, Local};

use crate::{claim, granted, open, pending, take_turn, temp, turn, waiting};

#[tokio::test]
async fn a_directory_that_others_may_write_to_is_refused() {
    let dir = temp();
    for mode in [0o770, 0o707, 0o777, 0o1777] {
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        let error = Local::open(Config::new(dir.path())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{mode:o}");
        assert!(error.to_string().contains("chmod"), "{error}");
    }
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    open(dir.path()).await;
}

#[tokio::test]
async fn a_directory_of_another_user_is_refused() {
    let dir = temp();
    if chown(dir.path(), Some(12_345), None).is_err() {
        // Only root can change the owner of a directory. For other users, `/` belongs to another user.
        let error = Local::open(Config::new("/")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        return;
    }
    let error = Local::open(Config::new(dir.path())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("12345"), "{error}");
}

#[tokio::test]
async fn a_directory_that_cannot_be_created_is_an_error() {
    let dir = temp();
    std::fs::write(dir.path().join("file"), "").unwrap();
    let error = Local::open(Config::new(dir.path().join("file/store"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CannotCreate, "{error}");
    let error = Local::open(Config::new("/proc/oarlock")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CannotCreate, "{error}");
}

/// The path of a socket has at most 107 bytes. A directory may be longer, and notifications must still arrive.
#[tokio::test]
async fn a_long_path_does_not_lose_notifications() {
    let dir = temp();
    let long = dir.path().join("d".repeat(120)).join("e".repeat(120));
    assert!(long.as_os_str().len() > 240);
    let (a, b) = (open(&long).await, open(&long).await);
    let (held, next) = (claim("x"), waiting("x"));
    granted(&a, &held).await;
    let cursor = pending(&b, &next).await.cursor;
    let mut watch = turn(&b, &next, cursor).await;
    crate::release(&a, &held).await;
    crate::hint(&mut watch).await;
    take_turn(&b, &next).await;
}
