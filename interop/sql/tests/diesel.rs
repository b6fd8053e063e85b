//! A shop on diesel: a pool of r2d2, threads, and row locks of diesel's own.

use std::time::Duration;

use diesel::connection::SimpleConnection as _;
use diesel::prelude::*;
use diesel::r2d2::{ConnectionManager, Pool};
use diesel::result::Error;
use oarlock_rows::diesel::{Postgres as OnPostgres, transaction, wait_up_to};
use oarlock_rows::{
    Change, Classify as _, Contention, Dialect, Locked, Mode, Outcome, Retry, Version, Versioned, Wait,
};
use oarlock_sql_clients::{Boxed, ORDERS, SELLERS, UNITS, deadlock_and_rerun, now, orders_of, sell_at_once, sold};
use oarlock_stock::{Order, Sql, Stock, Take, inside};
use oarlock_testbed::Postgres;

const PATIENCE: Duration = Duration::from_secs(60);

diesel::table! {
    items (id) {
        id -> BigInt,
        stock -> BigInt,
    }
}

fn retry() -> Retry {
    Retry::default().attempts(200).deadline(PATIENCE)
}

fn pool(server: &Postgres) -> Pool<ConnectionManager<PgConnection>> {
    let pool = Pool::builder().max_size(8).connection_timeout(PATIENCE);
    pool.build(ConnectionManager::new(server.url())).unwrap()
}

/// Decides by a row that diesel has locked.
fn sell(conn: &mut PgConnection, id: i64) -> Result<bool, Error> {
    let left: i64 = items::table.find(id).select(items::stock).for_update().first(conn)?;
    if left == 0 {
        return Ok(false);
    }
    diesel::update(items::table.find(id)).set(items::stock.eq(left - 1)).execute(conn)?;
    Ok(true)
}

#[test]
fn a_locked_row_sells_no_more_than_there_is() {
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    let pool = pool(&server);
    let create = "create table items (id bigint primary key, stock bigint not null); insert into items values (1, 60)";
    pool.get().unwrap().batch_execute(create).unwrap();
    let sold = sell_at_once(&pool, |pool, _| {
        let mut conn = pool.get().unwrap();
        let orders = ORDERS / SELLERS;
        (0..orders).filter(|_| transaction(&mut conn, &retry(), |conn| sell(conn, 1)).unwrap().value).count()
    });
    let left: i64 = items::table.find(1).select(items::stock).first(&mut pool.get().unwrap()).unwrap();
    assert_eq!((sold as u64, left), (UNITS, 0));
}

/// Sells from segments, and writes the shop's own row in the same transaction.
fn order(conn: &mut PgConnection, order: &Order) -> Result<bool, Boxed> {
    let done = transaction(conn, &retry(), |conn| {
        let mut on = OnPostgres::new(&mut *conn);
        if let Take::SoldOut { .. } = now(inside(&mut on)?.take(order))? {
            return Ok(false);
        }
        if !sold(now(inside(&mut on)?.confirm(&order.sku, &order.id))?) {
            return Ok(false);
        }
        diesel::sql_query("insert into orders (id) values ($1) on conflict do nothing")
            .bind::<diesel::sql_types::Text, _>(&order.id)
            .execute(conn)?;
        Ok::<_, Boxed>(true)
    });
    done.map(|done| done.value).map_err(|failed| failed.error)
}

