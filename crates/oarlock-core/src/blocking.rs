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
//! use oarlock_core::blocking::Client;
//!
//! # fn main() -> oarlock_core::Result<()> {
//! let locks = Client::new(Memory::new())?;
//! let guard = locks.mutex("deploy/prod")?.reason("release 2.3").lock()?;
//! assert!(locks.mutex("deploy/prod")?.try_lock()?.is_none());
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
use crate::engine::{ClientBuilder, Home};
use crate::error::{Error, ErrorKind, Result};
use crate::state::{Ending, ResourceState};
use crate::{Fence, Handle, ResourceName};

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
        Ok(self.over(self.answer(work)?))
    }

    /// Waits for something that may not be there, and wraps it.
    fn try_have<U>(&self, work: impl Future<Output = Result<Option<U>>>) -> Result<Option<Blocking<U>>> {
        Ok(self.answer(work)?.map(|inner| self.over(inner)))
    }

    fn over<U>(&self, inner: U) -> Blocking<U> {
        Blocking { inner, home: self.home.clone() }
    }
}

/// Locks on one store. Cheap to clone; every clone is the same client.
pub type Client = Blocking<crate::Client>;

impl Client {
    /// A client over `driver`, with defaults, and a thread of its own.
    ///
    /// # Errors
    /// [`ErrorKind::Os`] if that thread cannot be started.
    pub fn new(driver: impl Driver) -> Result<Self> {
        Self::build(crate::Client::builder(driver))
    }

    /// A client with choices, and a thread of its own.
    ///
    /// # Errors
    /// As [`ClientBuilder::build`].
    pub fn build(builder: ClientBuilder) -> Result<Self> {
        Self::of(builder.home(Home::own_thread()?).build()?)
    }

    /// The blocking face of a client that has a [thread of its own](Home::own_thread).
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if it lives on the caller's runtime: whoever blocked that would wait for ever.
    pub fn of(client: crate::Client) -> Result<Self> {
        let home = client.core.home.clone();
        if !home.has_own_thread() {
            let message = "a client that lives on the caller's runtime cannot be used by blocking";
            return Err(Error::new(ErrorKind::Config, message));
        }
        Ok(Self { inner: client, home })
    }

    /// The same client for async code.
    #[must_use]
    pub fn client(&self) -> &crate::Client {
        &self.inner
    }

    /// Who the driver is and what it can do.
    #[must_use]
    pub fn info(&self) -> &Info {
        self.inner.info()
    }

    /// See [`Client::inspect`](crate::Client::inspect).
    ///
    /// # Errors
    /// As there.
    pub fn inspect(&self, name: &ResourceName) -> Result<ResourceState> {
        self.answer(self.inner.inspect(name))
    }

    /// See [`Client::list`](crate::Client::list).
    ///
    /// # Errors
    /// As there.
    pub fn list(&self) -> Result<Vec<ResourceState>> {
        self.answer(self.inner.list())
    }

    /// See [`Client::break_hold`](crate::Client::break_hold).
    ///
    /// # Errors
    /// As there.
    pub fn break_hold(&self, name: &ResourceName, fence: Fence, ending: Ending, grace: Duration) -> Result<Released> {
        self.answer(self.inner.break_hold(name, fence, ending, grace))
    }

    /// See [`Client::adopt`](crate::Client::adopt).
    ///
    /// # Errors
    /// As there.
    pub fn adopt(&self, handle: &Handle) -> Result<Guard> {
        self.have(self.inner.adopt(handle))
    }

    /// See [`Client::shutdown`](crate::Client::shutdown).
    ///
    /// # Errors
    /// As there.
    pub fn shutdown(&self, patience: Duration) -> Result<()> {
        self.answer(self.inner.shutdown(patience))
    }
}
