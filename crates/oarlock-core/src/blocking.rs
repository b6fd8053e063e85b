//! The same locks for code that blocks: same names, same guarantees, no `async`.
//!
//! Every call sleeps the calling thread until it has its answer. It works where there is no runtime, and on a thread of
//! one, which it then holds up as any blocking call would. Locks are renewed on a thread of the client's own, whatever the
//! caller's threads do.
//!
//! A call cannot be interrupted from outside: bound it with `wait`, which is 30 seconds unless said otherwise.
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

use std::future::Future;
use std::time::Duration;

pub use guards::{EntryGuard, Guard, Leadership, MultiGuard, WriteGuard};
pub use kinds::{Election, LeaderWatch, Multi, Mutex, Once, ReentrantMutex, ReentrantRwLock, RwLock, Semaphore};

use crate::driver::{Driver, Info, Released};
use crate::engine::Home;
use crate::error::{Error, ErrorKind, Result};
use crate::state::{Ending, ResourceState};
use crate::{Fence, LockTicket};

/// Something of the async API, used by blocking: what its name says, with the same methods.
#[derive(Clone, Debug)]
pub struct Blocking<T> {
    inner: T,
    home: Home,
}

impl<T> Blocking<T> {
    fn answer<R>(&self, work: impl Future<Output = Result<R>>) -> Result<R> {
        self.home.block_on(work)?
    }

    /// Waits for something and wraps it.
    fn have<U>(&self, work: impl Future<Output = Result<U>>) -> Result<Blocking<U>> {
        Ok(self.wrap(self.answer(work)?))
    }

    /// Waits for something that may not be there, and wraps it.
    fn try_have<U>(&self, work: impl Future<Output = Result<Option<U>>>) -> Result<Option<Blocking<U>>> {
        Ok(self.answer(work)?.map(|inner| self.wrap(inner)))
    }

    fn wrap<U>(&self, inner: U) -> Blocking<U> {
        Blocking { inner, home: self.home.clone() }
    }
}

/// Locks on one store. Cheap to clone; every clone is the same client.
pub type Locks = Blocking<crate::Locks>;

impl Locks {
    /// A client over `driver`, with defaults, and a thread of its own. With settings:
    /// [`LocksBuilder::build_blocking`](crate::LocksBuilder::build_blocking).
    ///
    /// # Errors
    /// [`ErrorKind::Os`] if that thread cannot be started.
    pub fn over(driver: impl Driver) -> Result<Self> {
        crate::Locks::builder(driver).build_blocking()
    }

    /// The blocking face of a client that has a [thread of its own](Home::own_thread).
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if it lives on the caller's runtime: whoever blocked that would wait for ever.
    pub fn of(client: crate::Locks) -> Result<Self> {
        let home = client.core.home.clone();
        if !home.has_own_thread() {
            let message = "a client that lives on the caller's runtime cannot be used by blocking";
            return Err(Error::new(ErrorKind::Config, message));
        }
        Ok(Self { inner: client, home })
    }

    /// The same client for async code.
    #[must_use]
    pub fn as_async(&self) -> &crate::Locks {
        &self.inner
    }

    /// Who the driver is and what it can do.
    #[must_use]
    pub fn info(&self) -> &Info {
        self.inner.info()
    }

    /// See [`Locks::inspect`](crate::Locks::inspect).
    ///
    /// # Errors
    /// As there.
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<ResourceState> {
        self.answer(self.inner.inspect(name))
    }

    /// See [`Locks::list`](crate::Locks::list).
    ///
    /// # Errors
    /// As there.
    pub fn list(&self) -> Result<Vec<ResourceState>> {
        self.answer(self.inner.list())
    }

    /// See [`Locks::break_hold`](crate::Locks::break_hold).
    ///
    /// # Errors
    /// As there.
    pub fn break_hold(&self, name: impl AsRef<str>, fence: Fence, ending: Ending, grace: Duration) -> Result<Released> {
        self.answer(self.inner.break_hold(name, fence, ending, grace))
    }

    /// See [`Locks::adopt`](crate::Locks::adopt).
    ///
    /// # Errors
    /// As there.
    pub fn adopt(&self, ticket: &LockTicket) -> Result<Guard> {
        self.have(self.inner.adopt(ticket))
    }

    /// See [`Locks::shutdown`](crate::Locks::shutdown).
    ///
    /// # Errors
    /// As there.
    pub fn shutdown(&self, patience: Duration) -> Result<()> {
        self.answer(self.inner.shutdown(patience))
    }
}