#[test]
fn stock_inside_a_transaction_sells_no_more_than_there_is() {
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    let pool = pool(&server);
    let stock = Stock::new(Sql::new(OnPostgres::new(pool.get().unwrap())));
    now(async {
        stock.init().await.unwrap();
        stock.create("ticket", 4).await.unwrap();
        stock.restock("ticket", "delivery 1", UNITS).await.unwrap();
    });
    pool.get().unwrap().batch_execute("create table orders (id text primary key)").unwrap();
    let sold = sell_at_once(&pool, |pool, seller| {
        let mut conn = pool.get().unwrap();
        orders_of(seller).filter(|wanted| order(&mut conn, wanted).unwrap()).count()
    });
    let count = now(stock.count("ticket")).unwrap();
    assert_eq!((sold as u64, count.sold, count.available), (UNITS, UNITS, 0), "{count:?}");
    // Orders that ended are forgotten, and stay counted.
    assert_eq!(now(stock.purge("ticket", Duration::ZERO)).unwrap(), UNITS);
    assert_eq!(now(stock.count("ticket")).unwrap(), count);
    let outside = inside(&mut OnPostgres::new(&mut *pool.get().unwrap())).map(drop).unwrap_err();
    assert!(outside.to_string().contains("transaction"), "{outside}");
}

#[test]
fn errors_are_classified_and_a_wait_has_its_limit() {
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    let pool = pool(&server);
    let create = "create table items (id bigint primary key, stock bigint not null); insert into items values (1, 60)";
    let (mut holder, mut other) = (pool.get().unwrap(), pool.get().unwrap());
    holder.batch_execute(create).unwrap();
    let locked = || items::table.find(1_i64).select(items::stock).for_update();
    holder
        .transaction(|holder| {
            locked().first::<i64>(holder)?;
            let busy = other.transaction(|other| locked().no_wait().first::<i64>(other)).unwrap_err();
            assert_eq!(busy.contention(), Some(Contention::Busy), "{busy}");
            let late = other.transaction(|other| {
                wait_up_to(other, Dialect::Postgres, Duration::from_millis(50))?;
                locked().first::<i64>(other)
            });
            let late = late.unwrap_err();
            assert_eq!(late.contention(), Some(Contention::Busy), "{late}");
            Ok::<_, Error>(())
        })
        .unwrap();
    assert!(wait_up_to(&mut *other, Dialect::Postgres, PATIENCE).is_err(), "outside of a transaction");
    // Two that read the same, and both write.
    other.batch_execute("begin isolation level repeatable read").unwrap();
    items::table.find(1_i64).select(items::stock).first::<i64>(&mut other).unwrap();
    diesel::update(items::table.find(1_i64)).set(items::stock.eq(1)).execute(&mut holder).unwrap();
    let stale = diesel::update(items::table.find(1_i64)).set(items::stock.eq(2)).execute(&mut other).unwrap_err();
    assert_eq!(stale.contention(), Some(Contention::Stale), "{stale}");
    assert_eq!(Error::NotFound.contention(), None);
}

#[test]
fn a_transaction_that_deadlocks_is_rerun() {
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    let pool = pool(&server);
    let create = "create table items (id bigint primary key, stock bigint not null); \
                  insert into items values (1, 0), (2, 0)";
    pool.get().unwrap().batch_execute(create).unwrap();
    deadlock_and_rerun!(pool);
}

#[test]
fn an_error_that_is_swallowed_is_no_success() {
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    let mut conn = pool(&server).get().unwrap();
    conn.batch_execute("create table items (id bigint primary key, stock bigint not null)").unwrap();
    let swallowed = transaction(&mut *conn, &retry(), |conn| {
        conn.batch_execute("insert into items values (1, 1)")?;
        // The server gives up the transaction here, and would call its commit a success.
        let _ = conn.batch_execute("select * from nothing");
        Ok::<_, Error>(())
    });
    assert!(swallowed.is_err());
    assert_eq!(items::table.count().get_result::<i64>(&mut conn).unwrap(), 0);
    let nested =
        conn.transaction(|conn| transaction(conn, &retry(), |_| Ok::<_, Error>(())).map_err(|failed| failed.error));
    assert!(matches!(nested, Err(Error::AlreadyInTransaction)), "{nested:?}");
}

#[test]
fn a_message_that_quotes_another_is_not_taken_for_it() {
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    let mut conn = pool(&server).get().unwrap();
    conn.batch_execute("create table words (word text primary key); insert into words values ('deadlock detected')")
        .unwrap();
    let error = conn.batch_execute("insert into words values ('deadlock detected')").unwrap_err();
    assert_eq!(error.contention(), None, "{error}");
}

