//! Some units of many.

use std::num::NonZeroU32;

use super::multi::Part;
use super::tunable;
use crate::claim::{Capacity, Kind, Limit, Weight};
use crate::engine::Ask;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;

/// A lock of a number of units, of which each holder takes some.
///
/// All clients of a live name must state the same number; another is a
/// [`SpecMismatch`](crate::ErrorKind::SpecMismatch), unless it [uses the stored one](Self::use_stored_permits). Where the
/// store keeps a queue, claims are granted in order of arrival: a heavy claim at the head holds back lighter ones behind it.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// let locks = Locks::over(Memory::new())?;
/// let encoders = locks.semaphore("encoders", 3);
/// let two = encoders.acquire(2).await?;
/// assert!(encoders.try_acquire(2).await?.is_none());
/// assert!(encoders.try_acquire(1).await?.is_some());
/// two.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    ask: Ask,
}

tunable!(Semaphore);

#[oarlock_macros::blocking]
impl Semaphore {
    pub(crate) fn new(mut ask: Ask, permits: u32) -> Self {
        ask.claim.kind = Kind::Semaphore;
        match units(permits) {
            Ok(units) => ask.claim.capacity = Capacity::Fixed(Limit::Units(units)),
            Err(error) => ask = ask.refuse(error),
        }
        Self { ask }
    }

    /// Insists on the order of arrival: a store without a queue refuses ([`ErrorKind::Unsupported`]). Where the store keeps a queue,
    /// every claim on permits stands in it anyway.
    #[must_use]
    pub fn fair(mut self) -> Self {
        self.ask.fair = true;
        self
    }

    /// Uses the stored number of permits where it differs: for changing it without stopping the fleet.
    #[must_use]
    pub fn use_stored_permits(mut self) -> Self {
        if let Capacity::Fixed(limit) = self.ask.claim.capacity {
            self.ask.claim.capacity = Capacity::Adopt(limit);
        }
        self
    }

    fn taking(&self, permits: u32) -> Ask {
        let mut ask = self.ask.clone();
        match units(permits) {
            Ok(units) => ask.claim.weight = Weight::Units(units),
            Err(error) => ask = ask.refuse(error),
        }
        ask
    }

    /// These `permits` as one of several locks that are taken together: a part of a [`Multi`](super::multi::Multi).
    #[must_use]
    pub fn permits(&self, permits: u32) -> Part {
        Part(self.taking(permits))
    }

    /// Takes `permits` if they are free and no claim waits before this one; `None` if not.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is held or left behind.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidClaim`] for no permits, [`ErrorKind::TooHeavy`] for more than there are; [`ErrorKind::SpecMismatch`]; what the store says.
    pub async fn try_acquire(&self, permits: u32) -> Result<Option<Guard>> {
        self.taking(permits).attempt().await
    }

    /// Takes `permits`, waiting as long as was asked for.
    ///
    /// # Cancel safety
    /// If the future is dropped you lose your place in the queue; nothing is held or left behind.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire), and as [`Mutex::lock`](super::mutex::Mutex::lock).
    pub async fn acquire(&self, permits: u32) -> Result<Guard> {
        self.taking(permits).lock().await
    }
}

fn units(permits: u32) -> Result<NonZeroU32> {
    NonZeroU32::new(permits).ok_or_else(|| Error::new(ErrorKind::InvalidClaim, "a semaphore needs at least one permit"))
}
