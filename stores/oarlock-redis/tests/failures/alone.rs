//! One server that forgets, hangs up, fills up or is not what it should be.

use std::time::Duration;

use oarlock_core::capabilities::Consistency;
use oarlock_core::driver::{Driver as _, Renewal, Renewed};
use oarlock_core::{Applied, Belief, ErrorKind, Locks, LossReason, Retry};
use oarlock_redis::{Persistence, Redis};
use oarlock_testbed::Redis as Server;
use redis::Value;

use crate::context::{DONE, Raw, claim, client, config, fence, name, started, until};

const TTL: Duration = Duration::from_secs(4);
/// Where the key of `deploy` is.
const KEY: &str = "oarlock:{b6}:deploy";

#[tokio::test]
async fn what_was_flushed_is_lost_and_fences_still_rise() {
    let server = started!(Server::start_or_skip());
    let (ours, mut raw) = (client(config(server.addr()), TTL).await, Raw::to(server.addr()).await);
    let guard = ours.mutex("deploy").lock().await.unwrap();
    let _: Value = raw.ask(&["FLUSHALL"]).await;
    let reason = tokio::time::timeout(TTL, guard.lost()).await.expect("told by the next renewal");
    assert_eq!(reason, LossReason::Gone);
    let next = ours.mutex("deploy").lock().await.unwrap();
    assert!(next.fence() > guard.fence());
}

/// A server that falls back to where a holder was still waiting knows its claim, but not its grant: it must not feed
/// its belief.
#[tokio::test]
async fn a_holder_whose_grant_was_forgotten_is_told_before_another_is_granted() {
    let server = started!(Server::start_or_skip());
    let mut raw = Raw::to(server.addr()).await;
    let clients = [(); 3].map(|()| client(config(server.addr()), TTL));
    let [first, second, third] = futures_util::future::join_all(clients).await.try_into().unwrap();
    let guard = first.mutex("deploy").lock().await.unwrap();
    let wait = |ours: &Locks| {
        let lock = ours.mutex("deploy");
        tokio::spawn(async move { lock.lock().await.unwrap() })
    };
    let waiting = async |count: usize| {
        until("those who wait", async || {
            let seen = first.inspect(&name("deploy")).await.unwrap();
            seen.waiters.count() == Some(count)
        })
        .await;
    };
    let next = wait(&second);
    waiting(1).await;
    let last = wait(&third);
    waiting(2).await;
    let before: Vec<u8> = raw.ask(&["DUMP", KEY]).await;
    guard.release().await.unwrap();
    let held = next.await.unwrap();
    redis::cmd("RESTORE").arg(KEY).arg(0).arg(before).arg("REPLACE").exec_async(raw.connection()).await.unwrap();
    let last = tokio::time::timeout(TTL * 4, last).await.expect("the lock is free again some time").unwrap();
    assert!(!held.is_held(), "two believe: {:?} and {:?}", held.fence(), last.fence());
    assert!(last.fence() > held.fence());
}

/// Nor does the server say that such a claim lives: it is removed, and the lock can go to the next.
#[tokio::test]
async fn a_holder_whose_grant_the_server_never_gave_is_told_so() {
    let server = started!(Server::start_or_skip());
    let store = Redis::open(config(server.addr())).await.unwrap();
    assert!(fence(&store, &claim(1, "deploy")).await.is_some());
    let mut waiter = claim(2, "deploy");
    waiter.wait = true;
    assert_eq!(fence(&store, &waiter).await, None);
    let mut renewal = Renewal::of(waiter.into());
    let alive = store.renew(std::slice::from_ref(&renewal)).await.remove(0).unwrap();
    assert!(matches!(alive, Renewed::Alive { fence: None, .. }), "{alive:?}");
    renewal.held = true;
    for _ in 0..2 {
        let gone = store.renew(std::slice::from_ref(&renewal)).await.remove(0).unwrap();
        assert!(matches!(gone, Renewed::Gone(_)), "{gone:?}");
        renewal.held = false;
    }
}

