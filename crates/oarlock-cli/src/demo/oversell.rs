//! Many buyers, few items: what is sold without a lock, and what with each of the cures.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oarlock::{Locks, Mutex};
use oarlock_rows::{Client, Error, Locked, Version, Versioned};
use oarlock_stock::{Order, Stock, Take};
use tokio::sync::Barrier;

use crate::demo::bed::{self, Bed, Rows, Shelves, patient};
use crate::demo::crowd;
use crate::demo::trouble::{Boxed, boxed};
use crate::demo::way::{Outcome, Way};

/// How long paying takes: between looking and taking.
const PAYING: Duration = Duration::from_millis(20);

pub(crate) const WAYS: [Way; 5] = [Way::None, Way::Mutex, Way::Version, Way::ForUpdate, Way::Segments];

pub(crate) struct Plan {
    pub(crate) buyers: u64,
    pub(crate) items: u64,
    pub(crate) tills: u64,
    /// The cure that is left out, to see that it is noticed.
    pub(crate) sabotage: Option<Way>,
    /// A name that nobody else uses, for the lock and the item.
    pub(crate) name: String,
}

impl Plan {
    /// Who buys at this till.
    fn buyers_at(&self, till: u64) -> Vec<u64> {
        (0..self.buyers).filter(|buyer| buyer % self.tills == till).collect()
    }
}

/// Sells everything once in each way. `locks` are the shops, each with its own connection.
pub(crate) async fn run<B: Bed, S: Shelves>(
    plan: &Arc<Plan>,
    bed: &B,
    shelves: &S,
    locks: &[Locks],
) -> Result<Vec<Outcome>, Boxed> {
    let mut outcomes = Vec::new();
    for way in WAYS {
        let cured = plan.sabotage != Some(way);
        outcomes.push(match way {
            Way::Segments if cured => from_segments(plan, shelves).await?,
            _ => from_a_row(plan, bed, locks, way, if cured { way } else { Way::None }).await?,
        });
    }
    Ok(outcomes)
}

fn outcome(plan: &Plan, way: Way, sold: u64, left: u64, again: Option<u64>, took: Duration) -> Outcome {
    let name = match way {
        Way::None => "no lock",
        Way::Mutex => "a mutex",
        Way::Version => "a version, checked when writing",
        Way::ForUpdate => "SELECT … FOR UPDATE",
        _ => "stock in segments",
    };
    let verdict = match sold {
        sold if sold > plan.items => format!("OVERSOLD by {}", sold - plan.items),
        sold if sold < plan.items => format!("{} NOT SOLD", plan.items - sold),
        _ if left > 0 => format!("{left} LEFT that were sold"),
        _ => "right".to_owned(),
    };
    let figures = vec![("sold", sold), ("left", left)];
    Outcome { way, name: name.to_owned(), is_right: verdict == "right", verdict, figures, again, took }
}

/// One row says how many there are. `shown` is what it is called, `way` what is done.
async fn from_a_row<B: Bed>(
    plan: &Arc<Plan>,
    bed: &B,
    locks: &[Locks],
    shown: Way,
    way: Way,
) -> Result<Outcome, Boxed> {
    let mut conn = bed.connect().await?;
    let item = format!("insert into items (id, stock, version) values (1, {}, 1)", plan.items);
    let shop = [
        "drop table if exists items",
        "drop table if exists orders",
        "create table items (id bigint primary key, stock bigint not null, version bigint not null)",
        "create table orders (buyer bigint primary key)",
        &item,
    ];
    bed::run(&mut conn, &shop).await?;
    let opening = Arc::new(Barrier::new(usize::try_from(plan.tills)? + 1));
    let mut tills = Vec::new();
    for (till, shop) in (0..plan.tills).zip(locks.iter().cycle()) {
        let mut conn = bed.connect().await?;
        let lock = shop.mutex(&plan.name).wait(bed::PATIENCE);
        let (plan, opening) = (plan.clone(), opening.clone());
        tills.push(crowd::start(async move || {
            opening.wait().await;
            let mut again = 0;
            for buyer in plan.buyers_at(till) {
                again += buy::<B>(&mut conn, &lock, way, buyer).await?;
            }
            Ok(again)
        }));
    }
    opening.wait().await;
    let start = Instant::now();
    let again = crowd::all(tills).await?.into_iter().map(u64::from).sum();
    let took = start.elapsed();
    let sold = bed::ask(&mut conn, "count(*)", "orders").await?.try_into()?;
    let left = bed::ask(&mut conn, "stock", "items").await?.try_into()?;
    let again = matches!(shown, Way::Version | Way::ForUpdate).then_some(again);
    Ok(outcome(plan, shown, sold, left, again, took))
}

/// One buyer. Says how often it was tried again.
async fn buy<B: Bed>(conn: &mut B::Conn, lock: &Mutex, way: Way, buyer: u64) -> Result<u32, Boxed> {
    match way {
        Way::Mutex => {
            let guard = lock.lock().await?;
            careless(conn, buyer).await?;
            guard.release().await?;
            Ok(0)
        }
        Way::Version => versioned::<B>(conn, buyer).await,
        Way::ForUpdate => {
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
    let stock = bed::ask(conn, "stock", "items where id = 1").await?;
    if stock > 0 {
        tokio::time::sleep(PAYING).await;
        let [taken, order] = sale(stock, buyer);
        bed::run(conn, &[&taken, &order]).await?;
    }
    Ok(())
}

/// The same, but writes only if the row is still the one that was seen; otherwise from the beginning.
async fn versioned<B: Bed>(conn: &mut B::Conn, buyer: u64) -> Result<u32, Boxed> {
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
        bed::run(conn, &[&format!("insert into orders (buyer) values ({buyer})")]).await?;
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
    Ok(outcome(plan, Way::Segments, told.max(count.sold + count.held), count.available, None, took))
}
