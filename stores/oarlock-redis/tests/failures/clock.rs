//! A server whose clock is set, ahead and back.

use std::time::Duration;

use oarlock_core::clock::{BootClock, Clock as _};
use oarlock_core::driver::Driver as _;
use oarlock_core::state::Query;
use oarlock_core::{Kind, LossReason};
use oarlock_redis::{Layout, Redis};
use oarlock_testbed::RedisClock;
use redis::Value;

use crate::context::{DONE, Raw, claim, client, config, fence, name, started};

const TTL: Duration = Duration::from_millis(1500);
const HOUR: i64 = 3600;

/// The server's clock, in seconds.
async fn time(raw: &mut Raw) -> i64 {
    raw.ask::<(i64, i64)>(&["TIME"]).await.0
}

async fn step(server: &RedisClock, raw: &mut Raw, seconds: i64) {
    let before = time(raw).await;
    server.set_clock(seconds * 1_000_000).unwrap();
    let moved = time(raw).await - before;
    assert!((moved - seconds).abs() <= 5, "the clock moved by {moved} s, not by {seconds}");
}

/// Every lease has run out by that clock, and no client can know better. The fence is larger, and the holder is told by
/// its next renewal, long before its lease would have ended.
#[tokio::test]
async fn a_step_ahead_ends_leases_and_the_holder_is_told() {
    let server = started!(RedisClock::start_or_skip());
    let long = Duration::from_secs(6);
    let (ours, mut raw) = (client(config(server.addr()), long).await, Raw::to(server.addr()).await);
    let guard = ours.mutex("deploy").lock().await.unwrap();
    step(&server, &mut raw, HOUR).await;
    let theirs = client(config(server.addr()), TTL).await.mutex("deploy").lock().await.unwrap();
    assert!(theirs.fence() > guard.fence());
    let reason = tokio::time::timeout(long / 2, guard.lost()).await.expect("told by the next renewal");
    assert_eq!(reason, LossReason::Gone);
}

/// Fences do not follow the clock back, renewals go on, and a holder that died is not waited for until the clock has
/// caught up: no lease lasts longer than it was given for, counted from when that is looked at.
#[tokio::test]
async fn a_step_back_repeats_no_fence_and_keeps_the_locks_of_the_dead_for_one_lease_more() {
    let server = started!(RedisClock::start_or_skip());
    let (ours, mut raw) = (client(config(server.addr()), TTL).await, Raw::to(server.addr()).await);
    let store = Redis::open(config(server.addr())).await.unwrap();
    let guard = ours.mutex("kept").lock().await.unwrap();
    let mut dead = claim(1, "deploy");
    dead.ttl = TTL;
    let first = fence(&store, &dead).await;
    assert!(first.is_some());
    step(&server, &mut raw, -HOUR).await;
    let stepped = BootClock.now();
    let next = ours.mutex("deploy").lock().await.unwrap();
    assert!(BootClock.now().since(stepped) < TTL * 3, "it was waited for {:?}", BootClock.now().since(stepped));
    assert!(Some(next.fence().get()) > first, "{} after {first:?}", next.fence());
    assert!(guard.is_held(), "{:?}", guard.loss());
    let before = next.fence();
    next.release().await.unwrap();
    assert!(ours.mutex("deploy").lock().await.unwrap().fence() > before);
}

