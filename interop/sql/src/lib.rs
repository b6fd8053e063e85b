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
