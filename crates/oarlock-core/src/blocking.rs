//! The same locks for code that blocks: same names, same guarantees, no `async`.
//!
//! Every type here is the one of the same name in the [async API](crate), used by blocking, and has its methods: they are written from
//! the same definitions. What the async API does with a future or an async closure is done here with a closure.
//!
//! A call sleeps the calling thread until it has its answer. It works where there is no runtime, and on a thread of one, which it
//! then blocks. Locks are renewed on a thread of the client's own, whatever the caller's threads do. A call cannot be interrupted
//! from outside: bound it with `wait`, which is 30 seconds by default.
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
mod thread;

pub use thread::{ThreadGuard, ThreadMutex, ThreadRwLock};

use crate::driver::Driver;
use crate::engine::Home;
use crate::error::{Error, ErrorKind, Result};

/// A type of the async API, used by blocking: what its name says, with the same methods.
#[derive(Clone, Debug)]
#[must_use = "a guard that is dropped at once releases the lock at once, and a lock that is never taken does nothing"]
pub struct Blocking<T> {
    pub(crate) inner: T,
    pub(crate) home: Home,
}

/// From a value of the async API to one of this.
pub(crate) trait Twin {
    type Blocking;

    fn twin(self, home: &Home) -> Self::Blocking;
}

impl<T: Twin> Twin for Option<T> {
    type Blocking = Option<T::Blocking>;

    fn twin(self, home: &Home) -> Self::Blocking {
        self.map(|inner| inner.twin(home))
    }
}

macro_rules! twins {
    ($($(#[$doc:meta])* $name:ident = $of:path;)+) => {$(
        $(#[$doc])*
        pub type $name = Blocking<$of>;

        impl Twin for $of {
            type Blocking = $name;

            fn twin(self, home: &Home) -> $name {
                Blocking { inner: self, home: home.clone() }
            }
        }
    )+};
}

twins! {
    /// Locks on one store. Cheap to clone; every clone is the same client.
    Locks = crate::Locks;
    /// A lock with one holder at a time.
    Mutex = crate::Mutex;
    /// A lock with many readers or one writer.
    RwLock = crate::RwLock;
    /// A lock of a number of units, of which each holder takes some.
    Semaphore = crate::Semaphore;
    /// An election of one leader among many candidates.
    Election = crate::Election;
    /// Work that is done once per slot.
    Once = crate::Once;
    /// Several locks that are taken as one.
    Multi = crate::Multi;
    /// A mutex that its owner can enter again. For a thread as the owner: [`ThreadMutex`].
    ReentrantMutex = crate::ReentrantMutex;
    /// A read-write lock that its owner can enter again. For a thread as the owner: [`ThreadRwLock`].
    ReentrantRwLock = crate::ReentrantRwLock;
    /// A held lock; dropping it releases the lock, and never blocks. What can be known of it is in [`Held`](crate::Held).
    Guard = crate::Guard;
    /// A held lock of a writer: it can become a reader's.
    WriteGuard = crate::WriteGuard;
    /// Several held locks.
    MultiGuard = crate::MultiGuard;
    /// One entry of an owner.
    ReentrantGuard = crate::ReentrantGuard;
    /// Being the leader; it ends when this is dropped.
    Leadership = crate::Leadership;
    /// Follows who leads.
    LeaderWatch = crate::LeaderWatch;
    /// Tells when a resource may have changed.
    Watch = crate::driver::Watch;
}

impl Locks {
    /// A client over `driver`, with defaults, and a thread of its own. With settings:
    /// [`LocksBuilder::build_blocking`](crate::LocksBuilder::build_blocking).
    ///
    /// # Errors
    /// [`ErrorKind::Os`] if that thread cannot be started.
    pub fn over(driver: impl Driver) -> Result<Self> {
        crate::Locks::builder(driver).build_blocking()
    }

    /// The blocking face of a client that has a [thread of its own](crate::LocksBuilder::own_thread).
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if it lives on the caller's runtime: a thread of it that blocked would wait for ever.
    pub fn of(locks: crate::Locks) -> Result<Self> {
        let home = locks.core.home.clone();
        if !home.has_own_thread() {
            let message = "a client that lives on the caller's runtime cannot be used by blocking";
            return Err(Error::new(ErrorKind::Config, message));
        }
        Ok(Self { inner: locks, home })
    }

    /// The same client for async code.
    #[must_use]
    pub fn as_async(&self) -> &crate::Locks {
        &self.inner
    }
}

impl Watch {
    /// Sleeps until the resource may have changed; `None` when the watch has ended and another must be made.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] on the engine's own thread.
    pub fn changed(&mut self) -> Result<Option<crate::driver::Hint>> {
        self.home.block_on(self.inner.changed())
    }
}
