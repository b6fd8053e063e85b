//! Locks that other programs take too. What they send is what their libraries send.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Attempt, Cursor, Driver as _, End, Hint, Interest, Released, Renewal, Renewed};
use oarlock_core::state::{Ending, Query, Waiters};
use oarlock_core::{Applied, ErrorKind, Fence, Locks};
use oarlock_redis::{Config, Layout, Redis};
use oarlock_testbed::Redis as Server;
use redis::Value;

use crate::context::{DONE, Raw, claim, config, fence, name, started};

/// How redis-py, redsync and node-redlock free a lock: if it is still theirs.
const FREE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

fn plain(server: &Server) -> Config {
    let mut config = config(server.addr());
    (config.layout, config.prefix) = (Layout::Plain, String::new());
    config
}

#[tokio::test]
async fn other_programs_and_we_exclude_each_other() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = (Redis::open(plain(&server)).await.unwrap(), Raw::to(server.addr()).await);
    let theirs = "hIyOFk9wJTo7mA2PfSS1Jw==";

    let taken: Option<String> = raw.ask(&["SET", "deploy", theirs, "NX", "PX", "8000"]).await;
    assert!(taken.is_some());
    let Attempt::Pending(pending) = store.attempt(&claim(1, "deploy")).await.unwrap() else { panic!("it is theirs") };
    assert!(pending.ahead.is_none() && pending.recheck_after.unwrap() <= Duration::from_secs(8), "{pending:?}");
    assert_eq!(store.release(&name("deploy"), claim(1, "deploy").id, &DONE).await.unwrap().outcome, Released::NotHeld);
    assert_eq!(raw.ask::<usize>(&["EVAL", FREE, "1", "deploy", theirs]).await, 1);

    let first = fence(&store, &claim(1, "deploy")).await.unwrap();
    assert_eq!(fence(&store, &claim(1, "deploy")).await, Some(first), "asked again, the same fence");
    let taken: Option<String> = raw.ask(&["SET", "deploy", theirs, "NX", "PX", "8000"]).await;
    assert_eq!(taken, None);
    assert_eq!(raw.ask::<usize>(&["EVAL", FREE, "1", "deploy", theirs]).await, 0);
    assert_eq!(raw.ask::<String>(&["GET", "deploy"]).await, claim(1, "deploy").id.to_string());
    let left: i64 = raw.ask(&["PTTL", "deploy"]).await;
    assert!((29_000..=30_000).contains(&left), "{left}");
    store.release(&name("deploy"), claim(1, "deploy").id, &DONE).await.unwrap();
    assert_eq!(raw.ask::<usize>(&["EXISTS", "deploy"]).await, 0);
    assert!(fence(&store, &claim(2, "deploy")).await.unwrap() > first);
}

/// Grants are published only while a client observes the lock, and on a channel of their own: they wake no waiter.
#[tokio::test]
async fn a_grant_is_told_to_observers_and_wakes_no_waiter() {
    let server = started!(Server::start_or_skip());
    let (store, other) = (Redis::open(plain(&server)).await.unwrap(), Redis::open(plain(&server)).await.unwrap());
    let mut raw = Raw::to(server.addr()).await;
    let waits = Arc::new(claim(2, "deploy"));
    let _turn = other.watch(&Interest::Turn(waits, Cursor::default())).await.unwrap();
    let published = async |raw: &mut Raw| {
        let stats: String = raw.ask(&["INFO", "commandstats"]).await;
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_publish:calls=")?.split(',').next());
        calls.map_or(0, |calls| calls.parse::<u32>().unwrap())
    };
    // The first grant finds that no client observes, and notes it.
    for publications in [2, 3] {
        fence(&store, &claim(1, "deploy")).await.unwrap();
        store.release(&name("deploy"), claim(1, "deploy").id, &DONE).await.unwrap();
        assert_eq!(published(&mut raw).await, publications);
    }
    let mut seen = other.watch(&Interest::Resource(name("deploy"))).await.unwrap();
    for step in ["a grant", "a release", "a grant"] {
        if step == "a release" {
            store.release(&name("deploy"), claim(1, "deploy").id, &DONE).await.unwrap();
        } else {
            fence(&store, &claim(1, "deploy")).await.unwrap();
        }
        let hint = tokio::time::timeout(Duration::from_secs(20), seen.changed()).await;
        assert_eq!(hint.ok().flatten(), Some(Hint::ANY), "{step}");
    }
}

