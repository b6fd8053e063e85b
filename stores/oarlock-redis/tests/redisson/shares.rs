//! Read-write locks and semaphores.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver as _, End, Gone, Released, Renewal, Renewed};
use oarlock_core::state::{Ending, Query};
use oarlock_core::{Capacity, Claim, ErrorKind, Kind, Limit, Weight};
use oarlock_testbed::Redis as Server;
use redis::Value;

use super::listener::{JAVA, Listener, open, owner};
use crate::context::{DONE, claim, fence, name, started, until};

const RW: &str = "redisson_rwlock:{deploy}";
const HELD: &str = "{deploy}:timeout";

fn reader(id: u128) -> Claim {
    let mut claim = writer(id);
    (claim.kind, claim.weight) = (Kind::Read, Weight::ONE);
    claim
}

fn writer(id: u128) -> Claim {
    let mut claim = claim(id, "deploy");
    (claim.kind, claim.capacity) = (Kind::Write, Capacity::Fixed(Limit::Unlimited));
    claim
}

fn permits(id: u128, count: u32, of: u32) -> Claim {
    let mut claim = claim(id, "deploy");
    let units = |n| NonZeroU32::new(n).unwrap();
    claim.kind = Kind::Semaphore;
    (claim.weight, claim.capacity) = (Weight::Units(units(count)), Capacity::Fixed(Limit::Units(units(of))));
    claim
}

fn hold(owner: &str) -> String {
    format!("{{deploy}}:{owner}:rwlock_timeout:1")
}

#[tokio::test]
async fn a_read_write_lock_looks_like_one_of_theirs() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = open(server.addr()).await;
    let mut listener = Listener::on(server.addr(), "SUBSCRIBE", RW).await;
    fence(&store, &reader(1)).await.unwrap();
    fence(&store, &reader(1)).await.unwrap();
    assert_eq!(raw.ask::<Vec<String>>(&["HGETALL", "deploy"]).await, ["mode", "read", &owner(1), "1"]);
    assert_eq!(raw.ask::<String>(&["GET", &hold(&owner(1))]).await, "1");
    for key in ["deploy", &hold(&owner(1))] {
        let left: i64 = raw.ask(&["PTTL", key]).await;
        assert!((29_000..=30_000).contains(&left), "{key}: {left}");
    }
    assert_eq!(fence(&store, &writer(2)).await, None);
    store.release(&name("deploy"), reader(1).id, &DONE).await.unwrap();
    listener.told("0").await;
    assert_eq!(raw.ask::<Vec<String>>(&["KEYS", "*"]).await, ["oarlock:beside:{deploy}"]);

    let first = fence(&store, &writer(2)).await.unwrap();
    let written = format!("{}:write", owner(2));
    assert_eq!(raw.ask::<Vec<String>>(&["HGETALL", "deploy"]).await, ["mode", "write", &written, "1"]);
    assert_eq!(fence(&store, &reader(1)).await, None);
    assert_eq!(fence(&store, &reader(2)).await, Some(first), "a downgrade keeps the fence");
    listener.hears("$1\r\n1\r\n").await;
    // For a thread that was about to sleep.
    listener.told("0").await;
    assert_eq!(raw.ask::<Vec<String>>(&["HGETALL", "deploy"]).await, ["mode", "read", &owner(2), "1"]);
    assert!(fence(&store, &reader(1)).await.unwrap() > first);
    assert_eq!(store.attempt(&writer(1)).await.unwrap_err().kind(), ErrorKind::Upgrade);
    for id in [1, 2] {
        store.release(&name("deploy"), reader(id).id, &DONE).await.unwrap();
    }
    fence(&store, &writer(3)).await.unwrap();
    store.release(&name("deploy"), writer(3).id, &DONE).await.unwrap();
    listener.told("1").await;
}

#[tokio::test]
async fn a_reader_of_theirs_excludes_writers_as_long_as_the_hash_says() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = open(server.addr()).await;
    let _: Value = raw.ask(&["HSET", "deploy", "mode", "read", JAVA, "1"]).await;
    let _: Value = raw.ask(&["PEXPIRE", "deploy", "60000"]).await;
    // Some of their versions renew the hash alone: the hold's own key is gone, and its reader is alive.
    fence(&store, &reader(1)).await.unwrap();
    store.release(&name("deploy"), reader(1).id, &DONE).await.unwrap();
    assert_eq!(fence(&store, &writer(2)).await, None);
    let left: i64 = raw.ask(&["PTTL", "deploy"]).await;
    assert!(left > 50_000, "{left}");
    // The same while that key is still there.
    let _: Value = raw.ask(&["SET", &hold(JAVA), "1", "PX", "5000"]).await;
    fence(&store, &reader(1)).await.unwrap();
    store.release(&name("deploy"), reader(1).id, &DONE).await.unwrap();
    let left: i64 = raw.ask(&["PTTL", "deploy"]).await;
    assert!(left > 50_000, "{left}");
}

