//! Sentinels that name another master, in good order and after the machine of the old one went off the network.
//!
//! Each crash is played once, in the long tier (`OARLOCK_LONG`) 20 times; `OARLOCK_FAILOVERS=7` says how often.

use std::time::Duration;

use oarlock_conformance::end_of_belief;
use oarlock_core::clock::{BootClock, Clock as _, Moment};
use oarlock_core::driver::{Attempt, Driver as _};
use oarlock_core::state::Query;
use oarlock_core::{Applied, Capacity, ErrorKind, Guard, Limit, Locks, Retry, Weight};
use oarlock_redis::{Address, Config, Redis};
use oarlock_testbed::RedisSentinel;
use oarlock_testbed::proxy::Proxy;
use oarlock_testbed::server::{MASTER, redis_command};

use crate::context::{claim, client, host, started, until};

const TTL: Duration = Duration::from_secs(5);
/// No renewal of such a lease is due while a test runs: what is noticed was told.
const LONG: Duration = Duration::from_secs(90);

fn config(context: &RedisSentinel) -> Config {
    let hosts = context.sentinels.iter().map(|sentinel| host(sentinel.addr())).collect();
    Config::new(Address::Sentinel { hosts, master: MASTER.to_owned() })
}

fn runs() -> usize {
    let often = if std::env::var_os("OARLOCK_LONG").is_some() { 20 } else { 1 };
    std::env::var("OARLOCK_FAILOVERS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(often)
}

#[tokio::test]
async fn a_master_that_hands_over_costs_no_lock() {
    let context = started!(RedisSentinel::start_or_skip());
    let ours = client(config(&context), TTL).await;
    let guard = ours.mutex("deploy").lock().await.unwrap();
    let before = context.master().unwrap();
    redis_command(context.sentinels[1].addr(), &["SENTINEL", "FAILOVER", MASTER]).unwrap();
    until("another master", async || context.master().is_ok_and(|master| master != before)).await;
    // Longer than it could be believed in without the new master.
    tokio::time::sleep(TTL + Duration::from_millis(500)).await;
    assert!(guard.is_held(), "{:?}", guard.loss());
    assert!(ours.mutex("deploy").try_lock().await.unwrap().is_none());
    let first = guard.fence();
    guard.release().await.unwrap();
    assert!(ours.mutex("deploy").lock().await.unwrap().fence() > first);
}

#[tokio::test]
async fn a_wrong_name_is_refused_in_words() {
    let context = started!(RedisSentinel::start_or_skip());
    let mut config = config(&context);
    if let Address::Sentinel { master, .. } = &mut config.address {
        "other".clone_into(master);
    }
    let error = Redis::open(config).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("other"), "{error}");
}

#[tokio::test]
async fn servers_and_sentinels_may_want_a_password() {
    let context = started!(RedisSentinel::start_or_skip());
    let pass = "sesame";
    for sentinel in &context.sentinels {
        redis_command(sentinel.addr(), &["SENTINEL", "SET", MASTER, "auth-pass", pass]).unwrap();
        redis_command(sentinel.addr(), &["SENTINEL", "CONFIG", "SET", "sentinel-pass", pass]).unwrap();
    }
    for machine in &context.machines {
        redis_command(machine.server.addr(), &["CONFIG", "SET", "masterauth", pass, "requirepass", pass]).unwrap();
    }
    let with = |password: Option<&str>| {
        let mut config = config(&context);
        config.password = password.map(str::to_owned);
        config
    };
    // Sentinels that want none are asked without one.
    Redis::open(with(Some(pass))).await.unwrap();
    for sentinel in &context.sentinels {
        redis_command(sentinel.addr(), &["ACL", "SETUSER", "default", "resetpass", &format!(">{pass}")]).unwrap();
    }
    for password in [None, Some("swordfish")] {
        let error = Redis::open(with(password)).await.unwrap_err();
        assert_eq!((error.kind(), error.retry()), (ErrorKind::Denied, Retry::Never), "{error}");
    }
    let ours = client(with(Some(pass)), TTL).await;
    let guard = ours.mutex("deploy").lock().await.unwrap();
    let mut raw = crate::patient::connect(&format!("redis://:{pass}@{}", context.sentinels[1].addr())).await;
    let master = async |raw: &mut redis::aio::MultiplexedConnection| -> (String, u16) {
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(MASTER).query_async(raw).await.unwrap()
    };
    let before = master(&mut raw).await;
    // The Sentinels sign in to the replicas anew, and promote none that they have not heard from since.
    until("a replica that can be promoted", async || {
        let promoted = redis::cmd("SENTINEL").arg("FAILOVER").arg(MASTER).exec_async(&mut raw).await;
        promoted.inspect_err(|error| assert_eq!(error.code(), Some("NOGOODSLAVE"), "{error}")).is_ok()
    })
    .await;
    until("another master", async || master(&mut raw).await != before).await;
    tokio::time::sleep(TTL).await;
    assert!(guard.is_held(), "{:?}", guard.loss());
    guard.release().await.unwrap();
}

/// A holder that asks for less, and learns that too few replicas have it, keeps its hold: nothing of it is granted to
/// others.
#[tokio::test]
async fn a_lighter_hold_that_replicas_do_not_confirm_is_not_withdrawn() {
    let context = started!(RedisSentinel::start_or_skip());
    let mut config = config(&context);
    config.min_replicas = 1;
    let store = Redis::open(config).await.unwrap();
    let mut held = claim(1, "deploy");
    (held.ttl, held.capacity) = (Duration::from_secs(60), Capacity::Fixed(Limit::Unlimited));
    let Attempt::Granted(grant) = store.attempt(&held).await.unwrap() else { panic!("it is free") };
    for machine in &context.machines[1..] {
        machine.server.pause().unwrap();
    }
    held.weight = Weight::ONE;
    let error = store.attempt(&held).await.unwrap_err();
    for machine in &context.machines[1..] {
        machine.server.resume().unwrap();
    }
    assert_eq!(error.applied(), Applied::Unknown, "{error}");
    let page = store.inspect(&Query::name(held.resource.clone())).await.unwrap();
    let fences: Vec<_> = page.resources[0].holders.iter().map(|holder| holder.fence).collect();
    assert_eq!(fences, [Some(grant.fence)]);
}

