//! What is left behind on Redis by those who died half-way, and what still arrives from the past.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(dead_code, reason = "not every test uses all that is shared")]

#[path = "shared/contexts.rs"]
mod contexts;

use oarlock_stock::{Order, Stock, Take};
use redis::aio::MultiplexedConnection;

use self::contexts::{One, TestContext as _};

const TAKE: &str = include_str!("../src/redis/scripts/take.lua");
const OPEN: &str = include_str!("../src/redis/scripts/open.lua");
const SETTLE: &str = include_str!("../src/redis/scripts/settle.lua");

const MAP: &str = "oarlock:stock:{hot}:map";

fn order(id: &str, quantity: u64) -> Order {
    Order { sku: "hot".to_owned(), id: id.to_owned(), quantity, hold: None }
}

fn keys(segment: u32) -> [String; 5] {
    ["", ":r", ":e", ":o", ":i"].map(|end| format!("oarlock:stock:{{hot#{segment}}}{end}"))
}

type Shelf = oarlock_stock::Redis<MultiplexedConnection>;

async fn fresh(context: &One, segments: u32, units: u64) -> (Stock<Shelf>, MultiplexedConnection) {
    let stock = context.stock().await;
    stock.create("hot", segments).await.unwrap();
    stock.restock("hot", "truck", units).await.unwrap();
    let raw = redis::Client::open(context.0.as_str()).unwrap().get_multiplexed_async_connection().await.unwrap();
    (stock, raw)
}

/// Units have left segment 0 and not come to segment 1, or have and no client wrote that down.
#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_was_left_is_finished_once() {
    let Some(server) = oarlock_testbed::Redis::start_or_skip().unwrap() else { return };
    let context = One(server.url());
    let (stock, mut raw) = fresh(&context, 2, 20).await;
    let [from, _, _, under_way, _] = keys(0);
    let [to, _, _, _, arrived] = keys(1);
    for (transfer, has_come) in [("t1", false), ("t2", true)] {
        redis::cmd("HINCRBY").arg(&from).arg("n").arg(-3).exec_async(&mut raw).await.unwrap();
        redis::cmd("HSET").arg(&under_way).arg(transfer).arg("3 1").exec_async(&mut raw).await.unwrap();
        if has_come {
            redis::cmd("ZADD").arg(&arrived).arg("+inf").arg(transfer).exec_async(&mut raw).await.unwrap();
            redis::cmd("HINCRBY").arg(&to).arg("n").arg(3).exec_async(&mut raw).await.unwrap();
        }
    }
    let (one, two, three) = (context.stock().await, context.stock().await, context.stock().await);
    let (one, two, three) = tokio::join!(one.sweep("hot"), two.sweep("hot"), three.sweep("hot"));
    assert_eq!((one.unwrap(), two.unwrap(), three.unwrap()), (0, 0, 0));
    let count = stock.count("hot").await.unwrap();
    assert_eq!((count.segments, count.available), (vec![4, 16], 20));
    let left: u64 = redis::cmd("HLEN").arg(&under_way).query_async(&mut raw).await.unwrap();
    assert_eq!(left, 0, "notes");
}

/// They have left segment 0, and no client but the taker is there to bring them to segment 1.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_on_its_way_is_not_sold_out() {
    let Some(server) = oarlock_testbed::Redis::start_or_skip().unwrap() else { return };
    let context = One(server.url());
    let (stock, mut raw) = fresh(&context, 2, 6).await;
    assert!(matches!(stock.take(order("most", 3)).await.unwrap(), Take::Reserved(_)));
    let [from, _, _, under_way, _] = keys(0);
    let [other, ..] = keys(1);
    redis::cmd("HSET").arg(&from).arg("n").arg(0).exec_async(&mut raw).await.unwrap();
    redis::cmd("HSET").arg(&other).arg("n").arg(0).exec_async(&mut raw).await.unwrap();
    redis::cmd("HSET").arg(&under_way).arg("t1").arg("3 1").exec_async(&mut raw).await.unwrap();
    assert_eq!(stock.take(order("more", 4)).await.unwrap(), Take::SoldOut { left: 3 });
    assert!(matches!(stock.take(order("rest", 3)).await.unwrap(), Take::Reserved(_)));
    let count = stock.count("hot").await.unwrap();
    assert_eq!((count.available, count.held), (0, 6));
}

/// One unit, and each taker wants two: none of them carries it to its own segment, where the next would take it from.
#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_be_served_is_told_so_in_any_crowd() {
    let Some(server) = oarlock_testbed::Redis::start_or_skip().unwrap() else { return };
    let context = One(server.url());
    let (_, mut raw) = fresh(&context, 8, 1).await;
    let before: u64 = redis::cmd("HGET").arg(MAP).arg("moves").query_async(&mut raw).await.unwrap();
    let mut takers = Vec::new();
    for taker in 0..8 {
        let stock = context.stock().await;
        takers.push(tokio::spawn(async move {
            for line in 0..20 {
                let take = stock.take(order(&format!("{taker}-{line}"), 2)).await.unwrap();
                assert_eq!(take, Take::SoldOut { left: 1 });
            }
        }));
    }
    for taker in takers {
        taker.await.unwrap();
    }
    let after: u64 = redis::cmd("HGET").arg(MAP).arg("moves").query_async(&mut raw).await.unwrap();
    assert_eq!(after, before, "units were moved");
}

