//! A shop on diesel and MariaDB: a pool of r2d2, threads, stock and row locks.

use std::time::Duration;

use diesel::connection::SimpleConnection as _;
use diesel::prelude::*;
use diesel::r2d2::{ConnectionManager, Pool};
use diesel::result::Error;
use oarlock_rows::diesel::{MySql, transaction, wait_up_to};
use oarlock_rows::{Change, Classify as _, Client as _, Contention, Dialect, Locked, Mode, Outcome, Retry};
use oarlock_rows::{Version, Versioned, Wait};
use oarlock_sql_clients::{Boxed, ORDERS, UNITS, deadlock_and_rerun, now, orders_of, sell_at_once, sold};
use oarlock_stock::{Order, Sql, Stock, Take, inside};
use oarlock_testbed::MariaDb;

const PATIENCE: Duration = Duration::from_secs(60);

diesel::table! {
    items (id) {
        id -> BigInt,
        stock -> BigInt,
    }
}

#[derive(Debug, QueryableByName)]
#[diesel(table_name = items)]
struct Item {
    stock: i64,
}

fn retry() -> Retry {
    Retry::default().attempts(200).deadline(PATIENCE)
}

fn pool(server: &MariaDb) -> Pool<ConnectionManager<MysqlConnection>> {
    let pool = Pool::builder().max_size(8).connection_timeout(PATIENCE);
    pool.build(ConnectionManager::new(server.url().replacen("mariadb:", "mysql:", 1))).unwrap()
}

/// Sells from segments, and writes the shop's own row in the same transaction.
fn order(conn: &mut MysqlConnection, order: &Order) -> Result<bool, Boxed> {
    let done = transaction(conn, &retry(), |conn| {
        let mut on = MySql::new(&mut *conn, Dialect::MariaDb);
        if let Take::SoldOut { .. } = now(inside(&mut on)?.take(order))? {
            return Ok(false);
        }
        if !sold(now(inside(&mut on)?.confirm(&order.sku, &order.id))?) {
            return Ok(false);
        }
        let row = diesel::sql_query("insert ignore into orders (id) values (?)");
        row.bind::<diesel::sql_types::Text, _>(&order.id).execute(conn)?;
        Ok::<_, Boxed>(true)
    });
    done.map(|done| done.value).map_err(|failed| failed.error)
}

#[test]
fn stock_inside_a_transaction_sells_no_more_than_there_is_and_is_purged() {
    let Some(server) = MariaDb::start_or_skip().unwrap() else { return };
    let pool = pool(&server);
    let stock = Stock::new(Sql::new(MySql::new(pool.get().unwrap(), Dialect::MariaDb)));
    now(async {
        stock.init().await.unwrap();
        stock.create("ticket", 4).await.unwrap();
        stock.restock("ticket", "delivery 1", UNITS + 1).await.unwrap();
    });
    // One is sold outside of a transaction of the shop's, without the procedure, which diesel cannot call.
    let first = Order { sku: "ticket".to_owned(), id: "first".to_owned(), quantity: 1, hold: None };
    assert!(matches!(now(stock.take(first)).unwrap(), Take::Reserved(_)));
    assert!(sold(now(stock.confirm("ticket", "first")).unwrap()));
    pool.get().unwrap().batch_execute("create table orders (id varchar(64) primary key)").unwrap();
    let sold = sell_at_once(&pool, |pool, seller| {
        let mut conn = pool.get().unwrap();
        orders_of(seller).filter(|wanted| order(&mut conn, wanted).unwrap()).count()
    });
    let count = now(stock.count("ticket")).unwrap();
    assert_eq!((sold as u64, count.sold, count.available), (UNITS, UNITS + 1, 0), "{count:?} of {ORDERS}");
    // Orders that ended are forgotten, and stay counted.
    assert_eq!(now(stock.purge("ticket", Duration::from_secs(3600))).unwrap(), 0);
    assert_eq!(now(stock.purge("ticket", Duration::ZERO)).unwrap(), UNITS + 1);
    assert_eq!(now(stock.count("ticket")).unwrap(), count);
    let outside = inside(&mut MySql::new(&mut *pool.get().unwrap(), Dialect::MariaDb)).map(drop).unwrap_err();
    assert!(outside.to_string().contains("transaction"), "{outside}");
}

