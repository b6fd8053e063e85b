//! How a client for code that blocks is made.

use std::sync::Arc;

use super::Locks;
use crate::driver::{Driver, DynDriver};
use crate::error::{Error, ErrorKind, Result};
use crate::locks::Opener;

#[oarlock_macros::by_hand]
impl Locks {
    /// A client over a driver, with defaults: for your own store, and for tests.
    ///
    /// # Errors
    /// [`ErrorKind::Os`] if the client's background thread cannot be started.
    pub fn over(driver: impl Driver) -> Result<Self> {
        Self::builder(driver).build()
    }

    /// A client over a driver, with settings.
    pub fn builder(driver: impl Driver) -> LocksBuilder<Arc<dyn DynDriver>> {
        Self::builder_over(Arc::new(driver))
    }

    /// A client over a driver that is shared or chosen at run time, with settings.
    pub fn builder_over(driver: Arc<dyn DynDriver>) -> LocksBuilder<Arc<dyn DynDriver>> {
        crate::Locks::builder_over(driver).into()
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
        Ok(Self { inner: locks, runtime: Some(runtime) })
    }

    /// The same client for async code.
    #[must_use]
    pub fn as_async(&self) -> &crate::Locks {
        &self.inner
    }
}

/// Builds a client for code that blocks. A setting made here overrides the URL.
///
/// `S` is where the driver comes from: a URL ([`Opener`]: finish with [`connect`](LocksBuilder::connect)), or a driver
/// that exists already ([`Locks::builder`]: finish with [`build`](LocksBuilder::build)).
#[derive(Debug)]
#[must_use = "call connect() or build()"]
pub struct LocksBuilder<S = Opener> {
    pub(crate) inner: crate::LocksBuilder<S>,
}

impl<S> From<crate::LocksBuilder<S>> for LocksBuilder<S> {
    fn from(inner: crate::LocksBuilder<S>) -> Self {
        Self { inner }
    }
}

#[oarlock_macros::by_hand]
impl LocksBuilder {
    /// Connects to the store, and starts the client's background thread.
    ///
    /// # Errors
    /// As [`LocksBuilder::connect`](crate::LocksBuilder::connect) of the async API.
    pub fn connect(self) -> Result<Locks> {
        self.inner.connect_blocking()
    }
}

#[oarlock_macros::by_hand]
impl LocksBuilder<Arc<dyn DynDriver>> {
    /// Builds the client, and starts its background thread.
    ///
    /// # Errors
    /// As [`LocksBuilder::build`](crate::LocksBuilder::build) of the async API.
    pub fn build(self) -> Result<Locks> {
        self.inner.build_blocking()
    }
}
