//! Taking units: the walk over the segments, and when it may be said that there are no more.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::walk::walk;
use crate::{Count, Error, Map, Order, Reservation, Shelf, State, Step};

/// For how long a taker does not come back to a segment that had too little.
const REST: Duration = Duration::from_millis(20);

/// How often a taker walks again because units were moved meanwhile. Then it takes from wherever they are.
const GENERATIONS: usize = 4;

/// The most units of one order or delivery: sums of them stay far below what a column holds.
const MOST: u64 = 1 << 40;

/// The most segments of one item.
const MOST_SEGMENTS: u32 = 1024;

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
/// No unit is given out twice, whoever takes, gives back, restocks, resizes or crashes at the same time: every step is
/// atomic in the store and keeps `available + held + sold == delivered`. A take with an id that was used before takes
/// nothing more. [`Take::SoldOut`] is said only when all segments together had too little at one moment.
///
/// # Cancel safety
/// A call whose future is dropped is finished all the same: nothing stays half done. Repeat it with the same id to learn
/// what came of it.
#[derive(Debug)]
pub struct Stock<S> {
    inner: Arc<Mutex<Inner<S>>>,
}

impl<S> Clone for Stock<S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

#[derive(Debug)]
struct Inner<S> {
    shelf: S,
    /// Decides where this taker starts and how it walks.
    seat: u64,
    maps: HashMap<String, Map>,
    /// Until when a segment is left alone.
    empty: HashMap<(String, u32), Instant>,
}

