//! The mutex: one holder at a time.

use super::reentrant::ReentrantMutex;
use super::{no_renewal, options};
use crate::claim::Kind;
use crate::engine::cohort::Bounds;
use crate::engine::{Patience, Request};
use crate::error::Result;
use crate::guard::Guard;
use crate::owner::Owner;

/// A lock with one holder at a time.
///
/// Processes that wait are served in order of arrival, where the store keeps a queue
/// ([`Capabilities::order`](crate::Capabilities::order)): each process has one position in it, and its tasks wait
/// behind that position in order. So under contention processes get equal shares. [`fair`](Self::fair) gives every task
/// a position of its own.
///
/// All kinds of one name share one resource: a mutex excludes every other claim of its name.
///
/// # Guarantees
/// - At most one guard is believed in at a time: belief of a holder ends before the store can grant the lock again,
///   except after a forced break or if the store loses its data.
/// - Every guard has a larger [`fence`](crate::Held::fence) than all guards of the name before it.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let guard = locks.mutex("deploy/prod").reason("release 2.3").lock().await?;
/// assert!(locks.mutex("deploy/prod").try_lock().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is taken before lock() or try_lock()"]
pub struct Mutex {
    request: Request,
}

options!(Mutex);
no_renewal!(Mutex);

#[oarlock_macros::blocking]
impl Mutex {
    pub(crate) fn new(request: Request) -> Self {
        Self { request }
    }

    /// As a part of a `Multi`.
    pub(super) fn into_request(mut self) -> Request {
        self.request.cohort = None;
        self.request
    }

    /// Waits by timer only, without notification, in short bounded pauses. It keeps its position in the queue.
    pub fn spin(mut self) -> Self {
        self.request.claim.kind = Kind::Spin;
        self.request.patience = Patience::Spin;
        self
    }

    /// Lets tasks of this client hand the lock on to each other without a round trip to the store: at most `hand_offs`
    /// times, and for at most `span` after the grant. Then the lock is released in the store. For locks that many tasks
    /// of one process wait for.
    ///
    /// # Guarantees
    /// Those of every lock: each holder has a larger fence than the one before, and its belief ends first. The lock is
    /// not handed on when less than half of its lease is left, when a renewal was missed, or when its end was asked
    /// for. Other processes wait longer: where the store wakes waiters in order, a waiting process is served after at
    /// most two spans, plus the time of the last holder of each; where the store is polled, the first process that
    /// polls is next. [`inspect`](crate::Locks::inspect) shows one holder for the whole span, the first.
    ///
    /// Not with `fair()`, `no_renewal()`, `max_hold` and owners, nor with a wait of less than two spans, nor for more
    /// than 1024 hand-offs ([`ErrorKind::InvalidClaim`](crate::ErrorKind::InvalidClaim)); as one of several locks it is
    /// an ordinary one. While it goes round, claims that arrived earlier wait: this is an exception from the order of
    /// arrival.
    pub fn cohort(mut self, hand_offs: u32, span: std::time::Duration) -> Self {
        self.request.cohort = Some(Bounds { hand_offs, span });
        self
    }

    /// A lock that `owner` can enter again while it holds it.
    pub fn reentrant(self, owner: &Owner) -> ReentrantMutex {
        ReentrantMutex::new(self.owner(owner).request, owner)
    }

    /// Takes the lock if it is free and no claim waits for it; `None` if not.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is held or left behind: the request is finished and undone in the background.
    ///
    /// # Errors
    /// Any error that the store returns; see [`ErrorKind`](crate::ErrorKind).
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let locks = Locks::over(Memory::new())?;
    /// match locks.mutex("import").try_lock().await? {
    ///     Some(guard) => println!("mine, fence {}", guard.fence()),
    ///     None => println!("another process imports"),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        self.request.clone().attempt().await
    }

    /// Takes the lock; waits for at most [`wait`](Self::wait).
    ///
    /// # Cancel safety
    /// If the future is dropped the claim leaves the queue; nothing is held or left behind.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) when the wait ends, with who holds it, since when, and how many
    /// wait; [`ErrorKind::SelfDeadlock`](crate::ErrorKind::SelfDeadlock) if the same owner holds it; any error
    /// that the store returns.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let locks = Locks::over(Memory::new())?;
    /// let guard = locks.mutex("import").lock().await?;
    /// println!("mine, fence {}", guard.fence());
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn lock(&self) -> Result<Guard> {
        self.request.clone().lock().await
    }
}
