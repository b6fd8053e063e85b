//! Units are accounted for to the last one, on every store, whatever happens beside.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "shared/contexts.rs"]
mod contexts;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use oarlock_stock::{Count, Error, Order, Sql, State, Stock, Take};
use oarlock_testbed::{MariaDb, MySql, Postgres, RedisCluster};

use self::contexts::{Lite, Many, Maria, One, Pg, TestContext};

fn order(sku: &str, id: impl Into<String>, quantity: u64) -> Order {
    Order { sku: sku.to_owned(), id: id.into(), quantity, hold: None }
}

fn reserved(take: Take) -> oarlock_stock::Reservation {
    match take {
        Take::Reserved(reservation) => reservation,
        Take::SoldOut { left } => panic!("sold out, with {left} left"),
    }
}

fn balanced(count: &Count) {
    assert_eq!(count.available + count.held + count.sold, count.delivered, "{count:?}");
}

async fn all(context: &impl TestContext) {
    let stock = context.stock().await;
    stock.init().await.unwrap();
    stock.init().await.unwrap();
    an_id_takes_once(context).await;
    what_is_given_back_can_be_taken_again(context).await;
    a_hold_that_is_over_goes_back_once(context).await;
    more_than_one_segment_has(context).await;
    a_delivery_counts_once(context).await;
    uneven_segments_are_levelled(context).await;
    an_item_can_be_forgotten(context).await;
    nonsense_is_refused(context).await;
    a_dropped_take_is_finished(context).await;
    nothing_is_sold_twice_while_it_is_spread_anew(context).await;
}

async fn fresh<B: TestContext>(context: &B, sku: &str, segments: u32, units: u64) -> Stock<B::Shelf> {
    let stock = context.stock().await;
    stock.create(sku, segments).await.unwrap();
    stock.create(sku, segments).await.unwrap();
    stock.restock(sku, &format!("first of {sku}"), units).await.unwrap();
    stock
}

async fn an_id_takes_once(context: &impl TestContext) {
    let stock = fresh(context, "once", 4, 3).await;
    for stock in [&stock, &context.stock().await, &context.stock().await] {
        let reservation = reserved(stock.take(order("once", "a-1", 1)).await.unwrap());
        assert_eq!((reservation.quantity, reservation.state), (1, State::Held));
    }
    assert_eq!(stock.count("once").await.unwrap().available, 2);
    assert_eq!(stock.confirm("once", "a-1").await.unwrap().unwrap().state, State::Sold);
    // Also when everything is gone.
    for id in ["a-2", "a-3"] {
        reserved(stock.take(order("once", id, 1)).await.unwrap());
    }
    assert_eq!(stock.take(order("once", "a-4", 1)).await.unwrap(), Take::SoldOut { left: 0 });
    assert_eq!(reserved(stock.take(order("once", "a-1", 1)).await.unwrap()).state, State::Sold);
    let error = stock.take(order("once", "a-1", 2)).await.unwrap_err();
    assert!(matches!(error, Error::Reused { .. }), "{error}");
    // An id belongs to its item.
    let other = fresh(context, "other", 1, 1).await;
    assert_eq!(reserved(other.take(order("other", "a-1", 1)).await.unwrap()).state, State::Held);
    balanced(&stock.count("once").await.unwrap());
}

async fn what_is_given_back_can_be_taken_again(context: &impl TestContext) {
    let stock = fresh(context, "back", 2, 2).await;
    for id in ["b-1", "b-2"] {
        reserved(stock.take(order("back", id, 1)).await.unwrap());
    }
    assert_eq!(stock.take(order("back", "b-3", 1)).await.unwrap(), Take::SoldOut { left: 0 });
    for _ in 0..3 {
        assert_eq!(stock.give_back("back", "b-1").await.unwrap().unwrap().state, State::Returned);
    }
    assert_eq!(stock.count("back").await.unwrap().available, 1, "back once");
    // Too late to sell it, and no way to take back what was sold.
    assert_eq!(stock.confirm("back", "b-1").await.unwrap().unwrap().state, State::Returned);
    assert_eq!(stock.confirm("back", "b-2").await.unwrap().unwrap().state, State::Sold);
    assert_eq!(stock.give_back("back", "b-2").await.unwrap().unwrap().state, State::Sold);
    assert_eq!(stock.confirm("back", "never").await.unwrap(), None);
    reserved(stock.take(order("back", "b-3", 1)).await.unwrap());
    balanced(&stock.count("back").await.unwrap());
}

