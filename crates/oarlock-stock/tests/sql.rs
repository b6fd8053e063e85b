//! Stock in a database that others use at the same time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use oarlock_rows::postgres::Cached;
use oarlock_stock::{Error, Order, Shelf, Sql, State, Stock, Take, inside};
use oarlock_testbed::{MariaDb, Postgres};
use rusqlite::Connection;

const PATIENCE: Duration = Duration::from_secs(60);

async fn fresh<S: Shelf>(stock: &Stock<S>, sku: &str, segments: u32, units: u64) {
    stock.init().await.unwrap();
    stock.create(sku, segments).await.unwrap();
    stock.restock(sku, "first", units).await.unwrap();
}

async fn taken<S: Shelf>(stock: &Stock<S>, sku: &str, id: &str, quantity: u64) {
    let take = stock.take(Order { sku: sku.to_owned(), id: id.to_owned(), quantity, hold: None }).await.unwrap();
    assert!(matches!(take, Take::Reserved(_)), "{id}: {take:?}");
}

/// As SQLite is without any setting: readers keep writers from committing, and no writer waits.
fn plain(file: &Path) -> Connection {
    let connection = Connection::open(file).unwrap();
    connection.pragma_update(None, "journal_mode", "delete").unwrap();
    connection.busy_timeout(Duration::ZERO).unwrap();
    connection
}

async fn postgres(server: &Postgres) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// How often the taker of one test met the reader.
static MET: AtomicU32 = AtomicU32::new(0);

/// Counts it, and does not wait.
fn met(_: i32) -> bool {
    MET.fetch_add(1, Ordering::SeqCst);
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_meets_a_reader_is_begun_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stock.db");
    let mut taker = plain(&file);
    let stock = Stock::new(Sql::new(plain(&file)));
    fresh(&stock, "read", 1, 3).await;
    taker.busy_handler(Some(met)).unwrap();
    let taker = Stock::new(Sql::new(taker));
    let reader = plain(&file);
    reader.execute_batch("begin; select * from oarlock_stock_item").unwrap();
    let reads = async {
        while MET.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        reader.execute_batch("commit").unwrap();
    };
    let both = async { tokio::join!(taken(&taker, "read", "r-1", 1), reads) };
    tokio::time::timeout(PATIENCE, both).await.unwrap();
    taken(&taker, "read", "r-2", 1).await;
    // Nor is another client kept out.
    taken(&stock, "read", "r-3", 1).await;
    let count = stock.count("read").await.unwrap();
    assert_eq!((count.available, count.held), (0, 3));
}

/// Sells to the last unit from four connections at once, which ask for everything twice, and for all that can be asked.
async fn sell_out<S: Shelf>(sku: &'static str, units: u64, stocks: Vec<Stock<S>>) {
    let stock = stocks[0].clone();
    let mut takers = Vec::new();
    for (taker, stock) in stocks.into_iter().enumerate() {
        takers.push(tokio::spawn(async move {
            for line in 0.. {
                let order = Order { sku: sku.to_owned(), id: format!("{taker}-{line}"), quantity: 1, hold: None };
                if let Take::SoldOut { left } = stock.take(order.clone()).await.unwrap() {
                    assert_eq!(left, 0);
                    return line;
                }
                assert!(matches!(stock.take(order).await.unwrap(), Take::Reserved(_)));
                stock.restock(sku, "first", units).await.unwrap();
                stock.sweep(sku).await.unwrap();
                stock.count(sku).await.unwrap();
            }
            0
        }));
    }
    let mut sold = 0;
    for taker in takers {
        sold += tokio::time::timeout(PATIENCE, taker).await.unwrap().unwrap();
    }
    let count = stock.count(sku).await.unwrap();
    assert_eq!((count.available, count.held, sold), (0, units, units));
}

