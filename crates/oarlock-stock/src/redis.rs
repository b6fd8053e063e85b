//! Stock on Redis: one server, or a cluster whose masters share the segments.

mod keys;

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::{FromRedisValue, Script};

use self::keys::Place;
use crate::even::evenly;
use crate::{Count, Error, Order, Reservation, Shelf, State, Step};

/// How often a taker looks through all places because units were moved meanwhile, and the longest pause in between, in
/// milliseconds: without one, two takers may carry the same units to and fro.
const ROUNDS: u32 = 64;
const LONGEST: u64 = 32;
/// How often a map is read again because somebody is changing it, and the pause in between.
const MAPS: usize = 100;
const PAUSE: Duration = Duration::from_millis(10);
/// How many reservations of one place one sweep gives back.
const SWEPT: u32 = 500;

macro_rules! scripts {
    ($($name:ident),*) => {
        $(
            #[allow(non_upper_case_globals, reason = "named as the file")]
            static $name: LazyLock<Script> =
                LazyLock::new(|| Script::new(include_str!(concat!("redis/scripts/", stringify!($name), ".lua"))));
        )*
    };
}

scripts!(take, look, settle, sweep, debit, credit, clear, forget, raise, remap, deliver);

/// Stock on Redis, over a connection of the crate `redis`: a `MultiplexedConnection`, or a `ClusterConnection`, where the
/// segments lie on different masters.
///
/// An id has one home segment. Units and the reservation are in one slot there, so that one script takes them. Where the
/// home has too little, units are brought from other segments: out of one with a note, into the other once for each
/// note. Who dies in between leaves a note, and the next `sweep`, `resize` or `count` finishes what it says.
///
/// `count` reads one segment after the other: while others take, its parts are of different moments.
///
/// # Guarantees
/// As those of [`Stock`](crate::Stock), for as long as Redis forgets nothing that it acknowledged. **A failover can lose the
/// last takes and sell their units again.** Let Redis be the gate and a database the book there, or wait for replicas.
pub struct Redis<C> {
    conn: C,
    maps: HashMap<String, Map>,
    /// The count of moves at which all places were empty.
    empty: HashMap<String, u64>,
}

impl<C> std::fmt::Debug for Redis<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis").field("maps", &self.maps).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Map {
    generation: u64,
    segments: u32,
    /// How many segments there were at other times: ids may have their home by those.
    past: Vec<u32>,
}

impl Map {
    /// All places that may have units.
    fn places(&self) -> impl Iterator<Item = Place> {
        let most = self.past.iter().copied().max().unwrap_or(0).max(self.segments);
        std::iter::once(Place::Room).chain((0..most).map(Place::Segment))
    }

    /// Where this id is at home, now and at other times.
    fn homes(&self, id: &str) -> impl Iterator<Item = Place> {
        let hash = hash(id);
        let home = move |segments: &u32| u32::try_from(hash % u64::from((*segments).max(1))).unwrap_or(0);
        std::iter::once(&self.segments).chain(&self.past).map(home).map(Place::Segment)
    }
}

/// FNV-1a: the same in every version of every program, which a hash of the standard library is not.
fn hash(id: &str) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    // Its low bits alone are not even.
    hash ^ (hash >> 32)
}

