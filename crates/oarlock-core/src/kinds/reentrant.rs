//! Entered again by its own holder.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;

use super::rwlock::RwLock;
use crate::driver::Released;
use crate::engine::Request;
use crate::error::{Error, Result};
use crate::held::Held;
use crate::owner::{Owner, Share, SharedHold};

/// A mutex that its [`Owner`] can enter again while it holds it: made by
/// [`Mutex::reentrant`](super::mutex::Mutex::reentrant).
///
/// The first entry takes the lock from the store; further ones of the same owner share it without a request; when the
/// last [`ReentrantGuard`] goes, the lock is released. The owner is explicit: pass it along with the work. Two owners
/// exclude each other, also in one process.
///
/// # Guarantees
/// - All guards of one hold are one lock: the same fence, the same lease, and lost together.
/// - If several tasks of one owner ask at the same time, one asks the store and the others wait for it, each for at
///   most its own wait.
/// - After a loss the next entry is a new acquisition with a larger fence, even while guards of the lost one live.
/// - An owner never waits for itself: that is an error, [`ErrorKind::SelfDeadlock`](crate::ErrorKind::SelfDeadlock).
///
/// A hold is shared by this client, owner and name; its lease and label are those of the first entry.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory, Owner};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
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
#[must_use = "nothing is taken before lock() or try_lock()"]
pub struct ReentrantMutex {
    request: Request,
    owner: Owner,
}

#[oarlock_macros::blocking]
impl ReentrantMutex {
    pub(crate) fn new(request: Request, owner: &Owner) -> Self {
        Self { request, owner: owner.clone() }
    }

    /// Enters if the owner holds it or it is free; `None` if it is busy, or another task of the owner is just asking.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is held or left behind.
    ///
    /// # Errors
    /// Any error that the store returns; see [`ErrorKind`](crate::ErrorKind).
    pub async fn try_lock(&self) -> Result<Option<ReentrantGuard>> {
        Ok(shared_hold(&self.owner, &self.request).attempt(self.request.clone()).await?.map(ReentrantGuard))
    }

    /// Enters; if the owner does not hold the lock, waits for it for at most `wait`.
    ///
    /// # Cancel safety
    /// If the future is dropped the claim leaves the queue, and another waiting task of the owner asks the store
    /// instead; nothing is held or left behind.
    ///
    /// # Errors
    /// As [`Mutex::lock`](super::mutex::Mutex::lock).
    pub async fn lock(&self) -> Result<ReentrantGuard> {
        shared_hold(&self.owner, &self.request).lock(self.request.clone()).await.map(ReentrantGuard)
    }
}

/// A read-write lock that its [`Owner`] can enter again while it holds it: made by [`RwLock::reentrant`].
///
/// As a [`ReentrantMutex`]. An owner that holds it for writing can enter for reading, too, and holds it for writing
/// until the last of its guards is gone. An owner that holds it for reading and asks to write is refused: two such
/// owners would wait for each other.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, ErrorKind, Memory, Owner};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let config = locks.rwlock("config").reentrant(&Owner::new());
/// let writer = config.write().await?;
/// let reader = config.read().await?;
/// drop((writer, reader));
/// let _reader = config.read().await?;
/// assert_eq!(config.write().await.unwrap_err().kind(), ErrorKind::SelfDeadlock);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is taken before read() or write()"]
pub struct ReentrantRwLock {
    lock: RwLock,
    owner: Owner,
}

#[oarlock_macros::blocking]
impl ReentrantRwLock {
    pub(crate) fn new(lock: RwLock, owner: &Owner) -> Self {
        Self { lock, owner: owner.clone() }
    }

    async fn enter(&self, request: Request) -> Result<ReentrantGuard> {
        shared_hold(&self.owner, &request).lock(request).await.map(ReentrantGuard)
    }

    async fn try_enter(&self, request: Request) -> Result<Option<ReentrantGuard>> {
        Ok(shared_hold(&self.owner, &request).attempt(request).await?.map(ReentrantGuard))
    }

    /// Enters for reading if that is possible now.
    ///
    /// # Cancel safety
    /// As [`ReentrantMutex::try_lock`].
    ///
    /// # Errors
    /// Any error that the store returns; see [`ErrorKind`](crate::ErrorKind).
    pub async fn try_read(&self) -> Result<Option<ReentrantGuard>> {
        self.try_enter(self.lock.reader()).await
    }

    /// Enters for reading; if the owner does not hold the lock, waits for it for at most `wait`.
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

    /// Enters for writing; if the owner does not hold the lock, waits for it for at most `wait`.
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

fn shared_hold(owner: &Owner, request: &Request) -> Arc<SharedHold> {
    owner.shared_hold(request.client.core.store_number(), &request.claim.resource)
}

/// One entry of an owner. The lock is released with its last entry.
///
/// # Guarantees
/// As those of a [`Guard`](crate::Guard), for all entries together. Dropping it never blocks and
/// never panics, in or out of a runtime.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory, Owner, Released};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let ledger = locks.mutex("ledger").reentrant(&Owner::new());
/// let (outer, inner) = (ledger.lock().await?, ledger.lock().await?);
/// assert_eq!(outer.release().await?, Released::StillHeld);
/// assert_eq!(inner.release().await?, Released::Released);
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "an entry that is dropped at once ends at once"]
pub struct ReentrantGuard(Share);

#[oarlock_macros::blocking]
impl ReentrantGuard {
    /// The state of the lock, for other tasks.
    #[must_use]
    #[blocking(by_hand)]
    pub fn held(&self) -> Held {
        self.0.held().clone()
    }

    /// Runs `body` while the lock is held, and drops it when the lock is lost: see [`Guard::with`](crate::Guard::with).
    ///
    /// # Cancel safety
    /// If the future is dropped, `body` is dropped; the entry stays.
    ///
    /// # Errors
    /// As [`Guard::with`](crate::Guard::with).
    #[blocking(by_hand)]
    pub async fn with<T, E, F>(&self, body: impl FnOnce(Held) -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        self.0.held().while_held(body).await
    }

    /// How many entries of the owner share the lock.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.0.count()
    }

    /// Ends this entry. If it is the last one, releases the lock and waits for the store's answer; else returns
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
