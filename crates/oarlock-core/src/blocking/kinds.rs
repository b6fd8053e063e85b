//! What kinds can do here that is not written from the async API: several locks as one, closures.

use super::{Blocking, Locks, Multi, Once};
use crate::error::{Error, Result};
use crate::guard::Held;
use crate::kinds::multi::Part;
use crate::kinds::once::Slot;

/// For parts of a [`Multi`]: a mutex, or [`RwLock::for_reading`](super::RwLock::for_reading) and the like.
impl<T: Into<Part>> From<Blocking<T>> for Part {
    fn from(lock: Blocking<T>) -> Self {
        lock.inner.into()
    }
}

impl Multi {
    /// One lock, to which others can be added.
    pub fn of<T: Into<Part>>(lock: Blocking<T>) -> Self {
        Blocking { inner: crate::Multi::of(lock.inner), home: lock.home }
    }

    /// All of these locks, of which there must be one at least. `locks` is the client that waits.
    pub fn all<P: Into<Part>>(locks: &Locks, parts: impl IntoIterator<Item = P>) -> Self {
        Blocking { inner: crate::Multi::all(parts), home: locks.home.clone() }
    }

    /// One more lock.
    pub fn and(mut self, lock: impl Into<Part>) -> Self {
        self.inner = self.inner.and(lock);
        self
    }
}

impl Once {
    /// Does `work` unless `slot`, or a later one, is done already: see [`Once::run`](crate::Once::run). Work that blocks cannot be
    /// stopped when the lock is lost: let it call [`Held::check`] between its steps.
    ///
    /// # Errors
    /// As there.
    pub fn run<T, E: From<Error>>(&self, slot: &str, work: impl FnOnce(Held) -> Result<T, E>) -> Result<Slot<T>, E> {
        self.home.block_on(self.inner.run(slot, |held| async move { work(held) }))?
    }
}
