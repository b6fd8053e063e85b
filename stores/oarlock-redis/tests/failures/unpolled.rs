//! A request that its caller has stopped to poll, in the middle of what others need: they must not wait for it.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::poll;
use oarlock_core::driver::{Driver as _, Interest, Renewal};
use oarlock_redis::{Address, Config, Redis};
use oarlock_testbed::proxy::{Direction, Held, Proxy};
use oarlock_testbed::{Redis as Server, RedisCluster};
use redis::Value;

use crate::context::{Raw, claim, config, fence, host, name, started, until};

/// How late every answer is.
const LATE: Duration = Duration::from_secs(1);

/// Polls a request until `is`, and not once more.
async fn poll_until<F: Future>(what: &str, mut request: Pin<&mut F>, mut is: impl AsyncFnMut() -> bool) {
    until(what, async || {
        assert!(poll!(request.as_mut()).is_pending(), "it was answered before {what}");
        is().await
    })
    .await;
}

/// What others ask is answered, however late.
async fn answered<T>(request: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), request).await.expect("an answer, though another does not go on")
}

fn through(proxy: &Proxy) -> Config {
    config(proxy.addr())
}

#[tokio::test]
async fn a_confirmation_is_not_delayed_by_a_future_that_is_not_polled() {
    let (server, replica) = (started!(Server::start_or_skip()), started!(Server::start_or_skip()));
    let mut raw = Raw::to(server.addr()).await;
    let port = server.addr().port().to_string();
    let _: Value = Raw::to(replica.addr()).await.ask(&["REPLICAOF", "127.0.0.1", &port]).await;
    until("the replica", async || raw.ask::<String>(&["INFO", "replication"]).await.contains("state=online")).await;
    let proxy = Proxy::start(server.addr()).unwrap();
    let mut config = through(&proxy);
    config.min_replicas = 1;
    let store = Redis::open(config).await.unwrap();
    let held = claim(1, "held");
    assert!(fence(&store, &held).await.is_some());
    proxy.delay(Direction::ToClient, LATE);
    let (first, second) = (claim(2, "deploy"), claim(3, "second"));
    let mut stuck = pin!(store.attempt(&first));
    let sent = async || raw.ask::<usize>(&["EXISTS", "oarlock:{b6}:deploy"]).await == 1;
    poll_until("its commands were sent", stuck.as_mut(), sent).await;
    assert!(answered(fence(&store, &second)).await.is_some());
    assert!(answered(store.renew(&[Renewal::of(Arc::new(held))])).await[0].is_ok());
    assert!(answered(stuck).await.is_ok());
}

#[tokio::test]
async fn a_connection_is_not_delayed_by_a_future_that_is_not_polled() {
    let server = started!(Server::start_or_skip());
    let proxy = Proxy::start(server.addr()).unwrap();
    let store = Redis::open(through(&proxy)).await.unwrap();
    let mut watch = store.watch(&Interest::Mailbox).await.unwrap();
    proxy.cut();
    proxy.heal(Held::Reset).unwrap();
    while watch.changed().await.is_some() {}
    let before = proxy.seen().accepted;
    proxy.delay(Direction::ToClient, LATE);
    let (first, second) = (claim(1, "deploy"), claim(2, "second"));
    let mut stuck = pin!(store.attempt(&first));
    poll_until("it is being opened", stuck.as_mut(), async || proxy.seen().accepted > before).await;
    assert!(answered(fence(&store, &second)).await.is_some());
    assert!(answered(stuck).await.is_ok());
    assert_eq!(proxy.seen().accepted, before + 1, "one connection for both");
}

#[tokio::test]
async fn a_watch_is_not_delayed_by_a_future_that_is_not_polled() {
    let server = started!(Server::start_or_skip());
    let mut raw = Raw::to(server.addr()).await;
    let proxy = Proxy::start(server.addr()).unwrap();
    let store = Redis::open(through(&proxy)).await.unwrap();
    proxy.delay(Direction::ToClient, LATE);
    let (first, second) = (Interest::Resource(name("deploy")), Interest::Resource(name("second")));
    let mut stuck = pin!(store.watch(&first));
    let sent = async || !raw.ask::<Vec<String>>(&["PUBSUB", "CHANNELS"]).await.is_empty();
    poll_until("it was subscribed", stuck.as_mut(), sent).await;
    assert!(answered(store.watch(&second)).await.is_ok());
    assert!(answered(stuck).await.is_ok());
}

#[tokio::test]
async fn the_map_of_a_cluster_is_not_delayed_by_a_future_that_is_not_polled() {
    let context = started!(RedisCluster::start_or_skip());
    let mut config = Config::new(Address::Cluster(vec![host(context.masters[0].addr())]));
    let proxies: Vec<_> = context.masters.iter().map(|node| Proxy::start(node.addr()).unwrap()).collect();
    for (node, proxy) in context.masters.iter().zip(&proxies) {
        config.detours.insert(host(node.addr()), host(proxy.addr()));
    }
    let store = Redis::open(config).await.unwrap();
    let (first, second) = (claim(1, "deploy"), claim(2, "second"));
    for claim in [&first, &second] {
        assert!(fence(&store, claim).await.is_some());
    }
    // After each failure what is known is in doubt.
    let fail = async |claim| {
        proxies.iter().for_each(Proxy::refuse);
        answered(until("a failure", async || store.attempt(claim).await.is_err())).await;
        for proxy in &proxies {
            proxy.heal(Held::Reset).unwrap();
            proxy.delay(Direction::ToClient, LATE);
        }
    };
    fail(&first).await;
    let accepted = || proxies.iter().map(|proxy| proxy.seen().accepted).sum::<u64>();
    let before = accepted();
    let mut stuck = pin!(store.attempt(&first));
    poll_until("the cluster is asked", stuck.as_mut(), async || accepted() > before).await;
    fail(&second).await;
    assert!(answered(fence(&store, &second)).await.is_some());
    let _ = answered(stuck).await;
}
