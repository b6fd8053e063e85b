//! Methods of guards that are not generated from the async API: closures, and waits with a bound.

use std::ops::Deref;
use std::time::Duration;

use super::{Guard, Held, Leadership, MultiGuard, MultiHeld, ReentrantGuard, Twin, WriteGuard};
use crate::belief::{Ended, LossReason};
use crate::error::{Error, Result};
use crate::state::Ending;

/// The result of a bounded wait for a request to end a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndRequest<T = Ending> {
    /// An operator or another program asked for the end of the hold.
    Asked(T),
    /// The hold goes on: its end was not asked for in the given time.
    NotAsked,
    /// The hold ended without such a request.
    Ended(Ended),
}

/// What does not wait is in the view that each derefs to. What waits has a bound here.
macro_rules! waits {
    ($($guard:ident),+ => $view:ty, $lost:ty, $asked:ty) => {$(
        impl Deref for $guard {
            type Target = $view;

            fn deref(&self) -> &$view {
                &self.inner
            }
        }

        impl $guard {
            /// Sleeps until a lock is lost, for at most `patience`; says why it was lost. See
            /// [`Held::lost`](crate::Held::lost).
            ///
            /// # Errors
            /// [`ErrorKind::Config`](crate::ErrorKind::Config) on the background thread of the client.
            pub fn lost_within(&self, patience: Duration) -> Result<Option<$lost>> {
                let view: &$view = self;
                self.runtime.block_on(async { tokio::time::timeout(patience, view.lost()).await.ok() })
            }

            /// Sleeps until a lock is lost or released, for at most `patience`; says which. See
            /// [`Held::ended`](crate::Held::ended).
            ///
            /// # Errors
            /// As [`lost_within`](Self::lost_within).
            pub fn ended_within(&self, patience: Duration) -> Result<Option<Ended>> {
                let view: &$view = self;
                self.runtime.block_on(async { tokio::time::timeout(patience, view.ended()).await.ok() })
            }

            /// Sleeps until the end of the hold is asked for, for at most `patience`; says who asked and why. See
            /// [`Held::asked_to_end`](crate::Held::asked_to_end).
            ///
            /// # Errors
            /// As [`lost_within`](Self::lost_within).
            pub fn asked_to_end_within(&self, patience: Duration) -> Result<EndRequest<$asked>> {
                let view: &$view = self;
                self.runtime.block_on(async {
                    match tokio::time::timeout(patience, view.asked_to_end()).await {
                        Ok(Some(asked)) => EndRequest::Asked(asked),
                        Ok(None) => EndRequest::Ended(view.ended().await),
                        Err(_) => EndRequest::NotAsked,
                    }
                })
            }

            /// Sleeps until the hold will end within `lead` unless a renewal succeeds, for at most `patience`; true if
            /// it will, or has ended. See [`Held::ends_within`](crate::Held::ends_within).
            ///
            /// # Errors
            /// As [`lost_within`](Self::lost_within).
            pub fn ending_within(&self, lead: Duration, patience: Duration) -> Result<bool> {
                let view: &$view = self;
                self.runtime.block_on(async { tokio::time::timeout(patience, view.ends_within(lead)).await.is_ok() })
            }
        }
    )+};
}

waits!(Guard, WriteGuard, ReentrantGuard, Leadership, Held => crate::Held, LossReason, Ending);
waits!(MultiGuard, MultiHeld => crate::MultiHeld, (&crate::Held, LossReason), (&crate::Held, Ending));

/// `with`, for guards whose async twin has it.
macro_rules! with {
    ($($guard:ident gives $held:ident),+) => {$(
        impl $guard {
            /// Runs `body` while the lock is held. Code that blocks cannot be stopped: call
            /// [`check`](crate::Held::check) between its steps.
            ///
            /// # Errors
            /// Any error of `body`. [`ErrorKind::Lost`](crate::ErrorKind::Lost) if a lock was lost before `body` was
            /// done: then `body` did not begin, or its result is dropped.
            pub fn with<T, E: From<Error>>(&self, body: impl FnOnce($held) -> Result<T, E>) -> Result<T, E> {
                self.check()?;
                let done = body(self.held())?;
                self.check()?;
                Ok(done)
            }
        }
    )+};
}

with!(Guard gives Held, WriteGuard gives Held, MultiGuard gives MultiHeld);

impl WriteGuard {
    /// The blocking twin of [`Guard::held`](crate::Guard::held).
    pub fn held(&self) -> Held {
        self.inner.held().twin(&self.runtime)
    }
}