#[tokio::test]
async fn their_lock_without_an_end_is_shown_and_can_be_broken() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = (Redis::open(plain(&server)).await.unwrap(), Raw::to(server.addr()).await);
    let _: Value = raw.ask(&["SET", "deploy", "ours is a uuid", "NX"]).await;
    let Attempt::Pending(pending) = store.attempt(&claim(1, "deploy")).await.unwrap() else { panic!("it is theirs") };
    assert_eq!(pending.recheck_after, None);
    let seen = store.inspect(&Query::name(name("deploy"))).await.unwrap();
    let holder = &seen.resources[0].holders[0];
    assert!(holder.fence.is_none() && matches!(seen.resources[0].waiters, Waiters::Hidden), "{seen:?}");
    let ending = Ending::new("ops", "stuck");
    let end = End::Broken { ending, grace: Duration::ZERO };
    assert_eq!(store.release(&name("deploy"), holder.id, &end).await.unwrap().outcome, Released::Released);
    assert!(fence(&store, &claim(1, "deploy")).await.is_some());
}

#[tokio::test]
async fn another_kind_of_lock_under_the_name_is_an_error_and_is_left_alone() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = (Redis::open(plain(&server)).await.unwrap(), Raw::to(server.addr()).await);
    let _: Value = raw.ask(&["HSET", "deploy", "8743c9c0-0795-4907-87fd-6c719a6b4586:1", "1"]).await;
    let error = store.attempt(&claim(1, "deploy")).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Foreign, Applied::No), "{error}");
    assert_eq!(raw.ask::<usize>(&["HLEN", "deploy"]).await, 1);
    let _: Value = raw.ask(&["SET", "oarlock:beside:{other}", "theirs"]).await;
    assert_eq!(store.attempt(&claim(1, "other")).await.unwrap_err().kind(), ErrorKind::Foreign);
    for fence in ["nan", "inf", "-inf", "1e300", "0.5", "none"] {
        let _: Value = raw.ask(&["HSET", "oarlock:beside:{third}", "fence", fence]).await;
        assert_eq!(store.attempt(&claim(1, "third")).await.unwrap_err().kind(), ErrorKind::Foreign, "{fence}");
        assert_eq!(raw.ask::<usize>(&["EXISTS", "third"]).await, 0, "nothing is taken");
    }
}

#[tokio::test]
async fn what_is_left_beside_a_lock_ends_by_itself() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = (Redis::open(plain(&server)).await.unwrap(), Raw::to(server.addr()).await);
    fence(&store, &claim(1, "deploy")).await.unwrap();
    store.release(&name("deploy"), claim(1, "deploy").id, &DONE).await.unwrap();
    assert_eq!(raw.ask::<Vec<String>>(&["KEYS", "*"]).await, ["oarlock:beside:{deploy}"]);
    let left: i64 = raw.ask(&["PTTL", "oarlock:beside:{deploy}"]).await;
    // A day from when the lease would have ended, and an hour at most.
    assert!(left > 86_400_000 && left <= 90_030_000, "{left}");
}

/// The fence of a grant to this id, which is given back, for which this number was proposed.
async fn proposed(store: &Redis, id: u128, resource: &str, number: u64) -> u64 {
    let mut proposing = claim(id, resource);
    proposing.least_fence = Some(Fence::new(number));
    let given = fence(store, &proposing).await.unwrap();
    assert_eq!(store.release(&name(resource), proposing.id, &DONE).await.unwrap().outcome, Released::Released);
    given
}

async fn clock(raw: &mut Raw) -> u64 {
    let (seconds, micros): (u64, u64) = raw.ask(&["TIME"]).await;
    seconds * 1_000_000 + micros
}

