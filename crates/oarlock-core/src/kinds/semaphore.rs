//! The semaphore: a number of permits.

use std::num::NonZeroU32;

use super::multi::Part;
use super::{no_renewal, options};
use crate::claim::{Capacity, Kind, Limit, Weight};
use crate::engine::Request;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;

/// A lock with a number of permits, of which each holder takes some.
///
/// All clients of a live name must state the same number; another is a
/// [`SpecMismatch`](crate::ErrorKind::SpecMismatch), unless it [uses the stored one](Self::use_stored_permits). Where
/// the store keeps a queue, claims are granted in order of arrival: a heavy claim at the head holds back lighter ones
/// behind it.
///
/// # Guarantees
/// The guards that are believed in never have more permits together than there are. Otherwise those of a
/// [`Mutex`](crate::Mutex).
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let encoders = locks.semaphore("encoders", 3);
/// let two = encoders.acquire(2).await?;
/// assert!(encoders.try_acquire(2).await?.is_none());
/// assert!(encoders.try_acquire(1).await?.is_some());
/// two.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is taken before acquire() or try_acquire()"]
pub struct Semaphore {
    request: Request,
}

options!(Semaphore);
no_renewal!(Semaphore);

#[oarlock_macros::blocking]
impl Semaphore {
    pub(crate) fn new(mut request: Request, permits: u32) -> Self {
        request.claim.kind = Kind::Semaphore;
        match units(permits, &request) {
            Ok(units) => request.claim.capacity = Capacity::Fixed(Limit::Units(units)),
            Err(error) => request = request.refuse(error),
        }
        Self { request }
    }

    /// Uses the stored number of permits where it differs: for changing it without stopping the fleet.
    pub fn use_stored_permits(mut self) -> Self {
        if let Capacity::Fixed(limit) = self.request.claim.capacity {
            self.request.claim.capacity = Capacity::Stored(limit);
        }
        self
    }

    fn taking(&self, permits: u32) -> Request {
        let mut request = self.request.clone();
        match units(permits, &request) {
            Ok(units) => request.claim.weight = Weight::Units(units),
            Err(error) => request = request.refuse(error),
        }
        request
    }

    /// These `permits` as one of several locks that are taken together: a part of a [`Multi`](super::multi::Multi).
    pub fn permits(&self, permits: u32) -> Part {
        Part(self.taking(permits))
    }

    /// Takes `permits` if they are free and no claim waits before this one; `None` if not.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is held or left behind.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidClaim`] for no permits, [`ErrorKind::TooHeavy`] for more than there are;
    /// [`ErrorKind::SpecMismatch`]; any error
    /// that the store returns.
    pub async fn try_acquire(&self, permits: u32) -> Result<Option<Guard>> {
        self.taking(permits).attempt().await
    }

    /// Takes `permits`; waits for at most [`wait`](Self::wait).
    ///
    /// # Cancel safety
    /// If the future is dropped the claim leaves the queue; nothing is held or left behind.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire), and as [`Mutex::lock`](super::mutex::Mutex::lock).
    pub async fn acquire(&self, permits: u32) -> Result<Guard> {
        self.taking(permits).lock().await
    }
}

fn units(permits: u32, request: &Request) -> Result<NonZeroU32> {
    let none = || Error::new(ErrorKind::InvalidClaim, "the number of permits must be at least 1");
    NonZeroU32::new(permits).ok_or_else(|| none().about(&request.claim.resource))
}
