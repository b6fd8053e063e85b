//! Entered again by its own holder.

use std::ops::Deref;
use std::sync::Arc;

use super::rwlock::RwLock;
use crate::driver::Released;
use crate::engine::Ask;
use crate::error::Result;
use crate::guard::Held;
use crate::owner::{Owner, Seat, Share};

/// A mutex that its [`Owner`] can enter again while it holds it: made by [`Mutex::reentrant`](super::mutex::Mutex::reentrant).
///
/// The first entry takes the lock from the store; further ones of the same owner share it without a request; when the last
/// [`ReentrantGuard`] goes, the lock is let go. The owner is explicit: hand it along with the work. Two owners exclude each
/// other, also in one process.
///
/// # Guarantees
/// - All guards of one hold are one lock: the same fence, the same lease, and lost together.
/// - Of several tasks of one owner that ask at the same time, one stands before the store and the others wait for it, each
///   no longer than it was asked to.
/// - After a loss the next entry is a new acquisition with a larger fence, even while guards of the lost one live.
/// - Nobody waits for himself: what would be that is [`ErrorKind::SelfDeadlock`](crate::ErrorKind::SelfDeadlock).
///
/// A hold is shared by this client, owner and name; its lease and label are those of the first entry.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory, Owner};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// let locks = Locks::over(Memory::new())?;
/// let job = Owner::new();
/// let ledger = locks.mutex("ledger").reentrant(&job);
/// let outer = ledger.lock().await?;
/// let inner = ledger.lock().await?;
/// assert_eq!((inner.fence(), inner.entries()), (outer.fence(), 2));
/// outer.release().await?;
/// assert!(locks.mutex("ledger").try_lock().await?.is_none(), "still held by the other entry");
/// inner.release().await?;
/// assert!(locks.mutex("ledger").try_lock().await?.is_some());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ReentrantMutex {
    ask: Ask,
    owner: Owner,
}

#[oarlock_macros::blocking]
impl ReentrantMutex {
    pub(crate) fn new(ask: Ask, owner: &Owner) -> Self {
        Self { ask, owner: owner.clone() }
    }

    /// Enters if the owner holds it or it is free; `None` if it is busy, or another task of the owner is just asking.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is held or left behind.
    ///
    /// # Errors
    /// What the store says.
    pub async fn try_lock(&self) -> Result<Option<ReentrantGuard>> {
        Ok(seat(&self.owner, &self.ask).attempt(self.ask.clone()).await?.map(ReentrantGuard))
    }

    /// Enters, waiting as long as was asked for if the owner does not hold it.
    ///
    /// # Cancel safety
    /// If the future is dropped you lose your place in the queue, and another task of the owner that waits goes on in its
    /// own right; nothing is held or left behind.
    ///
    /// # Errors
    /// As [`Mutex::lock`](super::mutex::Mutex::lock).
    pub async fn lock(&self) -> Result<ReentrantGuard> {
        seat(&self.owner, &self.ask).lock(self.ask.clone()).await.map(ReentrantGuard)
    }
}

/// A read-write lock that its [`Owner`] can enter again while it holds it: made by [`RwLock::reentrant`].
///
/// As a [`ReentrantMutex`]. Whoever holds it for writing can enter for reading, too, and still holds it for writing until
/// the last of its guards is gone. Whoever holds it for reading and asks to write is refused: two owners that did so would
/// wait for each other.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, ErrorKind, Memory, Owner};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// let locks = Locks::over(Memory::new())?;
/// let config = locks.rwlock("config").reentrant(&Owner::new());
/// let writer = config.write().await?;
/// let reader = config.read().await?;
/// drop((writer, reader));
/// let _reader = config.read().await?;
/// assert_eq!(config.write().await.unwrap_err().kind(), ErrorKind::SelfDeadlock);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ReentrantRwLock {
    lock: RwLock,
    owner: Owner,
}

#[oarlock_macros::blocking]
impl ReentrantRwLock {
    pub(crate) fn new(lock: RwLock, owner: &Owner) -> Self {
        Self { lock, owner: owner.clone() }
    }

    async fn enter(&self, ask: Ask) -> Result<ReentrantGuard> {
        seat(&self.owner, &ask).lock(ask).await.map(ReentrantGuard)
    }

    async fn try_enter(&self, ask: Ask) -> Result<Option<ReentrantGuard>> {
        Ok(seat(&self.owner, &ask).attempt(ask).await?.map(ReentrantGuard))
    }

    /// Enters for reading if that is possible now.
    ///
    /// # Cancel safety
    /// As [`ReentrantMutex::try_lock`].
    ///
    /// # Errors
    /// What the store says.
    pub async fn try_read(&self) -> Result<Option<ReentrantGuard>> {
        self.try_enter(self.lock.reader()).await
    }

    /// Enters for reading, waiting as long as was asked for if the owner does not hold it.
    ///
    /// # Cancel safety
    /// As [`ReentrantMutex::lock`].
    ///
    /// # Errors
    /// As [`Mutex::lock`](super::mutex::Mutex::lock).
    pub async fn read(&self) -> Result<ReentrantGuard> {
        self.enter(self.lock.reader()).await
    }

    /// Enters for writing if that is possible now.
    ///
    /// # Cancel safety
    /// As [`ReentrantMutex::try_lock`].
    ///
    /// # Errors
    /// As [`write`](Self::write), without the wait.
    pub async fn try_write(&self) -> Result<Option<ReentrantGuard>> {
        self.try_enter(self.lock.writer()).await
    }

    /// Enters for writing, waiting as long as was asked for if the owner does not hold it.
    ///
    /// # Cancel safety
    /// As [`ReentrantMutex::lock`].
    ///
    /// # Errors
    /// [`ErrorKind::SelfDeadlock`](crate::ErrorKind::SelfDeadlock) if the owner holds it for reading; else as
    /// [`Mutex::lock`](super::mutex::Mutex::lock).
    pub async fn write(&self) -> Result<ReentrantGuard> {
        self.enter(self.lock.writer()).await
    }
}

fn seat(owner: &Owner, ask: &Ask) -> Arc<Seat> {
    owner.seat(ask.client.core.store_number(), &ask.claim.resource)
}

/// One entry of an owner. The lock is let go with its last entry.
///
/// # Guarantees
/// As those of a [`Guard`](crate::Guard): what is said of the lock is said of all entries. Dropping it never blocks and
/// never panics, in or out of a runtime.
#[derive(Debug)]
#[must_use = "an entry that is dropped at once ends at once"]
pub struct ReentrantGuard(Share);

#[oarlock_macros::blocking]
impl ReentrantGuard {
    /// What can be known of the lock, for other tasks.
    #[must_use]
    pub fn held(&self) -> Held {
        self.0.held().clone()
    }

    /// How many entries of the owner share the lock.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.0.count()
    }

    /// Ends this entry. If it is the last one, releases the lock and waits for the store to say so; else answers
    /// [`Released::StillHeld`].
    ///
    /// # Cancel safety
    /// If the future is dropped the release goes on in the background.
    ///
    /// # Errors
    /// As [`Guard::release`](crate::Guard::release).
    pub async fn release(mut self) -> Result<Released> {
        match self.0.leave() {
            Some(guard) => guard.release().await,
            None => Ok(Released::StillHeld),
        }
    }
}

impl Deref for ReentrantGuard {
    type Target = Held;

    fn deref(&self) -> &Held {
        self.0.held()
    }
}