#[tokio::test]
async fn a_number_that_is_proposed_twice_is_given_once() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = (Redis::open(plain(&server)).await.unwrap(), Raw::to(server.addr()).await);
    let number = clock(&mut raw).await;
    assert_eq!(proposed(&store, 1, "deploy", number).await, number);
    assert_eq!(proposed(&store, 2, "deploy", number).await, number + 1);
    assert_eq!(proposed(&store, 3, "deploy", number).await, number + 2);
}

#[tokio::test]
async fn a_proposed_fence_is_moved_to_within_a_minute_of_the_clock() {
    const MINUTE: u64 = 60_000_000;
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = (Redis::open(plain(&server)).await.unwrap(), Raw::to(server.addr()).await);
    for (resource, number) in [("behind", 7), ("ahead", Fence::LIMIT - 1)] {
        let before = clock(&mut raw).await;
        let given = proposed(&store, 1, resource, number).await;
        let after = clock(&mut raw).await;
        let bounds = if number == 7 { before - MINUTE..=after - MINUTE } else { before + MINUTE..=after + MINUTE };
        assert!(bounds.contains(&given), "{resource}: {given}, not in {bounds:?}");
    }
    let number = clock(&mut raw).await + MINUTE / 2;
    assert_eq!(proposed(&store, 1, "within", number).await, number);
}

#[tokio::test]
async fn who_waits_hears_of_a_release_and_not_of_a_round_that_came_to_nothing() {
    let server = started!(Server::start_or_skip());
    let (store, other) = (Redis::open(plain(&server)).await.unwrap(), Redis::open(plain(&server)).await.unwrap());
    let mine = claim(1, "deploy");
    let mut turn = store.watch(&Interest::Turn(Arc::new(claim(2, "deploy")), Default::default())).await.unwrap();
    let steps = [(End::Withdrawn, false), (DONE, true), (End::Withdrawn, false)];
    for (number, (end, is_told)) in (0..).zip(steps) {
        fence(&other, &mine).await.unwrap();
        assert_eq!(other.release(&mine.resource, mine.id, &end).await.unwrap().outcome, Released::Released);
        // Hints come over one connection, one after the other: when a later one is there, so is whatever came before
        // it.
        let later = claim(10 + number, &format!("later {number}"));
        let mut seen = store.watch(&Interest::Resource(later.resource.clone())).await.unwrap();
        fence(&other, &later).await.unwrap();
        let hint = tokio::time::timeout(Duration::from_secs(30), seen.changed()).await;
        assert!(matches!(hint, Ok(Some(_))), "{hint:?}");
        let told = tokio::time::timeout(Duration::ZERO, turn.changed()).await;
        assert_eq!(told.is_ok(), is_told, "{end:?}: {told:?}");
    }
}

#[tokio::test]
async fn a_refusal_says_who_holds_it() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = (Redis::open(plain(&server)).await.unwrap(), Raw::to(server.addr()).await);
    let holder = async |resource: &str| match store.attempt(&claim(2, resource)).await.unwrap() {
        Attempt::Pending(pending) => pending.holder,
        Attempt::Granted(grant) => panic!("{grant:?}"),
    };
    fence(&store, &claim(1, "ours")).await.unwrap();
    assert_eq!(holder("ours").await, Some(claim(1, "ours").id));
    let _: Value = raw.ask(&["SET", "theirs", "a token of another program", "PX", "8000"]).await;
    let seen = store.inspect(&Query::name(name("theirs"))).await.unwrap();
    assert_eq!(holder("theirs").await, Some(seen.resources[0].holders[0].id));
}

