//! A node of a cluster that hangs: the others must not notice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use oarlock_core::driver::{Driver as _, Renewal, Renewed};
use oarlock_core::{Applied, Claim};
use oarlock_redis::{Address, Config, Redis};
use oarlock_testbed::RedisCluster;
use redis::Value;

use crate::context::{Raw, claim, fence, host, started, until};

/// Which master hangs.
const HUNG: usize = 1;

fn config(context: &RedisCluster) -> Config {
    Config::new(Address::Cluster(vec![host(context.masters[0].addr())]))
}

/// A cluster whose nodes go on with their slots when one is gone.
async fn go_on(context: &RedisCluster) {
    for node in &context.masters {
        let set = ["CONFIG", "SET", "cluster-require-full-coverage", "no"];
        let _: Value = Raw::to(node.addr()).await.ask(&set).await;
    }
}

/// No replica is promoted.
async fn leave_alone(context: &RedisCluster) {
    for node in &context.replicas {
        let set = ["CONFIG", "SET", "cluster-replica-no-failover", "yes"];
        let _: Value = Raw::to(node.addr()).await.ask(&set).await;
    }
}

/// Thirty claims that are held: those on the node that will hang, and the others.
async fn held(context: &RedisCluster, store: &Redis) -> (Vec<Claim>, Vec<Claim>) {
    let claims: Vec<_> = (0..30).map(|number| claim(number, &format!("job/{number}"))).collect();
    for claim in &claims {
        assert!(fence(store, claim).await.is_some());
    }
    let there: Vec<String> = Raw::to(context.masters[HUNG].addr()).await.ask(&["KEYS", "*:job/*"]).await;
    let is_there = |claim: &Claim| there.iter().any(|key| key.ends_with(&format!(":{}", claim.resource)));
    let (there, elsewhere): (Vec<_>, Vec<_>) = claims.into_iter().partition(is_there);
    assert!(!there.is_empty() && !elsewhere.is_empty());
    (there, elsewhere)
}

/// Whether the others know the replica of the node that hangs as a master.
async fn is_replaced(context: &RedisCluster) -> bool {
    let replica = format!(":{}@", context.replicas[HUNG].addr().port());
    for node in context.masters.iter().enumerate().filter(|(at, _)| *at != HUNG).map(|(_, node)| node) {
        let nodes: String = Raw::to(node.addr()).await.ask(&["CLUSTER", "NODES"]).await;
        if !nodes.lines().any(|line| line.contains(&replica) && line.contains("master")) {
            return false;
        }
    }
    true
}

/// What is known of the cluster is in doubt after every failure there: it is learnt from those who answer.
#[tokio::test]
async fn a_node_that_hangs_delays_no_request_to_the_others() {
    let context = started!(RedisCluster::start_or_skip());
    go_on(&context).await;
    leave_alone(&context).await;
    let mut config = config(&context);
    (config.silence_timeout, config.connect_timeout) = (Duration::from_secs(1), Duration::from_secs(20));
    let (there, elsewhere) = held(&context, &Redis::open(config.clone()).await.unwrap()).await;
    // Several, since each has its own order in which nodes come to its mind.
    let stores = join_all((0..8).map(|_| Redis::open(config.clone()))).await;
    let stores: Vec<_> = stores.into_iter().map(|store| Arc::new(store.unwrap())).collect();
    for store in &stores {
        assert!(fence(store, &elsewhere[0]).await.is_some());
    }
    context.masters[HUNG].pause().unwrap();
    join_all(stores.iter().map(async |store| {
        store.attempt(&there[0]).await.unwrap_err();
        // It is tried again, and does not answer for long.
        let (again, claim) = (store.clone(), there[0].clone());
        let again = tokio::spawn(async move { again.attempt(&claim).await });
        for claim in &elsewhere {
            let asked = Instant::now();
            assert!(fence(store, claim).await.is_some());
            assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
        }
        assert!(!again.is_finished());
    }))
    .await;
    context.masters[HUNG].resume().unwrap();
}

/// What the others say is known in time, and who took its place is found, though nothing but renewals is sent there.
#[tokio::test]
async fn a_node_that_hangs_takes_no_renewal_of_the_others_with_it() {
    let context = started!(RedisCluster::start_or_skip());
    go_on(&context).await;
    let mut config = config(&context);
    (config.silence_timeout, config.connect_timeout) = (Duration::from_secs(12), Duration::from_secs(2));
    let store = Redis::open(config).await.unwrap();
    let (there, elsewhere) = held(&context, &store).await;
    let short = |mut claim: Claim| {
        claim.ttl = Duration::from_secs(12);
        Renewal::of(Arc::new(claim))
    };
    let there: Vec<_> = there.into_iter().map(short).collect();
    let mut batch: Vec<_> = elsewhere.into_iter().map(short).collect();
    let others = batch.len();
    batch.extend(there);
    assert!(store.renew(&batch).await.iter().all(Result::is_ok));
    context.masters[HUNG].pause().unwrap();
    let mut late = 0;
    until("the node that took its place", async || {
        let replaced = is_replaced(&context).await;
        let asked = Instant::now();
        let renewed = store.renew(&batch).await;
        assert!(asked.elapsed() < Duration::from_secs(9), "{:?}", asked.elapsed());
        let (others, there) = renewed.split_at(others);
        assert!(others.iter().all(|answer| matches!(answer, Ok(Renewed::Alive { .. }))), "{others:?}");
        let unknown = there.iter().filter(|answer| answer.as_ref().is_err_and(|e| e.applied() == Applied::Unknown));
        late += unknown.count();
        let refused = there.iter().filter(|answer| answer.as_ref().is_err_and(|e| e.applied() == Applied::No));
        assert!(!replaced || refused.count() == 0, "where it failed it is not tried again: {there:?}");
        there.iter().all(Result::is_ok)
    })
    .await;
    assert!(late > 0);
    context.masters[HUNG].resume().unwrap();
}