async fn a_hold_that_is_over_goes_back_once(context: &impl TestContext) {
    let stock = fresh(context, "hold", 3, 9).await;
    for id in 0..6 {
        let hold = Some(if id < 4 { Duration::ZERO } else { Duration::from_secs(600) });
        reserved(stock.take(Order { hold, ..order("hold", format!("h-{id}"), 1) }).await.unwrap());
    }
    assert_eq!(stock.confirm("hold", "h-0").await.unwrap().unwrap().state, State::Sold, "it is not swept yet");
    let (one, other) = (context.stock().await, context.stock().await);
    let (one, other) = tokio::join!(one.sweep("hold"), other.sweep("hold"));
    let count = stock.count("hold").await.unwrap();
    assert_eq!((count.available, count.held, count.sold), (6, 2, 1));
    // Two that sweep at once may both see that it is back, but it goes back once.
    assert!(one.unwrap() + other.unwrap() >= 3);
    assert_eq!(stock.sweep("hold").await.unwrap(), 0);
    balanced(&count);
}

async fn more_than_one_segment_has(context: &impl TestContext) {
    let stock = fresh(context, "much", 4, 10).await;
    assert_eq!(stock.count("much").await.unwrap().segments, [3, 3, 2, 2]);
    reserved(stock.take(order("much", "m-1", 7)).await.unwrap());
    assert_eq!(stock.take(order("much", "m-2", 4)).await.unwrap(), Take::SoldOut { left: 3 });
    reserved(stock.take(order("much", "m-3", 3)).await.unwrap());
    assert_eq!(reserved(stock.take(order("much", "m-1", 7)).await.unwrap()).state, State::Held);
    stock.give_back("much", "m-1").await.unwrap();
    let count = stock.count("much").await.unwrap();
    assert_eq!((count.available, count.held), (7, 3));
    stock.resize("much", 2).await.unwrap();
    assert_eq!(stock.count("much").await.unwrap().segments, [4, 3]);
    // It came from a segment that is gone.
    stock.give_back("much", "m-3").await.unwrap();
    let count = stock.count("much").await.unwrap();
    assert_eq!(count.available, 10);
    balanced(&count);
}

async fn a_delivery_counts_once(context: &impl TestContext) {
    let stock = fresh(context, "more", 3, 5).await;
    for _ in 0..3 {
        stock.restock("more", "truck 7", 4).await.unwrap();
    }
    let count = stock.count("more").await.unwrap();
    assert_eq!((count.available, count.delivered), (9, 9));
    let error = stock.restock("more", "truck 7", 5).await.unwrap_err();
    assert!(matches!(error, Error::Reused { .. }), "{error}");
    balanced(&stock.count("more").await.unwrap());
}

async fn uneven_segments_are_levelled(context: &impl TestContext) {
    let stock = fresh(context, "level", 4, 40).await;
    // More than any segment has, so that some of them are empty.
    reserved(stock.take(order("level", "l-1", 25)).await.unwrap());
    let before = stock.count("level").await.unwrap();
    assert_ne!(before.segments, [4, 4, 4, 3]);
    stock.rebalance("level").await.unwrap();
    let count = stock.count("level").await.unwrap();
    assert_eq!((count.segments.as_slice(), count.held), (&[4, 4, 4, 3][..], 25));
    assert!(matches!(stock.rebalance("nowhere").await, Err(Error::NoSuchItem(_))));
    balanced(&count);
}

