//! Read-write locks and semaphores.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Driver as _, End, Renewal, Renewed};
use oarlock_core::state::{Ending, Query};
use oarlock_core::{Capacity, Claim, ErrorKind, Kind, Limit, Weight};
use oarlock_testbed::Redis as Server;
use redis::Value;

use super::ear::{Ear, JAVA, open, owner};
use crate::bed::{DONE, claim, fence, name, started};

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
    let mut ear = Ear::on(server.addr(), "SUBSCRIBE", RW).await;
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
    ear.told("0").await;
    assert_eq!(raw.ask::<Vec<String>>(&["KEYS", "*"]).await, ["oarlock:beside:{deploy}"]);

    let first = fence(&store, &writer(2)).await.unwrap();
    let written = format!("{}:write", owner(2));
    assert_eq!(raw.ask::<Vec<String>>(&["HGETALL", "deploy"]).await, ["mode", "write", &written, "1"]);
    assert_eq!(fence(&store, &reader(1)).await, None);
    assert_eq!(fence(&store, &reader(2)).await, Some(first), "a downgrade keeps the fence");
    ear.told("1").await;
    assert_eq!(raw.ask::<Vec<String>>(&["HGETALL", "deploy"]).await, ["mode", "read", &owner(2), "1"]);
    assert!(fence(&store, &reader(1)).await.unwrap() > first);
    assert_eq!(store.attempt(&writer(1)).await.unwrap_err().kind(), ErrorKind::Upgrade);
    for id in [1, 2] {
        store.release(&name("deploy"), reader(id).id, &DONE).await.unwrap();
    }
    fence(&store, &writer(3)).await.unwrap();
    store.release(&name("deploy"), writer(3).id, &DONE).await.unwrap();
    ear.told("1").await;
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
    // By them, before anybody of ours looked.
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
    let end = End::Broken { ending: Ending { by: "ops".into(), why: "stuck".into() }, grace: Duration::ZERO };
    store.release(&name("deploy"), holder, &end).await.unwrap();
    assert_eq!(raw.ask::<usize>(&["EXISTS", "deploy", &hold(JAVA)]).await, 0);
    assert!(fence(&store, &writer(1)).await.is_some());
}

#[tokio::test]
async fn a_dead_reader_of_ours_is_in_nobodys_way() {
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
    let mut ear = Ear::on(server.addr(), "SUBSCRIBE", "redisson_sc:{deploy}").await;
    for _ in 0..2 {
        fence(&store, &permits(0xfeed, 2, 5)).await.unwrap();
    }
    ear.told("5").await;
    assert_eq!(raw.ask::<String>(&["GET", "deploy"]).await, "3", "taken once");
    let held: Vec<(Vec<u8>, u64)> = raw.ask(&["ZRANGE", HELD, "0", "-1", "WITHSCORES"]).await;
    assert!(held.iter().any(|(member, _)| **member == 0xfeed_u128.to_be_bytes()), "{held:?}");
    let now: (u64, u64) = raw.ask(&["TIME"]).await;
    let ends = now.0 * 1000 + now.1 / 1000 + 30_000;
    assert!(held.len() == 2 && held.iter().all(|(member, at)| member.len() == 16 && ends - at < 5000), "{held:?}");
    // A semaphore of theirs without leases takes from the same number; nobody knows whose they are.
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
    ear.told("5").await;
    assert_eq!(raw.ask::<String>(&["GET", "deploy"]).await, "5", "returned once");
    assert_eq!(raw.ask::<usize>(&["EXISTS", HELD]).await, 0);
    let error = store.attempt(&permits(2, 1, 7)).await.unwrap_err();
    assert_eq!(error.stored_capacity(), Some(Limit::Units(NonZeroU32::new(5).unwrap())), "{error}");
    assert_eq!(store.attempt(&permits(2, 6, 5)).await.unwrap_err().kind(), ErrorKind::TooHeavy);
}

#[tokio::test]
async fn permits_that_run_out_come_back_once_whoever_sees_to_it() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = open(server.addr()).await;
    // They set it up, and have a permit that has run out.
    let _: Value = raw.ask(&["SET", "deploy", "0"]).await;
    let _: Value = raw.ask(&["ZADD", HELD, "1", "sixteen bytes of"]).await;
    let mut short = permits(1, 1, 9);
    short.ttl = Duration::from_millis(50);
    fence(&store, &short).await.expect("theirs has run out");
    assert_eq!(fence(&store, &permits(2, 1, 9)).await, None, "the capacity is what is stored");
    tokio::time::sleep(Duration::from_millis(80)).await;
    fence(&store, &permits(2, 1, 9)).await.expect("ours has run out");
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
