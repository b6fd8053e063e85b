//! Stock in a database: three tables, each step one transaction. On MySQL a take is a procedure, else it would be four
//! requests.

mod inside;
mod purge;
mod schema;
mod steps;
mod walk;

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use oarlock_rows::{Classify as _, Client, Contention, Dialect, Retry};

pub use self::inside::{Inside, inside};
use self::steps::Conn;
use self::walk::walk;
use crate::even::evenly;
use crate::{Count, Error, Order, Reservation, Shelf, State, Step};

/// Stock in PostgreSQL, MySQL, MariaDB or SQLite, over one connection of `oarlock-rows`: `postgres::Cached`,
/// `mysql_async::Conn` or `rusqlite::Connection`.
///
/// Deadlocks and serialization failures are tried again, and so is a SQLite that is busy. The isolation is that of the
/// connection; `READ COMMITTED` is enough and best. On MySQL leave `autocommit` on: without it, and with `REPEATABLE
/// READ`, a connection that once saw too little sees that for ever.
#[derive(Debug)]
pub struct Sql<C> {
    conn: C,
    retry: Retry,
    /// Decides where this taker starts and how it walks.
    seed: u64,
    maps: HashMap<String, Map>,
    /// Until when a segment is left alone.
    empty: HashMap<(String, u32), Instant>,
    /// Items of which there was too little in all segments together: a taker looks at them all first.
    short: HashSet<String>,
}

/// How the units of an item are split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Map {
    segments: u32,
    /// Grows each time that units are moved between segments.
    generation: u64,
}

/// For how long a taker does not come back to a segment that had too little.
const REST: Duration = Duration::from_millis(20);

/// How often a taker walks again because units were moved meanwhile. Then it takes from wherever they are.
const GENERATIONS: usize = 4;

/// How many reservations one sweep gives back.
const SWEPT: usize = 500;

/// How a transaction ends, and what came of it.
enum Then<T> {
    Keep(T),
    Undo(T),
}

impl<C: Client> Sql<C> {
    /// Over this connection, which no other client uses.
    #[must_use]
    pub fn new(conn: C) -> Self {
        // SQLite says that it is busy where the others wait by themselves.
        let retry = Retry::default().attempts(1000).deadline(Duration::from_secs(30)).when_busy();
        Self {
            conn,
            retry,
            seed: fastrand::u64(..),
            maps: HashMap::new(),
            empty: HashMap::new(),
            short: HashSet::new(),
        }
    }
}

/// Runs the steps in one transaction, again from its beginning when others were in the way.
///
/// A macro, because the future of an async closure over any client cannot be shown to be `Send`.
macro_rules! transaction {
    ($self:ident, $conn:ident => $steps:block) => {{
        let Self { conn: $conn, retry, .. } = $self;
        let mut attempts = retry.begin();
        loop {
            let result = match begin($conn).await {
                Ok(()) => {
                    let result: Result<Then<_>, Error> = async { $steps }.await;
                    end($conn, result).await
                }
                Err(error) => Err(error),
            };
            let error = match result {
                Ok(value) => break Ok(value),
                Err(error) => error,
            };
            match attempts.after(error.contention()) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => break Err(error),
            }
        }
    }};
}