#[tokio::test]
async fn the_hash_lives_as_long_as_the_last_reader_of_ours() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = open(server.addr()).await;
    let mut short = reader(2);
    short.ttl = Duration::from_secs(5);
    fence(&store, &reader(1)).await.unwrap();
    fence(&store, &short).await.unwrap();
    store.release(&name("deploy"), reader(1).id, &DONE).await.unwrap();
    let left: i64 = raw.ask(&["PTTL", "deploy"]).await;
    assert!((1000..=5001).contains(&left), "{left}");
}

#[tokio::test]
async fn a_semaphore_that_was_deleted_is_set_up_anew() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = open(server.addr()).await;
    fence(&store, &permits(1, 1, 5)).await.unwrap();
    store.release(&name("deploy"), permits(1, 1, 5).id, &DONE).await.unwrap();
    let mismatch = store.attempt(&permits(2, 1, 10)).await.unwrap_err();
    assert_eq!(mismatch.kind(), ErrorKind::SpecMismatch);
    let _: Value = raw.ask(&["DEL", "deploy", HELD]).await;
    assert!(fence(&store, &permits(2, 1, 10)).await.is_some());
    assert_eq!(raw.ask::<String>(&["GET", "deploy"]).await, "9");
    // By Redisson, before a client of ours looked.
    let _: Value = raw.ask(&["DEL", "deploy", HELD]).await;
    let _: Value = raw.ask(&["SET", "deploy", "12"]).await;
    let seen = store.inspect(&Query::name(name("deploy"))).await.unwrap();
    let twelve = Some(Limit::Units(NonZeroU32::new(12).unwrap()));
    assert_eq!(seen.resources[0].capacity, twelve);
    assert_eq!(store.attempt(&permits(3, 1, 10)).await.unwrap_err().stored_capacity(), twelve);
    assert!(fence(&store, &permits(3, 11, 12)).await.is_some());
}

#[tokio::test]
async fn a_break_takes_all_that_a_thread_of_theirs_holds() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = open(server.addr()).await;
    let _: Value = raw.ask(&["HSET", "deploy", "mode", "write", &format!("{JAVA}:write"), "1", JAVA, "1"]).await;
    let _: Value = raw.ask(&["PEXPIRE", "deploy", "60000"]).await;
    let _: Value = raw.ask(&["SET", &hold(JAVA), "1", "PX", "60000"]).await;
    let holder = store.inspect(&Query::name(name("deploy"))).await.unwrap().resources[0].holders[0].id;
    let end = End::Broken { ending: Ending::new("ops", "stuck"), grace: Duration::ZERO };
    store.release(&name("deploy"), holder, &end).await.unwrap();
    assert_eq!(raw.ask::<usize>(&["EXISTS", "deploy", &hold(JAVA)]).await, 0);
    assert!(fence(&store, &writer(1)).await.is_some());
}

#[tokio::test]
async fn a_dead_reader_of_ours_blocks_no_claim() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = open(server.addr()).await;
    let mut dead = reader(1);
    dead.ttl = Duration::from_millis(50);
    fence(&store, &dead).await.unwrap();
    fence(&store, &reader(2)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(80)).await;
    let seen = store.inspect(&Query::name(name("deploy"))).await.unwrap();
    assert_eq!(seen.resources[0].holders.len(), 1, "{seen:?}");
    let renewed = store.renew(&[Renewal::of(Arc::new(dead))]).await;
    assert!(matches!(&renewed[..], [Ok(Renewed::Gone(_))]), "{renewed:?}");
    store.release(&name("deploy"), reader(2).id, &DONE).await.unwrap();
    assert_eq!(raw.ask::<usize>(&["EXISTS", "deploy"]).await, 0);
}

