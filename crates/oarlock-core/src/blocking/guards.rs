//! Guards, and their methods that are not generated from the async API.

use std::fmt;
use std::ops::Deref;

use super::{Blocking, Held, MultiHeld, Twin};
use crate::engine::Runtime;
use crate::error::{Error, Result};

/// A guard of the async API with the same methods, without `async`; it derefs to its state.
#[must_use = "a guard that is dropped at once releases the lock at once"]
pub struct BlockingGuard<T, H> {
    pub(crate) inner: T,
    pub(crate) held: Blocking<H>,
    pub(crate) runtime: Option<Runtime>,
}

impl<T, H> Deref for BlockingGuard<T, H> {
    type Target = Blocking<H>;

    fn deref(&self) -> &Blocking<H> {
        &self.held
    }
}

impl<T: fmt::Debug, H> fmt::Debug for BlockingGuard<T, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[oarlock_macros::by_hand]
impl<T, H: Clone> BlockingGuard<T, H> {
    /// The state of this lock, for other threads.
    #[must_use]
    pub fn held(&self) -> Blocking<H> {
        self.held.clone()
    }
}

/// `with`, for the guards of each state.
macro_rules! with {
    ($($held:ident),+) => {$(
        #[oarlock_macros::by_hand]
        impl<G> BlockingGuard<G, crate::$held> {
            /// Runs `body` while the lock is held. Code that blocks cannot be stopped: call `check` between its steps.
            ///
            /// # Errors
            /// Any error of `body`. [`ErrorKind::Lost`](crate::ErrorKind::Lost) if a lock was lost before `body` was
            /// done: then `body` did not begin, or its result is dropped.
            pub fn with<T, E: From<Error>>(&self, body: impl FnOnce($held) -> Result<T, E>) -> Result<T, E> {
                self.check()?;
                let done = body(self.held.clone())?;
                self.check()?;
                Ok(done)
            }
        }
    )+};
}

with!(Held, MultiHeld);

#[oarlock_macros::by_hand]
impl MultiHeld {
    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = Held> {
        self.inner.iter().map(|held| held.twin(&self.runtime))
    }
}
