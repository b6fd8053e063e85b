//! The death of a process frees its claims, at once and without polling.

use std::num::NonZeroU32;
use std::time::Duration;

use oarlock_core::driver::{Driver as _, Interest};
use oarlock_core::{Capacity, Lifetime, Limit, Weight};

use crate::helper::Helper;
use crate::{claim, granted, hint, name, open, pending, release, show, take_turn, temp, turn, waiting};

#[tokio::test]
async fn after_a_killed_holder_the_next_waiter_holds_at_once() {
    let dir = temp();
    let store = open(dir.path()).await;
    for _ in 0..20 {
        let mut holder = Helper::start("hold x", dir.path());
        assert_eq!(holder.says(), "held");
        let next = waiting("x");
        let at_first = pending(&store, &next).await;
        assert!(at_first.recheck_after.unwrap() > Duration::from_secs(20), "the lease would not have helped");
        let mut watch = turn(&store, &next, at_first.cursor).await;
        pending(&store, &next).await;
        holder.kill();
        hint(&mut watch).await;
        granted(&store, &next).await;
        release(&store, &next).await;
    }
}

#[tokio::test]
async fn a_dead_holder_does_not_block_a_single_attempt() {
    let dir = temp();
    let store = open(dir.path()).await;
    let mut holder = Helper::start("hold x", dir.path());
    assert_eq!(holder.says(), "held");
    pending(&store, &claim("x")).await;
    holder.kill();
    assert!(show(&store, "x").await.is_free(), "the dead are not shown");
    granted(&store, &claim("x")).await;
}

#[tokio::test]
async fn the_capacity_of_a_dead_holder_does_not_bind_the_next() {
    let dir = temp();
    let store = open(dir.path()).await;
    let dead = open(dir.path()).await;
    let of = |units: u32| Capacity::Fixed(Limit::Units(NonZeroU32::new(units).unwrap()));
    let mut theirs = claim("x");
    (theirs.weight, theirs.capacity) = (Weight::ONE, of(2));
    granted(&dead, &theirs).await;
    dead.close().await.unwrap();
    let mut ours = claim("x");
    (ours.weight, ours.capacity) = (Weight::ONE, of(3));
    granted(&store, &ours).await;
}

#[tokio::test]
async fn waiters_that_died_with_the_holder_are_skipped() {
    let dir = temp();
    let store = open(dir.path()).await;
    let mut holder = Helper::start("hold x", dir.path());
    assert_eq!(holder.says(), "held");
    let mut between: Vec<_> = (0..3).map(|_| Helper::start("wait x", dir.path())).collect();
    for waiter in &mut between {
        assert_eq!(waiter.says(), "queued");
    }
    let last = waiting("x");
    assert_eq!(pending(&store, &last).await.ahead, Some(4));
    let turn = tokio::spawn(async move { take_turn(&store, &last).await });
    holder.kill();
    for waiter in &mut between {
        waiter.kill();
    }
    tokio::time::timeout(crate::PATIENCE, turn).await.unwrap().unwrap();
}

/// When the waiter before it leaves, a waiter must notice the death of the holder.
#[tokio::test]
async fn the_watch_moves_up_with_the_queue() {
    let dir = temp();
    let (ahead, store) = (open(dir.path()).await, open(dir.path()).await);
    let mut holder = Helper::start("hold x", dir.path());
    assert_eq!(holder.says(), "held");
    let (first, second) = (waiting("x"), waiting("x"));
    pending(&ahead, &first).await;
    pending(&store, &second).await;
    let turn = tokio::spawn(async move { take_turn(&store, &second).await });
    while show(&ahead, "x").await.waiters.count() != Some(2) {}
    release(&ahead, &first).await;
    while show(&ahead, "x").await.waiters.count() != Some(1) {}
    holder.kill();
    tokio::time::timeout(crate::PATIENCE, turn).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_claim_with_the_lifetime_of_its_lease_outlives_its_session() {
    let dir = temp();
    let (gone, store) = (open(dir.path()).await, open(dir.path()).await);
    let mut held = claim("x");
    held.lifetime = Lifetime::Lease;
    granted(&gone, &held).await;
    gone.close().await.unwrap();
    pending(&store, &claim("x")).await;
    assert_eq!(show(&store, "x").await.holders.len(), 1);
    release(&store, &held).await;
    granted(&store, &claim("x")).await;
}

#[tokio::test]
async fn closing_frees_at_once_and_is_final() {
    let dir = temp();
    let (gone, store) = (open(dir.path()).await, open(dir.path()).await);
    granted(&gone, &claim("x")).await;
    let next = waiting("x");
    let cursor = pending(&store, &next).await.cursor;
    let mut watch = turn(&store, &next, cursor).await;
    let mut mailbox = gone.watch(&Interest::Mailbox).await.unwrap();
    gone.close().await.unwrap();
    hint(&mut watch).await;
    granted(&store, &next).await;
    assert!(mailbox.changed().await.is_none());
    assert_eq!(gone.attempt(&claim("y")).await.unwrap_err().kind(), oarlock_core::ErrorKind::Closed);
    let left = std::fs::read_dir(dir.path().join("session")).unwrap().count();
    assert_eq!(left, 3, "the file and the socket of the living, and the proof of the other's end");
}

#[tokio::test]
async fn dropping_a_store_ends_its_session() {
    let dir = temp();
    let (gone, store) = (open(dir.path()).await, open(dir.path()).await);
    granted(&gone, &claim("x")).await;
    drop(gone);
    granted(&store, &claim("x")).await;
}

#[tokio::test]
async fn a_process_that_inherited_the_session_keeps_it_alive() {
    let dir = temp();
    let store = open(dir.path()).await;
    let mut holder = Helper::start("hold-and-start x", dir.path());
    let heir: i32 = holder.says().parse().unwrap();
    let next = waiting("x");
    let cursor = pending(&store, &next).await.cursor;
    let mut watch = turn(&store, &next, cursor).await;
    holder.kill();
    pending(&store, &next).await;
    let heir = rustix::process::Pid::from_raw(heir).unwrap();
    rustix::process::kill_process(heir, rustix::process::Signal::KILL).unwrap();
    hint(&mut watch).await;
    granted(&store, &next).await;
}

#[tokio::test]
async fn a_watch_of_a_resource_gets_changes_and_deaths() {
    let dir = temp();
    let store = open(dir.path()).await;
    let mut watch = store.watch(&Interest::Resource(name("x"))).await.unwrap();
    let mut holder = Helper::start("hold x", dir.path());
    assert_eq!(holder.says(), "held");
    hint(&mut watch).await;
    assert_eq!(show(&store, "x").await.holders.len(), 1);
    holder.kill();
    while !show(&store, "x").await.is_free() {
        hint(&mut watch).await;
    }
}

/// A waiter inspects after each hint: if that caused a hint, it would never sleep.
#[tokio::test]
async fn inspecting_a_resource_causes_no_hint() {
    let dir = temp();
    let store = open(dir.path()).await;
    let held = claim("x");
    granted(&store, &held).await;
    let mut watch = store.watch(&Interest::Resource(name("x"))).await.unwrap();
    for _ in 0..5 {
        assert_eq!(show(&store, "x").await.holders.len(), 1);
    }
    let quiet = tokio::time::timeout(Duration::from_millis(300), watch.changed()).await;
    assert!(quiet.is_err(), "looking gave a hint");
    release(&store, &held).await;
    hint(&mut watch).await;
}
