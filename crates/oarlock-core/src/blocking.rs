//! The blocking API: the same locks, names and guarantees, without `async`.
//!
//! Every type here is the one of the same name in the [async API](crate), used by blocking, and has its methods: they
//! are written from the same definitions. What the async API does with a future or an async closure is done here with a
//! closure.
//!
//! A call sleeps the calling thread until it has its answer. It works where there is no runtime, and on a thread of
//! one, which it then blocks. Locks are renewed on a thread of the client's own, whatever the caller's threads do. A
//! call cannot be interrupted from outside: bound it with `wait`, which is 30 seconds by default.
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

pub use guards::EndRequest;
pub use thread::{ThreadGuard, ThreadMutex, ThreadRwLock};

use std::time::Duration;

use crate::driver::Driver;
use crate::engine::Runtime;
use crate::error::{Error, ErrorKind, Result};

/// The blocking twin of a type of the async API: the same methods, without `async`.
#[derive(Clone, Debug)]
#[must_use = "a guard that is dropped at once releases the lock at once, and a lock that is never taken does nothing"]
pub struct Blocking<T> {
    pub(crate) inner: T,
    pub(crate) runtime: Runtime,
}

/// Turns a value of the async API into its blocking twin.
pub(crate) trait Twin {
    type Blocking;

    fn twin(self, runtime: &Runtime) -> Self::Blocking;
}

impl<T: Twin> Twin for Option<T> {
    type Blocking = Option<T::Blocking>;

    fn twin(self, runtime: &Runtime) -> Self::Blocking {
        self.map(|inner| inner.twin(runtime))
    }
}

// The type of each twin, and how the async one becomes it.
oarlock_macros::twins!();

impl Locks {
    /// A client over `driver`, with defaults, and a thread of its own. With settings:
    /// [`LocksBuilder::build_blocking`](crate::LocksBuilder::build_blocking).
    ///
    /// # Errors
    /// [`ErrorKind::Os`] if that thread cannot be started.
    pub fn over(driver: impl Driver) -> Result<Self> {
        crate::Locks::builder(driver).build_blocking()
    }

    /// The blocking API of an async client that has a [thread of its own](crate::LocksBuilder::own_thread).
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if it runs on the caller's runtime: a thread of that runtime that blocks would wait for
    /// ever.
    pub fn of(locks: crate::Locks) -> Result<Self> {
        let runtime = locks.core.runtime.clone();
        if !runtime.has_own_thread() {
            let message = "a client on the caller's runtime has no blocking API: build it with `own_thread()`";
            return Err(Error::new(ErrorKind::Config, message));
        }
        Ok(Self { inner: locks, runtime })
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
    /// [`ErrorKind::Config`] on the background thread of the client.
    pub fn changed(&mut self) -> Result<Option<crate::driver::Hint>> {
        self.runtime.block_on(self.inner.changed())
    }

    /// Sleeps as [`changed`](Self::changed) does, for at most `patience`; `None` if nothing changed in that time.
    ///
    /// # Errors
    /// As [`changed`](Self::changed).
    pub fn changed_within(&mut self, patience: Duration) -> Result<Option<Option<crate::driver::Hint>>> {
        self.runtime.block_on(async { tokio::time::timeout(patience, self.inner.changed()).await.ok() })
    }
}

impl LeaderWatch {
    /// Sleeps as [`changed`](Self::changed) does, for at most `patience`; `None` if the leader did not change in that
    /// time, `Some(None)` if there is no leader.
    ///
    /// # Errors
    /// As [`changed`](Self::changed).
    pub fn changed_within(&mut self, patience: Duration) -> Result<Option<Option<crate::Leader>>> {
        let changed =
            self.runtime.block_on(async { tokio::time::timeout(patience, self.inner.changed()).await.ok() })?;
        changed.transpose()
    }
}
