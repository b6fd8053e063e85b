//! A holder hears that its lock was broken, whenever that happens.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use oarlock_core::driver::Released;
use oarlock_core::{DynDriver, LossReason};

use crate::spy::{SECOND, Spy, client_over, ending, name, world};

#[tokio::test(start_paused = true)]
async fn the_token_of_an_explicit_lease_fires_with_the_end_of_the_grace() {
    let world = world();
    let guard = world.spied.mutex("a").ttl(SECOND * 600).no_renewal().lock().await.unwrap();
    tokio::time::sleep(SECOND).await;
    let token = guard.token();
    let started = tokio::time::Instant::now();
    let broken = world.honest.break_hold(&name(), guard.fence(), ending(), SECOND * 5).await.unwrap();
    assert_eq!(broken, Released::Asked);
    token.cancelled().await;
    assert!(started.elapsed() <= SECOND * 5, "the token fired after {:?}", started.elapsed());
    tokio::time::sleep(SECOND).await;
    assert!(world.honest.mutex("a").try_lock().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_break_before_the_mailbox_is_armed_is_told_at_once() {
    for lease in [false, true] {
        let world = world();
        *world.hooks.mailbox_delay.lock().unwrap() = Duration::from_millis(300);
        let lock = world.spied.mutex("a").ttl(SECOND * 600);
        let lock = if lease { lock.ttl(SECOND * 600).no_renewal() } else { lock };
        let guard = lock.lock().await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        world.honest.break_hold(&name(), guard.fence(), ending(), Duration::ZERO).await.unwrap();
        let told = tokio::time::timeout(SECOND, guard.lost()).await;
        assert_eq!(told.expect("told late"), LossReason::Broken(ending()), "explicit lease: {lease}");
    }
}

/// The mailbox ends, and is armed anew only a second later.
#[tokio::test(start_paused = true)]
async fn a_break_while_the_mailbox_is_armed_anew_is_told_at_once() {
    let world = world();
    let guard = world.spied.mutex("a").ttl(SECOND * 600).lock().await.unwrap();
    tokio::time::sleep(SECOND).await;
    *world.hooks.mailbox_delay.lock().unwrap() = SECOND;
    world.hooks.end_mailbox();
    tokio::task::yield_now().await;
    world.raw.kit().lose(name()).unwrap();
    let told = tokio::time::timeout(SECOND * 5, guard.lost()).await;
    assert_eq!(told.expect("told late"), LossReason::Gone);
}

#[tokio::test(start_paused = true)]
async fn two_clients_over_one_driver_both_hear_of_breaks() {
    let world = world();
    let driver: Arc<dyn DynDriver> = Arc::new(Spy(world.raw.connect(), world.hooks.clone()));
    let (one, other) = (client_over(&driver, &world.clock), client_over(&driver, &world.clock));
    let _a = one.mutex("x").lock().await.unwrap();
    let _b = other.mutex("y").lock().await.unwrap();
    for number in 0..20 {
        let client = if number % 2 == 0 { &one } else { &other };
        let guard = client.mutex("a").ttl(SECOND * 600).no_renewal().lock().await.unwrap();
        tokio::time::sleep(Duration::from_millis(1000 + 37 * number)).await;
        world.honest.break_hold(&name(), guard.fence(), ending(), Duration::ZERO).await.unwrap();
        let told = tokio::time::timeout(SECOND, guard.lost()).await;
        assert_eq!(told.expect("told late"), LossReason::Broken(ending()), "break {number}");
    }
    assert_eq!(world.hooks.mailboxes.load(SeqCst), 2, "one mailbox for each client, armed once");
}

/// What an explicit lease is asked because of a hint must not extend it.
#[tokio::test(start_paused = true)]
async fn an_explicit_lease_ends_after_an_outdated_answer() {
    let world = world();
    let guard = world.spied.mutex("a").ttl(SECOND * 60).no_renewal().lock().await.unwrap();
    tokio::time::sleep(SECOND).await;
    world.hooks.stale_once.store(true, SeqCst);
    world.hooks.hint();
    tokio::time::sleep(SECOND).await;
    assert!(!world.hooks.stale_once.load(SeqCst), "the hint was not followed");
    assert!(guard.is_held(), "one outdated answer is no loss");
    assert!(guard.time_left() < SECOND * 58, "it was extended: {:?}", guard.time_left());
    tokio::time::sleep(SECOND * 59).await;
    assert_eq!(guard.loss(), Some(LossReason::Expired));
    let renewals = world.hooks.renewals.load(SeqCst);
    tokio::time::sleep(SECOND * 600).await;
    assert_eq!(world.hooks.renewals.load(SeqCst), renewals, "it is renewed on and on");
    // Neither was it extended in the store.
    assert!(world.honest.mutex("a").try_lock().await.unwrap().is_some());
}

/// The same, asked to end: one outdated answer does not undo the graceful end.
#[tokio::test(start_paused = true)]
async fn a_graceful_end_is_noticed_after_an_outdated_answer() {
    let world = world();
    let guard = world.spied.mutex("a").ttl(SECOND * 600).no_renewal().lock().await.unwrap();
    tokio::time::sleep(SECOND).await;
    world.hooks.stale_once.store(true, SeqCst);
    world.honest.break_hold(&name(), guard.fence(), ending(), SECOND * 5).await.unwrap();
    let told = tokio::time::timeout(SECOND * 5, guard.lost()).await;
    assert_eq!(told.expect("told late"), LossReason::Broken(ending()));
}

/// No later renewal would notice what a failed probe missed.
#[tokio::test(start_paused = true)]
async fn a_failed_probe_of_an_explicit_lease_is_repeated() {
    let world = world();
    let guard = world.spied.mutex("a").ttl(SECOND * 600).no_renewal().lock().await.unwrap();
    tokio::time::sleep(SECOND).await;
    world.hooks.failing_probes.store(4, SeqCst);
    world.honest.break_hold(&name(), guard.fence(), ending(), Duration::ZERO).await.unwrap();
    let told = tokio::time::timeout(SECOND * 30, guard.lost()).await;
    assert_eq!(told.expect("told late"), LossReason::Broken(ending()));
    assert_eq!(world.hooks.failing_probes.load(SeqCst), 0, "no probe failed");
}

/// A break of many explicit leases at once must not ask the store for all of them at once.
#[tokio::test(start_paused = true)]
async fn many_explicit_leases_are_probed_one_after_the_other() {
    let world = world();
    let mut guards = Vec::new();
    for number in 0..200 {
        let lock = world.spied.mutex(format!("lock {number}")).ttl(SECOND * 600).no_renewal();
        guards.push(lock.lock().await.unwrap());
    }
    tokio::time::sleep(SECOND).await;
    let before = world.hooks.inspects.load(SeqCst);
    world.hooks.silent_inspects.store(true, SeqCst);
    world.hooks.hint();
    tokio::time::sleep(SECOND).await;
    let asked = world.hooks.inspects.load(SeqCst) - before;
    assert!((1..=16).contains(&asked), "{asked} at once");
}