impl<C: Conn + 'static> Shelf for Sql<C> {
    async fn init(&mut self) -> Result<(), Error> {
        for statement in schema::tables(self.conn.dialect()) {
            self.conn.execute(&statement, Vec::new()).await.map_err(Error::store)?;
        }
        Ok(())
    }

    async fn create(&mut self, sku: &str, segments: u32) -> Result<(), Error> {
        transaction!(self, conn => {
            let item = "oarlock_stock_item (sku, segments, generation, delivered) values (?, ?, 1, 0)";
            let sql = schema::insert_new(conn.dialect(), item);
            if steps::execute(conn, &sql, &[sku.into(), segments.into()]).await? == 1 {
                make_segments(conn, sku, 0..segments).await?;
            }
            Ok(Then::Keep(()))
        })
    }

    async fn take(&mut self, order: &Order) -> Result<Step, Error> {
        if self.short.contains(&order.sku) {
            let (map, left, known) = self.left(order).await?;
            if left < order.quantity {
                return Ok(known.map_or(Step::Short { left }, Step::Known));
            }
            self.maps.insert(order.sku.clone(), map);
            self.short.remove(&order.sku);
            self.empty.retain(|(sku, _), _| *sku != order.sku);
        }
        let mut map = match self.maps.get(&order.sku) {
            Some(map) => *map,
            None => self.left(order).await?.0,
        };
        for _ in 0..GENERATIONS {
            for segment in walk(self.seed, map.segments) {
                let place = (order.sku.clone(), segment);
                if self.empty.get(&place).is_some_and(|until| Instant::now() < *until) {
                    continue;
                }
                match self.take_from(order, segment).await? {
                    Step::Short { .. } => drop(self.empty.insert(place, Instant::now() + REST)),
                    step => {
                        self.maps.insert(order.sku.clone(), map);
                        return Ok(step);
                    }
                }
            }
            let (now, left, known) = self.left(order).await?;
            let moved = now.generation != map.generation;
            map = now;
            self.maps.insert(order.sku.clone(), map);
            if !moved && left < order.quantity {
                self.short.insert(order.sku.clone());
                // It may have been taken before, and only the answer was lost.
                return Ok(known.map_or(Step::Short { left }, Step::Known));
            }
            if !moved {
                break;
            }
            // Units were moved while this taker walked: it may have passed them by.
            self.empty.retain(|(sku, _), _| *sku != order.sku);
        }
        // There is enough, but not in one place.
        let retry = self.retry.clone();
        let mut attempts = retry.begin();
        loop {
            let step = self.gather(order).await?;
            if !matches!(step, Step::Short { .. }) {
                return Ok(step);
            }
            // A statement that waited for locks at `READ COMMITTED` does not see segments that were made meanwhile.
            let (_, left, known) = self.left(order).await?;
            if left < order.quantity {
                return Ok(known.map_or(Step::Short { left }, Step::Known));
            }
            match attempts.after(Some(Contention::Stale)) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Err(Error::Store("units are moved faster than they can be taken".into())),
            }
        }
    }

    async fn settle(&mut self, sku: &str, id: &str, end: State) -> Result<Option<Reservation>, Error> {
        self.end(sku, id, end, false).await
    }

    async fn sweep(&mut self, sku: &str) -> Result<u64, Error> {
        let mut back = 0;
        for id in self.overdue(sku).await? {
            let ended = self.end(sku, &id, State::Returned, true).await?;
            back += u64::from(ended.is_some_and(|ended| ended.state == State::Returned));
        }
        Ok(back)
    }

    async fn restock(&mut self, sku: &str, delivery: &str, quantity: u64) -> Result<(), Error> {
        transaction!(self, conn => {
            // The item first: a client that spreads it holds it until the segments are as they should be.
            let sql = "update oarlock_stock_item set delivered = delivered + ? where sku = ?";
            if steps::execute(conn, sql, &[quantity.into(), sku.into()]).await? == 0 {
                return Err(Error::NoSuchItem(sku.to_owned()));
            }
            let row = "oarlock_stock_reservation (id, sku, segment, quantity, state) values (?, ?, 0, ?, 'd')";
            let sql = schema::insert_new(conn.dialect(), row);
            if steps::execute(conn, &sql, &[delivery.into(), sku.into(), quantity.into()]).await? == 0 {
                return Ok(Then::Undo(()));
            }
            let segments = u32::try_from(steps::segments(conn, sku).await?.len()).map_err(Error::store)?;
            for (segment, units) in evenly(quantity, segments).filter(|(_, units)| *units > 0) {
                steps::add(conn, sku, segment, units).await?;
            }
            Ok(Then::Keep(()))
        })?;
        // Now, or by an earlier call: it must be this very delivery.
        let same = "select id from oarlock_stock_reservation where sku = ? and id = ? and quantity = ? and state = 'd'";
        let found = self.query(same, &[sku.into(), delivery.into(), quantity.into()]).await?;
        if found.is_empty() { Err(Error::Reused { id: delivery.to_owned() }) } else { Ok(()) }
    }

    async fn spread(&mut self, sku: &str, segments: Option<u32>) -> Result<(), Error> {
        transaction!(self, conn => {
            let sql = "update oarlock_stock_item set generation = generation + 1 where sku = ?";
            if steps::execute(conn, sql, &[sku.into()]).await? == 0 {
                return Err(Error::NoSuchItem(sku.to_owned()));
            }
            let before = steps::segments(conn, sku).await?;
            let segments = segments.map_or_else(|| u32::try_from(before.len()).map_err(Error::store), Ok)?;
            let sql = "update oarlock_stock_item set segments = ? where sku = ?";
            steps::execute(conn, sql, &[segments.into(), sku.into()]).await?;
            let units = before.iter().map(|(_, available)| available).sum();
            let sql = "delete from oarlock_stock_segment where sku = ? and segment >= ?";
            steps::execute(conn, sql, &[sku.into(), segments.into()]).await?;
            make_segments(conn, sku, u32::try_from(before.len()).map_err(Error::store)?..segments).await?;
            for (segment, units) in evenly(units, segments) {
                let sql = "update oarlock_stock_segment set available = ? where sku = ? and segment = ?";
                steps::execute(conn, sql, &[units.into(), sku.into(), segment.into()]).await?;
            }
            Ok(Then::Keep(()))
        })
    }

    async fn remove(&mut self, sku: &str) -> Result<(), Error> {
        self.maps.remove(sku);
        self.short.remove(sku);
        self.empty.retain(|(item, _), _| item != sku);
        transaction!(self, conn => {
            // The item first, as in restocking and spreading.
            for table in ["item", "segment", "reservation"] {
                let sql = format!("delete from oarlock_stock_{table} where sku = ?");
                steps::execute(conn, &sql, &[sku.into()]).await?;
            }
            Ok(Then::Keep(()))
        })
    }

    async fn count(&mut self, sku: &str) -> Result<Count, Error> {
        let dialect = self.conn.dialect();
        let row = |columns: &[&str]| schema::joined(dialect, columns);
        let state = |number: &str, state: &str| {
            format!(
                "select {} from oarlock_stock_reservation where sku = ? and state = '{state}'",
                row(&[number, "0", "coalesce(sum(quantity), 0)"])
            )
        };
        // One statement, so that all of it is seen at one moment.
        let sql = format!(
            "select {} from oarlock_stock_segment where sku = ? union all {} union all {} union all \
             select {} from oarlock_stock_item where sku = ?",
            row(&["0", "segment", "available"]),
            state("1", "h"),
            state("2", "s"),
            row(&["3", "0", "delivered"]),
        );
        let mut count = Count::default();
        let (mut segments, mut there) = (Vec::new(), false);
        for text in self.query(&sql, &[sku.into(), sku.into(), sku.into(), sku.into()]).await? {
            let [kind, segment, units] = steps::numbers(&text)?;
            match kind {
                0 => segments.push((segment, units)),
                1 => count.held = units,
                2 => count.sold = units,
                _ => (count.delivered, there) = (units, true),
            }
        }
        if !there {
            return Err(Error::NoSuchItem(sku.to_owned()));
        }
        segments.sort_unstable();
        count.segments = segments.into_iter().map(|(_, units)| units).collect();
        count.available = count.segments.iter().sum();
        Ok(count)
    }
}

