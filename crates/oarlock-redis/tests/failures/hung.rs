//! A node of a cluster that hangs, and is replaced by nobody: the others must not notice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use oarlock_core::Claim;
use oarlock_core::driver::Driver as _;
use oarlock_redis::{Address, Config, Redis};
use oarlock_testbed::RedisCluster;
use redis::Value;

use crate::bed::{Raw, claim, fence, host, started};

/// Which master hangs.
const HUNG: usize = 1;

fn config(bed: &RedisCluster) -> Config {
    Config::new(Address::Cluster(vec![host(bed.masters[0].addr())]))
}

/// Nobody is promoted, and the nodes that are left go on with their slots.
async fn leave_alone(bed: &RedisCluster) {
    for node in &bed.replicas {
        let set = ["CONFIG", "SET", "cluster-replica-no-failover", "yes"];
        let _: Value = Raw::to(node.addr()).await.ask(&set).await;
    }
    for node in &bed.masters {
        let set = ["CONFIG", "SET", "cluster-require-full-coverage", "no"];
        let _: Value = Raw::to(node.addr()).await.ask(&set).await;
    }
}

/// Thirty claims that are held: those on the node that will hang, and the others.
async fn held(bed: &RedisCluster, store: &Redis) -> (Vec<Claim>, Vec<Claim>) {
    let claims: Vec<_> = (0..30).map(|number| claim(number, &format!("job/{number}"))).collect();
    for claim in &claims {
        assert!(fence(store, claim).await.is_some());
    }
    let there: Vec<String> = Raw::to(bed.masters[HUNG].addr()).await.ask(&["KEYS", "*:job/*"]).await;
    let is_there = |claim: &Claim| there.iter().any(|key| key.ends_with(&format!(":{}", claim.resource)));
    let (there, elsewhere): (Vec<_>, Vec<_>) = claims.into_iter().partition(is_there);
    assert!(!there.is_empty() && !elsewhere.is_empty());
    (there, elsewhere)
}

/// What is known of the cluster is in doubt after every failure there: it is learnt from those who answer.
#[tokio::test]
async fn a_node_that_hangs_holds_up_nobody_who_asks_the_others() {
    let bed = started!(RedisCluster::start_or_skip());
    leave_alone(&bed).await;
    let mut config = config(&bed);
    (config.silence_timeout, config.connect_timeout) = (Duration::from_secs(1), Duration::from_secs(20));
    let (there, elsewhere) = held(&bed, &Redis::open(config.clone()).await.unwrap()).await;
    // Several, since each has its own order in which nodes come to its mind.
    let stores = join_all((0..8).map(|_| Redis::open(config.clone()))).await;
    let stores: Vec<_> = stores.into_iter().map(|store| Arc::new(store.unwrap())).collect();
    for store in &stores {
        assert!(fence(store, &elsewhere[0]).await.is_some());
    }
    bed.masters[HUNG].pause().unwrap();
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
    bed.masters[HUNG].resume().unwrap();
}
