//! A shop on sqlx: units and orders change in one transaction, from a pool.

use std::sync::LazyLock;
use std::time::Duration;

use oarlock_rows::sqlx::{On, transaction};
use oarlock_rows::{
    Change, Classify as _, Contention, Dialect, Error, Locked, Mode, Outcome, Retry, Version, Versioned, Wait,
};
use oarlock_sql_clients::{Boxed, ORDERS, SELLERS, UNITS, orders_of, sold};
use oarlock_stock::{Order, Sql, State, Stock, Take, inside};
use oarlock_testbed::{MariaDb, Postgres};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::{Executor as _, MySqlPool, PgPool};

const PATIENCE: Duration = Duration::from_secs(60);

/// A busy machine needs more attempts than a shop.
static RETRY: LazyLock<Retry> = LazyLock::new(|| Retry::default().attempts(200).deadline(PATIENCE));

async fn postgres(server: &Postgres) -> PgPool {
    PgPoolOptions::new().max_connections(8).acquire_timeout(PATIENCE).connect(&server.url()).await.unwrap()
}

/// Sells one order: the units, and the shop's own row.
async fn sell(pool: &PgPool, order: &Order) -> Result<bool, Boxed> {
    let done = transaction(pool, &RETRY, |mut tx| async move {
        if let Take::SoldOut { .. } = inside(&mut tx)?.take(order).await? {
            return Ok((tx, false));
        }
        if !sold(inside(&mut tx)?.confirm(&order.sku, &order.id).await?) {
            return Ok((tx, false));
        }
        sqlx::query("insert into orders (id) values ($1) on conflict do nothing")
            .bind(&order.id)
            .execute(&mut *tx)
            .await?;
        Ok::<_, Boxed>((tx, true))
    });
    done.await.map(|done| done.value).map_err(|failed| failed.error)
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_sells_no_more_than_there_is() {
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    let pool = postgres(&server).await;
    pool.execute("create table orders (id text primary key)").await.unwrap();
    let opener = pool.clone();
    let stock = Stock::pooled(2, move || {
        let pool = opener.clone();
        async move { Ok(Sql::new(pool.acquire().await.map_err(|error| oarlock_stock::Error::Store(error.into()))?)) }
    });
    stock.init().await.unwrap();
    stock.create("ticket", 4).await.unwrap();
    stock.restock("ticket", "delivery 1", UNITS).await.unwrap();
    let sellers: Vec<_> = (0..SELLERS)
        .map(|seller| {
            let pool = pool.clone();
            tokio::spawn(async move {
                let mut sold = 0;
                for order in orders_of(seller) {
                    let first = sell(&pool, &order).await.unwrap();
                    assert_eq!(
                        sell(&pool, &order).await.unwrap(),
                        first,
                        "an order that is repeated takes nothing more"
                    );
                    sold += u64::from(first);
                }
                sold
            })
        })
        .collect();
    let mut sold = 0;
    for seller in sellers {
        sold += tokio::time::timeout(PATIENCE, seller).await.expect("a seller that sells").unwrap();
    }
    let count = stock.count("ticket").await.unwrap();
    let rows: i64 = sqlx::query_scalar("select count(*) from orders").fetch_one(&pool).await.unwrap();
    const { assert!(ORDERS > UNITS) };
    assert_eq!((sold, count.sold, count.available, rows), (UNITS, UNITS, 0, UNITS as i64), "{count:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn units_go_back_with_the_transaction() {
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    let pool = postgres(&server).await;
    let stock = Stock::new(Sql::new(pool.acquire().await.unwrap()));
    stock.init().await.unwrap();
    stock.create("ticket", 2).await.unwrap();
    stock.restock("ticket", "delivery 1", 3).await.unwrap();
    let order = orders_of(0).next().unwrap();
    let wanted = &order;
    let failed = transaction(&pool, &RETRY, |mut tx| async move {
        inside(&mut tx)?.take(wanted).await?;
        Err::<(_, ()), Boxed>("the payment failed".into())
    });
    assert!(failed.await.is_err());
    let count = stock.count("ticket").await.unwrap();
    assert_eq!((count.available, count.held), (3, 0));
    // An order that was given back is not sold by asking again.
    stock.take(orders_of(1).next().unwrap()).await.unwrap();
    stock.give_back("ticket", "order 1").await.unwrap();
    pool.execute("create table orders (id text primary key)").await.unwrap();
    assert!(!sell(&pool, &orders_of(1).next().unwrap()).await.unwrap());
    assert_eq!(stock.count("ticket").await.unwrap().available, 3);
    let outside = inside(&mut pool.acquire().await.unwrap()).map(drop).unwrap_err();
    assert!(outside.to_string().contains("transaction"), "{outside}");
    // All of it, from both segments.
    let order = Order { quantity: 3, ..order };
    let taken = transaction(&pool, &RETRY, |mut tx| {
        let order = order.clone();
        async move {
            let taken = inside(&mut tx)?.take(&order).await?;
            Ok::<_, Boxed>((tx, taken))
        }
    })
    .await;
    assert!(matches!(taken.unwrap().value, Take::Reserved(_)));
    assert_eq!(stock.count("ticket").await.unwrap().held, 3);
}

/// The program of `docs/rows.md`.
async fn move_one(pool: &PgPool) -> Result<(), Boxed> {
    let retry = Retry::default();
    let moved = transaction(pool, &retry, |mut tx| async move {
        let items = Locked::new("items", "id");
        items.lock(&mut tx, [1_i64, 2], Mode::Update, Wait::No).await?;
        sqlx::query("update items set stock = stock - 1 where id = 1").execute(&mut *tx).await?;
        sqlx::query("update items set stock = stock + 1 where id = 2").execute(&mut *tx).await?;
        Ok::<_, Boxed>((tx, ()))
    });
    moved.await.map(|done| done.value).map_err(|failed| failed.error)
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_locked_and_errors_classified() {
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    let pool = postgres(&server).await;
    pool.execute("create table items (id bigint primary key, stock int not null, version int not null)").await.unwrap();
    pool.execute("insert into items values (1, 5, 1), (2, 5, 1)").await.unwrap();
    let items = Locked::new("items", "id");
    let mut holder = pool.begin().await.unwrap();
    assert_eq!(items.lock(&mut holder, [1_i64], Mode::Update, Wait::No).await.unwrap().len(), 1);
    let mut other = pool.begin().await.unwrap();
    let busy = items.lock(&mut other, [1_i64], Mode::Update, Wait::No).await.unwrap_err();
    assert_eq!(busy.contention(), Some(Contention::Busy), "{busy}");
    other.rollback().await.unwrap();
    move_one(&pool).await.unwrap_err();
    let mut third = pool.begin().await.unwrap();
    let free = items.lock(&mut third, [1_i64, 2], Mode::Update, Wait::Skip).await.unwrap();
    assert_eq!(free.len(), 1, "the row that is not locked");
    third.rollback().await.unwrap();
    let refused = items.lock(&mut pool.acquire().await.unwrap(), [1_i64], Mode::Update, Wait::No).await.unwrap_err();
    assert!(matches!(refused, Error::Refused(_)), "{refused}");
    holder.rollback().await.unwrap();
    move_one(&pool).await.unwrap();
    let stocks: Vec<i32> = sqlx::query_scalar("select stock from items order by id").fetch_all(&pool).await.unwrap();
    assert_eq!(stocks, [4, 6]);
    let versions = Versioned::new("items", "id", Version::integer("version"));
    let mut conn = pool.acquire().await.unwrap();
    let done = versions.modify(&mut conn, 2_i64, &RETRY, |_| Change::set("stock", 4_i64)).await.unwrap();
    assert_eq!(done.value, Outcome::Changed);
    let late = versions.update(&mut conn, 2_i64, "1", vec![("stock".to_owned(), 3_i64.into())]).await.unwrap_err();
    assert_eq!(late.contention(), Some(Contention::Stale), "{late}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_deadlocks_is_rerun() {
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    let pool = postgres(&server).await;
    pool.execute("create table items (id int primary key, stock int not null)").await.unwrap();
    pool.execute("insert into items values (1, 0), (2, 0)").await.unwrap();
    let both = std::sync::Arc::new(tokio::sync::Barrier::new(2));
    let add = |first: i32, second: i32| {
        let (pool, both) = (pool.clone(), both.clone());
        tokio::spawn(async move {
            let (mut met, both) = (false, &both);
            let done = transaction(&pool, &RETRY, |mut tx| {
                let is_first = !std::mem::replace(&mut met, true);
                async move {
                    let add = |id: i32| sqlx::query("update items set stock = stock + 1 where id = $1").bind(id);
                    add(first).execute(&mut *tx).await?;
                    // Only the first time: each then has what the other wants.
                    if is_first {
                        both.wait().await;
                    }
                    add(second).execute(&mut *tx).await?;
                    Ok::<_, sqlx::Error>((tx, ()))
                }
            });
            done.await.unwrap().conflicts
        })
    };
    let (one, other) = (add(1, 2), add(2, 1));
    let conflicts = tokio::time::timeout(PATIENCE, async { one.await.unwrap() + other.await.unwrap() }).await.unwrap();
    assert!(conflicts >= 1, "no deadlock happened");
    let sum: i64 = sqlx::query_scalar("select sum(stock) from items").fetch_one(&pool).await.unwrap();
    assert_eq!(sum, 4, "each row was counted up by both, once");
}

async fn sell_on_mariadb(pool: &MySqlPool, order: &Order) -> Result<bool, Boxed> {
    let done = transaction(pool, &RETRY, |mut tx| async move {
        let mut on = On::new(&mut *tx, Dialect::MariaDb);
        if let Take::SoldOut { .. } = inside(&mut on)?.take(order).await? {
            return Ok((tx, false));
        }
        if !sold(inside(&mut on)?.confirm(&order.sku, &order.id).await?) {
            return Ok((tx, false));
        }
        sqlx::query("insert ignore into orders (id) values (?)").bind(&order.id).execute(&mut *tx).await?;
        Ok::<_, Boxed>((tx, true))
    });
    done.await.map(|done| done.value).map_err(|failed| failed.error)
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb_sells_no_more_than_there_is() {
    let Some(server) = MariaDb::start_or_skip().unwrap() else { return };
    let options = MySqlPoolOptions::new().max_connections(8).acquire_timeout(PATIENCE);
    let pool = options.connect(&server.url().replacen("mariadb:", "mysql:", 1)).await.unwrap();
    pool.execute("create table orders (id varchar(64) primary key)").await.unwrap();
    let stock = Stock::new(Sql::new(On::new(pool.acquire().await.unwrap(), Dialect::MariaDb)));
    stock.init().await.unwrap();
    stock.create("ticket", 4).await.unwrap();
    stock.restock("ticket", "delivery 1", UNITS).await.unwrap();
    let sellers: Vec<_> = (0..SELLERS)
        .map(|seller| {
            let pool = pool.clone();
            tokio::spawn(async move {
                let mut sold = 0;
                for order in orders_of(seller) {
                    sold += u64::from(sell_on_mariadb(&pool, &order).await.unwrap());
                }
                sold
            })
        })
        .collect();
    let mut sold = 0;
    for seller in sellers {
        sold += tokio::time::timeout(PATIENCE, seller).await.expect("a seller that sells").unwrap();
    }
    let count = stock.count("ticket").await.unwrap();
    let rows: i64 = sqlx::query_scalar("select count(*) from orders").fetch_one(&pool).await.unwrap();
    assert_eq!((sold, count.sold, count.available, rows), (UNITS, UNITS, 0, UNITS as i64), "{count:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_that_is_swallowed_is_no_success() {
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    let pool = postgres(&server).await;
    pool.execute("create table orders (id text primary key)").await.unwrap();
    let swallowed = transaction(&pool, &RETRY, |mut tx| async move {
        tx.execute("insert into orders values ('a')").await?;
        // The server gives up the transaction here, and would call its commit a success.
        let _ = tx.execute("select * from nothing").await;
        Ok::<_, sqlx::Error>((tx, ()))
    });
    let failed = swallowed.await.unwrap_err();
    let code = failed.error.as_database_error().and_then(|error| error.code()).map(|code| code.into_owned());
    assert_eq!(code.as_deref(), Some("25P02"), "{}", failed.error);
    let rows: i64 = sqlx::query_scalar("select count(*) from orders").fetch_one(&pool).await.unwrap();
    assert_eq!(rows, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb_finds_an_order_that_is_newer_than_its_snapshot() {
    let Some(server) = MariaDb::start_or_skip().unwrap() else { return };
    let options = MySqlPoolOptions::new().max_connections(4).acquire_timeout(PATIENCE);
    let pool = options.connect(&server.url().replacen("mariadb:", "mysql:", 1)).await.unwrap();
    let stock = Stock::new(Sql::new(On::new(pool.acquire().await.unwrap(), Dialect::MariaDb)));
    stock.init().await.unwrap();
    stock.create("ticket", 2).await.unwrap();
    stock.restock("ticket", "delivery 1", 3).await.unwrap();
    let order = orders_of(0).next().unwrap();
    let mut tx = pool.begin().await.unwrap();
    // The snapshot of this transaction, at the default isolation: what comes now is not in it.
    tx.execute("select * from oarlock_stock_item").await.unwrap();
    stock.take(order.clone()).await.unwrap();
    stock.confirm("ticket", &order.id).await.unwrap();
    let mut on = On::new(&mut *tx, Dialect::MariaDb);
    let known = inside(&mut on).unwrap().take(&order).await.unwrap();
    assert!(matches!(&known, Take::Reserved(line) if line.state == State::Sold), "{known:?}");
    tx.commit().await.unwrap();
    assert_eq!(stock.count("ticket").await.unwrap().available, 2);
}