/// A holder with ways of its own to the servers, so that the old master can be cut off from all but it.
struct Holder {
    config: Config,
    client: Locks,
    ways: Vec<Proxy>,
}

impl Holder {
    async fn new(context: &RedisSentinel, min_replicas: u32, ttl: Duration) -> Self {
        let ways: Vec<_> =
            context.machines.iter().map(|machine| Proxy::start(machine.server.addr()).unwrap()).collect();
        let mut config = config(context);
        config.min_replicas = min_replicas;
        let there = context.machines.iter().map(|machine| host(machine.proxy.addr()));
        config.detours = there.zip(ways.iter().map(|way| host(way.addr()))).collect();
        Self { client: client(config.clone(), ttl).await, config, ways }
    }
}

async fn rival(context: &RedisSentinel, min_replicas: u32) -> Locks {
    let mut config = config(context);
    config.min_replicas = min_replicas;
    client(config, TTL).await
}

/// Takes the lock as soon as a server grants it.
async fn granted(rival: &Locks) -> (Guard, Moment) {
    let guard = rival.mutex("deploy").wait(Duration::from_secs(60)).lock().await.unwrap();
    (guard, BootClock.now())
}

/// When belief ended.
fn end_of(guard: &Guard) -> tokio::task::JoinHandle<Moment> {
    let held = guard.held();
    tokio::task::spawn_blocking(move || end_of_belief(&held))
}

fn crash(context: &RedisSentinel) {
    context.machines[0].proxy.cut();
    context.machines[0].server.kill().unwrap();
}

/// The holder is cut off too: it must stop believing before another client is granted what the replicas have.
#[tokio::test]
async fn a_crash_of_the_master_gives_nothing_away_that_replicas_confirmed() {
    for run in 0..runs() {
        let context = started!(RedisSentinel::start_or_skip());
        let (holder, rival) = (Holder::new(&context, 1, TTL).await, rival(&context, 1).await);
        let guard = holder.client.mutex("deploy").lock().await.unwrap();
        let end = end_of(&guard);
        for way in &holder.ways {
            way.cut();
        }
        let began = BootClock.now();
        crash(&context);
        let (theirs, at) = granted(&rival).await;
        let ended = end.await.unwrap();
        assert!(theirs.fence() > guard.fence(), "run {run}: {} after {}", theirs.fence(), guard.fence());
        assert!(ended < at, "run {run}: still believed when the next was granted");
        println!(
            "confirmed, run {run}: belief ended {:.1} ms before the next grant, {:.2} s after the crash",
            at.since(ended).as_secs_f64() * 1000.0,
            at.since(began).as_secs_f64(),
        );
    }
}

/// Only the holder reaches the old master: what it is granted there goes with the machine.
#[tokio::test]
async fn a_grant_that_no_replica_has_is_refused_where_replicas_must_confirm() {
    for run in 0..runs() {
        let context = started!(RedisSentinel::start_or_skip());
        let (holder, rival) = (Holder::new(&context, 1, TTL).await, rival(&context, 1).await);
        let store = Redis::open(holder.config.clone()).await.unwrap();
        let patient = Locks::builder(Redis::open(holder.config).await.unwrap()).op_timeout(LONG).build().unwrap();
        let lock = patient.mutex("deploy").ttl(Duration::from_secs(60));
        context.machines[0].proxy.cut();
        let error = lock.try_lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "run {run}: {error}");
        assert!(error.to_string().contains("0 of 1 required replicas"), "{error}");
        let query = Query::name(claim(1, "deploy").resource);
        until("it is given back", async || store.inspect(&query).await.unwrap().resources[0].holders.is_empty()).await;
        context.machines[0].server.kill().unwrap();
        let (theirs, _) = granted(&rival).await;
        theirs.release().await.unwrap();
    }
}

/// The same without confirmation: both are granted, which no lock on such a store can prevent. Fences must tell them
/// apart, and the first must hear of it from the new master.
#[tokio::test]
async fn a_grant_that_is_forgotten_is_told_and_has_the_smaller_fence() {
    for run in 0..runs() {
        let context = started!(RedisSentinel::start_or_skip());
        let (holder, rival) = (Holder::new(&context, 0, LONG).await, rival(&context, 0).await);
        context.machines[0].proxy.cut();
        let guard = holder.client.mutex("deploy").lock().await.unwrap();
        let end = end_of(&guard);
        let began = BootClock.now();
        context.machines[0].server.kill().unwrap();
        let (theirs, at) = granted(&rival).await;
        let ended = tokio::time::timeout(TTL, end).await.expect("told when the Sentinels named another").unwrap();
        assert!(theirs.fence() > guard.fence(), "run {run}: {} after {}", theirs.fence(), guard.fence());
        let overlap = ended.since(at).as_secs_f64() * 1000.0 - at.since(ended).as_secs_f64() * 1000.0;
        println!(
            "not confirmed, run {run}: the old holder believed {overlap:.1} ms into the next grant, {:.2} s after the crash",
            at.since(began).as_secs_f64(),
        );
    }
}
