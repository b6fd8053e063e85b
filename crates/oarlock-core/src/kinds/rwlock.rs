//! Many readers or one writer.

use std::ops::Deref;

use super::multi::Part;
use super::reentrant::ReentrantRwLock;
use super::tunable;
use crate::claim::{Capacity, Kind, Limit, Weight};
use crate::driver::Released;
use crate::engine::Ask;
use crate::error::Result;
use crate::guard::Guard;
use crate::owner::Owner;

/// A lock that many can read-hold or one can write-hold.
///
/// Where the store keeps a queue, a waiting writer holds back the readers that come after it, so neither side starves. Where it
/// does not ([`Capabilities::order`](crate::Capabilities::order)), writers can starve under constant readers.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// let locks = Locks::over(Memory::new())?;
/// let config = locks.rwlock("config");
/// let (one, two) = (config.read().await?, config.read().await?);
/// drop((one, two));
/// let writer = config.write().await?;
/// let reader = writer.downgrade().await?;
/// reader.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    ask: Ask,
}

tunable!(RwLock);

#[oarlock_macros::blocking]
impl RwLock {
    pub(crate) fn new(mut ask: Ask) -> Self {
        ask.claim.capacity = Capacity::Fixed(Limit::Unlimited);
        Self { ask }
    }

    pub(super) fn reader(&self) -> Ask {
        let mut ask = self.ask.clone();
        ask.claim.kind = Kind::Read;
        ask.claim.weight = Weight::ONE;
        ask
    }

    pub(super) fn writer(&self) -> Ask {
        let mut ask = self.ask.clone();
        ask.claim.kind = Kind::Write;
        ask.claim.weight = Weight::All;
        ask
    }

    /// A lock that `owner` can enter again while it holds it.
    #[must_use]
    pub fn reentrant(self, owner: &Owner) -> ReentrantRwLock {
        ReentrantRwLock::new(self.owner(owner), owner)
    }

    /// The reader's lock as one of several that are taken together: a part of a [`Multi`](super::multi::Multi).
    #[must_use]
    pub fn for_reading(&self) -> Part {
        Part(self.reader())
    }

    /// The writer's lock as one of several that are taken together: a part of a [`Multi`](super::multi::Multi).
    #[must_use]
    pub fn for_writing(&self) -> Part {
        Part(self.writer())
    }

    /// Read-holds if that is possible now; `None` if a writer holds or waits.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is held or left behind.
    ///
    /// # Errors
    /// What the store says.
    pub async fn try_read(&self) -> Result<Option<Guard>> {
        self.reader().attempt().await
    }

    /// Read-holds, waiting as long as was asked for.
    ///
    /// # Cancel safety
    /// If the future is dropped you lose your place in the queue; nothing is held or left behind.
    ///
    /// # Errors
    /// As [`Mutex::lock`](super::mutex::Mutex::lock).
    pub async fn read(&self) -> Result<Guard> {
        self.reader().lock().await
    }

    /// Write-holds if that is possible now; `None` if another claim holds or waits.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is held or left behind.
    ///
    /// # Errors
    /// What the store says.
    pub async fn try_write(&self) -> Result<Option<WriteGuard>> {
        Ok(self.writer().attempt().await?.map(WriteGuard))
    }

    /// Write-holds, waiting as long as was asked for.
    ///
    /// # Cancel safety
    /// If the future is dropped you lose your place in the queue; nothing is held or left behind.
    ///
    /// # Errors
    /// As [`Mutex::lock`](super::mutex::Mutex::lock).
    pub async fn write(&self) -> Result<WriteGuard> {
        self.writer().lock().await.map(WriteGuard)
    }
}

/// The guard of a writer: a [`Guard`] that can become a reader's.
#[derive(Debug)]
#[must_use = "a guard that is dropped at once lets the lock go at once"]
pub struct WriteGuard(Guard);

#[oarlock_macros::blocking]
impl WriteGuard {
    /// Becomes a reader without letting go in between; the fence stays.
    ///
    /// # Cancel safety
    /// If the future is dropped the lock is let go.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lock was lost before it was done;
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) if the store did not answer in the time that a request may take. The lock is
    /// let go then.
    pub async fn downgrade(self) -> Result<Guard> {
        self.0.lighten(Kind::Read, Weight::ONE).await
    }

    /// The plain guard, for code that does not care which kind it holds.
    pub fn into_guard(self) -> Guard {
        self.0
    }

    /// See [`Guard::release`].
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub async fn release(self) -> Result<Released> {
        self.0.release().await
    }
}

impl Deref for WriteGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}
