//! The read-write lock: many readers or one writer.

use std::ops::Deref;

use super::multi::Part;
use super::reentrant::ReentrantRwLock;
use super::{no_renewal, options};
use crate::claim::{Capacity, Kind, Limit, Weight};
use crate::driver::Released;
use crate::engine::Request;
use crate::error::Result;
use crate::guard::Guard;
use crate::owner::Owner;

/// A lock with many readers or one writer.
///
/// Where the store keeps a queue, a waiting writer holds back the readers that come after it, so neither side starves.
/// Where it does not ([`Capabilities::order`](crate::Capabilities::order)), writers can starve under constant readers.
///
/// # Guarantees
/// While a writer's guard is believed in, no other guard of the name is; readers hold together. Otherwise those of a
/// [`Mutex`](crate::Mutex).
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let config = locks.rwlock("config");
/// let (one, two) = (config.read().await?, config.read().await?);
/// drop((one, two));
/// let writer = config.write().await?;
/// let reader = writer.downgrade().await?;
/// reader.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is taken before read() or write()"]
pub struct RwLock {
    request: Request,
}

options!(RwLock);
no_renewal!(RwLock);

#[oarlock_macros::blocking]
impl RwLock {
    pub(crate) fn new(mut request: Request) -> Self {
        request.claim.capacity = Capacity::Fixed(Limit::Unlimited);
        Self { request }
    }

    pub(super) fn reader(&self) -> Request {
        let mut request = self.request.clone();
        request.claim.kind = Kind::Read;
        request.claim.weight = Weight::ONE;
        request
    }

    pub(super) fn writer(&self) -> Request {
        let mut request = self.request.clone();
        request.claim.kind = Kind::Write;
        request.claim.weight = Weight::All;
        request
    }

    /// A lock that `owner` can enter again while it holds it.
    pub fn reentrant(self, owner: &Owner) -> ReentrantRwLock {
        ReentrantRwLock::new(self.owner(owner), owner)
    }

    /// The reader's lock as one of several that are taken together: a part of a [`Multi`](super::multi::Multi).
    pub fn for_reading(&self) -> Part {
        Part(self.reader())
    }

    /// The writer's lock as one of several that are taken together: a part of a [`Multi`](super::multi::Multi).
    pub fn for_writing(&self) -> Part {
        Part(self.writer())
    }

    /// Takes the lock for reading if that is possible now; `None` if a writer holds or waits.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is held or left behind.
    ///
    /// # Errors
    /// Any error that the store returns; see [`ErrorKind`](crate::ErrorKind).
    pub async fn try_read(&self) -> Result<Option<Guard>> {
        self.reader().attempt().await
    }

    /// Takes the lock for reading; waits for at most [`wait`](Self::wait).
    ///
    /// # Cancel safety
    /// If the future is dropped the claim leaves the queue; nothing is held or left behind.
    ///
    /// # Errors
    /// As [`Mutex::lock`](super::mutex::Mutex::lock).
    pub async fn read(&self) -> Result<Guard> {
        self.reader().lock().await
    }

    /// Takes the lock for writing if that is possible now; `None` if another claim holds or waits.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is held or left behind.
    ///
    /// # Errors
    /// Any error that the store returns; see [`ErrorKind`](crate::ErrorKind).
    pub async fn try_write(&self) -> Result<Option<WriteGuard>> {
        Ok(self.writer().attempt().await?.map(WriteGuard))
    }

    /// Takes the lock for writing; waits for at most [`wait`](Self::wait).
    ///
    /// # Cancel safety
    /// If the future is dropped the claim leaves the queue; nothing is held or left behind.
    ///
    /// # Errors
    /// As [`Mutex::lock`](super::mutex::Mutex::lock).
    pub async fn write(&self) -> Result<WriteGuard> {
        self.writer().lock().await.map(WriteGuard)
    }
}

/// The guard of a writer: a [`Guard`] that can become a reader's.
///
/// # Guarantees
/// As those of a [`Guard`]. A downgrade leaves no gap: no other writer holds the lock in between.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let writer = locks.rwlock("config").write().await?;
/// let reader = writer.downgrade().await?; // other readers can enter now, and no writer was in between
/// reader.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "a guard that is dropped at once releases the lock at once"]
pub struct WriteGuard(Guard);

#[oarlock_macros::blocking]
impl WriteGuard {
    /// Turns the writer into a reader without releasing the lock in between; the fence stays.
    ///
    /// # Cancel safety
    /// If the future is dropped the lock is released.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lock was lost before it was done;
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) if the store did not answer in time. The lock is
    /// released then.
    pub async fn downgrade(self) -> Result<Guard> {
        self.0.lighten(Kind::Read, Weight::ONE).await
    }

    /// The plain guard, for code that works with any kind.
    pub fn into_guard(self) -> Guard {
        self.0
    }

    /// See [`Guard::release`].
    ///
    /// # Cancel safety
    /// If the future is dropped the release goes on in the background.
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
