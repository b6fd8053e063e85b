//! How a hold ends: what a task is told that watches it.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::clock::TokioClock;
use oarlock_core::state::Ending;
use oarlock_core::{Ended, ErrorKind, Lifetime, Locks, LossReason, Memory, Multi, Result};

const SECOND: Duration = Duration::from_secs(1);

fn world() -> Result<(Memory, Locks)> {
    let store = Memory::on(Arc::new(TokioClock::new()));
    let locks = Locks::builder(store.connect()).clock(store.kit().clock()).build()?;
    Ok((store, locks))
}

fn ending() -> Ending {
    Ending::new("ops", "maintenance")
}

#[tokio::test(start_paused = true)]
async fn a_release_ends_the_watch_and_the_token_and_is_no_loss() {
    let (_, locks) = world().unwrap();
    for how in ["release", "drop", "hand over", "cohort"] {
        let lock = locks.mutex("a").lifetime(Lifetime::Lease).ttl(SECOND * 10);
        let lock = if how == "cohort" { lock.cohort(4, SECOND) } else { lock };
        let next = lock.clone();
        let guard = lock.lock().await.unwrap();
        let (held, token) = (guard.held(), guard.token());
        let watch = tokio::spawn({
            let held = held.clone();
            async move { held.ended().await }
        });
        let asked = tokio::spawn({
            let held = held.clone();
            async move { held.asked_to_end().await }
        });
        let waiter = (how == "cohort").then(|| tokio::spawn(async move { next.lock().await }));
        tokio::time::sleep(SECOND).await;
        assert!(!watch.is_finished() && !asked.is_finished() && !token.is_cancelled(), "{how}: over while it is held");
        match how {
            "hand over" => drop(guard.hand_over().unwrap()),
            "drop" => drop(guard),
            _ => drop(guard.release().await.unwrap()),
        }
        assert_eq!(watch.await.unwrap(), Ended::Released, "{how}");
        assert_eq!(asked.await.unwrap(), None, "{how}");
        assert!(token.is_cancelled(), "{how}: the token of a released lock");
        assert!(tokio::time::timeout(SECOND * 60, held.lost()).await.is_err(), "{how}: a release is told as a loss");
        if let Some(waiter) = waiter {
            waiter.await.unwrap().unwrap().release().await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_loss_ends_the_watch_and_says_why() {
    let (store, locks) = world().unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    let (held, token) = (guard.held(), guard.token());
    let watch = tokio::spawn(async move { held.ended().await });
    store.kit().lose("a").unwrap();
    assert_eq!(watch.await.unwrap(), Ended::Lost(LossReason::Gone));
    assert!(token.is_cancelled());
    assert_eq!(guard.ended().await, Ended::Lost(LossReason::Gone), "told again");
    assert_eq!(guard.asked_to_end().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_is_asked_to_end_learns_by_whom_and_still_holds() {
    let (store, locks) = world().unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    let both = Multi::of(locks.mutex("b")).and(locks.mutex("c")).lock().await.unwrap();
    let asked = async { tokio::join!(guard.asked_to_end(), both.asked_to_end()) };
    let ask = async {
        tokio::time::sleep(SECOND).await;
        store.kit().ask_to_end("a", &ending(), SECOND * 5).unwrap();
        store.kit().ask_to_end("c", &ending(), SECOND * 5).unwrap();
    };
    let ((one, other), ()) = tokio::join!(asked, ask);
    assert_eq!(one, Some(ending()));
    assert_eq!(other.map(|(held, ending)| (held.resource().to_string(), ending)), Some(("c".into(), ending())));
    assert!(guard.is_held() && both.is_held() && !guard.token().is_cancelled() && !both.token().is_cancelled());
    assert_eq!(guard.asked_to_end().await, Some(ending()), "asked again");
    assert_eq!(guard.ended().await, Ended::Lost(LossReason::Broken(ending())));
    assert_eq!(both.ended().await, Ended::Lost(LossReason::Broken(ending())));
}

#[tokio::test(start_paused = true)]
async fn a_break_without_grace_names_its_author() {
    let (store, locks) = world().unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    let held = guard.held();
    let asked = tokio::spawn(async move { held.asked_to_end().await });
    store.kit().ask_to_end("a", &ending(), Duration::ZERO).unwrap();
    assert_eq!(asked.await.unwrap(), Some(ending()));
    assert_eq!(guard.ended().await, Ended::Lost(LossReason::Broken(ending())));
}

/// After a suspend the holder may drop its guard before any timer has fired.
#[tokio::test(start_paused = true)]
async fn a_guard_that_is_dropped_after_its_lease_was_lost() {
    let store = Memory::on(Arc::new(TokioClock::new()));
    let kit = store.kit();
    let locks = Locks::builder(store.connect()).clock(kit.clock()).build().unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    let (held, token) = (guard.held(), guard.token());
    kit.step_clock(SECOND * 3600);
    drop(guard);
    assert_eq!(held.ended().await, Ended::Lost(LossReason::Expired));
    assert!(token.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn the_token_of_several_locks_does_not_need_its_runtime() {
    let (store, locks) = world().unwrap();
    let both = Multi::of(locks.mutex("a")).and(locks.mutex("b")).lock().await.unwrap();
    let token = both.token();
    drop(both);
    assert!(token.is_cancelled(), "cancelled by the drop itself");
    let both = Multi::of(locks.mutex("a")).and(locks.mutex("b")).lock().await.unwrap();
    store.kit().lose("b").unwrap();
    both.lost().await;
    assert!(both.token().is_cancelled(), "of what is lost already");
}

#[tokio::test(start_paused = true)]
async fn a_view_of_several_locks_sees_their_release() {
    let (_, locks) = world().unwrap();
    let both = Multi::of(locks.mutex("a")).and(locks.mutex("b")).lock().await.unwrap();
    let (held, token) = (both.held(), both.token());
    let watch = tokio::spawn({
        let held = held.clone();
        async move { (held.ended().await, held.asked_to_end().await.is_none()) }
    });
    tokio::time::sleep(SECOND).await;
    assert!(held.is_held() && held.check().is_ok() && !watch.is_finished());
    both.release().await.unwrap();
    assert_eq!(watch.await.unwrap(), (Ended::Released, true));
    assert!(!held.is_held() && token.is_cancelled() && held.token().is_cancelled());
    assert_eq!(held.check().unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_waits_for_the_end_to_come_near_goes_on_after_a_release() {
    let (_, locks) = world().unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    let both = Multi::of(locks.mutex("b")).and(locks.mutex("c")).lock().await.unwrap();
    let (one, several) = (guard.held(), both.held());
    let near = tokio::spawn(async move { tokio::join!(one.ends_within(SECOND), several.ends_within(Duration::ZERO)) });
    tokio::time::sleep(SECOND * 60).await;
    assert!(!near.is_finished(), "renewals keep the end away");
    guard.release().await.unwrap();
    drop(both);
    tokio::time::timeout(SECOND, near).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_test_kit_refuses_an_invalid_name_and_a_lock_that_is_free() {
    let kit = Memory::new().kit();
    assert_eq!(kit.lose("").unwrap_err().kind(), ErrorKind::InvalidName);
    assert_eq!(kit.lose("free").unwrap_err().kind(), ErrorKind::InvalidClaim, "a test would pass without the loss");
    assert_eq!(kit.ask_to_end("free", &ending(), SECOND).unwrap_err().kind(), ErrorKind::InvalidClaim);
    assert_eq!(kit.ask_to_end("", &ending(), SECOND).unwrap_err().kind(), ErrorKind::InvalidName);
}
