//! One holder.

use super::reentrant::ReentrantMutex;
use super::tunable;
use crate::claim::Kind;
use crate::engine::cohort::Bounds;
use crate::engine::{Ask, Patience};
use crate::error::Result;
use crate::guard::Guard;
use crate::owner::Owner;

/// A lock that one can hold.
///
/// Processes that wait are served in order of arrival, where the store keeps a queue
/// ([`Capabilities::order`](crate::Capabilities::order)): each process has one place in it, and its tasks wait behind
/// that place in order. So under contention processes get equal shares. [`fair`](Self::fair) gives every task a place of its
/// own.
///
/// A mutex and the writer of a read-write lock of the same name exclude each other, and every reader or permit.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// let locks = Locks::over(Memory::new())?;
/// let guard = locks.mutex("deploy/prod").reason("release 2.3").lock().await?;
/// assert!(locks.mutex("deploy/prod").try_lock().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Mutex {
    ask: Ask,
}

tunable!(Mutex);

#[oarlock_macros::blocking]
impl Mutex {
    pub(crate) fn new(ask: Ask) -> Self {
        Self { ask }
    }

    /// For a lock that is one of several.
    pub(super) fn into_ask(mut self) -> Ask {
        self.ask.cohort = None;
        self.ask
    }

    /// Gives every task a place of its own in the store's queue: tasks of all processes are served in order of arrival. Without
    /// this, tasks of one process wait behind its one place, and shares are equal for each process.
    ///
    /// A store without a queue refuses to lock then ([`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported)).
    #[must_use]
    pub fn fair(mut self) -> Self {
        self.ask.fair = true;
        self
    }

    /// Waits by timer only, without notification, in short bounded pauses. It keeps its place in the queue.
    #[must_use]
    pub fn spin(mut self) -> Self {
        self.ask.claim.kind = Kind::Spin;
        self.ask.patience = Patience::Spin;
        self
    }

    /// Lets tasks of this client hand the lock on to each other without asking the store, for when many of them want it: at
    /// most `hand_offs` times, and for at most `span` after the store granted it. Then it is really released.
    ///
    /// # Guarantees
    /// Those of every lock: each holder has a larger fence than the one before, and its belief ends first. The lock is not
    /// handed on when less than half of its lease is left, when a renewal was missed, or when its end was asked for.
    ///
    /// Others wait longer: where the store wakes waiters in order, a process that waits is served after at most two such
    /// spans, plus what the last holder of each takes; where it is polled, the first process that polls is. [`inspect`](crate::Locks::inspect) shows one holder for the whole span, the first.
    ///
    /// Not for fair locks, explicit leases, `max_hold` and owners, nor with a wait of less than two spans, nor for more than
    /// 1024 hand-offs ([`ErrorKind::InvalidClaim`](crate::ErrorKind::InvalidClaim)); as one of several locks it is an
    /// ordinary one. While it goes round, claims that arrived earlier wait: this is an exception from the order of arrival.
    #[must_use]
    pub fn cohort(mut self, hand_offs: u32, span: std::time::Duration) -> Self {
        self.ask.cohort = Some(Bounds { hand_offs, span });
        self
    }

    /// A lock that `owner` can enter again while it holds it.
    #[must_use]
    pub fn reentrant(self, owner: &Owner) -> ReentrantMutex {
        ReentrantMutex::new(self.owner(owner).ask, owner)
    }

    /// Takes the lock if it is free and no claim waits for it; `None` if not.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is held or left behind: the request is finished and undone in the background.
    ///
    /// # Errors
    /// What the store says.
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        self.ask.clone().attempt().await
    }

    /// Takes the lock, waiting as long as was asked for.
    ///
    /// # Cancel safety
    /// If the future is dropped you lose your place in the queue; nothing is held or left behind.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) when the wait ends, with who holds it, since when, and how many
    /// wait; [`ErrorKind::SelfDeadlock`](crate::ErrorKind::SelfDeadlock) if the same owner holds it; what the store
    /// says.
    pub async fn lock(&self) -> Result<Guard> {
        self.ask.clone().lock().await
    }
}
