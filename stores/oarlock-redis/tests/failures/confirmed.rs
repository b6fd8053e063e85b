//! Grants and renewals that replicas must confirm.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::clock::{BootClock, Clock as _};
use oarlock_core::driver::{Driver as _, Renewal};
use oarlock_core::{Claim, ErrorKind};
use oarlock_redis::Redis;
use oarlock_testbed::Redis as Server;
use redis::Value;

use crate::context::{Raw, claim, config, fence, started, until};

/// A master with a replica, and a store that wants it to confirm.
async fn pair(master: &Server, replica: &Server) -> Arc<Redis> {
    let port = master.addr().port().to_string();
    let _: Value = Raw::to(replica.addr()).await.ask(&["REPLICAOF", "127.0.0.1", &port]).await;
    let mut raw = Raw::to(master.addr()).await;
    until("the replica", async || raw.ask::<String>(&["INFO", "replication"]).await.contains("state=online")).await;
    let mut config = config(master.addr());
    config.min_replicas = 1;
    Arc::new(Redis::open(config).await.unwrap())
}

fn lasting(id: u128, ttl: Duration) -> Claim {
    let mut claim = claim(id, &format!("job/{id}"));
    claim.ttl = ttl;
    claim
}

const SHORT: Duration = Duration::from_millis(400);
const LONG: Duration = Duration::from_secs(60);

/// In one batch a wait is as long as the longest lease allows.
#[tokio::test]
async fn a_short_lease_does_not_shorten_the_wait_of_its_batch() {
    let (master, replica) = (started!(Server::start_or_skip()), Server::start().unwrap());
    let store = pair(&master, &replica).await;
    let claims = [lasting(1, LONG), lasting(2, SHORT)];
    let mut batch = Vec::new();
    for claim in claims {
        assert!(fence(&store, &claim).await.is_some());
        let mut renewal = Renewal::of(Arc::new(claim));
        renewal.held = true;
        batch.push(renewal);
    }
    replica.pause().unwrap();
    let sent = BootClock.now();
    let answers = store.renew(&batch).await;
    let waited = BootClock.now().since(sent);
    replica.resume().unwrap();
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
    assert!(waited >= Duration::from_millis(900), "it was given up on after {waited:?}");
}

/// What others ask for at the same time is waited for together, each as long as it may: here the replica is back only
/// when the one with the short lease has given up.
#[tokio::test]
async fn a_short_lease_does_not_shorten_the_wait_of_others() {
    let (master, replica) = (started!(Server::start_or_skip()), Server::start().unwrap());
    let store = pair(&master, &replica).await;
    let mut raw = Raw::to(master.addr()).await;
    assert!(fence(&store, &lasting(1, LONG)).await.is_some());
    replica.pause().unwrap();
    let ask = |claim: Claim| {
        let store = store.clone();
        tokio::spawn(async move { store.attempt(&claim).await })
    };
    // While this one is waited for in vain, the next two queue up.
    let first = ask(lasting(2, LONG));
    until("the first to be waited for", async || {
        raw.ask::<String>(&["INFO", "clients"]).await.contains("blocked_clients:1")
    })
    .await;
    let (long, short) = (ask(lasting(3, LONG)), ask(lasting(4, SHORT)));
    assert_eq!(first.await.unwrap().unwrap_err().kind(), ErrorKind::Unreachable);
    assert_eq!(short.await.unwrap().unwrap_err().kind(), ErrorKind::Unreachable);
    replica.resume().unwrap();
    assert!(long.await.unwrap().is_ok(), "the replica has it in time");
}
