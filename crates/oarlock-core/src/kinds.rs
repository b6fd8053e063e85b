//! The kinds of lock: thin names for a capacity, a weight and an order. All waiting and keeping is the engine's.

pub mod election;
pub mod multi;
pub mod mutex;
pub mod once;
pub mod reentrant;
pub mod rwlock;
pub mod semaphore;

/// The choices that every kind has, as methods of its own so that nobody needs to import a trait.
macro_rules! kept {
    ($kind:ty) => {
        #[oarlock_macros::blocking]
        impl $kind {
            /// Sets the lease: how long the lock lives without renewal. The client renews it every third of that.
            #[must_use]
            pub fn ttl(mut self, ttl: std::time::Duration) -> Self {
                self.ask.claim.ttl = ttl;
                self
            }

            /// Gives up waiting after `wait`. Without this, after the client's default of 30 seconds.
            #[must_use]
            pub fn wait(mut self, wait: std::time::Duration) -> Self {
                self.ask.wait = crate::engine::Wait::AtMost(wait);
                self
            }

            /// Never gives up waiting.
            #[must_use]
            pub fn wait_forever(mut self) -> Self {
                self.ask.wait = crate::engine::Wait::Forever;
                self
            }

            /// Bounds how long the lock can be held, with renewals or without.
            #[must_use]
            pub fn max_hold(mut self, span: std::time::Duration) -> Self {
                self.ask.max_hold = Some(span);
                self
            }

            /// Begins with its whole lease. Without this, a lock that its last holder handed on may begin with a lease of a second
            /// or two, which the client renews at once: see [`Mutex::lock`](crate::Mutex::lock). For a program that needs more
            /// time than that to stop in order, as [`ends_within`](crate::Held::ends_within) gives it.
            #[must_use]
            pub fn whole_lease(mut self) -> Self {
                self.ask.whole = true;
                self
            }

            /// Identifies this claim to others (host, pid, user, reason).
            #[must_use]
            pub fn label(mut self, label: crate::Label) -> Self {
                self.ask.claim.label = std::sync::Arc::new(label);
                self
            }

            /// Says why the lock is wanted: shown to others who look at it.
            #[must_use]
            pub fn reason(mut self, reason: impl Into<String>) -> Self {
                std::sync::Arc::make_mut(&mut self.ask.claim.label).reason = Some(reason.into());
                self
            }

            /// What the lock lives by, besides its lease.
            #[must_use]
            pub fn tether(mut self, tether: crate::Tether) -> Self {
                self.ask.claim.tether = tether;
                self
            }
        }
    };
}
pub(crate) use kept;

/// Those, and what only kinds have that need not be renewed, and can be waited for by their own holder.
macro_rules! tunable {
    ($kind:ty) => {
        $crate::kinds::kept!($kind);

        #[oarlock_macros::blocking]
        impl $kind {
            /// Does not renew: the lock ends one [`ttl`](Self::ttl) after it was granted.
            #[must_use]
            pub fn no_renewal(mut self) -> Self {
                self.ask.renew = false;
                self
            }

            /// Names the owner on whose behalf the lock is taken: waiting for what the same owner holds is an error, not a hang.
            #[must_use]
            pub fn owner(mut self, owner: &crate::Owner) -> Self {
                self.ask.owner = Some(owner.clone());
                self
            }
        }
    };
}
pub(crate) use tunable;

use crate::claim::ResourceName;
use crate::engine::{Ask, Patience, Wait};
use crate::error::Error;
use crate::locks::Locks;

/// Locks are made without I/O and without errors: `lock()` refuses an invalid name.
#[oarlock_macros::blocking]
impl Locks {
    /// A lock with one holder at a time.
    pub fn mutex(&self, name: impl AsRef<str>) -> mutex::Mutex {
        mutex::Mutex::new(self.ask(name.as_ref()))
    }

    /// A lock with many readers or one writer.
    pub fn rwlock(&self, name: impl AsRef<str>) -> rwlock::RwLock {
        rwlock::RwLock::new(self.ask(name.as_ref()))
    }

    /// A lock of `permits` units, of which each holder takes some.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> semaphore::Semaphore {
        semaphore::Semaphore::new(self.ask(name.as_ref()), permits)
    }

    /// An election of one leader among many candidates.
    pub fn election(&self, name: impl AsRef<str>) -> election::Election {
        election::Election::new(self.ask(name.as_ref()))
    }

    /// Work that is done once per slot, by the first process that asks.
    pub fn once(&self, name: impl AsRef<str>) -> once::Once {
        once::Once::new(self.ask(name.as_ref()))
    }

    fn ask(&self, name: &str) -> Ask {
        let checked = ResourceName::new(name);
        let invalid = checked.as_ref().err().cloned();
        Ask {
            claim: self.claim(checked.unwrap_or_else(|_| ResourceName::unchecked(name))),
            invalid,
            wait: Wait::AtMost(self.core.wait),
            renew: true,
            whole: false,
            max_hold: None,
            patience: Patience::Hint,
            fair: false,
            owner: None,
            answer_by: crate::clock::Moment::NEVER,
            cohort: None,
            client: self.clone(),
        }
    }
}

impl Ask {
    /// This asking, which will be refused for `error`, unless it is for another reason already.
    fn refuse(mut self, error: Error) -> Self {
        self.invalid.get_or_insert(error);
        self
    }
}
