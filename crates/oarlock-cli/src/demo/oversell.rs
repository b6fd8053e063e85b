//! Many buyers, few items: what is sold without a lock, and what with each of the protections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oarlock::{Locks, Mutex};
use oarlock_rows::{Client, Error, Locked, Version, Versioned};
use oarlock_stock::{Order, Stock, Take};
use tokio::sync::Barrier;

use crate::demo::crowd;
use crate::demo::database::{self, Database, Rows, Shelves, patient};
use crate::demo::strategy::{Outcome, Strategy};
use crate::demo::trouble::{Boxed, boxed};

/// How long paying takes: between looking and taking.
const PAYING: Duration = Duration::from_millis(20);

pub(crate) const WAYS: [Strategy; 5] =
    [Strategy::None, Strategy::Mutex, Strategy::Version, Strategy::ForUpdate, Strategy::Segments];

pub(crate) struct Plan {
    pub(crate) buyers: u64,
    pub(crate) items: u64,
    pub(crate) tills: u64,
    /// The protection that is left out, to see that it is noticed.
    pub(crate) sabotage: Option<Strategy>,
    /// A name that no other process uses, for the lock and the item.
    pub(crate) name: String,
}

impl Plan {
    /// Who buys at this till.
    fn buyers_at(&self, till: u64) -> Vec<u64> {
        (0..self.buyers).filter(|buyer| buyer % self.tills == till).collect()
    }
}

/// Sells everything once in each strategy. `locks` are the shops, each with its own connection.
pub(crate) async fn run<B: Database, S: Shelves>(
    plan: &Arc<Plan>,
    database: &B,
    shelves: &S,
    locks: &[Locks],
) -> Result<Vec<Outcome>, Boxed> {
    let mut outcomes = Vec::new();
    for strategy in WAYS {
        let protected = plan.sabotage != Some(strategy);
        outcomes.push(match strategy {
            Strategy::Segments if protected => from_segments(plan, shelves).await?,
            _ => from_a_row(plan, database, locks, strategy, if protected { strategy } else { Strategy::None }).await?,
        });
    }
    Ok(outcomes)
}

fn outcome(plan: &Plan, strategy: Strategy, sold: u64, left: u64, again: Option<u64>, took: Duration) -> Outcome {
    let name = match strategy {
        Strategy::None => "no lock",
        Strategy::Mutex => "a mutex",
        Strategy::Version => "a version, checked when writing",
        Strategy::ForUpdate => "SELECT … FOR UPDATE",
        _ => "stock in segments",
    };
    let verdict = match sold {
        sold if sold > plan.items => format!("OVERSOLD by {}", sold - plan.items),
        sold if sold < plan.items => format!("{} NOT SOLD", plan.items - sold),
        _ if left > 0 => format!("{left} LEFT that were sold"),
        _ => "right".to_owned(),
    };
    let figures = vec![("sold", sold), ("left", left)];
    Outcome { strategy, name: name.to_owned(), is_right: verdict == "right", verdict, figures, again, took }
}

/// One row says how many there are. `shown` is what it is called, `strategy` what is done.
async fn from_a_row<B: Database>(
    plan: &Arc<Plan>,
    database: &B,
    locks: &[Locks],
    shown: Strategy,
    strategy: Strategy,
) -> Result<Outcome, Boxed> {
    let mut conn = database.connect().await?;
    let item = format!("insert into items (id, stock, version) values (1, {}, 1)", plan.items);
    let shop = [
        "drop table if exists items",
        "drop table if exists orders",
        "create table items (id bigint primary key, stock bigint not null, version bigint not null)",
        "create table orders (buyer bigint primary key)",
        &item,
    ];
    database::run(&mut conn, &shop).await?;
    let opening = Arc::new(Barrier::new(usize::try_from(plan.tills)? + 1));
    let mut tills = Vec::new();
    for (till, shop) in (0..plan.tills).zip(locks.iter().cycle()) {
        let mut conn = database.connect().await?;
        let lock = shop.mutex(&plan.name).wait(database::PATIENCE);
        let (plan, opening) = (plan.clone(), opening.clone());
        tills.push(crowd::start(async move || {
            opening.wait().await;
            let mut again = 0;
            for buyer in plan.buyers_at(till) {
                again += buy::<B>(&mut conn, &lock, strategy, buyer).await?;
            }
            Ok(again)
        }));
    }
    opening.wait().await;
    let start = Instant::now();
    let again = crowd::all(tills).await?.into_iter().map(u64::from).sum();
    let took = start.elapsed();
    let sold = database::query(&mut conn, "count(*)", "orders").await?.try_into()?;
    let left = database::query(&mut conn, "stock", "items").await?.try_into()?;
    let again = matches!(shown, Strategy::Version | Strategy::ForUpdate).then_some(again);
    Ok(outcome(plan, shown, sold, left, again, took))
}