impl<C: Conn> Sql<C> {
    /// Asks outside a transaction, again when others were in the way: who only reads meets them too, where isolation is
    /// strict, and in a file.
    async fn query(&mut self, sql: &str, with: &[steps::Value<'_>]) -> Result<Vec<String>, Error> {
        let mut attempts = self.retry.begin();
        loop {
            let error = match steps::texts(&mut self.conn, sql, with).await {
                Ok(texts) => return Ok(texts),
                Err(error) => error,
            };
            match attempts.after(error.contention()) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Err(error),
            }
        }
    }

    /// How the item is split, how many units are left in all segments, and what the id of the order stands for: all at
    /// one moment, in one request, because once everything is sold this is what every order costs.
    async fn left(&mut self, order: &Order) -> Result<(Map, u64, Option<Reservation>), Error> {
        let Order { sku, id, .. } = order;
        let left = "(select coalesce(sum(available), 0) from oarlock_stock_segment as s where s.sku = i.sku)";
        let known = format!(
            "coalesce((select {} from oarlock_stock_reservation as r where r.sku = i.sku and r.id = ?), '-')",
            steps::reservation(self.conn.dialect())
        );
        let columns = schema::joined(self.conn.dialect(), &["segments", "generation", left, &known]);
        let sql = format!("select {columns} from oarlock_stock_item as i where sku = ?");
        let text = self.query(&sql, &[id.into(), sku.into()]).await?.pop();
        let text = text.ok_or_else(|| Error::NoSuchItem(sku.clone()))?;
        let mut parts = text.splitn(4, ' ');
        let mut part = || parts.next().ok_or_else(|| Error::answer(&text));
        let [segments] = steps::numbers(part()?)?;
        let [generation] = steps::numbers(part()?)?;
        let [left] = steps::numbers(part()?)?;
        let known = match part()? {
            "-" => None,
            known => Some(steps::read(sku, id, known)?.0),
        };
        Ok((Map { segments: u32::try_from(segments).map_err(Error::store)?, generation }, left, known))
    }

