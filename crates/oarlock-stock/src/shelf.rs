//! What a store does for stock: each step whole or not at all.

use std::time::Duration;

use crate::Error;

/// What a taker wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The item.
    pub sku: String,
    /// The reservation: its own for each line of an order, among those of the item, and the same whenever that line is
    /// tried again.
    pub id: String,
    /// How many units.
    pub quantity: u64,
    /// For how long they are kept for a taker that does not confirm. `None`: for good.
    pub hold: Option<Duration>,
}

/// What became of the units of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Taken, and kept until it is confirmed, given back or over.
    Held,
    /// Confirmed: they are gone for good.
    Sold,
    /// Back in the stock.
    Returned,
}

/// Units that were taken under one id.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reservation {
    /// The item.
    pub sku: String,
    /// Its id.
    pub id: String,
    /// How many units.
    pub quantity: u64,
    /// What became of them.
    pub state: State,
}

/// How an item stands. `available + held + sold == delivered`, always.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Count {
    /// What each segment has.
    pub segments: Vec<u64>,
    /// The sum of it.
    pub available: u64,
    /// Taken and not confirmed.
    pub held: u64,
    /// Confirmed.
    pub sold: u64,
    /// All that was ever put in.
    pub delivered: u64,
}

/// What came of a take, in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The units were taken.
    Taken,
    /// There were too few, and nothing was taken: so many, all told.
    Short {
        /// What there was.
        left: u64,
    },
    /// The id is known already: this is what it stands for.
    Known(Reservation),
}

/// A store of segments. Every call is safe to repeat, and keeps what [`Count`] says.
///
/// One connection, one call at a time. [`Stock`](crate::Stock) finishes what it began even if its caller no longer
/// waits, so a future of these is not dropped half-way.
pub trait Shelf: Send + 'static {
    /// Makes what the store needs, if it is not there.
    fn init(&mut self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Makes an item without units. Nothing happens if it is there.
    fn create(&mut self, sku: &str, segments: u32) -> impl Future<Output = Result<(), Error>> + Send;

    /// Takes units from wherever they are. [`Step::Short`] only if all segments together had too little at one moment.
    fn take(&mut self, order: &Order) -> impl Future<Output = Result<Step, Error>> + Send;

    /// Ends a hold one way or the other, if it is still held, and says what the id stands for then.
    fn settle(
        &mut self,
        sku: &str,
        id: &str,
        end: State,
    ) -> impl Future<Output = Result<Option<Reservation>, Error>> + Send;

    /// Gives back what was held for too long, some of it, and says how many reservations that were.
    fn sweep(&mut self, sku: &str) -> impl Future<Output = Result<u64, Error>> + Send;

    /// Adds units, spread over the segments; once for each delivery.
    fn restock(&mut self, sku: &str, delivery: &str, quantity: u64) -> impl Future<Output = Result<(), Error>> + Send;

    /// Makes so many segments, or keeps as many as there are, and spreads what is there evenly over them.
    fn spread(&mut self, sku: &str, segments: Option<u32>) -> impl Future<Output = Result<(), Error>> + Send;

    /// Forgets an item and all that was ever written about it.
    fn remove(&mut self, sku: &str) -> impl Future<Output = Result<(), Error>> + Send;

    /// How the item stands.
    fn count(&mut self, sku: &str) -> impl Future<Output = Result<Count, Error>> + Send;
}
