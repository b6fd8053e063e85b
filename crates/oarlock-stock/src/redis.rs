//! Stock on Redis: one server, or a cluster whose masters share the segments.

mod keys;
mod map;
mod moves;

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::{FromRedisValue, Script};

use self::keys::Location;
use self::map::{MAPS, Map, patience};
use self::moves::{MapState, Seen, anything};
use crate::even::evenly;
use crate::{Count, Error, Order, Reservation, Shelf, State, Step};

/// How often a taker looks through all locations because units were moved meanwhile, and the longest pause in between, in
/// milliseconds: without one, two takers may carry the same units to and fro.
const ROUNDS: u32 = 64;
const LONGEST: u64 = 32;
/// How many reservations of one location one sweep gives back, and how many ended ones it forgets.
const SWEPT: u32 = 500;
/// For how long ids are remembered unless another time is chosen, and for how long at most.
const REMEMBERED: Duration = Duration::from_secs(7 * 24 * 3600);
const LONGEST_MS: u128 = 1 << 45;

macro_rules! scripts {
    ($($name:ident),*) => {
        $(
            #[allow(non_upper_case_globals, reason = "named as the file")]
            static $name: LazyLock<Script> =
                LazyLock::new(|| Script::new(include_str!(concat!("redis/scripts/", stringify!($name), ".lua"))));
        )*
    };
}

scripts!(take, peek, settle, sweep, debit, credit, clear, forget, open, close, stale, clock, raise, remap, deliver);

/// Stock on Redis, over a connection of the crate `redis`: a `MultiplexedConnection`, or a `ClusterConnection`, where
/// the segments lie on different masters.
///
/// An id has one home segment. Units and the reservation are in one slot there, so that one script takes them. Where
/// the home has too little, units are brought from other segments: out of one with a note, into the other once for each
/// note. Who dies in between leaves a note, and the next `sweep`, `resize` or `count` finishes what it says.
///
/// `count` reads one segment after the other: while others take, its parts are of different moments.
///
/// The id of a reservation that was sold or given back is remembered for a week, or as long as
/// [`remember`](Self::remember) says, and then forgotten by the next `sweep`, `confirm` or `give_back`: an order that
/// is tried again later than that takes again. Ids of deliveries are remembered for as long as the item.
///
/// # Guarantees
/// As those of [`Stock`](crate::Stock), for as long as Redis forgets nothing that it acknowledged. **A failover can
/// lose the last takes and sell their units again.** Let Redis be the gate and a database the book there, or wait for
/// replicas.
pub struct Redis<C> {
    conn: C,
    remembered: Duration,
    maps: HashMap<String, Map>,
    /// The state of the map at which all locations were empty.
    empty: HashMap<String, MapState>,
}

impl<C> std::fmt::Debug for Redis<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis").field("maps", &self.maps).finish_non_exhaustive()
    }
}