#[tokio::test]
async fn permits_look_like_theirs_and_come_back_once() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = open(server.addr()).await;
    let mut listener = Listener::on(server.addr(), "SUBSCRIBE", "redisson_sc:{deploy}").await;
    for _ in 0..2 {
        fence(&store, &permits(0xfeed, 2, 5)).await.unwrap();
    }
    listener.told("5").await;
    assert_eq!(raw.ask::<String>(&["GET", "deploy"]).await, "3", "taken once");
    let held: Vec<(Vec<u8>, u64)> = raw.ask(&["ZRANGE", HELD, "0", "-1", "WITHSCORES"]).await;
    assert!(held.iter().any(|(member, _)| **member == 0xfeed_u128.to_be_bytes()), "{held:?}");
    let now: (u64, u64) = raw.ask(&["TIME"]).await;
    let ends = now.0 * 1000 + now.1 / 1000 + 30_000;
    assert!(held.len() == 2 && held.iter().all(|(member, at)| member.len() == 16 && ends - at < 5000), "{held:?}");
    // A semaphore of theirs without leases takes from the same number; their holders are unknown.
    let _: Value = raw.ask(&["DECRBY", "deploy", "2"]).await;
    assert_eq!(fence(&store, &permits(2, 2, 5)).await, None);
    let seen = store.inspect(&Query::name(name("deploy"))).await.unwrap();
    let weights: Vec<_> = seen.resources[0].holders.iter().map(|h| (h.weight, h.fence.is_some())).collect();
    let two = Weight::Units(NonZeroU32::new(2).unwrap());
    assert!(weights.len() == 2 && weights.contains(&(two, true)) && weights.contains(&(two, false)), "{seen:?}");
    let _: Value = raw.ask(&["INCRBY", "deploy", "2"]).await;
    for _ in 0..2 {
        store.release(&name("deploy"), permits(0xfeed, 2, 5).id, &DONE).await.unwrap();
    }
    listener.told("5").await;
    assert_eq!(raw.ask::<String>(&["GET", "deploy"]).await, "5", "returned once");
    assert_eq!(raw.ask::<usize>(&["EXISTS", HELD]).await, 0);
    let error = store.attempt(&permits(2, 1, 7)).await.unwrap_err();
    assert_eq!(error.stored_capacity(), Some(Limit::Units(NonZeroU32::new(5).unwrap())), "{error}");
    assert_eq!(store.attempt(&permits(2, 6, 5)).await.unwrap_err().kind(), ErrorKind::TooHeavy);
}

#[tokio::test]
async fn permits_that_expire_come_back_once() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = open(server.addr()).await;
    // They set it up, and have a permit that has run out.
    let _: Value = raw.ask(&["SET", "deploy", "0"]).await;
    let _: Value = raw.ask(&["ZADD", HELD, "1", "sixteen bytes of"]).await;
    let mut short = permits(1, 1, 9);
    short.ttl = Duration::from_secs(2);
    fence(&store, &short).await.expect("theirs has run out");
    assert_eq!(fence(&store, &permits(2, 1, 9)).await, None, "the capacity is what is stored");
    until("ours has run out", async || fence(&store, &permits(2, 1, 9)).await.is_some()).await;
    let renewed = store.renew(&[Renewal::of(Arc::new(short.clone()))]).await;
    assert!(matches!(&renewed[..], [Ok(Renewed::Gone(_))]), "{renewed:?}");
    store.release(&name("deploy"), short.id, &DONE).await.unwrap();
    assert_eq!(raw.ask::<String>(&["GET", "deploy"]).await, "0", "what ran out is not returned again");
    assert_eq!(raw.ask::<usize>(&["ZCARD", HELD]).await, 1);
}

#[tokio::test]
async fn what_no_object_of_theirs_is_is_refused() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = open(server.addr()).await;
    let mut part = claim(1, "deploy");
    part.weight = Weight::ONE;
    assert_eq!(store.attempt(&part).await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(store.attempt(&permits(1, 1001, 5000)).await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(raw.ask::<usize>(&["DBSIZE"]).await, 0);
}

#[tokio::test]
async fn a_reader_believes_no_longer_than_a_renewal_of_theirs_lasts() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = open(server.addr()).await;
    let mut long = reader(1);
    long.ttl = Duration::from_secs(300);
    let Attempt::Granted(grant) = store.attempt(&long).await.unwrap() else { panic!("it is free") };
    assert_eq!(grant.lease.ttl, Duration::from_secs(30));
    // A reader of theirs joins, and its renewal sets the end of all.
    let _: Value = raw.ask(&["HSET", "deploy", JAVA, "1"]).await;
    let _: Value = raw.ask(&["PEXPIRE", "deploy", "30000"]).await;
    let renewed = store.renew(&[Renewal::of(Arc::new(long.clone()))]).await.pop().unwrap().unwrap();
    let Renewed::Alive { lease, .. } = renewed else { panic!("{renewed:?}") };
    assert_eq!(lease.ttl, Duration::from_secs(30));
    let Attempt::Granted(again) = store.attempt(&long).await.unwrap() else { panic!("it has it") };
    assert_eq!(again.lease.ttl, Duration::from_secs(30));
    // A writer is alone: only the writer sets its end.
    store.release(&name("deploy"), long.id, &DONE).await.unwrap();
    let _: Value = raw.ask(&["DEL", "deploy"]).await;
    let mut alone = writer(2);
    alone.ttl = Duration::from_secs(300);
    let Attempt::Granted(grant) = store.attempt(&alone).await.unwrap() else { panic!("it is free") };
    assert_eq!(grant.lease.ttl, alone.ttl);
}

