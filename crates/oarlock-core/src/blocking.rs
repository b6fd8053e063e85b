//! The blocking API: the same locks, names and guarantees, without `async`.
//!
//! Every type here is the one of the same name in the [async API](crate), and has its methods: they are generated from
//! the same definitions. What the async API does with a future or an async closure is done here with a closure.
//!
//! A call blocks the calling thread until it is done. It works where there is no runtime, and on a thread of one, which
//! it then blocks. The client's background thread renews locks, whatever the caller's threads do; a blocking call on
//! that thread, as in an [observer](crate::Observer), is refused. A call cannot be interrupted from outside: bound it
//! with `wait`, which is 30 seconds by default, and a wait for an event with its `…_within(patience)`.
//!
//! ```
//! use oarlock_core::Memory;
//! use oarlock_core::blocking::Locks;
//!
//! # fn main() -> oarlock_core::Result<()> {
//! let locks = Locks::over(Memory::new())?;
//! let guard = locks.mutex("deploy/prod").reason("release 2.3").lock()?;
//! assert!(locks.mutex("deploy/prod").try_lock()?.is_none());
//! guard.check()?; // between two steps of the work
//! guard.release()?; // or drop it
//! # Ok(()) }
//! ```

mod guards;
mod kinds;
mod locks;
mod thread;

pub use guards::BlockingGuard;
pub use locks::LocksBuilder;
pub use thread::{ThreadGuard, ThreadMutex, ThreadRwLock};

use std::fmt;
use std::future::Future;
use std::time::Duration;

use crate::engine::Runtime;
use crate::error::{Error, ErrorKind, Result};

/// A type of the async API with the same methods, without `async`.
#[derive(Clone)]
pub struct Blocking<T> {
    pub(crate) inner: T,
    /// With the client's background thread. `None` for a [`Multi`] without locks.
    pub(crate) runtime: Option<Runtime>,
}

impl<T: fmt::Debug> fmt::Debug for Blocking<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// The result of a bounded wait for what may be nothing, as the next leader of an election.
///
/// # Examples
/// ```
/// # use std::time::Duration;
/// # use oarlock_core::{Memory, blocking::{Locks, Within}};
/// # fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let mut leaders = locks.election("scheduler").observe();
/// match leaders.changed_within(Duration::from_secs(10))? {
///     Within::Some(leader) => println!("led by {:?}", leader.value),
///     Within::None => println!("there is no leader"),
///     Within::TimedOut => println!("as before"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Within<T> {
    /// `Some` of the unbounded form.
    Some(T),
    /// `None` of the unbounded form.
    None,
    /// The time has passed.
    TimedOut,
}

impl<T> Within<T> {
    pub(crate) fn of(done: Option<Option<T>>) -> Self {
        match done {
            Some(Some(done)) => Self::Some(done),
            Some(None) => Self::None,
            None => Self::TimedOut,
        }
    }
}

pub(crate) fn block_on<T>(runtime: &Option<Runtime>, work: impl Future<Output = Result<T>>) -> Result<T> {
    match runtime {
        Some(runtime) => runtime.block_on(work)?,
        None => Err(Error::new(ErrorKind::InvalidClaim, "a Multi needs at least one lock")),
    }
}

/// `None` if `patience` was not enough.
pub(crate) fn within<T>(
    runtime: &Option<Runtime>,
    patience: Duration,
    work: impl Future<Output = Result<T>>,
) -> Result<Option<T>> {
    block_on(runtime, async { tokio::time::timeout(patience, work).await.ok().transpose() })
}

/// Turns a value of the async API into its blocking twin.
pub(crate) trait Twin {
    type Blocking;

    fn twin(self, runtime: &Option<Runtime>) -> Self::Blocking;
}

impl<T: Twin> Twin for Option<T> {
    type Blocking = Option<T::Blocking>;

    fn twin(self, runtime: &Option<Runtime>) -> Self::Blocking {
        self.map(|inner| inner.twin(runtime))
    }
}

impl<T: Twin, U> Twin for (T, U) {
    type Blocking = (T::Blocking, U);

