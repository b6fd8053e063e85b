//! Stock in a database that others use at the same time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use oarlock_rows::postgres::Cached;
use oarlock_stock::{Order, Shelf, Sql, Stock, Take};
use oarlock_testbed::Postgres;
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
