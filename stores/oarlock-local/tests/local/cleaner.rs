//! Another program, such as a cleaner of old files, removes files of a store in use.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use oarlock_core::driver::{Driver as _, Released, Renewal, Renewed};

use crate::helper::Helper;
use crate::{claim, granted, hint, open, pending, release, show, temp, turn, waiting};

fn files_in(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn remove_files_in(folder: &Path) {
    files_in(folder).iter().for_each(|file| std::fs::remove_file(file).unwrap());
}

/// The lock file of the only shard in use.
fn shard(dir: &Path) -> PathBuf {
    files_in(&dir.join("shard")).into_iter().find(|path| path.extension().is_none()).unwrap()
}

/// Whether an attempt waits while the test has locked the file at the path of its shard.
async fn waits_for(store: &oarlock_local::Local, path: &Path) -> bool {
    let file = File::options().create(true).truncate(false).write(true).open(path).unwrap();
    file.lock().unwrap();
    let claim = claim("x");
    let mut attempt = Box::pin(store.attempt(&claim));
    let waits = std::future::poll_fn(|cx| Poll::Ready(attempt.as_mut().poll(cx).is_pending())).await;
    drop(file);
    if waits {
        attempt.await.unwrap();
    }
    release(store, &claim).await;
    waits
}

/// A lock on a file that no other process can open excludes none of them.
#[tokio::test]
async fn a_step_locks_the_shard_that_others_find() {
    let dir = temp();
    let store = open(dir.path()).await;
    let before = claim("x");
    granted(&store, &before).await;
    release(&store, &before).await;
    let path = shard(dir.path());
    assert!(waits_for(&store, &path).await, "the test cannot tell");

    std::fs::remove_file(&path).unwrap();
    assert!(waits_for(&store, &path).await, "after the file was removed");
}

#[tokio::test]
async fn processes_on_both_sides_of_a_removal_lose_no_count() {
    const ROUNDS: u32 = 2000;
    let dir = temp();
    std::fs::write(dir.path().join("counter"), "0").unwrap();
    let mut early = Helper::start(&format!("count {ROUNDS} x"), dir.path());
    let shards = dir.path().join("store/shard");
    while !shards.exists() || files_in(&shards).is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    // Between two steps: a step that is under way when its shard is removed cannot know of it.
    for path in files_in(&shards) {
        let file = File::open(&path).unwrap();
        file.lock().unwrap();
        std::fs::remove_file(&path).unwrap();
    }
    let mut late = Helper::start(&format!("count {ROUNDS} x"), dir.path());
    for helper in [&mut early, &mut late] {
        assert_eq!(helper.says(), "counted");
        helper.wait();
    }
    assert_eq!(std::fs::read_to_string(dir.path().join("counter")).unwrap(), (2 * ROUNDS).to_string());
}

#[tokio::test]
async fn empty_folders_that_were_removed_are_created_again() {
    let dir = temp();
    let store = open(dir.path()).await;
    std::fs::remove_dir_all(dir.path().join("shard")).unwrap();
    std::fs::remove_dir_all(dir.path().join("state")).unwrap();
    granted(&store, &claim("x")).await;
    pending(&open(dir.path()).await, &claim("x")).await;
}

/// A live holder that is treated as dead would learn of its loss only with its next renewal.
#[tokio::test]
async fn a_live_holder_keeps_its_lock_when_its_session_file_is_removed() {
    let dir = temp();
    let (holder, other) = (open(dir.path()).await, open(dir.path()).await);
    let held = Arc::new(claim("x"));
    granted(&holder, &held).await;
    remove_files_in(&dir.path().join("session"));
    pending(&other, &claim("x")).await;
    assert_eq!(show(&other, "x").await.holders.len(), 1);

    // It creates its file again, so that its death is noticed at once.
    let renewed = holder.renew(&[Renewal::of(held.clone())]).await.remove(0).unwrap();
    assert!(matches!(renewed, Renewed::Alive { fence: Some(_), .. }), "{renewed:?}");
    let next = waiting("x");
    let cursor = pending(&other, &next).await.cursor;
    let mut watch = turn(&other, &next, cursor).await;
    drop(holder);
    hint(&mut watch).await;
    granted(&other, &next).await;
}

#[tokio::test]
async fn a_store_whose_session_file_is_removed_goes_on() {
    let dir = temp();
    let store = open(dir.path()).await;
    remove_files_in(&dir.path().join("session"));
    let first = claim("x");
    granted(&store, &first).await;
    assert_eq!(release(&store, &first).await.outcome, Released::Released);
    store.close().await.unwrap();
    assert_eq!(files_in(&dir.path().join("session")), Vec::<PathBuf>::new(), "its file outlived it");
}

/// Its process is known as neither dead nor alive: the lease decides.
#[tokio::test]
async fn a_dead_holder_without_a_session_file_holds_until_its_lease_expires() {
    let dir = temp();
    let store = open(dir.path()).await;
    let mut holder = Helper::start("hold x", dir.path());
    assert_eq!(holder.says(), "held");
    let own = files_in(&dir.path().join("session"));
    holder.kill();
    for file in own {
        // The store under test creates its own file again.
        let _ = std::fs::remove_file(file);
    }
    let left = pending(&store, &claim("x")).await.recheck_after.unwrap();
    assert!(left <= claim("x").ttl, "{left:?}");
}

#[tokio::test]
async fn a_shard_in_use_never_looks_old() {
    let dir = temp();
    let store = open(dir.path()).await;
    let before = claim("x");
    granted(&store, &before).await;
    release(&store, &before).await;
    let path = shard(dir.path());
    let day_ago = SystemTime::now() - Duration::from_secs(86_400);
    let times = std::fs::FileTimes::new().set_accessed(day_ago).set_modified(day_ago);
    File::options().write(true).open(&path).unwrap().set_times(times).unwrap();
    granted(&store, &claim("x")).await;
    let stat = std::fs::metadata(&path).unwrap();
    for time in [stat.modified().unwrap(), stat.accessed().unwrap()] {
        assert!(time.elapsed().unwrap() < Duration::from_secs(3600), "{time:?}");
    }
}

/// systemd-tmpfiles takes an exclusive flock of each directory before it searches it for old files.
#[tokio::test]
async fn systemd_tmpfiles_cannot_lock_a_store_in_use() {
    let dir = temp();
    let store = open(dir.path()).await;
    let folder = File::open(dir.path()).unwrap();
    assert!(folder.try_lock().is_err());
    drop(store);
    // A process that another test starts has all files of this one for a moment.
    let freed = async {
        while folder.try_lock().is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(crate::PATIENCE, freed).await.expect("the folder stays locked");
}
