//! Shops that sell with sqlx and diesel: see `tests`.

/// How many units there are.
pub const UNITS: u64 = 60;
/// How many orders of one unit each want them.
pub const ORDERS: u64 = 150;
/// How many sell at once.
pub const SELLERS: u64 = 6;

/// Any error.
pub type Boxed = Box<dyn std::error::Error + Send + Sync>;

/// The orders of one seller.
pub fn orders_of(seller: u64) -> impl Iterator<Item = oarlock_stock::Order> {
    (seller..ORDERS).step_by(SELLERS as usize).map(|number| oarlock_stock::Order {
        sku: "ticket".to_owned(),
        id: format!("order {number}"),
        quantity: 1,
        hold: None,
    })
}

/// Whether the units of an order are sold. An order that was given back before is not.
pub fn sold(line: Option<oarlock_stock::Reservation>) -> bool {
    line.is_some_and(|line| line.state == oarlock_stock::State::Sold)
}

/// The value of a future that never waits long: those of a connection of diesel block instead.
///
/// # Panics
/// Where there is no runtime to be had.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime").block_on(future)
}

/// Lets every seller sell in a thread of its own, with `pool`: how many units they sold together.
///
/// # Panics
/// With a seller.
pub fn sell_at_once<P: Clone + Send + 'static>(pool: &P, sell: fn(P, u64) -> usize) -> usize {
    let sellers: Vec<_> = (0..SELLERS)
        .map(|seller| {
            let pool = pool.clone();
            std::thread::spawn(move || sell(pool, seller))
        })
        .collect();
    sellers.into_iter().map(|seller| seller.join().expect("a seller")).sum()
}

/// Two transactions that update the rows 1 and 2 of `items` crosswise: one of them deadlocks and is rerun. A macro,
/// because each server has types of its own in diesel.
#[macro_export]
macro_rules! deadlock_and_rerun {
    ($pool:expr) => {
        let both = std::sync::Arc::new(std::sync::Barrier::new(2));
        let add = |first: i64, second: i64| {
            let (pool, both) = ($pool.clone(), both.clone());
            std::thread::spawn(move || {
                let (mut conn, mut met) = (pool.get().unwrap(), false);
                let done = transaction(&mut conn, &retry(), |conn| {
                    let more = |id: i64| diesel::update(items::table.find(id)).set(items::stock.eq(items::stock + 1));
                    more(first).execute(conn)?;
                    // Only the first time: each then has what the other wants.
                    if !std::mem::replace(&mut met, true) {
                        both.wait();
                    }
                    more(second).execute(conn)?;
                    Ok::<_, Error>(())
                });
                done.unwrap().conflicts
            })
        };
        let (one, other) = (add(1, 2), add(2, 1));
        assert!(one.join().unwrap() + other.join().unwrap() >= 1, "no deadlock happened");
        let all: Vec<i64> = items::table.select(items::stock).load(&mut $pool.get().unwrap()).unwrap();
        assert_eq!(all, [2, 2], "each row was counted up by both, once");
    };
}
