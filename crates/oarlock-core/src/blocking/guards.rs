//! What a guard can do here that is not written from the async API: closures, and waits with a bound.

use std::ops::Deref;
use std::time::Duration;

use super::{Guard, Leadership, MultiGuard, ReentrantGuard, WriteGuard};
use crate::belief::{Ended, LossReason};
use crate::error::{Error, Result};
use crate::guard::Held;
use crate::state::Ending;

/// What can be known of a held lock, and awaited of it for some time.
macro_rules! held {
    ($($guard:ident),+) => {$(
        impl Deref for $guard {
            type Target = Held;

            fn deref(&self) -> &Held {
                &self.inner
            }
        }

        impl $guard {
            /// Sleeps until the lock is lost, or for `patience`; says why it was lost. See [`Held::lost`].
            ///
            /// # Errors
            /// [`ErrorKind::Config`](crate::ErrorKind::Config) on the engine's own thread.
            pub fn lost_within(&self, patience: Duration) -> Result<Option<LossReason>> {
                let held: &Held = self;
                self.home.block_on(async { tokio::time::timeout(patience, held.lost()).await.ok() })
            }

            /// Sleeps until the lock is lost or released, or for `patience`; says which. See [`Held::ended`].
            ///
            /// # Errors
            /// As [`lost_within`](Self::lost_within).
            pub fn ended_within(&self, patience: Duration) -> Result<Option<Ended>> {
                let held: &Held = self;
                self.home.block_on(async { tokio::time::timeout(patience, held.ended()).await.ok() })
            }

            /// Sleeps until the end of the hold is asked for, or for `patience`; says who asked and why. See
            /// [`Held::asked_to_end`].
            ///
            /// # Errors
            /// As [`lost_within`](Self::lost_within).
            pub fn asked_to_end_within(&self, patience: Duration) -> Result<Option<Ending>> {
                let held: &Held = self;
                self.home.block_on(async { tokio::time::timeout(patience, held.asked_to_end()).await.ok().flatten() })
            }
        }
    )+};
}

held!(Guard, WriteGuard, ReentrantGuard, Leadership);

impl Guard {
    /// Runs `body` while the lock is held. Code that blocks cannot be stopped: let it call [`Held::check`] between its steps.
    ///
    /// # Errors
    /// Any error of `body`; [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lock was lost before `body` was done, and then `body`
    /// did not begin, or its result is dropped.
    pub fn with<T, E: From<Error>>(&self, body: impl FnOnce(Held) -> Result<T, E>) -> Result<T, E> {
        self.check()?;
        let done = body(self.held())?;
        self.check()?;
        Ok(done)
    }
}

impl MultiGuard {
    /// Runs `body` while all are held; see [`Guard::with`].
    ///
    /// # Errors
    /// As there.
    pub fn with<T, E: From<Error>>(&self, body: impl FnOnce(Vec<Held>) -> Result<T, E>) -> Result<T, E> {
        let check = || self.inner.iter().try_for_each(Held::check);
        check()?;
        let done = body(self.inner.iter().cloned().collect())?;
        check()?;
        Ok(done)
    }
}
