//! The verbs.

use std::sync::Arc;

use crate::pool::{Pool, Turn};
use crate::{Count, Error, Order, Reservation, Shelf, State, Step};

/// The most units of one order or delivery: sums of them stay far below what a column holds.
const MOST: u64 = 1 << 40;

/// The most segments of one item.
pub(crate) const MOST_SEGMENTS: u32 = 1024;

/// The longest name of an item or an order line, in bytes.
const LONGEST: usize = 190;

/// What came of a take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Take {
    /// The units are reserved under this id; or were, when it was tried before: see its state.
    Reserved(Reservation),
    /// There were fewer than wanted, in all segments together.
    SoldOut {
        /// What there was.
        left: u64,
    },
}

/// Stock of items whose units lie in segments, so that many can take at once.
///
/// # Guarantees
/// No unit is given out twice, whatever other clients take, give back, restock or resize, or crash, at the same time:
/// every step is atomic in the store and keeps `available + held + sold == delivered`. A take with an id that was used
/// before takes nothing more. [`Take::SoldOut`] is said only when all segments together had too little at one moment.
///
/// # Cancel safety
/// A call whose future is dropped is finished all the same: nothing stays half done. Repeat it with the same id to
/// learn what came of it.
#[derive(Debug)]
pub struct Stock<S> {
    pool: Arc<Pool<S>>,
}

impl<S> Clone for Stock<S> {
    fn clone(&self) -> Self {
        Self { pool: self.pool.clone() }
    }
}

/// Runs a step to its end on a connection, and once more on another one if the first was lost: every step is safe to
/// repeat.
macro_rules! step {
    ($stock:ident, $shelf:ident => $step:expr) => {{
        let mut turn = $stock.turn().await?;
        finished(async move {
            let first = {
                let $shelf = turn.shelf()?;
                $step.await
            };
            if !turn.ends(&first) {
                return first;
            }
            let mut turn = turn.again().await?;
            let second = {
                let $shelf = turn.shelf()?;
                $step.await
            };
            turn.ends(&second);
            second
        })
        .await
    }};
}

impl<S: Shelf> Stock<S> {
    /// Stock on this shelf. Clones share its one connection; open more for takers that should not wait for each other,
    /// or use [`pooled`](Self::pooled).
    #[must_use]
    pub fn new(shelf: S) -> Self {
        Self { pool: Pool::of(shelf) }
    }

