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

scripts!(take, look, settle, sweep, debit, credit, clear, forget, open, close, stale, clock, raise, remap, deliver);

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
    /// The standing at which all places were empty.
    empty: HashMap<String, Standing>,
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
    /// The one after it, with so many segments.
    fn next(&self, segments: u32) -> Self {
        Self { generation: self.generation + 1, segments, past: self.past.clone() }
    }

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
        let [key, ..] = keys::map(sku);
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

    async fn standing(&mut self, sku: &str) -> Result<Standing, Error> {
        let [key, ..] = keys::map(sku);
        let mut command = redis::cmd("HMGET");
        command.arg(key).arg(&["generation", "moves", "coming"]);
        let [generation, moves, coming]: [Option<u64>; 3] =
            command.query_async(&mut self.conn).await.map_err(Error::store)?;
        let generation = generation.ok_or_else(|| Error::NoSuchItem(sku.to_owned()))?;
        Ok(Standing { generation, moves: moves.unwrap_or(0), coming: coming.unwrap_or(0) })
    }

    /// Says that units are about to come in somewhere.
    async fn open(&mut self, sku: &str, what: &str) -> Result<(), Error> {
        let [map, _, coming] = keys::map(sku);
        self.run::<u64>(&open, &[map, coming], &[&what]).await.map(drop)
    }

    /// Says that they have come in, or will not.
    async fn close(&mut self, sku: &str, what: &str) -> Result<(), Error> {
        let [map, _, coming] = keys::map(sku);
        self.run::<u64>(&close, &[map, coming], &[&what]).await.map(drop)
    }

    /// Brings up to so many units from one place to another, and says how many.
    async fn bring(&mut self, sku: &str, from: Place, to: Place, most: u64) -> Result<u64, Error> {
        let transfer = anything();
        self.open(sku, &transfer).await?;
        let sent: u64 = self.run(&debit, &from.keys(sku), &[&transfer, &to, &most]).await?;
        if sent > 0 {
            self.arrive(sku, from, to, &transfer, sent).await?;
        } else {
            self.close(sku, &transfer).await?;
        }
        Ok(sent)
    }

    /// The second half of a transfer, by whoever began it or found its note.
    async fn arrive(&mut self, sku: &str, from: Place, to: Place, transfer: &str, units: u64) -> Result<(), Error> {
        self.run::<u64>(&credit, &to.keys(sku), &[&transfer, &units]).await?;
        self.close(sku, transfer).await?;
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
                self.open(sku, &transfer).await?;
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
            let (units, under_way, came) = self.run(&look, &place.keys(sku), &[]).await?;
            seen.push(Seen { place, units, under_way, came });
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
        for attempt in 0..2 * patience(&map) {
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
        // Whoever changes it has told the segments, or some, and not yet the map. If he is gone, somebody must finish it.
        if attempt + 1 < patience(&map) {
            tokio::time::sleep(PAUSE).await;
        } else {
            self.remap(sku, Some(&map), map.next(map.segments)).await?;
        }
        self.read(sku).await
    }

    /// Changes the map from `before` to `after`, if it is still that one. The places first: an order by the old map that is
    /// still on its way must not find them open.
    async fn remap(&mut self, sku: &str, before: Option<&Map>, after: Map) -> Result<bool, Error> {
        let all = Map { segments: before.map_or(0, |map| map.segments).max(after.segments), ..after };
        let places: Vec<_> = all.places().collect();
        let (old, mut next) = (before.map_or(0, |map| map.generation), after.generation);
        // Some may be ahead, where another began this and did not end it: all must have the same.
        for _ in 0..MAPS {
            let mut most = next;
            for place in &places {
                most = most.max(self.run(&raise, &place.keys(sku), &[&next]).await?);
            }
            if most == next {
                let [key, ..] = keys::map(sku);
                return Ok(self.run::<u64>(&remap, &[key], &[&old, &after.segments, &next]).await? == 1);
            }
            next = most;
        }
        Ok(false)
    }
}

/// How many pauses whoever changes the map may take, before others finish it.
fn patience(map: &Map) -> usize {
    MAPS / 2 + map.places().count()
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
    /// How often something has come in.
    came: u64,
}

/// What can be told from the map alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Standing {
    generation: u64,
    /// Counts whatever brings units in, before and after.
    moves: u64,
    /// How many of those have begun and not ended.
    coming: u64,
}

/// An id that nobody else has.
fn anything() -> String {
    format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..))
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
            // Another has made it meanwhile, and its places may be ahead of its map.
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
            let before = self.standing(&order.sku).await?;
            if self.empty.get(&order.sku) == Some(&before) {
                return Ok(Step::Short { left: 0 });
            }
            let seen = self.look_around(&order.sku, &map).await?;
            let left = seen.iter().map(|place| place.units + place.under_way).sum();
            // Only where there is enough: an order that cannot be served must not take units away from those that can.
            if left >= order.quantity {
                self.gather(order, &map, home, &seen).await?;
                continue;
            }
            // Where something is coming in all the time, a second look tells whether anything came since the first.
            let came = |seen: &[Seen]| seen.iter().map(|place| place.came).collect::<Vec<_>>();
            let nothing_came = before.coming > 0 && came(&self.look_around(&order.sku, &map).await?) == came(&seen);
            let after = self.standing(&order.sku).await?;
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
        let coming = anything();
        if end == State::Returned {
            self.open(sku, &coming).await?;
        }
        let mut settled = None;
        for home in map.homes(id).collect::<Vec<_>>() {
            settled = self.run::<Option<String>>(&settle, &home.keys(sku), &[&id, &letter]).await?;
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
        let coming = anything();
        self.open(sku, &coming).await?;
        let mut back = 0;
        for place in map.places().collect::<Vec<_>>() {
            back += self.run::<u64>(&sweep, &place.keys(sku), &[&SWEPT]).await?;
        }
        self.close(sku, &coming).await?;
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
        let [key, ..] = keys::map(sku);
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