impl<S: Shelf> Stock<S> {
    /// Stock on this shelf. Clones share its one connection; open more for takers that should not wait for each other.
    #[must_use]
    pub fn new(shelf: S) -> Self {
        let inner = Inner { shelf, seat: fastrand::u64(..), maps: HashMap::new(), empty: HashMap::new() };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    /// Makes the tables, if they are not there.
    ///
    /// # Errors
    /// The store's own.
    pub async fn init(&self) -> Result<(), Error> {
        let mut inner = self.turn().await;
        finished(async move { inner.shelf.init().await }).await
    }

    /// Makes an item with so many segments and no units. Nothing happens if there is one.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that is empty or too long, or no segments.
    pub async fn create(&self, sku: &str, segments: u32) -> Result<(), Error> {
        let sku = named(sku)?;
        check_segments(segments)?;
        let mut inner = self.turn().await;
        finished(async move { inner.shelf.create(&sku, segments).await }).await
    }

    /// Adds units, once for each delivery: the same delivery again adds nothing.
    ///
    /// # Errors
    /// [`Error::Reused`] when the delivery's id stands for something else.
    pub async fn restock(&self, sku: &str, delivery: &str, quantity: u64) -> Result<(), Error> {
        let (sku, delivery) = (named(sku)?, named(delivery)?);
        check_quantity(quantity)?;
        let mut inner = self.turn().await;
        finished(async move {
            inner.empty.clear();
            inner.shelf.restock(&sku, &delivery, quantity).await
        })
        .await
    }

    /// Takes units, or says that there are too few.
    ///
    /// # Errors
    /// [`Error::Reused`] when the id stands for another item or quantity. After [`Error::Store`] ask again with the same
    /// order.
    pub async fn take(&self, order: Order) -> Result<Take, Error> {
        named(&order.sku)?;
        named(&order.id)?;
        check_quantity(order.quantity)?;
        let mut inner = self.turn().await;
        finished(async move { inner.take(&order).await }).await
    }

    /// Sells what is held. Says what the id stands for then: anything but [`State::Sold`] means that it was too late.
    ///
    /// # Errors
    /// The store's own.
    pub async fn confirm(&self, id: &str) -> Result<Option<Reservation>, Error> {
        let id = named(id)?;
        let mut inner = self.turn().await;
        finished(async move { inner.shelf.settle(&id, State::Sold, false).await }).await
    }

    /// Gives back what is held. What was sold stays sold.
    ///
    /// # Errors
    /// The store's own.
    pub async fn give_back(&self, id: &str) -> Result<Option<Reservation>, Error> {
        let id = named(id)?;
        let mut inner = self.turn().await;
        finished(async move { inner.shelf.settle(&id, State::Returned, false).await }).await
    }

    /// Gives back what was held for too long, a few hundred at a time, and says how many reservations that were. Each goes
    /// back once, however many sweep. Call it now and then, from anywhere.
    ///
    /// # Errors
    /// The store's own.
    pub async fn sweep(&self) -> Result<usize, Error> {
        let mut inner = self.turn().await;
        finished(async move {
            let mut back = 0;
            for id in inner.shelf.overdue(500).await? {
                let ended = inner.shelf.settle(&id, State::Returned, true).await?;
                back += usize::from(ended.is_some_and(|ended| ended.state == State::Returned));
            }
            Ok(back)
        })
        .await
    }

    /// Makes so many segments, and spreads what is left evenly over them. With as many as there are it only levels them.
    ///
    /// # Errors
    /// [`Error::NoSuchItem`].
    pub async fn resize(&self, sku: &str, segments: u32) -> Result<(), Error> {
        let sku = named(sku)?;
        check_segments(segments)?;
        let mut inner = self.turn().await;
        finished(async move {
            inner.empty.clear();
            inner.shelf.spread(&sku, segments).await
        })
        .await
    }

    /// How an item stands, all at one moment.
    ///
    /// # Errors
    /// [`Error::NoSuchItem`].
    pub async fn count(&self, sku: &str) -> Result<Count, Error> {
        let sku = named(sku)?;
        let mut inner = self.turn().await;
        finished(async move { inner.shelf.count(&sku).await }).await
    }

    /// The connection, when it is free.
    async fn turn(&self) -> OwnedMutexGuard<Inner<S>> {
        self.inner.clone().lock_owned().await
    }
}

impl<S: Shelf> Inner<S> {
    async fn take(&mut self, order: &Order) -> Result<Take, Error> {
        let mut known = match self.maps.get(&order.sku) {
            Some(map) => *map,
            None => self.shelf.left(&order.sku).await?.0,
        };
        for _ in 0..GENERATIONS {
            for segment in walk(self.seat, known.segments) {
                let place = (order.sku.clone(), segment);
                if self.empty.get(&place).is_some_and(|until| Instant::now() < *until) {
                    continue;
                }
                match self.shelf.take(order, segment).await? {
                    Step::Short { .. } => drop(self.empty.insert(place, Instant::now() + REST)),
                    step => return self.done(order, known, step),
                }
            }
            let (map, left) = self.shelf.left(&order.sku).await?;
            if left < order.quantity && map.generation == known.generation {
                // It may have been taken before, and only the answer was lost.
                let before = self.shelf.find(&order.id).await?;
                let step = before.map_or(Step::Short { left }, Step::Known);
                return self.done(order, map, step);
            }
            let moved = map.generation != known.generation;
            known = map;
            if !moved {
                break;
            }
            // Units were moved while this taker walked: it may have passed them by.
            self.empty.retain(|(sku, _), _| *sku != order.sku);
        }
        // There is enough, but not in one place.
        let step = self.shelf.gather(order).await?;
        self.done(order, known, step)
    }

    fn done(&mut self, order: &Order, map: Map, step: Step) -> Result<Take, Error> {
        self.maps.insert(order.sku.clone(), map);
        match step {
            Step::Short { left } => Ok(Take::SoldOut { left }),
            Step::Taken => Ok(Take::Reserved(Reservation {
                sku: order.sku.clone(),
                id: order.id.clone(),
                quantity: order.quantity,
                state: State::Held,
            })),
            Step::Known(known) if (&known.sku, known.quantity) == (&order.sku, order.quantity) => {
                Ok(Take::Reserved(known))
            }
            Step::Known(_) => Err(Error::Reused { id: order.id.clone() }),
        }
    }
}

/// Runs it to its end, also when nobody waits for it any longer.
async fn finished<T: Send + 'static>(
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    tokio::spawn(work).await.unwrap_or_else(|error| Err(Error::store(error)))
}

fn named(name: &str) -> Result<String, Error> {
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