/// Each taker could be served, but not all: the first ones must be, and the rest hear that it is sold out.
#[tokio::test(flavor = "multi_thread")]
async fn a_taker_that_gathers_beside_others_gets_an_answer() {
    let Some(server) = oarlock_testbed::Redis::start_or_skip().unwrap() else { return };
    let context = One(server.url());
    for round in 0..10 {
        let (stock, _) = fresh(&context, 16, 16).await;
        let mut takers = Vec::new();
        for taker in 0..6 {
            let stock = context.stock().await;
            takers.push(tokio::spawn(async move { stock.take(order(&format!("{round}-{taker}"), 5)).await.unwrap() }));
        }
        let mut served = 0;
        for taker in takers {
            served += usize::from(matches!(taker.await.unwrap(), Take::Reserved(_)));
        }
        assert_eq!(served, 3);
        stock.remove("hot").await.unwrap();
    }
}

/// An order that was sent by an old map arrives after its repetition was carried out by the new one.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_by_an_old_map_is_not_carried_out() {
    let Some(server) = oarlock_testbed::Redis::start_or_skip().unwrap() else { return };
    let context = One(server.url());
    let (stock, mut raw) = fresh(&context, 3, 30).await;
    let behind = context.stock().await;
    assert!(matches!(behind.take(order("first", 1)).await.unwrap(), Take::Reserved(_)));
    let old = generation(&mut raw).await.to_string();
    stock.resize("hot", 5).await.unwrap();
    assert!(matches!(stock.take(order("late", 1)).await.unwrap(), Take::Reserved(_)));
    for segment in 0..3 {
        let mut late = redis::cmd("EVAL");
        late.arg(TAKE).arg(5).arg(&keys(segment)).arg(&[old.as_str(), "late", "1", "-1"]);
        let said: Vec<String> = late.query_async(&mut raw).await.unwrap();
        assert_ne!(said[0], "taken", "segment {segment}");
    }
    // Who has the old map learns of the new one, and ids keep their units wherever their home is now.
    for id in ["first", "late", "next"] {
        assert!(matches!(behind.take(order(id, 1)).await.unwrap(), Take::Reserved(_)), "{id}");
    }
    let count = stock.count("hot").await.unwrap();
    assert_eq!((count.held, count.available), (3, 27));
}

/// The segments know of a new map that was never written: its maker died.
#[tokio::test(flavor = "multi_thread")]
async fn a_resize_that_was_left_stops_no_taker() {
    let Some(server) = oarlock_testbed::Redis::start_or_skip().unwrap() else { return };
    // He told all of them, or only some.
    for told in [3, 2, 1] {
        let (stock, mut raw) = fresh(&One(server.url()), 3, 30).await;
        let next = generation(&mut raw).await + 1;
        for segment in 0..told {
            redis::cmd("HSET").arg(&keys(segment)[0]).arg("g").arg(next).exec_async(&mut raw).await.unwrap();
        }
        // Wherever they are at home.
        for id in ["a", "b", "c", "d", "e", "f"] {
            assert!(matches!(stock.take(order(id, 1)).await.unwrap(), Take::Reserved(_)), "{id}, {told} were told");
        }
        let homes = async |segment: u32| redis::cmd("HLEN").arg(&keys(segment)[1]).query_async(&mut raw.clone()).await;
        for segment in 0..3 {
            assert!(homes(segment).await.unwrap_or(0) > 0, "no taker starts in {segment}: nothing was tested");
        }
        stock.resize("hot", 1).await.unwrap();
        assert_eq!(stock.count("hot").await.unwrap().segments, [24]);
        stock.remove("hot").await.unwrap();
    }
}