    /// Takes all of it from one segment.
    async fn take_from(&mut self, order: &Order, segment: u32) -> Result<Step, Error> {
        if self.conn.dialect() == Dialect::Postgres {
            return self.take_at_once(order, segment).await;
        }
        if schema::is_mysql(self.conn.dialect()) && self.conn.reads_calls() {
            return self.take_by_call(order, segment).await;
        }
        transaction!(self, conn => {
            // The reservation first: the segment is the row that others want, and is locked for as short as can be.
            if !steps::reserve(conn, order, segment).await? {
                return known(conn, order).await.map(Then::Undo);
            }
            match steps::subtract(conn, &order.sku, segment, order.quantity).await? {
                true => Ok(Then::Keep(Step::Taken)),
                false => Ok(Then::Undo(Step::Short { left: 0 })),
            }
        })
    }

    /// Takes it from as many segments as needed.
    async fn gather(&mut self, order: &Order) -> Result<Step, Error> {
        transaction!(self, conn => {
            match gather(conn, order).await? {
                Step::Taken => Ok(Then::Keep(Step::Taken)),
                step => Ok(Then::Undo(step)),
            }
        })
    }

    /// Ends a hold; `over`: only if its time is up.
    async fn end(&mut self, sku: &str, id: &str, end: State, over: bool) -> Result<Option<Reservation>, Error> {
        transaction!(self, conn => {
            match steps::settle(conn, sku, id, end, over).await? {
                Some(reservation) => Ok(Then::Keep(Some(reservation))),
                None => Ok(Then::Undo(None)),
            }
        })
    }

    /// Some reservations whose time is up.
    async fn overdue(&mut self, sku: &str) -> Result<Vec<String>, Error> {
        let now = schema::now(self.conn.dialect());
        let sql = format!(
            "select id from oarlock_stock_reservation where sku = ? and state = 'h' and expires <= {now} order by expires limit {SWEPT}"
        );
        self.query(&sql, &[sku.into()]).await
    }

    /// MySQL does both in a procedure.
    async fn take_by_call(&mut self, order: &Order, segment: u32) -> Result<Step, Error> {
        let hold = if order.hold.is_some() { "?" } else { "null" };
        let sql = format!("call oarlock_stock_take(?, ?, ?, ?, {hold})");
        let mut with: Vec<steps::Value<'_>> = vec![(&order.sku).into(), (&order.id).into(), segment.into()];
        with.push(order.quantity.into());
        with.extend(steps::expires(self.conn.dialect(), order).1);
        let mut attempts = self.retry.begin();
        let told = loop {
            let error = match steps::texts(&mut self.conn, &sql, &with).await {
                Ok(told) => break told,
                Err(error) => error,
            };
            // A call that was killed leaves its transaction open, and the next one would keep what it had begun.
            if self.conn.execute("rollback", Vec::new()).await.is_err() {
                return Err(error);
            }
            match attempts.after(error.contention()) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Err(error),
            }
        };
        match told.first().map(String::as_str) {
            Some("taken") => Ok(Step::Taken),
            Some("short") => Ok(Step::Short { left: 0 }),
            Some(known) => Ok(Step::Known(steps::read(&order.sku, &order.id, known)?.0)),
            None => Err(Error::answer("an id that is there and is not")),
        }
    }

    /// PostgreSQL does both in one statement, which is a transaction by itself.
    async fn take_at_once(&mut self, order: &Order, segment: u32) -> Result<Step, Error> {
        let (expires, hold) = steps::expires(Dialect::Postgres, order);
        let sql = format!(
            "with taken as (update oarlock_stock_segment set available = available - ? where sku = ? and segment = ? \
             and available >= ? returning sku, segment) \
             insert into oarlock_stock_reservation (quantity, id, sku, segment, state, expires) \
             select ?, ?, sku, segment, 'h', {expires} from taken"
        );
        let mut with: Vec<steps::Value<'_>> = vec![order.quantity.into(), (&order.sku).into(), segment.into()];
        with.extend([order.quantity.into(), order.quantity.into(), (&order.id).into()]);
        with.extend(hold);
        let retry = self.retry.clone();
        let mut attempts = retry.begin();
        loop {
            let error = match steps::execute(&mut self.conn, &sql, &with).await {
                Ok(1) => return Ok(Step::Taken),
                Ok(_) => return Ok(Step::Short { left: 0 }),
                Err(error) => error,
            };
            // A known id fails the whole statement, and so takes nothing.
            let find = steps::find_statement(Dialect::Postgres);
            if let Some(known) = self.query(&find, &[(&order.sku).into(), (&order.id).into()]).await?.pop() {
                return Ok(Step::Known(steps::read(&order.sku, &order.id, &known)?.0));
            }
            match attempts.after(error.contention()) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Err(error),
            }
        }
    }
}

