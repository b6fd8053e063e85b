//! Choices at their bounds.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use oarlock_core::clock::TokioClock;
use oarlock_core::engine::MAX_OP_TIMEOUT;
use oarlock_core::{Error, ErrorKind, Locks, Memory};
use tokio::task::JoinSet;

use crate::spy::{SECOND, name, world, world_with};

#[tokio::test(start_paused = true)]
async fn a_time_out_of_nothing_or_of_ages_is_refused() {
    for wrong in [Duration::ZERO, MAX_OP_TIMEOUT + SECOND, Duration::MAX] {
        let error = Locks::builder(Memory::new()).op_timeout(wrong).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{wrong:?}");
    }
    let client = Locks::builder(Memory::new()).op_timeout(MAX_OP_TIMEOUT).build().unwrap();
    let guard = client.mutex("a").wait(Duration::MAX).max_hold(Duration::MAX).lock().await.unwrap();
    guard.release().await.unwrap();
    client.shutdown(Duration::MAX).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_cohort_without_a_bound_in_time_is_refused_or_waits_for_ever() {
    let client = Locks::builder(Memory::new()).build().unwrap();
    let lock = client.mutex("a").cohort(8, Duration::MAX);
    assert_eq!(
        lock.lock().await.unwrap_err().kind(),
        ErrorKind::InvalidClaim,
        "it waits for less than it may go round"
    );
    lock.wait_forever().lock().await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn two_clients_of_one_seed_do_not_share_a_lock() {
    let clock = Arc::new(TokioClock::new());
    let store = Memory::on(clock.clone());
    let client = || Locks::builder(store.connect()).clock(clock.clone()).seed(7).build().unwrap();
    let (one, other) = (client(), client());
    let first = one.mutex("a").try_lock().await.unwrap();
    let second = other.mutex("a").try_lock().await.unwrap();
    assert!(first.is_some() && second.is_none(), "both hold");
}

#[tokio::test(start_paused = true)]
async fn an_error_to_be_repeated_at_once_is_repeated_once_and_then_with_pauses() {
    let world = world();
    let refused = || Error::new(ErrorKind::Unreachable, "changed meanwhile").retry_now();
    *world.hooks.refusals.lock().unwrap() = vec![refused(); 2];
    assert!(world.spied.mutex("a").try_lock().await.unwrap().is_some(), "another try mends it");
    // One that does not go away is told in the end, and costs the store little.
    *world.hooks.refusals.lock().unwrap() = vec![refused(); 10_000];
    let before = world.hooks.attempts.load(SeqCst);
    let started = tokio::time::Instant::now();
    let error = world.spied.mutex("b").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(started.elapsed() <= SECOND, "{:?}", started.elapsed());
    let error = world.spied.mutex("b").wait(SECOND * 10).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let tries = world.hooks.attempts.load(SeqCst) - before;
    assert!(tries < 40, "{tries} attempts in eleven seconds");
}

#[tokio::test(start_paused = true)]
async fn waiters_beyond_the_bound_are_refused_before_the_store_is_asked() {
    let world = world_with(|builder| builder.max_waiters(3));
    let held = world.honest.mutex("a").lock().await.unwrap();
    let wait = |waiting: &mut JoinSet<_>| {
        let lock = world.spied.mutex("a").fair();
        waiting.spawn(async move { lock.lock().await.map(|guard| guard.fence()) });
    };
    let mut waiting = JoinSet::new();
    (0..3).for_each(|_| wait(&mut waiting));
    tokio::time::sleep(SECOND).await;
    let asked = world.hooks.attempts.load(SeqCst);
    let error = world.spied.rwlock("a").read().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooManyWaiters);
    assert_eq!(error.resource(), Some(&name()));
    let told = format!("{error}. {}", error.hint());
    assert!(told.contains('3') && told.contains("max_waiters"), "{told}");
    assert_eq!(world.hooks.attempts.load(SeqCst), asked, "the store was asked");
    // A claim that does not wait, or waits for another name, is not counted; nor are tasks behind one that waits for
    // all of them.
    assert!(world.spied.mutex("a").try_lock().await.unwrap().is_none());
    world.spied.mutex("b").fair().lock().await.unwrap().release().await.unwrap();
    let mut behind = JoinSet::new();
    for _ in 0..10 {
        let lock = world.spied.mutex("a");
        behind.spawn(async move { lock.lock().await.map(drop) });
    }
    held.release().await.unwrap();
    while let Some(done) = waiting.join_next().await {
        done.unwrap().unwrap();
    }
    while let Some(done) = behind.join_next().await {
        done.unwrap().unwrap();
    }
    // They have left.
    (0..3).for_each(|_| wait(&mut waiting));
    while let Some(done) = waiting.join_next().await {
        done.unwrap().unwrap();
    }
    assert_eq!(Locks::builder(Memory::new()).max_waiters(0).build().unwrap_err().kind(), ErrorKind::Config);
}