#[tokio::test]
async fn a_reader_looks_often_while_a_thread_of_theirs_writes() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = open(server.addr()).await;
    let _: Value = raw.ask(&["HSET", "deploy", "mode", "write", &format!("{JAVA}:write"), "1", JAVA, "1"]).await;
    let _: Value = raw.ask(&["PEXPIRE", "deploy", "60000"]).await;
    let recheck = async |claim: &Claim| match store.attempt(claim).await.unwrap() {
        Attempt::Pending(pending) => pending.recheck_after.unwrap(),
        Attempt::Granted(grant) => panic!("{grant:?}"),
    };
    assert_eq!(recheck(&reader(1)).await, Duration::from_millis(500));
    // A writer waits for the reader anyway, and hears of its end.
    assert!(recheck(&writer(2)).await > Duration::from_secs(30));
    // It stays as a reader, and sends no notification.
    let _: Value = raw.ask(&["HDEL", "deploy", &format!("{JAVA}:write")]).await;
    let _: Value = raw.ask(&["HSET", "deploy", "mode", "read"]).await;
    assert!(fence(&store, &reader(1)).await.is_some());
}

#[tokio::test]
async fn a_semaphore_without_permits_is_not_without_limit() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = open(server.addr()).await;
    for (free, capacity) in [("0", None), ("-2", None), ("2", NonZeroU32::new(2).map(Limit::Units))] {
        let _: Value = raw.ask(&["SET", "deploy", free]).await;
        let seen = store.inspect(&Query::name(name("deploy"))).await.unwrap();
        assert_eq!(seen.resources[0].capacity, capacity, "{free} permits are free");
    }
}

#[tokio::test]
async fn who_waits_hears_of_a_break_with_grace() {
    let server = started!(Server::start_or_skip());
    let (store, _) = open(server.addr()).await;
    let lock = "redisson_lock__channel:{deploy}";
    let grace = Duration::from_secs(1);
    let end = End::Broken { ending: Ending::new("ops", "stuck"), grace };
    let steps = [(claim(1, "deploy"), lock, "0"), (reader(2), RW, "1"), (writer(3), RW, "1")];
    for (claim, channel, word) in steps.into_iter().chain([(permits(4, 3, 9), "redisson_sc:{deploy}", "3")]) {
        fence(&store, &claim).await.unwrap();
        let mut listener = Listener::on(server.addr(), "SUBSCRIBE", channel).await;
        let asked = store.release(&name("deploy"), claim.id, &end).await.unwrap();
        assert_eq!(asked.outcome, Released::Asked);
        listener.told(word).await;
        store.release(&name("deploy"), claim.id, &DONE).await.unwrap();
    }
}

#[tokio::test]
async fn a_claim_whose_permits_were_taken_in_part_is_lost() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = open(server.addr()).await;
    for repeated in [false, true] {
        let mine = permits(0xfeed + u128::from(repeated), 3, 5);
        let first = fence(&store, &mine).await.unwrap();
        // A program of theirs whose clock is ahead takes one of them back.
        let take = "redis.call('zremrangebyrank', KEYS[2], 0, 0) return redis.call('incrby', KEYS[1], 1)";
        assert_eq!(raw.ask::<i64>(&["EVAL", take, "2", "deploy", HELD]).await, 3);
        if repeated {
            assert!(fence(&store, &mine).await.unwrap() > first, "it is another grant");
            assert_eq!(raw.ask::<String>(&["GET", "deploy"]).await, "2");
        } else {
            let renewed = store.renew(&[Renewal::of(Arc::new(mine.clone()))]).await;
            let lost = matches!(&renewed[..], [Ok(Renewed::Gone(Gone::Broken(by)))] if by.by == "another program");
            assert!(lost, "{renewed:?}");
        }
        store.release(&name("deploy"), mine.id, &DONE).await.unwrap();
        assert_eq!(raw.ask::<String>(&["GET", "deploy"]).await, "5", "the others came back once");
        assert_eq!(raw.ask::<usize>(&["EXISTS", HELD]).await, 0);
    }
}
