//! A directory for a group of users that share locks.

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use oarlock_core::ErrorKind;
use oarlock_local::{Config, Local};

use crate::helper::Helper;
use crate::{granted, temp, waiting};

const GROUP: u32 = 54_321;
const ALICE: u32 = 12_345;
const BOB: u32 = 12_346;

fn shared(dir: &Path) -> Config {
    let mut config = Config::new(dir);
    config.group = true;
    config
}

fn set_mode(dir: &Path, mode: u32) {
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn a_directory_for_a_group_needs_the_option() {
    let dir = temp();
    set_mode(dir.path(), 0o2770);
    let error = Local::open(Config::new(dir.path())).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("group=yes"), "{error}");
    drop(Local::open(shared(dir.path())).await.unwrap());
    for mode in [0o700, 0o770, 0o2777] {
        set_mode(dir.path(), mode);
        let error = Local::open(shared(dir.path())).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("chmod"), "{mode:o}: {error}");
    }
}

#[tokio::test]
async fn whatever_the_umask_files_are_for_the_group() {
    let dir = temp();
    let root = dir.path().join("made/by/us");
    let store = Local::open(shared(&root)).await.unwrap();
    granted(&store, &waiting("x")).await;
    let mut folders = vec![root];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o7777, 0o2770, "{folder:?}");
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let stat = std::fs::symlink_metadata(&path).unwrap();
            seen += 1;
            if stat.is_dir() {
                folders.push(path);
            } else {
                assert_eq!(stat.permissions().mode() & 0o777, 0o660, "{path:?}");
            }
        }
    }
    assert!(seen >= 8);
}

/// Two users, neither of them root: each is notified of a release and of a death of the other.
#[test]
fn two_users_share_locks() {
    if !rustix::process::geteuid().is_root() {
        println!("note: skipped: only root can start programs as two users");
        return;
    }
    let dir = temp();
    set_mode(dir.path(), 0o755);
    let (store, program) = (dir.path().join("store"), dir.path().join("program"));
    std::fs::create_dir(&store).unwrap();
    chown(&store, Some(ALICE), Some(GROUP)).unwrap();
    set_mode(&store, 0o2770);
    // These users may not have access to the directory where the tests were built.
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    set_mode(&program, 0o755);
    let start = |user: u32, role: &str| Helper::start_as(&program, user, GROUP, role, &store);

    let mut alice = start(ALICE, "share x");
    assert_eq!(alice.says(), "held");
    let mut bob = start(BOB, "share x");
    assert_eq!(bob.says(), "waiting");
    alice.go_on();
    assert_eq!(alice.says(), "released");
    assert_eq!(bob.says(), "held", "told of the release, with a lease that would not have helped");
    let mut again = start(ALICE, "share x");
    assert_eq!(again.says(), "waiting");
    bob.kill();
    assert_eq!(again.says(), "held", "told of the death");
    again.go_on();
    assert_eq!(again.says(), "released");
}