/// One buyer. Says how often it was tried again.
async fn buy<B: Database>(conn: &mut B::Conn, lock: &Mutex, strategy: Strategy, buyer: u64) -> Result<u32, Boxed> {
    match strategy {
        Strategy::Mutex => {
            let guard = lock.lock().await?;
            careless(conn, buyer).await?;
            guard.release().await?;
            Ok(0)
        }
        Strategy::Version => versioned::<B>(conn, buyer).await,
        Strategy::ForUpdate => {
            let table = Locked::new("items", "id");
            let rows = Rows { table: &table, keys: &[1], column: "stock", pause: PAYING };
            B::locked(conn, &rows, &mut |numbers| match numbers {
                [stock] if *stock > 0 => sale(*stock, buyer).into(),
                _ => Vec::new(),
            })
            .await
        }
        _ => careless(conn, buyer).await.map(|()| 0),
    }
}

/// What a sale writes: one item fewer than were seen, and the order.
fn sale(seen: i64, buyer: u64) -> [String; 2] {
    [
        format!("update items set stock = {} where id = 1", seen - 1),
        format!("insert into orders (buyer) values ({buyer})"),
    ]
}

/// Looks, pays, and writes what it saw.
async fn careless<C: Client>(conn: &mut C, buyer: u64) -> Result<(), Boxed> {
    let stock = database::query(conn, "stock", "items where id = 1").await?;
    if stock > 0 {
        tokio::time::sleep(PAYING).await;
        let [taken, order] = sale(stock, buyer);
        database::run(conn, &[&taken, &order]).await?;
    }
    Ok(())
}

/// The same, but writes only if the row is still the one that was seen; otherwise from the beginning.
async fn versioned<B: Database>(conn: &mut B::Conn, buyer: u64) -> Result<u32, Boxed> {
    let items = Versioned::new("items", "id", Version::integer("version"));
    let retry = patient();
    let done = retry.run(async || {
        let Some(seen) = items.read(conn, 1).await? else { return Ok(false) };
        let stock = B::number(&seen.row, "stock").unwrap_or(0);
        if stock <= 0 {
            return Ok(false);
        }
        tokio::time::sleep(PAYING).await;
        items.update(conn, 1, &seen.version, vec![("stock".to_owned(), (stock - 1).into())]).await?;
        Ok::<_, Error<<B::Conn as Client>::Row, <B::Conn as Client>::Error>>(true)
    });
    let done = done.await.map_err(|failed| boxed(failed.error))?;
    if done.value {
        database::run(conn, &[&format!("insert into orders (buyer) values ({buyer})")]).await?;
    }
    Ok(done.conflicts)
}

/// The units lie in segments; each buyer takes one under an id of its own, pays, and confirms.
async fn from_segments<S: Shelves>(plan: &Arc<Plan>, shelves: &S) -> Result<Outcome, Boxed> {
    let stock = Stock::new(shelves.shelf().await?);
    stock.init().await?;
    stock.create(&plan.name, 3).await?;
    stock.restock(&plan.name, "the delivery", plan.items).await?;
    let opening = Arc::new(Barrier::new(usize::try_from(plan.tills)? + 1));
    let mut tills = Vec::new();
    for till in 0..plan.tills {
        let stock = Stock::new(shelves.shelf().await?);
        let (plan, opening) = (plan.clone(), opening.clone());
        tills.push(crowd::start(async move || {
            opening.wait().await;
            let mut sold = 0;
            for buyer in plan.buyers_at(till) {
                let order = Order { sku: plan.name.clone(), id: format!("buyer {buyer}"), quantity: 1, hold: None };
                if let Take::Reserved(reservation) = stock.take(order).await? {
                    tokio::time::sleep(PAYING).await;
                    stock.confirm(&plan.name, &reservation.id).await?;
                    sold += 1;
                }
            }
            Ok(sold)
        }));
    }
    opening.wait().await;
    let start = Instant::now();
    let told: u64 = crowd::all(tills).await?.into_iter().sum();
    let took = start.elapsed();
    let count = stock.count(&plan.name).await?;
    // What buyers were told and what is written down must be the same; the larger one is what counts against us.
    Ok(outcome(plan, Strategy::Segments, told.max(count.sold + count.held), count.available, None, took))
}