/// Where many wait, most steps look at one of them alone: a clock that was set back is noticed all the same.
#[tokio::test]
async fn a_step_back_keeps_the_locks_of_the_dead_for_one_lease_more_where_many_wait() {
    let server = started!(RedisClock::start_or_skip());
    let (store, mut raw) = (Redis::open(config(server.addr())).await.unwrap(), Raw::to(server.addr()).await);
    let waiting = |id: u128| {
        let mut claim = claim(id, "deploy");
        (claim.ttl, claim.wait) = (Duration::from_secs(600), true);
        claim
    };
    let mut dead = claim(1, "deploy");
    dead.ttl = TTL;
    assert!(fence(&store, &dead).await.is_some());
    for id in 10..50 {
        assert_eq!(fence(&store, &waiting(id)).await, None);
    }
    step(&server, &mut raw, -HOUR).await;
    let stepped = BootClock.now();
    // One that comes after the step has nothing of its own to notice it by.
    for id in [99, 10] {
        assert_eq!(fence(&store, &waiting(id)).await, None);
    }
    while fence(&store, &waiting(10)).await.is_none() {
        assert!(BootClock.now().since(stepped) < TTL * 4, "the dead are waited for");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The counter carries a plain lock's fences over a clock that is set back; the clock carries them over a lost counter.
#[tokio::test]
async fn fences_of_plain_locks_rise_without_their_clock_and_without_their_counter() {
    let server = started!(RedisClock::start_or_skip());
    let mut config = config(server.addr());
    (config.layout, config.prefix) = (Layout::Plain, String::new());
    let (store, mut raw) = (Redis::open(config).await.unwrap(), Raw::to(server.addr()).await);
    let mut last = fence(&store, &claim(1, "deploy")).await;
    store.release(&name("deploy"), claim(1, "deploy").id, &DONE).await.unwrap();
    step(&server, &mut raw, -HOUR).await;
    let next = fence(&store, &claim(2, "deploy")).await;
    assert!(next > last, "{next:?} after {last:?}, by the counter");
    store.release(&name("deploy"), claim(2, "deploy").id, &DONE).await.unwrap();
    server.set_clock(0).unwrap();
    last = next;
    let _: Value = raw.ask(&["DEL", "oarlock:beside:{deploy}"]).await;
    let next = fence(&store, &claim(3, "deploy")).await;
    assert!(next > last, "{next:?} after {last:?}, by the clock");
}

/// No hold is shorter than no time.
#[tokio::test]
async fn a_lock_beside_redisson_is_shown_when_the_clock_was_set_back() {
    let server = started!(RedisClock::start_or_skip());
    let mut config = config(server.addr());
    (config.layout, config.prefix) = (Layout::Redisson, String::new());
    let (store, mut raw) = (Redis::open(config).await.unwrap(), Raw::to(server.addr()).await);
    // Longer than the step: its end is by the clock of the server.
    let mut long = claim(1, "deploy");
    long.ttl = Duration::from_secs(60);
    assert!(fence(&store, &long).await.is_some());
    step(&server, &mut raw, -HOUR).await;
    let seen = store.inspect(&Query::name(name("deploy"))).await.unwrap();
    let holder = &seen.resources[0].holders[0];
    assert_eq!((holder.id, holder.held_for), (long.id, Duration::ZERO));
}

/// What is kept of a name ends a day after its last use: the next fence then comes from the clock alone, which must
/// have passed the last one.
#[tokio::test]
async fn fences_do_not_fall_after_a_clock_was_ahead() {
    let server = started!(RedisClock::start_or_skip());
    for (layout, kind) in [
        (Layout::Native, Kind::Mutex),
        (Layout::Plain, Kind::Mutex),
        (Layout::Redisson, Kind::Mutex),
        (Layout::Redisson, Kind::Write),
    ] {
        server.set_clock(0).unwrap();
        let mut config = config(server.addr());
        config.layout = layout;
        if layout != Layout::Native {
            config.prefix = String::new();
        }
        let store = Redis::open(config).await.unwrap();
        let mut last = None;
        // A week ahead, set right, and then as the days go by.
        for (id, hours) in [(1, 168), (2, 0), (3, 26), (4, 52), (5, 169), (6, 195)] {
            server.set_clock(hours * HOUR * 1_000_000).unwrap();
            let mut claim = claim(id, &format!("nightly {layout:?} {kind:?}"));
            claim.kind = kind;
            let next = fence(&store, &claim).await;
            assert!(next > last, "{layout:?}, {kind:?}: {next:?} after {last:?}, {hours} hours ahead");
            store.release(&claim.resource, claim.id, &DONE).await.unwrap();
            last = next;
        }
    }
}