#[derive(Debug, QueryableByName)]
#[diesel(table_name = items)]
struct Item {
    stock: i64,
}

#[test]
fn rows_are_locked_and_versions_checked() {
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    let pool = pool(&server);
    let (mut holder, mut other) = (pool.get().unwrap(), pool.get().unwrap());
    let create = "create table items (id bigint primary key, stock bigint not null, version int not null); \
                  insert into items values (1, 5, 1), (2, 6, 1)";
    holder.batch_execute(create).unwrap();
    let items = Locked::new("items", "id");
    holder
        .transaction(|holder| {
            let mut holder = OnPostgres::new(holder).reading::<Item>();
            let locked = now(items.lock(&mut holder, [1_i64], Mode::Update, Wait::No)).unwrap();
            assert_eq!(locked.iter().map(|item| item.stock).collect::<Vec<_>>(), [5]);
            let mut attempt = |wait| {
                let locked = other.transaction(|other| {
                    let mut other = OnPostgres::new(other).reading::<Item>();
                    now(items.lock(&mut other, [1_i64, 2], Mode::Update, wait)).map_err(Boxed::from)
                });
                locked.map(|rows| rows.iter().map(|item| item.stock).collect::<Vec<_>>())
            };
            assert_eq!(attempt(Wait::Skip).unwrap(), [6], "the row that is not locked");
            for wait in [Wait::No, Wait::UpTo(Duration::from_millis(50))] {
                let busy = attempt(wait).unwrap_err();
                assert_eq!(busy.contention(), Some(Contention::Busy), "{busy}");
            }
            Ok::<_, Error>(())
        })
        .unwrap();
    let mut conn = OnPostgres::new(&mut *holder).reading::<Item>();
    let refused = now(items.lock(&mut conn, [1_i64], Mode::Update, Wait::No)).map(drop).unwrap_err();
    assert!(matches!(refused, oarlock_rows::Error::Refused(_)), "{refused}");
    for version in [Version::integer("version"), Version::Xmin] {
        let versions = Versioned::new("items", "id", version);
        let before = now(versions.read(&mut conn, 2_i64)).unwrap().unwrap();
        let done = now(versions.modify(&mut conn, 2_i64, &retry(), |item| Change::set("stock", item.stock - 1)));
        assert_eq!(done.unwrap().value, Outcome::Changed);
        let late = now(versions.update(&mut conn, 2_i64, &before.version, vec![("stock".to_owned(), 0.into())]));
        let late = late.unwrap_err();
        assert_eq!(late.contention(), Some(Contention::Stale), "{late}");
    }
    assert_eq!(now(Versioned::new("items", "id", Version::Xmin).read(&mut conn, 2_i64)).unwrap().unwrap().row.stock, 4);
}

#[test]
fn stock_on_a_pool_survives_a_restart_of_the_server() {
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    let url = server.url();
    let stock = Stock::pooled(2, move || {
        let conn = PgConnection::establish(&url).map_err(|error| oarlock_stock::Error::Store(error.into()));
        async move { Ok(Sql::new(OnPostgres::new(Box::new(conn?)))) }
    });
    let order = orders_of(0).next().unwrap();
    now(async {
        stock.init().await.unwrap();
        stock.create("ticket", 2).await.unwrap();
        stock.restock("ticket", "delivery 1", 3).await.unwrap();
        stock.take(order.clone()).await.unwrap();
        let before = stock.count("ticket").await.unwrap();
        server.kill().unwrap();
        server.restart().unwrap();
        assert_eq!(stock.count("ticket").await.unwrap(), before, "a new connection was opened");
        stock.take(order).await.unwrap();
        assert_eq!(stock.count("ticket").await.unwrap(), before, "the same order takes nothing more");
    });
}