impl<C: ConnectionLike + Send + 'static> Redis<C> {
    /// Over this connection.
    #[must_use]
    pub fn new(conn: C) -> Self {
        Self { conn, remembered: REMEMBERED, maps: HashMap::new(), empty: HashMap::new() }
    }

    /// Remembers ids for so long after their reservation was sold or given back: longer than any order may be tried
    /// again. Each takes about 150 bytes of the server's memory meanwhile.
    #[must_use]
    pub fn remember(mut self, span: Duration) -> Self {
        self.remembered = span;
        self
    }

    fn remembered_ms(&self) -> u128 {
        self.remembered.as_millis().min(LONGEST_MS)
    }

    async fn run<T: FromRedisValue>(
        &mut self,
        script: &Script,
        keys: &[String],
        args: &[&(dyn std::fmt::Display + Sync)],
    ) -> Result<T, Error> {
        let mut invocation = script.prepare_invoke();
        for key in keys {
            invocation.key(key);
        }
        for arg in args {
            invocation.arg(arg.to_string());
        }
        invocation.invoke_async(&mut self.conn).await.map_err(Error::store)
    }

    async fn units(&mut self, sku: &str, location: Location) -> Result<[u64; 3], Error> {
        let [key, ..] = location.keys(sku);
        let mut command = redis::cmd("HMGET");
        command.arg(key).arg(&["n", "h", "s"]);
        let units: [Option<u64>; 3] = command.query_async(&mut self.conn).await.map_err(Error::store)?;
        Ok(units.map(Option::unwrap_or_default))
    }

    /// What the homes of other times know of an id.
    async fn known_elsewhere(&mut self, order: &Order, map: &Map) -> Result<Option<Reservation>, Error> {
        for home in map.homes(&order.id).skip(1) {
            let [_, reservations, ..] = home.keys(&order.sku);
            let mut command = redis::cmd("HGET");
            command.arg(reservations).arg(&order.id);
            let known: Option<String> = command.query_async(&mut self.conn).await.map_err(Error::store)?;
            if let Some(known) = known {
                return reservation(&order.sku, &order.id, &known).map(Some);
            }
        }
        Ok(None)
    }

    /// Takes at the home of the id, by a map that holds.
    async fn take_at_home(&mut self, order: &Order) -> Result<(Map, AtHome), Error> {
        let mut map = match self.maps.get(&order.sku) {
            Some(map) => map.clone(),
            None => self.read(&order.sku).await?,
        };
        for attempt in 0..2 * patience(&map) {
            if let Some(known) = self.known_elsewhere(order, &map).await? {
                return Ok((map, AtHome::Done(Step::Known(known))));
            }
            let home = map.homes(&order.id).next().unwrap_or(Location::Room);
            let hold = order.hold.map_or(-1, |hold| i64::try_from(hold.as_millis()).unwrap_or(i64::MAX).min(1 << 45));
            let said: Vec<String> =
                self.run(&take, &home.keys(&order.sku), &[&map.generation, &order.id, &order.quantity, &hold]).await?;
            let words: Vec<_> = said.iter().map(String::as_str).collect();
            let at_home = match words[..] {
                ["taken"] => AtHome::Done(Step::Taken),
                ["known", known] => AtHome::Done(Step::Known(reservation(&order.sku, &order.id, known)?)),
                ["short"] => AtHome::Short { home },
                ["moved"] => {
                    map = self.moved(&order.sku, &map, attempt).await?;
                    continue;
                }
                _ => return Err(Error::answer(&said.join(" "))),
            };
            return Ok((map, at_home));
        }
        Err(Error::Store("the map of the segments kept changing: ask again".into()))
    }
}

/// What came of a take at home.
enum AtHome {
    Done(Step),
    Short { home: Location },
}

