//! Data that is protected by fences.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::claim::Fence;

/// The SQLSTATE of the error with which `oarlock.check` (`PostgreSQL`) and `oarlock_check` (`MySQL`, `MariaDB`) refuse a
/// fence: a holder with a larger one has written since. Roll the transaction back, and stop as after a loss.
pub const TOO_LATE_SQLSTATE: &str = "OAR02";

/// Data that only the newest holder of a lock may change.
///
/// A lock alone cannot stop a holder that was paused (a long GC pause), wakes up after its lease, and writes before it
/// notices. The data can: it remembers the largest fence it has seen and refuses smaller ones. This type does so for
/// data in this process; databases do it with a condition on a column.
///
/// # Guarantees
/// After a change with fence *n* was accepted, none with a smaller fence is. The check and the change are one step.
///
/// Use it with exclusive locks (a mutex, a writer, a leader): holders that share a lock have different fences at the
/// same time, and all of them are current.
///
/// # Examples
/// ```
/// # use oarlock_core::{Fence, Fenced};
/// let stock = Fenced::new(3);
/// stock.change(Fence::new(7), |stock| *stock -= 1)?;
/// stock.change(Fence::new(8), |stock| *stock -= 1)?;
/// // The holder of fence 7 slept through its lease.
/// let late = stock.change(Fence::new(7), |stock| *stock -= 1).unwrap_err();
/// assert_eq!((late.offered, late.seen), (Fence::new(7), Fence::new(8)));
/// assert_eq!(stock.read(|stock| *stock), 1);
/// # Ok::<(), oarlock_core::Stale>(())
/// ```
#[derive(Debug, Default)]
pub struct Fenced<T>(Mutex<Guarded<T>>);

#[derive(Debug, Default)]
struct Guarded<T> {
    seen: Option<Fence>,
    data: T,
}

/// A change that came too late: a newer holder has changed the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stale {
    /// The fence that came with the change.
    pub offered: Fence,
    /// The largest fence seen.
    pub seen: Fence,
}

/// The outcome of a write to a store that checks fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is stored.
    Stored,
    /// A write with a larger fence came before: the sender of this one has lost the lock.
    Refused {
        /// The fence of the stored value.
        stored: Fence,
    },
}

impl<T> Fenced<T> {
    /// Data that was not changed yet.
    pub fn new(data: T) -> Self {
        Self(Mutex::new(Guarded { seen: None, data }))
    }

    /// Data that was last changed under `seen`, as after a restart.
    pub fn restored(data: T, seen: Fence) -> Self {
        Self(Mutex::new(Guarded { seen: Some(seen), data }))
    }

    /// Changes the data on behalf of the holder with this fence.
    ///
    /// # Errors
    /// [`Stale`] if a larger fence has been seen; nothing is changed then.
    pub fn change<R>(&self, fence: Fence, change: impl FnOnce(&mut T) -> R) -> Result<R, Stale> {
        let mut guarded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = guarded.seen
            && fence < seen
        {
            crate::telemetry::fence_rejected("memory");
            return Err(Stale { offered: fence, seen });
        }
        guarded.seen = Some(fence);
        Ok(change(&mut guarded.data))
    }

    /// Reads the data, which needs no fence.
    pub fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&self.0.lock().unwrap_or_else(PoisonError::into_inner).data)
    }

    /// The largest fence seen: keep it with the data if the data outlives this process.
    #[must_use]
    pub fn seen(&self) -> Option<Fence> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).seen
    }
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused: fence {} is older than fence {}, whose holder has written since", self.offered, self.seen)
    }
}

impl std::error::Error for Stale {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_change_is_refused_and_changes_nothing() {
        let data = Fenced::restored(Vec::new(), Fence::new(5));
        assert!(data.change(Fence::new(4), |data| data.push(4)).is_err());
        data.change(Fence::new(5), |data| data.push(5)).unwrap();
        data.change(Fence::new(9), |data| data.push(9)).unwrap();
        assert_eq!(data.change(Fence::new(8), |data| data.push(8)).unwrap_err().seen, Fence::new(9));
        assert_eq!(data.read(Clone::clone), [5, 9]);
        assert_eq!(data.seen(), Some(Fence::new(9)));
    }
}