/// The client that brought units back died before it could say so, just after another had looked. They lie where no
/// single segment has enough, so that a taker must look, and not believe what it remembers.
#[tokio::test(flavor = "multi_thread")]
async fn what_came_back_without_a_word_is_found() {
    let Some(server) = oarlock_testbed::Redis::start_or_skip().unwrap() else { return };
    let (stock, mut raw) = fresh(&One(server.url()), 2, 2).await;
    assert!(matches!(stock.take(order("first", 2)).await.unwrap(), Take::Reserved(_)));
    let coming = MAP.replace(":map", ":coming");
    redis::cmd("EVAL").arg(OPEN).arg(2).arg(&[MAP, &coming, "back"]).exec_async(&mut raw).await.unwrap();
    for id in ["second", "third"] {
        assert_eq!(stock.take(order(id, 2)).await.unwrap(), Take::SoldOut { left: 0 });
    }
    for segment in 0..2 {
        redis::cmd("EVAL")
            .arg(SETTLE)
            .arg(5)
            .arg(&keys(segment))
            .arg(&["first", "r", "60000"])
            .exec_async(&mut raw)
            .await
            .unwrap();
        redis::cmd("HSET").arg(&keys(segment)[0]).arg(&["n", "1"]).exec_async(&mut raw).await.unwrap();
    }
    assert!(matches!(stock.take(order("third", 2)).await.unwrap(), Take::Reserved(_)));
    let count = stock.count("hot").await.unwrap();
    assert_eq!((count.available, count.held), (0, 2));
}

/// It was forgotten and made anew with more segments, while another still has the map of its former life.
#[tokio::test(flavor = "multi_thread")]
async fn the_map_of_a_former_life_is_not_believed() {
    let Some(server) = oarlock_testbed::Redis::start_or_skip().unwrap() else { return };
    let context = One(server.url());
    let (stock, _) = fresh(&context, 4, 40).await;
    let behind = context.stock().await;
    assert!(matches!(behind.take(order("before", 1)).await.unwrap(), Take::Reserved(_)));
    stock.remove("hot").await.unwrap();
    let (stock, _) = fresh(&context, 8, 40).await;
    for number in 0..20 {
        let id = format!("after {number}");
        assert!(matches!(behind.take(order(&id, 1)).await.unwrap(), Take::Reserved(_)));
        assert!(matches!(stock.take(order(&id, 1)).await.unwrap(), Take::Reserved(_)));
        assert!(stock.confirm("hot", &id).await.unwrap().is_some(), "{id} is not found");
    }
    let count = stock.count("hot").await.unwrap();
    assert_eq!((count.available, count.sold), (20, 20));
}

/// What was sold or given back is forgotten after its time, by sweeps and by others that end, so that ids do not become
/// more and more.
#[tokio::test(flavor = "multi_thread")]
async fn ids_are_forgotten_some_time_after_their_end() {
    let Some(server) = oarlock_testbed::Redis::start_or_skip().unwrap() else { return };
    let context = One(server.url());
    let (stock, mut raw) = fresh(&context, 1, 1000).await;
    let connection = redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let brief = Stock::new(Shelf::new(connection).remember(std::time::Duration::ZERO));
    let known = async || redis::cmd("HLEN").arg(&keys(0)[1]).query_async::<usize>(&mut raw.clone()).await.unwrap();
    for number in 0..200 {
        let id = format!("sold {number}");
        assert!(matches!(brief.take(order(&id, 1)).await.unwrap(), Take::Reserved(_)));
        assert!(brief.confirm("hot", &id).await.unwrap().is_some());
        assert!(known().await <= 12, "{} ids", known().await);
    }
    // Those of others are remembered for their own time, and what is held until it ends.
    for (id, hold) in [("kept", None), ("held", None), ("over", Some(std::time::Duration::ZERO))] {
        assert!(matches!(stock.take(Order { hold, ..order(id, 1) }).await.unwrap(), Take::Reserved(_)));
    }
    assert!(stock.confirm("hot", "kept").await.unwrap().is_some());
    assert_eq!(brief.sweep("hot").await.unwrap(), 1, "what was held for too long");
    brief.sweep("hot").await.unwrap();
    assert_eq!(known().await, 2, "kept and held");
    assert!(matches!(stock.take(order("kept", 1)).await.unwrap(), Take::Reserved(_)));
    let count = stock.count("hot").await.unwrap();
    assert_eq!((count.available, count.held, count.sold), (798, 1, 201));
    let left: usize = redis::cmd("ZCARD").arg(&keys(0)[2]).query_async(&mut raw).await.unwrap();
    assert_eq!(left, 1, "the one that is remembered");
}

/// A number that another program wrote is not counted up to.
#[tokio::test(flavor = "multi_thread")]
async fn a_map_with_impossible_segments_is_refused() {
    let Some(server) = oarlock_testbed::Redis::start_or_skip().unwrap() else { return };
    let context = One(server.url());
    let (_, mut raw) = fresh(&context, 2, 10).await;
    for (field, number) in [("segments", "4000000000"), ("past", "2 4000000000")] {
        redis::cmd("HSET")
            .arg(MAP)
            .arg(&["segments", "2", "past", "", field, number])
            .exec_async(&mut raw)
            .await
            .unwrap();
        let error = context.stock().await.sweep("hot").await.unwrap_err();
        assert!(error.to_string().contains("4000000000 segments"), "{error}");
    }
}

async fn generation(raw: &mut MultiplexedConnection) -> u64 {
    redis::cmd("HGET").arg(MAP).arg("generation").query_async(raw).await.unwrap()
}