/// Takes units from as many segments as needed, inside a transaction. Nothing was changed unless it took them.
async fn gather<C: Conn>(conn: &mut C, order: &Order) -> Result<Step, Error> {
    let segments = steps::segments(conn, &order.sku).await?;
    let left: u64 = segments.iter().map(|(_, available)| available).sum();
    let first = segments.iter().find(|(_, available)| *available > 0).map_or(0, |(segment, _)| *segment);
    // Before it is said that there are too few: it may be that this very order has the rest.
    if left < order.quantity {
        return match steps::find(conn, &order.sku, &order.id).await? {
            Some((reservation, _)) => Ok(Step::Known(reservation)),
            None => Ok(Step::Short { left }),
        };
    }
    if !steps::reserve(conn, order, first).await? {
        return known(conn, order).await;
    }
    let mut missing = order.quantity;
    for (segment, available) in segments {
        let part = missing.min(available);
        if part > 0 && !steps::subtract(conn, &order.sku, segment, part).await? {
            return Err(Error::answer("a locked segment has changed"));
        }
        missing -= part;
    }
    Ok(Step::Taken)
}

async fn begin<C: Conn>(conn: &mut C) -> Result<(), Error> {
    // The server would commit it, or take ours for a part of it.
    if conn.in_transaction() {
        return Err(Error::answer("this connection is in a transaction: use `inside`"));
    }
    let begin = match conn.dialect() {
        Dialect::Sqlite => "begin immediate",
        _ => "start transaction",
    };
    conn.execute(begin, Vec::new()).await.map(drop).map_err(Error::store)
}

async fn end<C: Conn, T>(conn: &mut C, result: Result<Then<T>, Error>) -> Result<T, Error> {
    let end = if matches!(result, Ok(Then::Keep(_))) { "commit" } else { "rollback" };
    let ended = conn.execute(end, Vec::new()).await.map_err(Error::store);
    // SQLite keeps a transaction open that it could not commit because another connection reads.
    if ended.is_err() && end == "commit" {
        let _ = conn.execute("rollback", Vec::new()).await;
    }
    // Why the steps failed says more than how the rollback did.
    let (Then::Keep(value) | Then::Undo(value)) = result?;
    ended.map(|_| value)
}

async fn make_segments<C: Conn>(conn: &mut C, sku: &str, which: std::ops::Range<u32>) -> Result<(), Error> {
    for segment in which {
        let sql = "insert into oarlock_stock_segment (sku, segment, available) values (?, ?, 0)";
        steps::execute(conn, sql, &[sku.into(), segment.into()]).await?;
    }
    Ok(())
}

async fn known<C: Conn>(conn: &mut C, order: &Order) -> Result<Step, Error> {
    match steps::find(conn, &order.sku, &order.id).await? {
        Some((reservation, _)) => Ok(Step::Known(reservation)),
        None => Err(Error::answer("an id that is there and is not")),
    }
}
