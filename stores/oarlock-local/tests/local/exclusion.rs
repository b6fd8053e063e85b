//! One holder at a time, among stores, tasks and processes.

use std::num::NonZeroU32;
use std::sync::Arc;

use oarlock_core::driver::{Driver as _, Gone, Released, Renewal, Renewed};
use oarlock_core::{Capacity, ErrorKind, Limit, Weight};

use crate::helper::Helper;
use crate::{claim, granted, open, pending, release, show, take_turn, temp, waiting};

#[tokio::test]
async fn two_stores_on_one_directory_exclude_each_other() {
    let dir = temp();
    let (a, b) = (open(dir.path()).await, open(dir.path()).await);
    let (first, second) = (claim("x"), claim("x"));
    let before = granted(&a, &first).await.fence;
    pending(&b, &second).await;
    assert_eq!(release(&a, &first).await.outcome, Released::Released);
    let after = granted(&b, &second).await.fence;
    assert!(after > before);
    assert_eq!(release(&a, &first).await.outcome, Released::NotHeld);
    assert_eq!(show(&a, "x").await.holders.len(), 1);
}

#[tokio::test]
async fn a_repeated_attempt_is_the_same_attempt() {
    let dir = temp();
    let store = open(dir.path()).await;
    let (held, waits) = (claim("x"), waiting("x"));
    let first = granted(&store, &held).await;
    assert_eq!(granted(&store, &held).await.fence, first.fence);
    assert_eq!(pending(&store, &waits).await.ahead, Some(1));
    assert_eq!(pending(&store, &waits).await.ahead, Some(1));
    assert_eq!(show(&store, "x").await.waiters.count(), Some(1));
}

#[tokio::test]
async fn an_attempt_that_does_not_wait_leaves_nothing() {
    let dir = temp();
    let store = open(dir.path()).await;
    granted(&store, &claim("x")).await;
    pending(&store, &claim("x")).await;
    assert_eq!(show(&store, "x").await.waiters.count(), Some(0));
}

#[tokio::test]
async fn inspecting_an_unused_name_creates_no_file() {
    let dir = temp();
    let store = open(dir.path()).await;
    assert_eq!(release(&store, &claim("x")).await.outcome, Released::NotHeld);
    let renewed = store.renew(&[Renewal::of(Arc::new(claim("x")))]).await.remove(0).unwrap();
    assert_eq!(renewed, Renewed::Gone(Gone::Unknown));
    assert!(show(&store, "x").await.is_free());
    assert_eq!(std::fs::read_dir(dir.path().join("state")).unwrap().count(), 0);
}

#[tokio::test]
async fn capacities_hold_among_stores() {
    let dir = temp();
    let (a, b) = (open(dir.path()).await, open(dir.path()).await);
    let unit = || {
        let mut claim = claim("x");
        claim.weight = Weight::ONE;
        claim.capacity = Capacity::Fixed(Limit::Units(NonZeroU32::new(2).unwrap()));
        claim
    };
    granted(&a, &unit()).await;
    granted(&b, &unit()).await;
    pending(&a, &unit()).await;
    let mut other = unit();
    other.capacity = Capacity::Fixed(Limit::Units(NonZeroU32::new(3).unwrap()));
    assert_eq!(b.attempt(&other).await.unwrap_err().kind(), ErrorKind::SpecMismatch);
}

#[tokio::test]
async fn a_batch_is_answered_claim_by_claim() {
    let dir = temp();
    let store = open(dir.path()).await;
    let (held, waits, unknown, elsewhere) = (claim("x"), waiting("x"), claim("x"), claim("y"));
    granted(&store, &held).await;
    pending(&store, &waits).await;
    let fence = granted(&store, &elsewhere).await.fence;
    let batch: Vec<_> = [&elsewhere, &held, &unknown, &waits].map(|c| Renewal::of(Arc::new(c.clone()))).into();
    let answers: Vec<_> = store.renew(&batch).await.into_iter().map(Result::unwrap).collect();
    assert!(matches!(answers[0], Renewed::Alive { fence: Some(f), .. } if f == fence), "{answers:?}");
    assert!(matches!(answers[1], Renewed::Alive { fence: Some(_), .. }), "{answers:?}");
    assert_eq!(answers[2], Renewed::Gone(Gone::Unknown));
    assert!(matches!(answers[3], Renewed::Alive { fence: None, .. }), "{answers:?}");
}

#[tokio::test]
async fn tasks_of_one_process_exclude_each_other() {
    let dir = temp();
    let store = Arc::new(open(dir.path()).await);
    let inside = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let tasks = (0..20).map(|_| {
        let (store, inside) = (store.clone(), inside.clone());
        tokio::spawn(async move {
            for _ in 0..10 {
                let claim = waiting("x");
                take_turn(&store, &claim).await;
                assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                release(&store, &claim).await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

/// Each process reads, adds one and writes back. Only the lock keeps them apart.
#[tokio::test]
async fn two_processes_lose_no_count() {
    const ROUNDS: u32 = 1000;
    let dir = temp();
    std::fs::write(dir.path().join("counter"), "0").unwrap();
    let mut helpers = [0, 1].map(|_| Helper::start(&format!("count {ROUNDS} x"), dir.path()));
    for helper in &mut helpers {
        assert_eq!(helper.says(), "counted");
        helper.wait();
    }
    assert_eq!(std::fs::read_to_string(dir.path().join("counter")).unwrap(), (2 * ROUNDS).to_string());
}