#[test]
fn rows_are_locked_versions_checked_and_errors_classified() {
    let Some(server) = MariaDb::start_or_skip().unwrap() else { return };
    let pool = pool(&server);
    let (mut holder, mut other) = (pool.get().unwrap(), pool.get().unwrap());
    holder
        .batch_execute("create table items (id bigint primary key, stock bigint not null, version int not null)")
        .unwrap();
    // A statement without values says how many rows it changed.
    let insert = "insert into items values (1, 5, 1), (2, 6, 1)";
    assert_eq!(now(MySql::new(&mut *holder, Dialect::MariaDb).execute(insert, Vec::new())).unwrap(), 2);
    let items = Locked::new("items", "id");
    holder
        .transaction(|holder| {
            let mut holder = MySql::new(holder, Dialect::MariaDb).reading::<Item>();
            let locked = now(items.lock(&mut holder, [1_i64], Mode::Update, Wait::No)).unwrap();
            assert_eq!(locked.iter().map(|item| item.stock).collect::<Vec<_>>(), [5]);
            let mut attempt = |wait| {
                let locked = other.transaction(|other| {
                    let mut other = MySql::new(other, Dialect::MariaDb).reading::<Item>();
                    now(items.lock(&mut other, [1_i64, 2], Mode::Update, wait)).map_err(Boxed::from)
                });
                locked.map(|rows| rows.iter().map(|item| item.stock).collect::<Vec<_>>())
            };
            assert_eq!(attempt(Wait::Skip).unwrap(), [6], "the row that is not locked");
            for wait in [Wait::No, Wait::UpTo(Duration::from_millis(50))] {
                let busy = attempt(wait).unwrap_err();
                assert_eq!(busy.contention(), Some(Contention::Busy), "{busy}");
            }
            let late = other.transaction(|other| {
                wait_up_to(other, Dialect::MariaDb, Duration::from_millis(50))?;
                items::table.find(1_i64).select(items::stock).for_update().first::<i64>(other)
            });
            assert_eq!(late.unwrap_err().contention(), Some(Contention::Busy));
            Ok::<_, Error>(())
        })
        .unwrap();
    let mut conn = MySql::new(&mut *holder, Dialect::MariaDb).reading::<Item>();
    let refused = now(items.lock(&mut conn, [1_i64], Mode::Update, Wait::No)).map(drop).unwrap_err();
    assert!(matches!(refused, oarlock_rows::Error::Refused(_)), "{refused}");
    let versions = Versioned::new("items", "id", Version::integer("version"));
    let done = now(versions.modify(&mut conn, 2_i64, &retry(), |item| Change::set("stock", item.stock - 1)));
    assert_eq!(done.unwrap().value, Outcome::Changed);
    let late = now(versions.update(&mut conn, 2_i64, "1", vec![("stock".to_owned(), 0.into())])).unwrap_err();
    assert_eq!(late.contention(), Some(Contention::Stale), "{late}");
    assert_eq!(now(versions.read(&mut conn, 2_i64)).unwrap().unwrap().row.stock, 5);
}

#[test]
fn a_transaction_that_deadlocks_is_rerun() {
    let Some(server) = MariaDb::start_or_skip().unwrap() else { return };
    let pool = pool(&server);
    let mut conn = pool.get().unwrap();
    conn.batch_execute("create table items (id bigint primary key, stock bigint not null)").unwrap();
    conn.batch_execute("insert into items values (1, 0), (2, 0)").unwrap();
    deadlock_and_rerun!(pool);
}