async fn an_item_can_be_forgotten(context: &impl TestContext) {
    let stock = fresh(context, "old", 3, 6).await;
    let other = fresh(context, "old too", 1, 1).await;
    reserved(stock.take(order("old", "o-1", 5)).await.unwrap());
    stock.resize("old", 2).await.unwrap();
    for _ in 0..2 {
        stock.remove("old").await.unwrap();
    }
    let gone = context.stock().await.take(order("old", "o-2", 1)).await;
    assert!(matches!(gone, Err(Error::NoSuchItem(_))), "{gone:?}");
    // Made anew, it knows nothing of what was.
    let stock = fresh(context, "old", 3, 5).await;
    let count = stock.count("old").await.unwrap();
    assert_eq!((count.available, count.held, count.delivered), (5, 0, 5));
    reserved(stock.take(order("old", "o-1", 5)).await.unwrap());
    assert_eq!(other.count("old too").await.unwrap().available, 1);
}

async fn nonsense_is_refused(context: &impl TestContext) {
    let stock = context.stock().await;
    let nowhere = [
        stock.count("nowhere").await.map(drop),
        stock.resize("nowhere", 3).await,
        stock.restock("nowhere", "n-1", 3).await,
        stock.take(order("nowhere", "n-2", 1)).await.map(drop),
    ];
    for refused in nowhere {
        assert!(matches!(refused, Err(Error::NoSuchItem(_))), "{refused:?}");
    }
    let long = "x".repeat(191);
    let nonsense = [
        stock.create("none", 0).await,
        stock.create("", 1).await,
        stock.take(order("once", "n-3", 0)).await.map(drop),
        stock.take(order("once", &long, 1)).await.map(drop),
    ];
    for refused in nonsense {
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    }
    // Any bytes are a name, and no two of them are the same.
    for sku in ["a'; drop table oarlock_stock_item; --", "a ", "A ", "ä"] {
        let stock = fresh(context, sku, 1, 1).await;
        reserved(stock.take(order(sku, format!("{sku} 1"), 1)).await.unwrap());
        assert_eq!(stock.count(sku).await.unwrap().held, 1);
    }
}

