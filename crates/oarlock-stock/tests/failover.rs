//! A master of a cluster dies in the middle of a sale. Its replica knows what was copied and no more: what the dead one
//! acknowledged in its last moment is forgotten, and those units are sold again. Everything else adds up.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(dead_code, reason = "not every test uses all that is shared")]

#[path = "shared/contexts.rs"]
mod contexts;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use oarlock_stock::{Order, Shelf, State, Stock, Take};
use oarlock_testbed::RedisCluster;
use oarlock_testbed::server::redis_command;

use self::contexts::{Many, TestContext as _};

const UNITS: u64 = 1800;
const PATIENCE: Duration = Duration::from_secs(60);

fn order(id: &str) -> Order {
    Order { sku: "hot".to_owned(), id: id.to_owned(), quantity: 1, hold: None }
}

/// Asks a server until it says what is wanted.
fn until(addr: SocketAddr, words: &[&str], wanted: impl Fn(&str) -> bool) {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let said = redis_command(addr, words).unwrap_or_default();
        if wanted(&said) {
            return;
        }
        assert!(Instant::now() < give_up, "{addr} {words:?}: {said}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How far a server has come in the stream of changes.
fn offset(addr: SocketAddr, name: &str) -> u64 {
    let said = redis_command(addr, &["INFO", "replication"]).unwrap();
    let line = said.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name}: {said}")).parse().unwrap()
}

/// Waits until the replica has all that its master has.
fn copied(cluster: &RedisCluster, pair: usize) {
    let wanted = offset(cluster.masters[pair].addr(), "master_repl_offset");
    let give_up = Instant::now() + PATIENCE;
    while offset(cluster.replicas[pair].addr(), "slave_repl_offset") < wanted {
        assert!(Instant::now() < give_up, "the replica stays behind");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Kills a master after those before it, and waits until all that are left serve every slot without it.
fn fail_over(cluster: &RedisCluster, pair: usize) {
    cluster.masters[pair].kill().unwrap();
    until(cluster.replicas[pair].addr(), &["INFO", "replication"], |said| said.contains("role:master"));
    for node in cluster.masters.iter().skip(pair + 1).chain(&cluster.replicas) {
        let port = format!(":{}@", cluster.replicas[pair].addr().port());
        until(node.addr(), &["CLUSTER", "NODES"], |said| {
            said.lines().any(|line| line.contains(&port) && line.contains("master"))
        });
        until(node.addr(), &["CLUSTER", "INFO"], |said| said.contains("cluster_state:ok"));
    }
}

/// The cluster without its first masters.
fn nodes(cluster: &RedisCluster, dead: usize) -> Many {
    let alive = cluster.masters.iter().skip(dead).chain(&cluster.replicas);
    Many(alive.map(|node| format!("redis://{}", node.addr())).collect())
}

/// Takes under this id until the store answers.
async fn take<S: Shelf>(stock: &Stock<S>, id: &str) -> Take {
    let give_up = Instant::now() + PATIENCE;
    loop {
        match stock.take(order(id)).await {
            Ok(take) => return take,
            Err(error) => assert!(Instant::now() < give_up, "{id}: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Confirms all of them, and says which are not known.
async fn forgotten<S: Shelf>(stock: &Stock<S>, told: &[String]) -> Vec<String> {
    let mut forgotten = Vec::new();
    for id in told {
        match stock.confirm("hot", id).await.unwrap() {
            Some(known) => assert_eq!(known.state, State::Sold, "{id}"),
            None => forgotten.push(id.clone()),
        }
    }
    forgotten
}

async fn balanced<S: Shelf>(stock: &Stock<S>) {
    let count = stock.count("hot").await.unwrap();
    assert_eq!(count.available + count.held + count.sold, UNITS, "{count:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_master_did_not_pass_on_is_sold_again() {
    let Some(cluster) = RedisCluster::start_or_skip().unwrap() else { return };
    let all = nodes(&cluster, 0);
    let stock = all.stock().await;
    stock.create("hot", 12).await.unwrap();
    stock.restock("hot", "truck", UNITS).await.unwrap();

    // Takers who go on while a master dies: they ask again under the same id until they are answered.
    let over = Arc::new(AtomicBool::new(false));
    let mut takers = Vec::new();
    for taker in 0..4 {
        let (stock, over) = (all.stock().await, over.clone());
        takers.push(tokio::spawn(async move {
            let mut told = Vec::new();
            // Few enough that no segment runs out: nothing is moved between masters.
            for line in 0..120 {
                let (id, last) = (format!("{taker}-{line}"), over.load(Ordering::SeqCst));
                assert!(matches!(take(&stock, &id).await, Take::Reserved(_)), "{id}");
                told.push(id);
                if last {
                    break;
                }
            }
            told
        }));
    }
    let begun = Instant::now();
    while stock.count("hot").await.unwrap().held < 100 {
        assert!(begun.elapsed() < PATIENCE, "no taker takes");
    }
    fail_over(&cluster, 0);
    over.store(true, Ordering::SeqCst);
    let mut told = Vec::new();
    for taker in takers {
        told.extend(taker.await.unwrap());
    }
    let alive = nodes(&cluster, 1);
    let stock = alive.stock().await;
    balanced(&stock).await;
    let lost = forgotten(&stock, &told).await.len();
    println!("note: {} were told of a unit while a master died, {lost} of them in vain", told.len());
    let mut promised = told.len();

    // Another master goes on alone for a while, and dies: what it said meanwhile is forgotten for certain.
    copied(&cluster, 1);
    let replica = cluster.replicas[1].addr();
    // It cannot come back to its master with a wrong password.
    redis_command(replica, &["CONFIG", "SET", "masterauth", "a wrong one"]).unwrap();
    redis_command(replica, &["CLIENT", "KILL", "TYPE", "master"]).unwrap();
    until(replica, &["INFO", "replication"], |said| said.contains("master_link_status:down"));
    let mut alone = Vec::new();
    for line in 0..120 {
        let id = format!("alone-{line}");
        assert!(matches!(take(&stock, &id).await, Take::Reserved(_)), "{id}");
        alone.push(id);
    }
    promised += alone.len();
    fail_over(&cluster, 1);
    let alive = nodes(&cluster, 2);
    let stock = alive.stock().await;
    balanced(&stock).await;
    let lost_alone = forgotten(&stock, &alone).await.len();
    assert!(lost_alone > 0, "a master that passed nothing on was not missed");
    // What was passed on before is still there.
    assert_eq!(forgotten(&stock, &told).await.len(), lost, "more was lost than what was not passed on");

    // The rest is sold to the end: as much more than there was as was forgotten, and not one more.
    let mut rest = 0;
    while let Take::Reserved(_) = take(&stock, &format!("rest-{rest}")).await {
        rest += 1;
    }
    let (promised, lost) = (promised as u64 + rest, (lost + lost_alone) as u64);
    println!("note: {promised} promised of {UNITS}, {lost} of them forgotten in two failovers");
    assert_eq!(promised, UNITS + lost);
    balanced(&stock).await;
}