/// At these levels of isolation the server refuses a client that changes a row that another has changed since, and may
/// refuse who only reads: they ask again.
#[tokio::test(flavor = "multi_thread")]
async fn takers_in_strict_isolation_are_served() {
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    let mut stocks = Vec::new();
    for _ in 0..4 {
        let client = postgres(&server).await;
        client.batch_execute("set default_transaction_isolation to 'serializable'").await.unwrap();
        stocks.push(Stock::new(Sql::new(Cached::new(client))));
    }
    fresh(&stocks[0], "one", 1, 80).await;
    sell_out("one", 80, stocks.clone()).await;
    fresh(&stocks[0], "many", 16, 80).await;
    sell_out("many", 80, stocks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn takers_that_meet_in_a_plain_file_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stock.db");
    fresh(&Stock::new(Sql::new(plain(&file))), "plain", 4, 80).await;
    let stocks = (0..4).map(|_| Stock::new(Sql::new(plain(&file)))).collect();
    sell_out("plain", 80, stocks).await;
}

/// `READ COMMITTED` sees the new figures of rows that it had to wait for, but not rows that were made meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_being_spread_is_not_sold_out() {
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    let (stock, other) = (Stock::new(Sql::new(Cached::new(postgres(&server).await))), postgres(&server).await);
    fresh(&stock, "wide", 4, 41).await;
    // What a resize to 16 does, without its end.
    let spread = "begin; \
        update oarlock_stock_item set generation = generation + 1, segments = 16 where sku = 'wide'; \
        update oarlock_stock_segment set available = 3 where sku = 'wide'; \
        insert into oarlock_stock_segment (sku, segment, available) \
        select 'wide', n, case when n < 9 then 3 else 2 end from generate_series(4, 15) as n";
    other.batch_execute(spread).await.unwrap();
    let end = async {
        let waiting = "select 1 from pg_locks where not granted";
        while other.query_opt(waiting, &[]).await.unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        other.batch_execute("commit").await.unwrap();
    };
    // More than one segment has, before and after, and more than the first four have after.
    let both = async { tokio::join!(taken(&stock, "wide", "w-1", 13), end) };
    tokio::time::timeout(PATIENCE, both).await.unwrap();
    let count = stock.count("wide").await.unwrap();
    assert_eq!((count.available, count.held, count.segments.len()), (28, 13, 16));
}

