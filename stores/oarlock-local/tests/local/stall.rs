//! A process that is stopped inside a step blocks its shard, and no other.

use std::fs::File;
use std::sync::Arc;

use oarlock_core::driver::{Driver as _, Renewal, Renewed};
use oarlock_core::{Applied, ErrorKind};

use crate::{claim, granted, open, release, show, temp};

/// The lock file of the shard in use, locked as a stopped process would leave it.
pub(crate) fn stalled(dir: &std::path::Path) -> File {
    let mut shards = std::fs::read_dir(dir.join("shard")).unwrap().map(|entry| entry.unwrap().path());
    let file = File::open(shards.find(|path| path.extension().is_none()).unwrap()).unwrap();
    file.lock().unwrap();
    file
}

#[tokio::test]
async fn the_runtime_goes_on_and_so_do_other_shards() {
    let dir = temp();
    let store = Arc::new(open(dir.path()).await);
    let stuck = claim("x");
    granted(&store, &stuck).await;
    let stall = stalled(dir.path());
    let late = tokio::spawn({
        let (store, stuck) = (store.clone(), stuck.clone());
        async move { release(&store, &stuck).await }
    });
    tokio::task::yield_now().await;
    let elsewhere = claim("y");
    granted(&store, &elsewhere).await;

    let batch = [&stuck, &elsewhere].map(|claim| Renewal::of(Arc::new(claim.clone())));
    let renewed = store.renew(&batch).await;
    let error = renewed[0].as_ref().unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unreachable, Applied::Unknown));
    assert!(matches!(renewed[1], Ok(Renewed::Alive { .. })), "{renewed:?}");

    assert!(!late.is_finished());
    drop(stall);
    late.await.unwrap();
}

/// A runtime that is dropped waits for its blocking threads. Another process that is stopped must not keep it from
/// ending.
#[test]
fn a_stalled_step_does_not_keep_the_process() {
    let dir = temp();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stall = runtime.block_on(async {
        let store = Arc::new(open(dir.path()).await);
        granted(&store, &claim("x")).await;
        let stall = stalled(dir.path());
        tokio::spawn(async move { store.attempt(&claim("x")).await });
        tokio::task::yield_now().await;
        stall
    });
    drop(runtime);
    drop(stall);
}

/// A claim of a session that has ended would have no owner.
#[tokio::test]
async fn an_attempt_that_was_held_up_until_its_store_was_closed_is_refused() {
    let dir = temp();
    let store = Arc::new(open(dir.path()).await);
    let before = claim("x");
    granted(&store, &before).await;
    release(&store, &before).await;
    let shard = std::fs::read_dir(dir.path().join("state")).unwrap().next().unwrap().unwrap().path();
    let state = std::fs::read_dir(shard).unwrap().next().unwrap().unwrap().path();
    let written = std::fs::read(&state).unwrap();

    let stall = stalled(dir.path());
    let mut late = Box::pin(store.attempt(&before));
    let held_up = std::future::poll_fn(|cx| std::task::Poll::Ready(late.as_mut().poll(cx).is_pending())).await;
    assert!(held_up, "the attempt did not wait for the shard");
    store.close().await.unwrap();
    drop(stall);
    let error = late.await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Closed, Applied::No), "{error}");
    assert_eq!(std::fs::read(&state).unwrap(), written, "something was written");
    let other = open(dir.path()).await;
    assert!(show(&other, "x").await.is_free());
    granted(&other, &claim("x")).await;
}
