//! Methods of kinds that are not generated from the async API: several locks as one, closures.

use super::{Blocking, Held, Locks, Multi, Mutex, Once, Part, Twin};
use crate::Slot;
use crate::error::{Error, Result};

impl From<Mutex> for Part {
    fn from(Blocking { inner, runtime }: Mutex) -> Self {
        Self { inner: inner.into(), runtime }
    }
}

impl Multi {
    /// One lock, to which others can be added.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Memory, blocking::{Locks, Multi}};
    /// # fn main() -> oarlock_core::Result<()> {
    /// let locks = Locks::over(Memory::new())?;
    /// let both = Multi::of(locks.rwlock("rates").for_reading()).and(locks.mutex("account/7")).lock()?;
    /// assert!(both.is_held());
    /// both.release()?;
    /// # Ok(()) }
    /// ```
    pub fn of(part: impl Into<Part>) -> Self {
        let Blocking { inner, runtime } = part.into();
        Blocking { inner: crate::Multi::of(inner), runtime }
    }

    /// All of these locks, of which there must be one at least. `locks` is the client that waits.
    pub fn all<P: Into<Part>>(locks: &Locks, parts: impl IntoIterator<Item = P>) -> Self {
        let parts = parts.into_iter().map(|part| part.into().inner);
        Blocking { inner: crate::Multi::all(parts), runtime: locks.runtime.clone() }
    }

    /// One more lock.
    pub fn and(mut self, part: impl Into<Part>) -> Self {
        self.inner = self.inner.and(part.into().inner);
        self
    }
}

impl Once {
    /// Does `work` unless `slot`, or a later one, is done already: see [`Once::run`](crate::Once::run). Work that
    /// blocks cannot be stopped when the lock is lost: call [`check`](crate::Held::check) between its steps.
    ///
    /// # Errors
    /// As there.
    pub fn run<T, E: From<Error>>(&self, slot: &str, work: impl FnOnce(Held) -> Result<T, E>) -> Result<Slot<T>, E> {
        let work = |held: crate::Held| async { work(held.twin(&self.runtime)) };
        self.runtime.block_on(self.inner.run(slot, work))?
    }
}