#[tokio::test]
async fn a_memo_of_a_quorum_that_comes_late_does_not_replace_a_newer_one() {
    let server = started!(Server::start_or_skip());
    let store = Redis::open(plain(&server)).await.unwrap();
    let mine = Arc::new(claim(1, "deploy"));
    fence(&store, &mine).await.unwrap();
    let stamped = |fence: u64, count: u64, text: &str| {
        [b"quorum/1 ".as_slice(), &fence.to_be_bytes(), &count.to_be_bytes(), text.as_bytes()].concat()
    };
    // Fences need all of 53 bits.
    let large = Fence::LIMIT - 2;
    let steps = [
        (stamped(large, 1, "first"), "first"),
        (stamped(large, 0, "earlier"), "first"),
        (stamped(large - 1, 300, "by another"), "first"),
        (stamped(large, 1, "again"), "again"),
        (stamped(large, 256, "second"), "second"),
        (stamped(large, 255, "late"), "second"),
        (stamped(large + 1, 0, "later"), "later"),
        (b"a memo of no quorum, longer than its mark".to_vec(), "longer than its mark"),
        (stamped(1, 1, "over it"), "over it"),
    ];
    for (memo, there) in steps {
        let mut renewal = Renewal::of(mine.clone());
        renewal.memo = Some(memo.into());
        let renewed = store.renew(&[renewal]).await.pop().unwrap().unwrap();
        assert!(matches!(renewed, Renewed::Alive { .. }), "{renewed:?}");
        let seen = store.inspect(&Query::name(name("deploy"))).await.unwrap();
        let memo = seen.resources[0].memo.clone().unwrap();
        assert!(memo.ends_with(there.as_bytes()), "{:?}, not {there:?}", String::from_utf8_lossy(&memo));
    }
}

#[tokio::test]
async fn a_key_has_no_parts() {
    let server = started!(Server::start_or_skip());
    let client = Locks::over(Redis::open(plain(&server)).await.unwrap()).unwrap();
    let refused = client.semaphore("deploy", 3).acquire(1).await.unwrap_err();
    assert_eq!((refused.kind(), refused.applied()), (ErrorKind::Unsupported, Applied::No), "{refused}");
    assert!(refused.to_string().contains("stores one holder"), "{refused}");
}

#[tokio::test]
async fn another_program_is_not_asked_to_let_go() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = (Redis::open(plain(&server)).await.unwrap(), Raw::to(server.addr()).await);
    let ending = Ending::new("ops", "stuck");
    let end = End::Broken { ending, grace: Duration::from_secs(1) };
    let _: Value = raw.ask(&["SET", "deploy", "a token of another program", "PX", "60000"]).await;
    let seen = store.inspect(&Query::name(name("deploy"))).await.unwrap();
    // It would extend its lock, and never know.
    let error = store.release(&name("deploy"), seen.resources[0].holders[0].id, &end).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unsupported, Applied::No), "{error}");
    let left: i64 = raw.ask(&["PTTL", "deploy"]).await;
    assert!(left > 10_000, "{left}");
    fence(&store, &claim(1, "ours")).await.unwrap();
    let asked = store.release(&name("ours"), claim(1, "ours").id, &end).await.unwrap();
    assert_eq!(asked.outcome, Released::Asked);
}

/// A weekly slot that was forgotten after a day would run twice.
#[tokio::test]
async fn a_memo_is_remembered_for_as_long_as_its_writer_asked() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = (Redis::open(plain(&server)).await.unwrap(), Raw::to(server.addr()).await);
    for id in [1, 2] {
        let claim = Arc::new(claim(id, "deploy"));
        assert!(fence(&store, &claim).await.is_some());
        let mut renewal = Renewal::of(claim.clone());
        renewal.held = true;
        if id == 1 {
            (renewal.memo, renewal.keep) = (Some(b"slot"[..].into()), Duration::from_secs(8 * 86_400));
        }
        assert!(matches!(store.renew(&[renewal]).await.remove(0).unwrap(), Renewed::Alive { .. }));
        store.release(&claim.resource, claim.id, &DONE).await.unwrap();
        // A later use does not shorten it.
        let left: i64 = raw.ask(&["PTTL", "oarlock:beside:{deploy}"]).await;
        assert!(left > 8 * 86_400_000 - 60_000 && left <= 8 * 86_400_000 + 3_600_000, "{left} ms after use {id}");
    }
    let Attempt::Granted(grant) = store.attempt(&claim(3, "deploy")).await.unwrap() else { panic!("it is free") };
    assert_eq!(grant.memo.as_deref(), Some(&b"slot"[..]));
}
