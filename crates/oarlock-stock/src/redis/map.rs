//! The map of an item: how many segments it has, and where an id is at home.

use std::time::Duration;

use redis::aio::ConnectionLike;

use super::keys::{self, Location};
use super::{Redis, raise, remap};
use crate::Error;
use crate::stock::MOST_SEGMENTS;

/// How often a map is read again because another client is changing it, and the pause in between.
pub(super) const MAPS: usize = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// Which segments there are. Its generation changes with it, and when an item is made anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Map {
    pub(super) generation: u64,
    pub(super) segments: u32,
    /// How many segments there were at other times: ids may have their home by those.
    pub(super) past: Vec<u32>,
}

impl Map {
    /// The one after it, with so many segments.
    pub(super) fn next(&self, segments: u32) -> Self {
        Self { generation: self.generation + 1, segments, past: self.past.clone() }
    }

    /// All locations that may have units.
    pub(super) fn locations(&self) -> impl Iterator<Item = Location> {
        let most = self.past.iter().copied().max().unwrap_or(0).max(self.segments);
        std::iter::once(Location::Room).chain((0..most).map(Location::Segment))
    }

    /// Where this id is at home, now and at other times.
    pub(super) fn homes(&self, id: &str) -> impl Iterator<Item = Location> {
        let hash = hash(id);
        let home = move |segments: &u32| u32::try_from(hash % u64::from((*segments).max(1))).unwrap_or(0);
        std::iter::once(&self.segments).chain(&self.past).map(home).map(Location::Segment)
    }
}

/// FNV-1a: the same in every version of every program, which a hash of the standard library is not.
fn hash(id: &str) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    // Its low bits alone are not even.
    hash ^ (hash >> 32)
}

/// How many pauses a client that changes the map may take, before others finish it.
pub(super) fn patience(map: &Map) -> usize {
    MAPS / 2 + map.locations().count()
}

impl<C: ConnectionLike + Send + 'static> Redis<C> {
    /// The map as it is now.
    pub(super) async fn read(&mut self, sku: &str) -> Result<Map, Error> {
        let [key, ..] = keys::map(sku);
        let mut command = redis::cmd("HMGET");
        command.arg(key).arg(&["generation", "segments", "past"]);
        let read: (Option<u64>, Option<u32>, Option<String>) =
            command.query_async(&mut self.conn).await.map_err(Error::store)?;
        let (Some(generation), Some(segments), past) = read else { return Err(Error::NoSuchItem(sku.to_owned())) };
        let past: Vec<u32> =
            past.unwrap_or_default().split_whitespace().filter_map(|count| count.parse().ok()).collect();
        // All of them are gone through: more than there can be were written by another program.
        if let Some(most) = past.iter().chain([&segments]).find(|count| **count > MOST_SEGMENTS) {
            return Err(Error::answer(&format!("{most} segments")));
        }
        let map = Map { generation, segments, past };
        self.maps.insert(sku.to_owned(), map.clone());
        Ok(map)
    }

    /// The map after the one that no longer holds.
    pub(super) async fn moved(&mut self, sku: &str, old: &Map, attempt: usize) -> Result<Map, Error> {
        let map = self.read(sku).await?;
        if map.generation != old.generation {
            return Ok(map);
        }
        // The client that changes it has told the segments, or some, and not yet the map. If it is gone, another must
        // finish.
        if attempt + 1 < patience(&map) {
            tokio::time::sleep(PAUSE).await;
        } else {
            self.remap(sku, Some(&map), map.next(map.segments)).await?;
        }
        self.read(sku).await
    }

    /// Changes the map from `before` to `after`, if it is still that one. The locations first: an order by the old map
    /// that is still on its way must not find them open.
    pub(super) async fn remap(&mut self, sku: &str, before: Option<&Map>, after: Map) -> Result<bool, Error> {
        let all = Map { segments: before.map_or(0, |map| map.segments).max(after.segments), ..after };
        let locations: Vec<_> = all.locations().collect();
        let (old, mut next) = (before.map_or(0, |map| map.generation), after.generation);
        // Some may be ahead, where another began this and did not end it: all must have the same.
        for _ in 0..MAPS {
            let mut most = next;
            for location in &locations {
                most = most.max(self.run(&raise, &location.keys(sku), &[&next]).await?);
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
