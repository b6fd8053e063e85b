//! What a client may believe of a grant that came with a notification.

use std::sync::Arc;
use std::time::Duration;

use oarlock_conformance::end_of_belief;
use oarlock_core::clock::{BootClock, Clock as _, Moment, TokioClock};
use oarlock_core::driver::{Driver as _, End, Interest};
use oarlock_core::state::Query;
use oarlock_core::{Lifetime, Locks, LossReason};
use oarlock_redis::{Address, Redis};
use oarlock_testbed::proxy::{Direction, Proxy};

use super::context::{TURN, TestContext, claim, context, granted, name, pending, release, told};

#[tokio::test]
async fn a_turn_comes_with_its_grant_which_is_the_one_in_the_store() {
    let mut context = context!();
    let (one, (two, mut mailbox)) = (context.open().await, context.listening().await);
    let first = granted(&one, &claim(1)).await;
    assert!(pending(&two, &claim(2)).await.watched);
    one.release(&name(), claim(1).id, &End::Done { memo: Some(b"a b"[..].into()) }).await.unwrap();
    assert_eq!(told(&mut mailbox).await, Some(claim(2).id));
    let shown = one.inspect(&Query::name(name())).await.unwrap().resources.remove(0);
    let before = context.calls().await;
    let handed = granted(&two, &claim(2)).await;
    assert_eq!(context.calls().await, before, "it was not asked for");
    assert!(handed.fence > first.fence);
    assert_eq!(handed.memo.as_deref(), Some(&b"a b"[..]));
    assert_eq!((shown.holders[0].id, shown.holders[0].fence), (claim(2).id, Some(handed.fence)));
    assert!(handed.lease.ttl <= TURN && handed.lease.from.is_some(), "{:?}", handed.lease);
    let asked = granted(&two, &claim(2)).await;
    assert_eq!(context.calls().await, before + 1, "a second attempt asks the store");
    assert_eq!((asked.fence, asked.lease.ttl), (handed.fence, claim(2).ttl));
    release(&two, &claim(2)).await;
}

/// A client may have a clock of its own, and believes by that.
#[tokio::test]
async fn a_turn_counts_by_the_clock_of_the_client() {
    let context = context!();
    let one = context.open().await;
    let clock = Arc::new(TokioClock::new());
    let mut config = context.config();
    config.clock = clock.clone();
    let two = Redis::open(config).await.unwrap();
    let _mailbox = two.watch(&Interest::Mailbox).await.unwrap();
    granted(&one, &claim(1)).await;
    let before = clock.now();
    pending(&two, &claim(2)).await;
    let after = clock.now();
    let mut word = two.watch(&Interest::Mailbox).await.unwrap();
    release(&one, &claim(1)).await;
    assert_eq!(told(&mut word).await, Some(claim(2).id));
    let from = granted(&two, &claim(2)).await.lease.from.expect("it was handed its turn");
    // It is told in whole microseconds.
    assert!(from + Duration::from_micros(1) > before && from <= after, "{before:?}, {from:?}, {after:?}");
}

/// What the holder of a lock that it was handed sees after its thread was blocked for five seconds right after the
/// grant.
async fn after_a_blocked_thread(context: &TestContext, whole: bool) -> (Duration, Option<LossReason>) {
    let (one, two) = (context.client().await, context.client().await);
    let lock = || two.mutex("deploy");
    // With its first waiter the client subscribes to its mailbox.
    for round in 0..2 {
        let guard = one.mutex("deploy").lock().await.unwrap();
        let lock = if whole && round == 1 { lock().whole_lease() } else { lock() };
        let waits = tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            let begun = guard.time_left();
            if round == 1 {
                std::thread::sleep(Duration::from_secs(5));
            }
            // Nothing is awaited in between: this is what the program would act on.
            let loss = guard.loss();
            (begun, loss)
        });
        while one.inspect(&name()).await.unwrap().waiters.count() != Some(1) {
            tokio::task::yield_now().await;
        }
        guard.release().await.unwrap();
        let seen = waits.await.unwrap();
        if round == 1 {
            return seen;
        }
    }
    unreachable!("the second round returns")
}

/// The client renews on another thread of the runtime.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handed_lock_bears_a_blocked_thread() {
    let context = context!();
    // It may be renewed before its thread is blocked: the test of one thread shows that it is handed the lock.
    let (_, loss) = after_a_blocked_thread(&context, false).await;
    assert_eq!(loss, None);
}