impl<C: ConnectionLike + Send + 'static> Redis<C> {
    /// Over this connection.
    #[must_use]
    pub fn new(conn: C) -> Self {
        Self { conn, maps: HashMap::new(), empty: HashMap::new() }
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

    /// The map as it is now.
    async fn read(&mut self, sku: &str) -> Result<Map, Error> {
        let [key, _] = keys::map(sku);
        let mut command = redis::cmd("HMGET");
        command.arg(key).arg(&["generation", "segments", "past"]);
        let read: (Option<u64>, Option<u32>, Option<String>) =
            command.query_async(&mut self.conn).await.map_err(Error::store)?;
        let (Some(generation), Some(segments), past) = read else { return Err(Error::NoSuchItem(sku.to_owned())) };
        let past = past.unwrap_or_default().split_whitespace().filter_map(|count| count.parse().ok()).collect();
        let map = Map { generation, segments, past };
        self.maps.insert(sku.to_owned(), map.clone());
        Ok(map)
    }

    async fn moves(&mut self, sku: &str) -> Result<u64, Error> {
        let [key, _] = keys::map(sku);
        let moves: Option<u64> =
            redis::cmd("HGET").arg(key).arg("moves").query_async(&mut self.conn).await.map_err(Error::store)?;
        Ok(moves.unwrap_or(0))
    }

    /// Units were or will be somewhere else: whoever looked before must look again.
    async fn moving(&mut self, sku: &str) -> Result<(), Error> {
        let [key, _] = keys::map(sku);
        redis::cmd("HINCRBY").arg(key).arg("moves").arg(1).exec_async(&mut self.conn).await.map_err(Error::store)
    }

    /// Brings up to so many units from one place to another, and says how many.
    async fn bring(&mut self, sku: &str, from: Place, to: Place, most: u64) -> Result<u64, Error> {
        let transfer = format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
        self.moving(sku).await?;
        let sent: u64 = self.run(&debit, &from.keys(sku), &[&transfer, &to, &most]).await?;
        if sent > 0 {
            self.arrive(sku, from, to, &transfer, sent).await?;
        }
        Ok(sent)
    }

    /// The second half of a transfer, by whoever began it or found its note.
    async fn arrive(&mut self, sku: &str, from: Place, to: Place, transfer: &str, units: u64) -> Result<(), Error> {
        self.run::<u64>(&credit, &to.keys(sku), &[&transfer, &units]).await?;
        self.moving(sku).await?;
        self.run::<u64>(&clear, &from.keys(sku), &[&transfer]).await?;
        self.run::<u64>(&forget, &to.keys(sku), &[&transfer]).await?;
        Ok(())
    }

    /// Finishes what others began and did not end.
    async fn mend(&mut self, sku: &str, map: &Map) -> Result<(), Error> {
        for from in map.places() {
            let [_, _, _, under_way, _] = from.keys(sku);
            let notes: HashMap<String, String> =
                redis::cmd("HGETALL").arg(under_way).query_async(&mut self.conn).await.map_err(Error::store)?;
            for (transfer, note) in notes {
                let (units, to) = note.split_once(' ').ok_or_else(|| Error::answer(&note))?;
                let to = Place::read(to).ok_or_else(|| Error::answer(&note))?;
                let units = units.parse().map_err(Error::store)?;
                self.arrive(sku, from, to, &transfer, units).await?;
            }
        }
        Ok(())
    }

    async fn units(&mut self, sku: &str, place: Place) -> Result<[u64; 3], Error> {
        let [key, ..] = place.keys(sku);
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

    /// What there is, place by place. While nothing comes in anywhere, no unit is overlooked: one that is on its way
    /// counts where it left, until it has arrived.
    async fn look_around(&mut self, sku: &str, map: &Map) -> Result<Vec<Seen>, Error> {
        let mut seen = Vec::new();
        for place in map.places() {
            let (units, under_way) = self.run(&look, &place.keys(sku), &[]).await?;
            seen.push(Seen { place, units, under_way });
        }
        Ok(seen)
    }

    /// Brings home what an order lacks there, from where it was seen.
    async fn gather(&mut self, order: &Order, map: &Map, home: Place, seen: &[Seen]) -> Result<(), Error> {
        let at_home = seen.iter().find(|seen| seen.place == home).map_or(0, |seen| seen.units);
        let mut missing = order.quantity.saturating_sub(at_home);
        // From a place of its own on, so that takers do not all go to the same one.
        let start = fastrand::usize(..seen.len().max(1));
        for from in seen[start..].iter().chain(&seen[..start]) {
            if missing > 0 && from.units > 0 && from.place != home {
                missing -= self.bring(&order.sku, from.place, home, missing).await?;
            }
        }
        if missing > 0 {
            // Some of it is on its way, and whoever sent it may be gone.
            self.mend(&order.sku, map).await?;
        }
        Ok(())
    }

    /// Takes at the home of the id, by a map that holds.
    async fn take_at_home(&mut self, order: &Order) -> Result<(Map, AtHome), Error> {
        let mut map = match self.maps.get(&order.sku) {
            Some(map) => map.clone(),
            None => self.read(&order.sku).await?,
        };
        for attempt in 0..MAPS {
            if let Some(known) = self.known_elsewhere(order, &map).await? {
                return Ok((map, AtHome::Done(Step::Known(known))));
            }
            let home = map.homes(&order.id).next().unwrap_or(Place::Room);
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

    /// The map after the one that no longer holds.
    async fn moved(&mut self, sku: &str, old: &Map, attempt: usize) -> Result<Map, Error> {
        let map = self.read(sku).await?;
        if map.generation != old.generation {
            return Ok(map);
        }
        // Whoever changes it has told the segments and not yet the map. If he is gone, somebody must finish it.
        if attempt + 1 < MAPS / 2 {
            tokio::time::sleep(PAUSE).await;
        } else {
            let [key, _] = keys::map(sku);
            self.run::<u64>(&remap, &[key], &[&map.generation, &map.segments]).await?;
        }
        self.read(sku).await
    }
}

/// What came of a take at home.
enum AtHome {
    Done(Step),
    Short { home: Place },
}

/// A place as it was seen.
struct Seen {
    place: Place,
    units: u64,
    /// What has left it, and may have arrived or not.
    under_way: u64,
}

impl<C: ConnectionLike + Send + 'static> Shelf for Redis<C> {
    async fn init(&mut self) -> Result<(), Error> {
        Ok(())
    }

    async fn create(&mut self, sku: &str, segments: u32) -> Result<(), Error> {
        for segment in 0..segments {
            self.run::<u64>(&raise, &Place::Segment(segment).keys(sku), &[&1_u64]).await?;
        }
        let [key, _] = keys::map(sku);
        self.run::<u64>(&remap, &[key], &[&0_u64, &segments]).await.map(drop)
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
            let moves = self.moves(&order.sku).await?;
            if self.empty.get(&order.sku) == Some(&moves) {
                return Ok(Step::Short { left: 0 });
            }
            let seen = self.look_around(&order.sku, &map).await?;
            let left = seen.iter().map(|place| place.units + place.under_way).sum();
            // Only where there is enough: an order that cannot be served must not take units away from those that can.
            if left >= order.quantity {
                self.gather(order, &map, home, &seen).await?;
            } else if self.moves(&order.sku).await? == moves {
                // Nothing came in meanwhile, so in the end there was no more than what it saw.
                if left == 0 {
                    self.empty.insert(order.sku.clone(), moves);
                }
                return Ok(Step::Short { left });
            }
        }
        Err(Error::Store("units kept moving between segments: ask again".into()))
    }

    async fn settle(&mut self, sku: &str, id: &str, end: State) -> Result<Option<Reservation>, Error> {
        let map = self.read(sku).await?;
        let letter = if end == State::Sold { "s" } else { "r" };
        if end == State::Returned {
            self.moving(sku).await?;
        }
        for home in map.homes(id).collect::<Vec<_>>() {
            let known: Option<String> = self.run(&settle, &home.keys(sku), &[&id, &letter]).await?;
            if let Some(known) = known {
                if end == State::Returned {
                    self.moving(sku).await?;
                }
                return reservation(sku, id, &known).map(Some);
            }
        }
        Ok(None)
    }

    async fn sweep(&mut self, sku: &str) -> Result<u64, Error> {
        let map = self.read(sku).await?;
        self.mend(sku, &map).await?;
        self.moving(sku).await?;
        let mut back = 0;
        for place in map.places().collect::<Vec<_>>() {
            back += self.run::<u64>(&sweep, &place.keys(sku), &[&SWEPT]).await?;
        }
        if back > 0 {
            self.moving(sku).await?;
        }
        Ok(back)
    }

    async fn restock(&mut self, sku: &str, delivery: &str, quantity: u64) -> Result<(), Error> {
        let mut keys = Place::Room.keys(sku).to_vec();
        keys.extend(keys::map(sku));
        let brought: Option<u64> = self.run(&deliver, &keys, &[&delivery, &quantity]).await?;
        match brought {
            None => return Err(Error::NoSuchItem(sku.to_owned())),
            Some(brought) if brought != quantity => return Err(Error::Reused { id: delivery.to_owned() }),
            Some(_) => {}
        }
        let map = self.read(sku).await?;
        let [in_room, ..] = self.units(sku, Place::Room).await?;
        for (segment, units) in evenly(in_room, map.segments) {
            if units > 0 {
                self.bring(sku, Place::Room, Place::Segment(segment), units).await?;
            }
        }
        Ok(())
    }

    async fn spread(&mut self, sku: &str, segments: Option<u32>) -> Result<(), Error> {
        for _ in 0..MAPS {
            let before = self.read(sku).await?;
            let segments = segments.unwrap_or(before.segments);
            // The segments first: an order by the old map that is still on its way must not find them open.
            let after = Map { segments: segments.max(before.segments), ..before.clone() };
            for place in after.places().collect::<Vec<_>>() {
                self.run::<u64>(&raise, &place.keys(sku), &[&(before.generation + 1)]).await?;
            }
            let [key, _] = keys::map(sku);
            if self.run::<u64>(&remap, &[key], &[&before.generation, &segments]).await? == 1 {
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
        // The map last: whoever is stopped half-way can still find the rest.
        for place in map.places() {
            redis::cmd("DEL").arg(&place.keys(sku)).exec_async(&mut self.conn).await.map_err(Error::store)?;
        }
        self.maps.remove(sku);
        self.empty.remove(sku);
        redis::cmd("DEL").arg(&keys::map(sku)).exec_async(&mut self.conn).await.map_err(Error::store)
    }

    async fn count(&mut self, sku: &str) -> Result<Count, Error> {
        let map = self.read(sku).await?;
        self.mend(sku, &map).await?;
        let [key, _] = keys::map(sku);
        let delivered: Option<u64> =
            redis::cmd("HGET").arg(key).arg("delivered").query_async(&mut self.conn).await.map_err(Error::store)?;
        let mut count = Count { delivered: delivered.unwrap_or(0), ..Count::default() };
        for place in map.places().collect::<Vec<_>>() {
            let [available, held, sold] = self.units(sku, place).await?;
            (count.available, count.held, count.sold) =
                (count.available + available, count.held + held, count.sold + sold);
            if matches!(place, Place::Segment(segment) if segment < map.segments) {
                count.segments.push(available);
            }
        }
        Ok(count)
    }
}

impl<C: ConnectionLike + Send + 'static> Redis<C> {
    /// Brings units from where there are more than the share of a segment to where there are fewer. Others may take
    /// meanwhile: it is only about as even as it can be.
    async fn level(&mut self, sku: &str) -> Result<(), Error> {
        let map = self.read(sku).await?;
        self.mend(sku, &map).await?;
        let mut has = Vec::new();
        for place in map.places().collect::<Vec<_>>() {
            has.push((place, self.units(sku, place).await?[0]));
        }
        let total = has.iter().map(|(_, units)| units).sum();
        let share: HashMap<u32, u64> = evenly(total, map.segments).collect();
        let share = |place: Place| match place {
            Place::Segment(segment) => share.get(&segment).copied().unwrap_or(0),
            Place::Room => 0,
        };
        let mut fewer: Vec<_> =
            has.iter().map(|(place, units)| (*place, share(*place).saturating_sub(*units))).collect();
        for (from, units) in has {
            let mut more = units.saturating_sub(share(from));
            for (to, missing) in &mut fewer {
                let part = more.min(*missing);
                if part > 0 {
                    let brought = self.bring(sku, from, *to, part).await?;
                    (more, *missing) = (more - part, *missing - brought);
                }
            }
        }
        Ok(())
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