    /// Stock on up to `size` connections, which `open` opens when they are needed. A connection whose call failed with
    /// an error of the store is not used again, and the call is repeated once on another one: so takers continue after
    /// a restart of the server.
    ///
    /// ```no_run
    /// # #[cfg(feature = "postgres")]
    /// # async fn example() {
    /// use oarlock_rows::postgres::Cached;
    /// use oarlock_stock::{Error, Sql, Stock};
    ///
    /// let stock = Stock::pooled(8, || async {
    ///     let connected = tokio_postgres::connect("postgres://localhost/shop", tokio_postgres::NoTls).await;
    ///     let (client, connection) = connected.map_err(|error| Error::Store(error.into()))?;
    ///     tokio::spawn(connection);
    ///     Ok(Sql::new(Cached::new(client)))
    /// });
    /// # let _ = stock;
    /// # }
    /// ```
    pub fn pooled<F>(size: usize, open: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<S, Error>> + Send + 'static,
    {
        Self { pool: Pool::opened_by(size, open) }
    }

    /// Makes the tables, if they are not there, and on MySQL the procedure that takes.
    ///
    /// # Errors
    /// The store's own.
    pub async fn init(&self) -> Result<(), Error> {
        step!(self, shelf => shelf.init())
    }

    /// Makes an item with so many segments and no units. Nothing happens if there is one.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that is empty or too long, or no segments.
    pub async fn create(&self, sku: &str, segments: u32) -> Result<(), Error> {
        let sku = named(sku)?;
        check_segments(segments)?;
        step!(self, shelf => shelf.create(&sku, segments))
    }

    /// Adds units, once for each delivery: the same delivery again adds nothing.
    ///
    /// # Errors
    /// [`Error::Reused`] when the delivery's id stands for something else.
    pub async fn restock(&self, sku: &str, delivery: &str, quantity: u64) -> Result<(), Error> {
        let (sku, delivery) = (named(sku)?, named(delivery)?);
        check_quantity(quantity)?;
        step!(self, shelf => shelf.restock(&sku, &delivery, quantity))
    }

    /// Takes units, or says that there are too few.
    ///
    /// # Errors
    /// [`Error::Reused`] when the id stands for another item or quantity. After [`Error::Store`] ask again with the
    /// same order.
    pub async fn take(&self, order: Order) -> Result<Take, Error> {
        checked(&order)?;
        let wanted = order.clone();
        let step = step!(self, shelf => shelf.take(&wanted))?;
        answered(&order, step)
    }

    /// Sells what is held. Says what the id stands for then: anything but [`State::Sold`] means that it was too late.
    ///
    /// # Errors
    /// The store's own.
    pub async fn confirm(&self, sku: &str, id: &str) -> Result<Option<Reservation>, Error> {
        let (sku, id) = (named(sku)?, named(id)?);
        step!(self, shelf => shelf.settle(&sku, &id, State::Sold))
    }

    /// Gives back what is held. What was sold stays sold.
    ///
    /// # Errors
    /// The store's own.
    pub async fn give_back(&self, sku: &str, id: &str) -> Result<Option<Reservation>, Error> {
        let (sku, id) = (named(sku)?, named(id)?);
        step!(self, shelf => shelf.settle(&sku, &id, State::Returned))
    }

    /// Gives back what was held for too long, a few hundred at a time, and says how many reservations that were. Each
    /// goes back once, however many sweep. Call it now and then, from anywhere.
    ///
    /// # Errors
    /// The store's own.
    pub async fn sweep(&self, sku: &str) -> Result<u64, Error> {
        let sku = named(sku)?;
        step!(self, shelf => shelf.sweep(&sku))
    }

    /// Makes so many segments, and spreads what is left evenly over them.
    ///
    /// # Errors
    /// [`Error::NoSuchItem`].
    pub async fn resize(&self, sku: &str, segments: u32) -> Result<(), Error> {
        let sku = named(sku)?;
        check_segments(segments)?;
        step!(self, shelf => shelf.spread(&sku, Some(segments)))
    }

    /// Spreads what is left evenly over the segments that there are.
    ///
    /// # Errors
    /// [`Error::NoSuchItem`].
    pub async fn rebalance(&self, sku: &str) -> Result<(), Error> {
        let sku = named(sku)?;
        step!(self, shelf => shelf.spread(&sku, None))
    }

    /// Forgets an item: its units, reservations and deliveries. An id may stand for something else afterwards, so do
    /// this only when no request of the old days can still be under way. Nothing happens if there is no such item.
    ///
    /// # Errors
    /// The store's own.
    pub async fn remove(&self, sku: &str) -> Result<(), Error> {
        let sku = named(sku)?;
        step!(self, shelf => shelf.remove(&sku))
    }

    /// How an item stands, all at one moment.
    ///
    /// # Errors
    /// [`Error::NoSuchItem`].
    pub async fn count(&self, sku: &str) -> Result<Count, Error> {
        let sku = named(sku)?;
        step!(self, shelf => shelf.count(&sku))
    }

    /// A connection, when one is free.
    pub(crate) async fn turn(&self) -> Result<Turn<S>, Error> {
        Pool::turn(&self.pool).await
    }
}

/// Refuses an invalid order.
pub(crate) fn checked(order: &Order) -> Result<(), Error> {
    named(&order.sku)?;
    named(&order.id)?;
    check_quantity(order.quantity)
}

/// What a step means for its order.
pub(crate) fn answered(order: &Order, step: Step) -> Result<Take, Error> {
    let Order { sku, id, quantity, .. } = order;
    match step {
        Step::Short { left } => Ok(Take::SoldOut { left }),
        Step::Taken => {
            let (sku, id) = (sku.clone(), id.clone());
            Ok(Take::Reserved(Reservation { sku, id, quantity: *quantity, state: State::Held }))
        }
        Step::Known(known) if known.quantity == *quantity => Ok(Take::Reserved(known)),
        Step::Known(_) => Err(Error::Reused { id: id.clone() }),
    }
}

/// Runs it to its end, also when its caller no longer waits for it.
pub(crate) async fn finished<T: Send + 'static>(
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    tokio::spawn(work).await.unwrap_or_else(|error| Err(Error::store(error)))
}

pub(crate) fn named(name: &str) -> Result<String, Error> {
    match name.len() {
        1..=LONGEST => Ok(name.to_owned()),
        length => Err(Error::Invalid(format!("a name has 1 to {LONGEST} bytes, not {length}"))),
    }
}

fn check_quantity(quantity: u64) -> Result<(), Error> {
    match quantity {
        1..=MOST => Ok(()),
        _ => Err(Error::Invalid(format!("a quantity is 1 to {MOST}, not {quantity}"))),
    }
}

fn check_segments(segments: u32) -> Result<(), Error> {
    match segments {
        1..=MOST_SEGMENTS => Ok(()),
        _ => Err(Error::Invalid(format!("there are 1 to {MOST_SEGMENTS} segments, not {segments}"))),
    }
}
