//! Methods of kinds that are not generated from the async API: several locks as one, closures.

use super::{Blocking, Held, Multi, Mutex, Once, Part, Twin, block_on};
use crate::Slot;
use crate::error::{Error, Result};

impl From<Mutex> for Part {
    fn from(Blocking { inner, runtime }: Mutex) -> Self {
        Self { inner: inner.into(), runtime }
    }
}

#[oarlock_macros::by_hand]
impl Multi {
    /// One lock, to which others can be added.
    #[must_use = "nothing is taken before lock() or try_lock()"]
    pub fn of(part: impl Into<Part>) -> Self {
        let Blocking { inner, runtime } = part.into();
        Self { inner: crate::Multi::of(inner), runtime }
    }

    /// All of these locks; there must be one at least.
    #[must_use = "nothing is taken before lock() or try_lock()"]
    pub fn all<P: Into<Part>>(parts: impl IntoIterator<Item = P>) -> Self {
        let parts: Vec<Part> = parts.into_iter().map(Into::into).collect();
        let runtime = parts.first().and_then(|part| part.runtime.clone());
        Self { inner: crate::Multi::all(parts.into_iter().map(|part| part.inner)), runtime }
    }

    /// One more lock.
    #[must_use = "nothing is taken before lock() or try_lock()"]
    pub fn and(self, part: impl Into<Part>) -> Self {
        let part = part.into();
        Self { inner: self.inner.and(part.inner), runtime: self.runtime.or(part.runtime) }
    }
}

#[oarlock_macros::by_hand]
impl Once {
    /// Does `work` unless `slot`, or a later one, is done already: see [`Once::run`](crate::Once::run). Work that
    /// blocks cannot be stopped when the lock is lost: call [`check`](Held::check) between its steps.
    ///
    /// # Errors
    /// As there.
    pub fn run<T, E: From<Error>>(&self, slot: &str, work: impl FnOnce(Held) -> Result<T, E>) -> Result<Slot<T>, E> {
        let work = |held: crate::Held| async { work(held.twin(&self.runtime)) };
        block_on(&self.runtime, async { Ok(self.inner.run(slot, work).await) })?
    }
}