/// Sells three, gives one back, holds one: then all that ended is forgotten, and nothing else.
async fn what_ended_is_forgotten<C>(stock: &Stock<Sql<C>>)
where
    C: oarlock_rows::Client<Value: From<i64>> + Send + 'static,
{
    fresh(stock, "purge", 2, 10).await;
    for id in ["sold 1", "sold 2", "sold 3", "back", "held"] {
        taken(stock, "purge", id, 1).await;
    }
    for id in ["sold 1", "sold 2", "sold 3"] {
        stock.confirm("purge", id).await.unwrap();
    }
    stock.give_back("purge", "back").await.unwrap();
    let before = stock.count("purge").await.unwrap();
    assert_eq!(stock.purge("purge", Duration::from_secs(3600)).await.unwrap(), 0, "nothing ended an hour ago");
    assert_eq!(stock.purge("purge", Duration::ZERO).await.unwrap(), 4);
    assert_eq!(stock.purge("purge", Duration::ZERO).await.unwrap(), 0);
    assert_eq!(stock.count("purge").await.unwrap(), before, "the units stay counted");
    assert_eq!(stock.confirm("purge", "sold 1").await.unwrap(), None, "its id is forgotten");
    // What is held was not touched, and what ends later is added to what was forgotten.
    stock.confirm("purge", "held").await.unwrap();
    assert_eq!(stock.purge("purge", Duration::ZERO).await.unwrap(), 1);
    let count = stock.count("purge").await.unwrap();
    assert_eq!((count.available, count.held, count.sold, count.delivered), (6, 0, 4, 10));
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_forgets_what_ended() {
    let folder = tempfile::tempdir().unwrap();
    what_ended_is_forgotten(&Stock::new(Sql::new(plain(&folder.path().join("stock.db"))))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_forgets_what_ended_and_a_pool_survives_its_restart() {
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    let url = server.url();
    let opened = std::sync::Arc::new(AtomicU32::new(0));
    let count = opened.clone();
    let stock = Stock::pooled(3, move || {
        let (url, count) = (url.clone(), count.clone());
        async move {
            count.fetch_add(1, Ordering::SeqCst);
            let connected = tokio_postgres::connect(&url, tokio_postgres::NoTls).await;
            let (client, connection) = connected.map_err(|error| Error::Store(error.into()))?;
            tokio::spawn(connection);
            Ok(Sql::new(Cached::new(client)))
        }
    });
    what_ended_is_forgotten(&stock).await;
    assert_eq!(opened.load(Ordering::SeqCst), 1, "one after the other needs one connection");
    let takers: Vec<_> = (0..6)
        .map(|taker| {
            let stock = stock.clone();
            tokio::spawn(async move { taken(&stock, "purge", &format!("taker {taker}"), 1).await })
        })
        .collect();
    for taker in takers {
        tokio::time::timeout(PATIENCE, taker).await.unwrap().unwrap();
    }
    assert!(opened.load(Ordering::SeqCst) <= 3, "no more than the pool may have");
    let before = stock.count("purge").await.unwrap();
    server.kill().unwrap();
    server.restart().unwrap();
    // Every idle connection is dead: the first call opens another one, and no caller hears of it.
    assert_eq!(stock.count("purge").await.unwrap(), before);
    taken(&stock, "purge", "taker 0", 1).await;
    assert_eq!(stock.count("purge").await.unwrap(), before, "the same order takes nothing more");
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb_forgets_what_ended_and_a_pool_survives_its_restart() {
    let Some(server) = MariaDb::start_or_skip().unwrap() else { return };
    let url = server.url();
    let stock = Stock::pooled(2, move || {
        let url = url.clone();
        async move {
            let conn = mysql_async::Conn::from_url(url).await;
            Ok(Sql::new(conn.map_err(|error| Error::Store(error.into()))?))
        }
    });
    what_ended_is_forgotten(&stock).await;
    // Two clients that purge at once forget each reservation once.
    for id in 0..6 {
        let id = format!("late {id}");
        taken(&stock, "purge", &id, 1).await;
        stock.confirm("purge", &id).await.unwrap();
    }
    let before = stock.count("purge").await.unwrap();
    let (one, other) = tokio::join!(stock.purge("purge", Duration::ZERO), stock.purge("purge", Duration::ZERO));
    assert_eq!(one.unwrap() + other.unwrap(), 6);
    assert_eq!(stock.count("purge").await.unwrap(), before, "the units stay counted");
    server.kill().unwrap();
    server.restart().unwrap();
    // Every idle connection is dead: the first call opens another one, and no caller hears of it.
    assert_eq!(stock.count("purge").await.unwrap(), before);
    assert_eq!(stock.purge("purge", Duration::ZERO).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn stock_inside_a_transaction_comes_and_goes_with_it() {
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    let stock = Stock::new(Sql::new(Cached::new(postgres(&server).await)));
    fresh(&stock, "inside", 2, 4).await;
    let mut client = postgres(&server).await;
    let refused = inside(&mut client).map(drop).unwrap_err();
    assert!(matches!(refused, Error::Invalid(_)), "{refused}");
    let order = |id: &str, quantity| Order { sku: "inside".to_owned(), id: id.to_owned(), quantity, hold: None };
    let mut undone = client.transaction().await.unwrap();
    assert!(matches!(inside(&mut undone).unwrap().take(&order("a", 1)).await.unwrap(), Take::Reserved(_)));
    undone.rollback().await.unwrap();
    assert_eq!(stock.count("inside").await.unwrap().available, 4);
    let mut kept = client.transaction().await.unwrap();
    let mut inside = inside(&mut kept).unwrap();
    // More than one segment has, twice under one id, and more than there is.
    assert!(matches!(inside.take(&order("a", 3)).await.unwrap(), Take::Reserved(_)));
    assert!(matches!(inside.take(&order("a", 3)).await.unwrap(), Take::Reserved(_)));
    assert!(matches!(inside.take(&order("a", 2)).await.unwrap_err(), Error::Reused { .. }));
    assert_eq!(inside.take(&order("b", 2)).await.unwrap(), Take::SoldOut { left: 1 });
    assert_eq!(inside.confirm("inside", "a").await.unwrap().unwrap().state, State::Sold);
    kept.commit().await.unwrap();
    let count = stock.count("inside").await.unwrap();
    assert_eq!((count.available, count.held, count.sold), (1, 0, 3));
}