impl<C: ConnectionLike + Send + 'static> Shelf for Redis<C> {
    async fn init(&mut self) -> Result<(), Error> {
        Ok(())
    }

    async fn create(&mut self, sku: &str, segments: u32) -> Result<(), Error> {
        match self.read(sku).await {
            Err(Error::NoSuchItem(_)) => {}
            map => return map.map(drop),
        }
        // Not one that an item of this name had before: others may remember its map.
        let [key, ..] = keys::map(sku);
        let generation = self.run(&clock, &[key], &[]).await?;
        if !self.remap(sku, None, Map { generation, segments, past: Vec::new() }).await? {
            // Another has made it meanwhile, and its locations may be ahead of its map.
            let map = self.read(sku).await?;
            self.remap(sku, Some(&map), map.next(map.segments)).await?;
        }
        Ok(())
    }

    async fn take(&mut self, order: &Order) -> Result<Step, Error> {
        for round in 0..ROUNDS {
            let (map, home) = match self.take_at_home(order).await? {
                (_, AtHome::Done(step)) => return Ok(step),
                (map, AtHome::Short { home }) => (map, home),
            };
            if round > 0 {
                let longest = LONGEST.min(1 << round.min(16));
                tokio::time::sleep(Duration::from_millis(fastrand::u64(..=longest))).await;
            }
            let before = self.map_state(&order.sku).await?;
            if self.empty.get(&order.sku) == Some(&before) {
                return Ok(Step::Short { left: 0 });
            }
            let seen = self.look_around(&order.sku, &map).await?;
            let left = seen.iter().map(|location| location.units + location.under_way).sum();
            // Only where there is enough: an order that cannot be served must not take units away from those that can.
            if left >= order.quantity {
                self.gather(order, &map, home, &seen).await?;
                continue;
            }
            // Where something is coming in all the time, a second look tells whether anything came since the first.
            let came = |seen: &[Seen]| seen.iter().map(|location| location.came).collect::<Vec<_>>();
            let nothing_came = before.coming > 0 && came(&self.look_around(&order.sku, &map).await?) == came(&seen);
            let after = self.map_state(&order.sku).await?;
            let quiet = before.coming == 0 && before == after;
            // Nothing came in since the first look, so there was no more than it saw.
            if map.generation == after.generation && (quiet || nothing_came) {
                if quiet && left == 0 {
                    self.empty.insert(order.sku.clone(), after);
                }
                return Ok(Step::Short { left });
            }
        }
        Err(Error::Store("units kept moving between segments: ask again".into()))
    }

    async fn settle(&mut self, sku: &str, id: &str, end: State) -> Result<Option<Reservation>, Error> {
        let map = self.read(sku).await?;
        let letter = if end == State::Sold { "s" } else { "r" };
        let (coming, remembered) = (anything(), self.remembered_ms());
        if end == State::Returned {
            self.open(sku, &coming).await?;
        }
        let mut settled = None;
        for home in map.homes(id).collect::<Vec<_>>() {
            settled = self.run::<Option<String>>(&settle, &home.keys(sku), &[&id, &letter, &remembered]).await?;
            if settled.is_some() {
                break;
            }
        }
        if end == State::Returned {
            self.close(sku, &coming).await?;
        }
        settled.map(|known| reservation(sku, id, &known)).transpose()
    }

    async fn sweep(&mut self, sku: &str) -> Result<u64, Error> {
        let map = self.read(sku).await?;
        self.mend(sku, &map).await?;
        let [key, _, notes] = keys::map(sku);
        self.run::<u64>(&stale, &[key, notes], &[]).await?;
        let (coming, remembered) = (anything(), self.remembered_ms());
        self.open(sku, &coming).await?;
        let mut back = 0;
        for location in map.locations().collect::<Vec<_>>() {
            back += self.run::<u64>(&sweep, &location.keys(sku), &[&SWEPT, &remembered]).await?;
        }
        self.close(sku, &coming).await?;
        Ok(back)
    }

    async fn restock(&mut self, sku: &str, delivery: &str, quantity: u64) -> Result<(), Error> {
        let mut keys = Location::Room.keys(sku).to_vec();
        keys.extend(keys::map(sku));
        let brought: Option<u64> = self.run(&deliver, &keys, &[&delivery, &quantity]).await?;
        match brought {
            None => return Err(Error::NoSuchItem(sku.to_owned())),
            Some(brought) if brought != quantity => return Err(Error::Reused { id: delivery.to_owned() }),
            Some(_) => {}
        }
        let map = self.read(sku).await?;
        let [in_room, ..] = self.units(sku, Location::Room).await?;
        for (segment, units) in evenly(in_room, map.segments) {
            if units > 0 {
                self.bring(sku, Location::Room, Location::Segment(segment), units).await?;
            }
        }
        Ok(())
    }

    async fn spread(&mut self, sku: &str, segments: Option<u32>) -> Result<(), Error> {
        for _ in 0..MAPS {
            let before = self.read(sku).await?;
            let after = before.next(segments.unwrap_or(before.segments));
            if self.remap(sku, Some(&before), after).await? {
                return self.level(sku).await;
            }
        }
        Err(Error::Store("the map of the segments kept changing: ask again".into()))
    }

    async fn remove(&mut self, sku: &str) -> Result<(), Error> {
        let map = match self.read(sku).await {
            Err(Error::NoSuchItem(_)) => return Ok(()),
            map => map?,
        };
        // The map last: a client that is stopped half-way can still find the rest.
        for location in map.locations() {
            redis::cmd("DEL").arg(&location.keys(sku)).exec_async(&mut self.conn).await.map_err(Error::store)?;
        }
        self.maps.remove(sku);
        self.empty.remove(sku);
        redis::cmd("DEL").arg(&keys::map(sku)).exec_async(&mut self.conn).await.map_err(Error::store)
    }

    async fn count(&mut self, sku: &str) -> Result<Count, Error> {
        let map = self.read(sku).await?;
        self.mend(sku, &map).await?;
        let [key, ..] = keys::map(sku);
        let delivered: Option<u64> =
            redis::cmd("HGET").arg(key).arg("delivered").query_async(&mut self.conn).await.map_err(Error::store)?;
        let mut count = Count { delivered: delivered.unwrap_or(0), ..Count::default() };
        for location in map.locations().collect::<Vec<_>>() {
            let [available, held, sold] = self.units(sku, location).await?;
            (count.available, count.held, count.sold) =
                (count.available + available, count.held + held, count.sold + sold);
            if matches!(location, Location::Segment(segment) if segment < map.segments) {
                count.segments.push(available);
            }
        }
        Ok(count)
    }
}

fn reservation(sku: &str, id: &str, known: &str) -> Result<Reservation, Error> {
    let (quantity, state) = known.split_once(' ').ok_or_else(|| Error::answer(known))?;
    let state = match state {
        "h" => State::Held,
        "s" => State::Sold,
        "r" => State::Returned,
        _ => return Err(Error::answer(known)),
    };
    Ok(Reservation { sku: sku.to_owned(), id: id.to_owned(), quantity: quantity.parse().map_err(Error::store)?, state })
}