/// The only thread of the runtime is blocked, so the client cannot renew: the program is told before it does anything
/// else. With its whole lease from the start the lock bears that, too.
#[tokio::test]
async fn a_handed_lock_on_a_runtime_of_one_thread_that_blocks_is_told_lost() {
    let context = context!();
    let (begun, loss) = after_a_blocked_thread(&context, false).await;
    assert!(begun <= TURN, "it was handed the lock: {begun:?}");
    assert!(matches!(loss, Some(LossReason::Expired)), "{loss:?}");
    let (begun, loss) = after_a_blocked_thread(&context, true).await;
    assert!(begun > TURN, "it has its whole lease: {begun:?}");
    assert_eq!(loss, None);
}

/// A well-formed notification grants the lock to a claim that may be handed it, and to no other claim.
#[tokio::test]
async fn a_claim_that_must_ask_takes_no_grant_from_a_notification() {
    let context = context!();
    let one = context.open().await;
    let fence = granted(&one, &claim(1)).await.fence;
    let (two, mut mailbox) = context.listening().await;
    let mut channels = redis::cmd("PUBSUB");
    let channels: Vec<String> =
        channels.arg("CHANNELS").arg("oarlock:mail:*").query_async(&mut context.raw.clone()).await.unwrap();
    let mut without_renewal = claim(2);
    without_renewal.renews = false;
    let mut outliving = claim(3);
    outliving.lifetime = Lifetime::Lease;
    for claim in [&without_renewal, &outliving, &claim(4)] {
        pending(&two, claim).await;
        let sent = BootClock.now().as_nanos() / 1000;
        let mut publish = redis::cmd("PUBLISH");
        let numbers = [fence.get(), sent, 2_000_000].map(u64::to_be_bytes).concat();
        publish.arg(&channels[0]).arg([&claim.id.bits().to_be_bytes()[..], &numbers].concat());
        publish.exec_async(&mut context.raw.clone()).await.unwrap();
        assert_eq!(told(&mut mailbox).await, Some(claim.id));
        match claim.may_be_handed() {
            true => drop(granted(&two, claim).await),
            false => drop(pending(&two, claim).await),
        }
    }
}

/// The notification of the turn is late, and then the connection is cut: the client that was handed the lock must stop
/// believing before the server grants it to the next waiter.
#[tokio::test]
async fn belief_in_a_turn_ends_before_the_next_grant_however_late_it_was_told() {
    let context = context!();
    let (one, three) = (context.client().await, context.client().await);
    let proxy = Proxy::start(context.server.addr()).unwrap();
    let mut config = context.config();
    config.address = Address::Tcp(proxy.addr().ip().to_string(), proxy.addr().port());
    let two = Locks::over(Redis::open(config).await.unwrap()).unwrap();
    let waits = |client: &Locks| {
        let lock = client.mutex("deploy");
        tokio::spawn(async move { (lock.lock().await.unwrap(), BootClock.now()) })
    };
    let queued = async |count| {
        while one.inspect(&name()).await.unwrap().waiters.count() != Some(count) {
            tokio::task::yield_now().await;
        }
    };
    let mut margins = Vec::new();
    for delay in [0, 250] {
        // With its first waiter the client subscribes to its mailbox.
        let guard = one.mutex("deploy").lock().await.unwrap();
        let second = waits(&two);
        queued(1).await;
        guard.release().await.unwrap();
        second.await.unwrap().0.release().await.unwrap();

        let guard = one.mutex("deploy").lock().await.unwrap();
        let second = waits(&two);
        queued(1).await;
        proxy.delay(Direction::ToClient, Duration::from_millis(delay));
        // Before the turn comes, so that it cannot be renewed.
        proxy.cut_one_way(Direction::ToServer);
        let released = BootClock.now();
        guard.release().await.unwrap();
        let (held, told) = second.await.unwrap();
        assert!(held.time_left() <= TURN, "it was handed the lock");
        proxy.cut();
        assert!(told.since(released) >= Duration::from_millis(delay), "it was told {:?} late", told.since(released));
        let end = tokio::task::spawn_blocking({
            let held = held.held();
            move || end_of_belief(&held)
        });
        // It asks all the time, so as to be granted the lock as soon as that can be.
        let (next, at): (_, Moment) = loop {
            if let Some(guard) = three.mutex("deploy").try_lock().await.unwrap() {
                break (guard, BootClock.now());
            }
        };
        let ended = end.await.unwrap();
        assert!(ended < at, "after a delay of {delay} ms it still believed when the next was granted");
        assert!(next.fence() > held.fence());
        margins.push((at.since(ended).as_secs_f64() * 1000.0).round());
        proxy.delay(Direction::ToClient, Duration::ZERO);
        proxy.heal(oarlock_testbed::proxy::Held::Deliver).unwrap();
        drop(held);
        next.release().await.unwrap();
    }
    println!("belief in a turn ended {margins:?} ms before the next grant");
}