async fn a_dropped_take_is_finished(context: &impl TestContext) {
    let stock = fresh(context, "drop", 2, 40).await;
    for polls in 0..20 {
        let mut take = Box::pin(stock.take(order("drop", format!("d-{polls}"), 1)));
        for _ in 0..polls {
            let poll = std::future::poll_fn(|cx| std::task::Poll::Ready(take.as_mut().poll(cx))).await;
            if poll.is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    // Waits for its turn, and so for the last of them.
    let count = stock.count("drop").await.unwrap();
    balanced(&count);
    for polls in 0..20 {
        reserved(stock.take(order("drop", format!("d-{polls}"), 1)).await.unwrap());
    }
    assert_eq!(stock.count("drop").await.unwrap().held, 20);
}

const TAKERS: usize = 6;

async fn nothing_is_sold_twice_while_it_is_spread_anew<B: TestContext>(context: &B) {
    let stock = fresh(context, "hot", 4, 100).await;
    let delivered = Arc::new(AtomicBool::new(false));
    let mut takers = Vec::new();
    for taker in 0..TAKERS {
        let (stock, delivered) = (context.stock().await, delivered.clone());
        takers.push(tokio::spawn(async move {
            let mut sold = Vec::new();
            for line in 0.. {
                let last = delivered.load(Ordering::SeqCst);
                let id = format!("{taker}-{line}");
                match stock.take(order("hot", &id, 1 + line % 3)).await.unwrap() {
                    Take::Reserved(reservation) => {
                        assert_eq!(stock.confirm("hot", &id).await.unwrap().unwrap().state, State::Sold);
                        sold.push((reservation.id, reservation.quantity));
                    }
                    Take::SoldOut { left: 0 } if last => return sold,
                    Take::SoldOut { .. } => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            }
            sold
        }));
    }
    for round in 0..12 {
        stock.resize("hot", [7, 1, 3, 16][round % 4]).await.unwrap();
        if round == 5 {
            stock.restock("hot", "late truck", 50).await.unwrap();
            delivered.store(true, Ordering::SeqCst);
        }
        if B::AT_ONCE {
            balanced(&stock.count("hot").await.unwrap());
        }
    }
    let mut sold = BTreeSet::new();
    for taker in takers {
        for (id, quantity) in taker.await.unwrap() {
            assert!(sold.insert((id.clone(), quantity)), "{id} twice");
        }
    }
    let count = stock.count("hot").await.unwrap();
    balanced(&count);
    assert_eq!((count.available, count.held), (0, 0), "sold out was said while there were some: {count:?}");
    assert_eq!(sold.iter().map(|(_, quantity)| quantity).sum::<u64>(), count.sold);
    assert_eq!(count.sold, 150);
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres() {
    if let Some(server) = Postgres::start_or_skip().unwrap() {
        all(&Pg(server.url())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb() {
    if let Some(server) = MariaDb::start_or_skip().unwrap() {
        all(&Maria(server.url())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql() {
    if let Some(server) = MySql::start_or_skip().unwrap() {
        all(&Maria(server.url())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite() {
    let folder = tempfile::tempdir().unwrap();
    all(&Lite(folder.path().join("stock.db"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis() {
    if let Some(server) = oarlock_testbed::Redis::start_or_skip().unwrap() {
        all(&One(server.url())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_cluster() {
    if let Some(cluster) = RedisCluster::start_or_skip().unwrap() {
        let nodes = cluster.masters.iter().map(|node| format!("redis://{}", node.addr())).collect();
        all(&Many(nodes)).await;
    }
}

/// A call that the server ends in the middle has taken nothing, also for who asks again.
#[tokio::test]
async fn a_take_that_was_cut_short_takes_nothing() {
    let Some(server) = MariaDb::start_or_skip().unwrap() else { return };
    let context = Maria(server.url());
    context.stock().await.init().await.unwrap();
    let stock = fresh(&context, "cut", 1, 2).await;
    let mut other = mysql_async::Conn::from_url(&context.0).await.unwrap();
    let locked = "start transaction; select available from oarlock_stock_segment where sku = 'cut' for update";
    let waiting = "select count(*) from information_schema.innodb_trx where trx_state = 'LOCK WAIT'";
    let conn = mysql_async::Conn::from_url(&context.0).await.unwrap();
    let kill = format!("kill query {}", conn.id());
    let taker = Stock::new(Sql::new(conn));
    for id in ["a", "b"] {
        other.query_drop(locked).await.unwrap();
        let cut = async {
            loop {
                // The server looks anew only if no client asked for a tenth of a second.
                tokio::time::sleep(Duration::from_millis(150)).await;
                if other.query_first::<u64, _>(waiting).await.unwrap() == Some(1) {
                    break;
                }
            }
            other.query_drop(&kill).await.unwrap();
        };
        let both = async { tokio::join!(taker.take(order("cut", id, 1)), cut).0 };
        let cut = tokio::time::timeout(Duration::from_secs(30), both).await.unwrap();
        assert!(matches!(cut, Err(Error::Store(_))), "{cut:?}");
        other.query_drop("rollback").await.unwrap();
    }
    let count = stock.count("cut").await.unwrap();
    assert_eq!((count.available, count.held), (2, 0), "{count:?}");
    // On the same connection, where what was begun might be kept.
    reserved(taker.take(order("cut", "b", 1)).await.unwrap());
    let count = stock.count("cut").await.unwrap();
    assert_eq!((count.available, count.held), (1, 1), "{count:?}");
    balanced(&count);
}