#[tokio::test]
async fn a_server_that_throws_keys_away_is_refused_unless_that_is_allowed() {
    let settings = [("maxmemory", "6mb"), ("maxmemory-policy", "allkeys-random")];
    let server = started!(Server::start_with(&settings).map(Some));
    let mut config = config(server.addr());
    let error = Redis::open(config.clone()).await.unwrap_err();
    assert_eq!((error.kind(), error.retry()), (ErrorKind::Config, Retry::Never));
    assert!(error.to_string().contains("allow_eviction"), "{error}");

    config.allow_eviction = true;
    let store = Redis::open(config.clone()).await.unwrap();
    assert_eq!(store.info().capabilities.consistency, Consistency::BestEffort);
    assert!(store.server_info().evicts());
    let ours = client(config, TTL).await;
    let guard = ours.mutex("deploy").lock().await.unwrap();
    let mut raw = Raw::to(server.addr()).await;
    let filler = "x".repeat(100_000);
    let mut number = 0;
    until("the lock to be thrown away", async || {
        number += 1;
        let _: Value = raw.ask(&["SET", &format!("filler/{number}"), &filler]).await;
        raw.ask::<usize>(&["EXISTS", "oarlock:{b6}:deploy"]).await == 0
    })
    .await;
    assert_eq!(tokio::time::timeout(TTL, guard.lost()).await.expect("told"), LossReason::Gone);
    assert!(ours.mutex("deploy").lock().await.unwrap().fence() > guard.fence());
}

#[tokio::test]
async fn a_policy_without_a_limit_throws_nothing_away() {
    let server = started!(Server::start_with(&[("maxmemory-policy", "allkeys-lru")]).map(Some));
    let store = Redis::open(config(server.addr())).await.unwrap();
    assert!(!store.server_info().evicts());
}

#[tokio::test]
async fn what_a_server_keeps_is_what_it_promises() {
    let cases = [
        (("appendfsync", "always"), Persistence::Always, Consistency::Single),
        (("appendfsync", "everysec"), Persistence::Written, Consistency::BestEffort),
        (("appendonly", "no"), Persistence::None, Consistency::BestEffort),
    ];
    for (setting, persistence, consistency) in cases {
        let server = started!(Server::start_with(&[setting]).map(Some));
        let store = Redis::open(config(server.addr())).await.unwrap();
        assert_eq!(store.server_info().persistence, Some(persistence), "{setting:?}");
        assert_eq!(store.info().capabilities.consistency, consistency, "{setting:?}");
    }
}

#[tokio::test]
async fn connections_that_are_killed_cost_no_lock() {
    let server = started!(Server::start_or_skip());
    let (ours, mut raw) = (client(config(server.addr()), TTL).await, Raw::to(server.addr()).await);
    let guard = ours.mutex("deploy").lock().await.unwrap();
    for _ in 0..20 {
        let _: Value = raw.ask(&["CLIENT", "KILL", "SKIPME", "yes"]).await;
        tokio::time::sleep(TTL / 10).await;
    }
    assert!(guard.is_held(), "{:?}", guard.loss());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_replica_is_refused_and_a_master_that_became_one_serves_no_request() {
    let server = started!(Server::start_or_skip());
    let master = Server::start().unwrap();
    let store = Redis::open(config(server.addr())).await.unwrap();
    assert!(fence(&store, &claim(1, "deploy")).await.is_some());
    let mut raw = Raw::to(server.addr()).await;
    let port = master.addr().port().to_string();
    let _: Value = raw.ask(&["REPLICAOF", "127.0.0.1", &port]).await;
    let error = store.attempt(&claim(1, "deploy")).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.applied(), error.retry()),
        (ErrorKind::Unreachable, Applied::No, Retry::Later),
        "{error}"
    );
    let error = Redis::open(config(server.addr())).await.unwrap_err();
    assert_eq!((error.kind(), error.retry()), (ErrorKind::Config, Retry::Never));
    assert!(error.to_string().contains("replica"), "{error}");
}

#[tokio::test]
async fn a_full_server_refuses_new_locks_but_neither_renewals_nor_releases() {
    let server = started!(Server::start_or_skip());
    let (ours, mut raw) = (client(config(server.addr()), TTL).await, Raw::to(server.addr()).await);
    let store = Redis::open(config(server.addr())).await.unwrap();
    let (kept, freed) = (ours.mutex("kept").lock().await.unwrap(), claim(1, "freed"));
    assert!(fence(&store, &freed).await.is_some());
    let _: Value = raw.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let error = store.attempt(&claim(2, "new")).await.unwrap_err();
    assert_eq!((error.kind(), error.applied(), error.retry()), (ErrorKind::Unreachable, Applied::No, Retry::Later));
    assert!(store.renew(&[Renewal::of(freed.clone().into())]).await[0].is_ok());
    store.release(&name("freed"), freed.id, &DONE).await.unwrap();
    tokio::time::sleep(TTL * 2).await;
    assert_eq!(kept.belief(), Belief::Held);
    kept.release().await.unwrap();
    let _: Value = raw.ask(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert!(fence(&store, &claim(2, "freed")).await.is_some());
}
