//! Takers and servers that are killed half-way: every unit is accounted for, and no taker was told of one that it does
//! not have.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(dead_code, reason = "not every test uses all that is shared")]

#[path = "shared/contexts.rs"]
mod contexts;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use oarlock_stock::{Order, State, Stock, Take};
use oarlock_testbed::{MariaDb, MySql, Postgres, RedisCluster};

use self::contexts::{Lite, Many, Maria, One, Pg, TestContext};

/// What a taker's process is to do: where, and what its ids begin with.
const TAKER: &str = "OARLOCK_TEST_TAKER";
const UNITS: u64 = 100_000;

fn order(id: &str) -> Order {
    Order { sku: "hot".to_owned(), id: id.to_owned(), quantity: 1, hold: None }
}

/// Not a test by itself: takes until it is killed, and says what it was told.
#[tokio::test]
async fn taker() {
    let Ok(told) = std::env::var(TAKER) else { return };
    let (id, url) = told.split_once(' ').unwrap();
    match url.split_once(':').unwrap().0 {
        "postgres" => take_for_ever(&Pg(url.to_owned()), id).await,
        "mysql" => take_for_ever(&Maria(url.to_owned()), id).await,
        "redis" if url.contains(' ') => take_for_ever(&Many(url.split(' ').map(str::to_owned).collect()), id).await,
        "redis" => take_for_ever(&One(url.to_owned()), id).await,
        _ => take_for_ever(&Lite(url.trim_start_matches("file:").into()), id).await,
    }
}

async fn take_for_ever(context: &impl TestContext, id: &str) {
    let stock = context.stock().await;
    for line in 0..UNITS {
        let id = format!("{id}-{line}");
        // A server that was killed: this taker has done its part.
        let Ok(Take::Reserved(_)) = stock.take(order(&id)).await else { return };
        println!("\ntold {id}");
        if line % 3 == 0 {
            let Ok(Some(_)) = stock.confirm("hot", &id).await else { return };
            println!("\nsold {id}");
        }
    }
}

/// The process, and what it says until its end.
fn spawn(url: &str, id: usize) -> (Child, std::thread::JoinHandle<Vec<String>>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "taker", "--nocapture"]).env(TAKER, format!("{id} {url}"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let told = std::thread::spawn(move || lines.map_while(Result::ok).filter(|line| line.contains('-')).collect());
    (child, told)
}

/// Kills takers, and the server where there is one, in the middle of it.
async fn account<B: TestContext>(context: &B, url: &str, kill_server: impl Fn()) {
    let stock = context.stock().await;
    stock.init().await.unwrap();
    stock.create("hot", 3).await.unwrap();
    stock.restock("hot", "truck", UNITS).await.unwrap();
    let mut said = Vec::new();
    for round in 0..3 {
        let takers: Vec<_> = (0..3).map(|taker| spawn(url, round * 3 + taker)).collect();
        busy(context, said.len() as u64).await;
        if round == 1 {
            kill_server();
        }
        for (mut child, told) in takers {
            child.kill().unwrap();
            child.wait().unwrap();
            said.extend(told.join().unwrap());
        }
    }
    // A new connection: the server may be another one by now.
    check(&context.stock().await, &said).await;
}

/// Waits until some were taken since.
async fn busy(context: &impl TestContext, before: u64) {
    let stock = context.stock().await;
    let waited = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            let count = stock.count("hot").await.unwrap();
            if count.held + count.sold > before + 60 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.expect("takers that take");
}

async fn check<S: oarlock_stock::Shelf>(stock: &Stock<S>, said: &[String]) {
    let count = stock.count("hot").await.unwrap();
    assert_eq!(count.available + count.held + count.sold, UNITS, "{count:?}");
    let told: BTreeSet<_> = said.iter().filter_map(|line| line.strip_prefix("told ")).collect();
    let sold: BTreeSet<_> = said.iter().filter_map(|line| line.strip_prefix("sold ")).collect();
    let taken = count.held + count.sold;
    // Each of the nine may have been killed between the deed and the word.
    assert!(told.len() as u64 <= taken && taken <= told.len() as u64 + 9, "{} told, {taken} taken", told.len());
    assert!(sold.len() as u64 <= count.sold && count.sold <= sold.len() as u64 + 9, "{} sold, {count:?}", sold.len());
    for id in &told {
        // Asking again takes nothing, and says what became of it.
        let Take::Reserved(reservation) = stock.take(order(id)).await.unwrap() else { panic!("{id} is lost") };
        let state = if sold.contains(id) { State::Sold } else { reservation.state };
        assert_eq!(reservation.state, state, "{id}");
    }
    assert_eq!(stock.count("hot").await.unwrap(), count);
    println!("note: {} told, {taken} taken, {} segments", told.len(), count.segments.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres() {
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    let url = server.url();
    account(&Pg(url.clone()), &url, || {
        server.kill().unwrap();
        server.restart().unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb() {
    let Some(server) = MariaDb::start_or_skip().unwrap() else { return };
    let url = server.url();
    account(&Maria(url.clone()), &url, || {
        server.kill().unwrap();
        server.restart().unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql() {
    let Some(server) = MySql::start_or_skip().unwrap() else { return };
    let url = server.url();
    account(&Maria(url.clone()), &url, || {
        server.kill().unwrap();
        server.restart().unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stock.db");
    let url = format!("file:{}", file.display());
    account(&Lite(file), &url, || {}).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis() {
    let Some(server) = oarlock_testbed::Redis::start_or_skip().unwrap() else { return };
    let url = server.url();
    account(&One(url.clone()), &url, || {
        server.kill().unwrap();
        server.restart().unwrap();
    })
    .await;
}

/// The takers alone: a cluster whose master is killed goes on with a replica, which may know less.
#[tokio::test(flavor = "multi_thread")]
async fn redis_cluster() {
    let Some(cluster) = RedisCluster::start_or_skip().unwrap() else { return };
    let nodes: Vec<_> = cluster.masters.iter().map(|node| format!("redis://{}", node.addr())).collect();
    account(&Many(nodes.clone()), &nodes.join(" "), || {}).await;
}