    fn twin(self, runtime: &Option<Runtime>) -> Self::Blocking {
        (self.0.twin(runtime), self.1)
    }
}

impl<T: Twin + Clone> Twin for &T {
    type Blocking = T::Blocking;

    fn twin(self, runtime: &Option<Runtime>) -> Self::Blocking {
        self.clone().twin(runtime)
    }
}

oarlock_macros::twins! {
    /// A client: locks on one store. Cheap to clone; every clone is the same client.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use oarlock_core::{Memory, blocking::Locks};
    /// # fn main() -> oarlock_core::Result<()> {
    /// let locks = Locks::builder(Memory::new()).ttl(Duration::from_secs(10)).build()?;
    /// let guard = locks.mutex("deploy/prod").lock()?;
    /// assert_eq!(locks.inspect("deploy/prod")?.holders.len(), 1);
    /// guard.release()?;
    /// locks.shutdown(Duration::from_secs(5))?;
    /// # Ok(()) }
    /// ```
    pub type Locks = Blocking<crate::Locks>;

    /// A lock with one holder at a time.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use oarlock_core::{ErrorKind, Memory, blocking::Locks};
    /// # fn main() -> oarlock_core::Result<()> {
    /// let locks = Locks::over(Memory::new())?;
    /// let guard = locks.mutex("deploy/prod").reason("release 2.3").lock()?;
    /// let busy = locks.mutex("deploy/prod").wait(Duration::from_millis(50)).lock();
    /// assert_eq!(busy.unwrap_err().kind(), ErrorKind::Busy);
    /// guard.release()?;
    /// # Ok(()) }
    /// ```
    pub type Mutex = Blocking<crate::Mutex>;

    /// A lock with many readers or one writer.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Memory, blocking::Locks};
    /// # fn main() -> oarlock_core::Result<()> {
    /// let locks = Locks::over(Memory::new())?;
    /// let config = locks.rwlock("config");
    /// let (first, second) = (config.read()?, config.read()?);
    /// assert!(config.try_write()?.is_none());
    /// first.release()?;
    /// second.release()?;
    /// # Ok(()) }
    /// ```
    pub type RwLock = Blocking<crate::RwLock>;

    /// A lock of a number of units, of which each holder takes some.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Memory, blocking::Locks};
    /// # fn main() -> oarlock_core::Result<()> {
    /// let locks = Locks::over(Memory::new())?;
    /// let api = locks.semaphore("api", 10);
    /// let batch = api.acquire(8)?;
    /// assert!(api.try_acquire(3)?.is_none(), "two are left");
    /// batch.release()?;
    /// # Ok(()) }
    /// ```
    pub type Semaphore = Blocking<crate::Semaphore>;

    /// An election of one leader among many candidates.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Memory, blocking::Locks};
    /// # fn main() -> oarlock_core::Result<()> {
    /// let locks = Locks::over(Memory::new())?;
    /// let election = locks.election("scheduler");
    /// let mut leadership = election.campaign("10.0.0.7:9000")?;
    /// leadership.proclaim("10.0.0.7:9001")?;
    /// assert_eq!(election.leader()?.and_then(|leader| leader.value).as_deref(), Some("10.0.0.7:9001"));
    /// leadership.resign()?;
    /// # Ok(()) }
    /// ```
    pub type Election = Blocking<crate::Election>;

    /// Work that is done once per slot.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Error, Memory, Slot, blocking::Locks};
    /// # fn main() -> oarlock_core::Result<()> {
    /// let nightly = Locks::over(Memory::new())?.once("nightly");
    /// let invoices = nightly.run("2026-11-15", |held| {
    ///     held.check()?; // between two steps of the work
    ///     Ok::<_, Error>(42)
    /// })?;
    /// assert_eq!(invoices, Slot::Ran(42));
    /// assert_eq!(nightly.last()?.as_deref(), Some("2026-11-15"));
    /// # Ok(()) }
    /// ```
    pub type Once = Blocking<crate::Once>;

    /// Several locks that are taken as one.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Memory, blocking::{Locks, Multi}};
    /// # fn main() -> oarlock_core::Result<()> {
    /// let locks = Locks::over(Memory::new())?;
    /// let both = Multi::of(locks.rwlock("rates").for_reading()).and(locks.mutex("account/7")).lock()?;
    /// assert!(both.is_held() && both.iter().count() == 2);
    /// both.release()?;
    /// # Ok(()) }
    /// ```
    pub type Multi = Blocking<crate::Multi>;

    /// One lock of a [`Multi`]: a mutex, [`RwLock::for_reading`], [`RwLock::for_writing`] or [`Semaphore::permits`].
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Memory, blocking::{Locks, Multi, Part}};
    /// # fn main() -> oarlock_core::Result<()> {
    /// let locks = Locks::over(Memory::new())?;
    /// let parts: Vec<Part> = vec![locks.mutex("account/7").into(), locks.semaphore("api", 10).permits(2)];
    /// Multi::all(parts).lock()?.release()?;
    /// # Ok(()) }
    /// ```
    pub type Part = Blocking<crate::Part>;

    /// A mutex that its owner can enter again. For a thread as the owner: [`ThreadMutex`].
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Memory, Owner, blocking::Locks};
    /// # fn main() -> oarlock_core::Result<()> {
    /// let locks = Locks::over(Memory::new())?;
    /// let ledger = locks.mutex("ledger").reentrant(&Owner::new());
    /// let (outer, inner) = (ledger.lock()?, ledger.lock()?);
    /// assert_eq!((inner.fence(), inner.entries()), (outer.fence(), 2));
    /// # Ok(()) }
    /// ```
    pub type ReentrantMutex = Blocking<crate::ReentrantMutex>;

    /// A read-write lock that its owner can enter again. For a thread as the owner: [`ThreadRwLock`].
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{ErrorKind, Memory, Owner, blocking::Locks};
    /// # fn main() -> oarlock_core::Result<()> {
    /// let locks = Locks::over(Memory::new())?;
    /// let config = locks.rwlock("config").reentrant(&Owner::new());
    /// let reader = config.read()?;
    /// assert_eq!(config.write().unwrap_err().kind(), ErrorKind::SelfDeadlock);
    /// reader.release()?;
    /// # Ok(()) }
    /// ```
    pub type ReentrantRwLock = Blocking<crate::ReentrantRwLock>;

    /// The state of a held lock, for other threads. Cheap to clone; it cannot release the lock.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Memory, blocking::{Held, Locks}};
    /// # fn main() -> oarlock_core::Result<()> {
    /// let locks = Locks::over(Memory::new())?;
    /// let guard = locks.mutex("report").lock()?;
    /// fn write(line: u32, held: &Held) -> oarlock_core::Result<()> {
    ///     held.check()?; // before each step of the work
    ///     println!("line {line} with fence {}", held.fence());
    ///     Ok(())
    /// }
    /// (1..=3).try_for_each(|line| write(line, &guard))?;
    /// guard.release()?;
    /// # Ok(()) }
    /// ```
    pub type Held = Blocking<crate::Held>;

    /// The state of several held locks, for other threads. Cheap to clone; it cannot release them.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Memory, blocking::{Locks, Multi}};
    /// # fn main() -> oarlock_core::Result<()> {
    /// let locks = Locks::over(Memory::new())?;
    /// let both = Multi::of(locks.mutex("account/7")).and(locks.mutex("account/9")).lock()?;
    /// let held = both.held();
    /// let watcher = std::thread::spawn(move || held.ended());
    /// both.release()?;
    /// assert!(watcher.join().is_ok());
    /// # Ok(()) }
    /// ```
    pub type MultiHeld = Blocking<crate::MultiHeld>;

    /// A held lock, which is a [`Held`]; dropping it releases the lock, and never blocks.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use oarlock_core::{Ended, Memory, Released, blocking::Locks};
    /// # fn main() -> oarlock_core::Result<()> {
    /// let locks = Locks::over(Memory::new())?;
    /// let guard = locks.mutex("report").lock()?;
    /// println!("writing with fence {}", guard.fence());
    /// assert_eq!(guard.lost_within(Duration::from_millis(10))?, None);
    /// let held = guard.held();
    /// let watcher = std::thread::spawn(move || held.ended());
    /// assert_eq!(guard.release()?, Released::Released);
    /// assert_eq!(watcher.join().unwrap()?, Ended::Released);
    /// # Ok(()) }
    /// ```
    pub type Guard = BlockingGuard<crate::Guard, crate::Held>;

    /// A held lock of a writer: it can become a reader's.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Memory, blocking::Locks};
    /// # fn main() -> oarlock_core::Result<()> {
    /// let locks = Locks::over(Memory::new())?;
    /// let writer = locks.rwlock("config").write()?;
    /// let reader = writer.downgrade()?; // other readers can enter now, and no writer was in between
    /// reader.release()?;
    /// # Ok(()) }
    /// ```
    pub type WriteGuard = BlockingGuard<crate::WriteGuard, crate::Held>;

    /// One entry of an owner in a re-entrant lock.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Memory, Owner, Released, blocking::Locks};
    /// # fn main() -> oarlock_core::Result<()> {
    /// let locks = Locks::over(Memory::new())?;
    /// let ledger = locks.mutex("ledger").reentrant(&Owner::new());
    /// let (outer, inner) = (ledger.lock()?, ledger.lock()?);
    /// assert_eq!(outer.release()?, Released::StillHeld);
    /// assert_eq!(inner.release()?, Released::Released);
    /// # Ok(()) }
    /// ```
    pub type ReentrantGuard = BlockingGuard<crate::ReentrantGuard, crate::Held>;

    /// The leadership of an election; dropping it resigns.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Error, Memory, blocking::Locks};
    /// # fn main() -> oarlock_core::Result<()> {
    /// let locks = Locks::over(Memory::new())?;
    /// let leadership = locks.election("scheduler").campaign("10.0.0.7:9000")?;
    /// leadership.with(|held| {
    ///     held.check()?; // before each step of the leader's work
    ///     Ok::<_, Error>(())
    /// })?;
    /// leadership.resign()?;
    /// # Ok(()) }
    /// ```
    pub type Leadership = BlockingGuard<crate::Leadership, crate::Held>;

    /// Several held locks, which are a [`MultiHeld`]; dropping it releases them, and never blocks.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Memory, Released, blocking::{Locks, Multi}};
    /// # fn main() -> oarlock_core::Result<()> {
    /// let locks = Locks::over(Memory::new())?;
    /// let both = Multi::of(locks.mutex("account/7")).and(locks.mutex("account/9")).lock()?;
    /// for (name, released) in both.release_each()? {
    ///     assert_eq!(released?, Released::Released, "{name}");
    /// }
    /// # Ok(()) }
    /// ```
    pub type MultiGuard = BlockingGuard<crate::MultiGuard, crate::MultiHeld>;

    /// Follows the leader of an election.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Memory, blocking::Locks};
    /// # fn main() -> oarlock_core::Result<()> {
    /// let locks = Locks::over(Memory::new())?;
    /// let mut leaders = locks.election("scheduler").observe();
    /// assert_eq!(leaders.changed()?, None, "there is no leader yet");
    /// let leadership = locks.election("scheduler").campaign("10.0.0.7:9000")?;
    /// assert!(leaders.changed()?.is_some());
    /// leadership.resign()?;
    /// # Ok(()) }
    /// ```
    pub type LeaderWatch = Blocking<crate::LeaderWatch>;

    /// Reports when a resource may have changed.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use oarlock_core::{Memory, blocking::{Locks, Within}};
    /// # fn main() -> oarlock_core::Result<()> {
    /// let locks = Locks::over(Memory::new())?;
    /// let mut watch = locks.watch("report")?;
    /// let guard = locks.mutex("report").lock()?;
    /// assert!(matches!(watch.changed_within(Duration::from_secs(10))?, Within::Some(_)));
    /// guard.release()?;
    /// # Ok(()) }
    /// ```
    pub type Watch = Blocking<crate::driver::Watch>;
}
