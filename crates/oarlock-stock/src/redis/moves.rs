//! Units that move from location to location, and how that is seen.

use std::collections::HashMap;

use redis::aio::ConnectionLike;

use super::keys::{self, Location};
use super::map::Map;
use super::{Redis, clear, close, credit, debit, forget, open, peek};
use crate::even::evenly;
use crate::{Error, Order};

/// A location as it was seen.
pub(super) struct Seen {
    pub(super) location: Location,
    pub(super) units: u64,
    /// What has left it, and may have arrived or not.
    pub(super) under_way: u64,
    /// How often something has come in.
    pub(super) came: u64,
}

/// What can be told from the map alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MapState {
    pub(super) generation: u64,
    /// Counts whatever brings units in, before and after.
    pub(super) moves: u64,
    /// How many of those have begun and not ended.
    pub(super) coming: u64,
}

/// An id that no other client has.
pub(super) fn anything() -> String {
    format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..))
}

impl<C: ConnectionLike + Send + 'static> Redis<C> {
    pub(super) async fn map_state(&mut self, sku: &str) -> Result<MapState, Error> {
        let [key, ..] = keys::map(sku);
        let mut command = redis::cmd("HMGET");
        command.arg(key).arg(&["generation", "moves", "coming"]);
        let [generation, moves, coming]: [Option<u64>; 3] =
            command.query_async(&mut self.conn).await.map_err(Error::store)?;
        let generation = generation.ok_or_else(|| Error::NoSuchItem(sku.to_owned()))?;
        Ok(MapState { generation, moves: moves.unwrap_or(0), coming: coming.unwrap_or(0) })
    }

    /// Says that units are about to come in somewhere.
    pub(super) async fn open(&mut self, sku: &str, what: &str) -> Result<(), Error> {
        let [map, _, coming] = keys::map(sku);
        self.run::<u64>(&open, &[map, coming], &[&what]).await.map(drop)
    }

    /// Says that they have come in, or will not.
    pub(super) async fn close(&mut self, sku: &str, what: &str) -> Result<(), Error> {
        let [map, _, coming] = keys::map(sku);
        self.run::<u64>(&close, &[map, coming], &[&what]).await.map(drop)
    }

    /// Brings up to so many units from one location to another, and says how many.
    pub(super) async fn bring(&mut self, sku: &str, from: Location, to: Location, most: u64) -> Result<u64, Error> {
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

    /// The second half of a transfer, by the client that began it or found its note.
    pub(super) async fn arrive(
        &mut self,
        sku: &str,
        from: Location,
        to: Location,
        transfer: &str,
        units: u64,
    ) -> Result<(), Error> {
        self.run::<u64>(&credit, &to.keys(sku), &[&transfer, &units]).await?;
        self.close(sku, transfer).await?;
        self.run::<u64>(&clear, &from.keys(sku), &[&transfer]).await?;
        self.run::<u64>(&forget, &to.keys(sku), &[&transfer]).await?;
        Ok(())
    }

    /// Finishes what others began and did not end.
    pub(super) async fn mend(&mut self, sku: &str, map: &Map) -> Result<(), Error> {
        for from in map.locations() {
            let [_, _, _, under_way, _] = from.keys(sku);
            let notes: HashMap<String, String> =
                redis::cmd("HGETALL").arg(under_way).query_async(&mut self.conn).await.map_err(Error::store)?;
            for (transfer, note) in notes {
                let (units, to) = note.split_once(' ').ok_or_else(|| Error::answer(&note))?;
                let to = Location::read(to).ok_or_else(|| Error::answer(&note))?;
                let units = units.parse().map_err(Error::store)?;
                self.open(sku, &transfer).await?;
                self.arrive(sku, from, to, &transfer, units).await?;
            }
        }
        Ok(())
    }

    /// What there is, location by location. While nothing comes in anywhere, no unit is overlooked: one that is on its way
    /// counts where it left, until it has arrived.
    pub(super) async fn look_around(&mut self, sku: &str, map: &Map) -> Result<Vec<Seen>, Error> {
        let mut seen = Vec::new();
        for location in map.locations() {
            let (units, under_way, came) = self.run(&peek, &location.keys(sku), &[]).await?;
            seen.push(Seen { location, units, under_way, came });
        }
        Ok(seen)
    }

    /// Brings home what an order lacks there, from where it was seen.
    pub(super) async fn gather(
        &mut self,
        order: &Order,
        map: &Map,
        home: Location,
        seen: &[Seen],
    ) -> Result<(), Error> {
        let at_home = seen.iter().find(|seen| seen.location == home).map_or(0, |seen| seen.units);
        let mut missing = order.quantity.saturating_sub(at_home);
        // From a location of its own on, so that takers do not all go to the same one.
        let start = fastrand::usize(..seen.len().max(1));
        for from in seen[start..].iter().chain(&seen[..start]) {
            if missing > 0 && from.units > 0 && from.location != home {
                missing -= self.bring(&order.sku, from.location, home, missing).await?;
            }
        }
        if missing > 0 {
            // Some of it is on its way, and the client that sent it may be gone.
            self.mend(&order.sku, map).await?;
        }
        Ok(())
    }

    /// Brings units from where there are more than the share of a segment to where there are fewer. Others may take
    /// meanwhile: it is only about as even as it can be.
    pub(super) async fn level(&mut self, sku: &str) -> Result<(), Error> {
        let map = self.read(sku).await?;
        self.mend(sku, &map).await?;
        let mut has = Vec::new();
        for location in map.locations().collect::<Vec<_>>() {
            has.push((location, self.units(sku, location).await?[0]));
        }
        let total = has.iter().map(|(_, units)| units).sum();
        let share: HashMap<u32, u64> = evenly(total, map.segments).collect();
        let share = |location: Location| match location {
            Location::Segment(segment) => share.get(&segment).copied().unwrap_or(0),
            Location::Room => 0,
        };
        let mut fewer: Vec<_> =
            has.iter().map(|(location, units)| (*location, share(*location).saturating_sub(*units))).collect();
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
