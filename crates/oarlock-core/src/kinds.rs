//! The kinds of lock. Each is a capacity, a weight and an order; the engine does the waiting and renewing.

pub(crate) mod election;
pub(crate) mod multi;
pub(crate) mod mutex;
pub(crate) mod once;
pub(crate) mod reentrant;
pub(crate) mod rwlock;
pub(crate) mod semaphore;

pub use election::{Election, Leader, LeaderWatch, Leadership};
pub use multi::{Multi, MultiGuard, MultiHeld, Part};
pub use mutex::Mutex;
pub use once::{Once, Slot};
pub use reentrant::{ReentrantGuard, ReentrantMutex, ReentrantRwLock};
pub use rwlock::{RwLock, WriteGuard};
pub use semaphore::Semaphore;

/// The options that every kind has, as inherent methods: no trait has to be imported.
macro_rules! common_options {
    ($kind:ty) => {
        #[oarlock_macros::blocking]
        impl $kind {
            /// Sets the lease: how long the lock lives without renewal. The client renews it every third of that.
            pub fn ttl(mut self, ttl: std::time::Duration) -> Self {
                self.request.claim.ttl = ttl;
                self
            }

            /// Gives up waiting after `wait`. Without this, after the client's default of 30 seconds.
            pub fn wait(mut self, wait: std::time::Duration) -> Self {
                self.request.wait = crate::engine::Wait::AtMost(wait);
                self
            }

            /// Never gives up waiting.
            pub fn wait_forever(mut self) -> Self {
                self.request.wait = crate::engine::Wait::Forever;
                self
            }

            /// Bounds how long the lock can be held, with renewals or without.
            pub fn max_hold(mut self, span: std::time::Duration) -> Self {
                self.request.max_hold = Some(span);
                self
            }

            /// Begins with a whole lease. Without this, a lock that its last holder handed on may begin with a lease of
            /// one or two seconds, which the client renews at once. Use it for a program that needs more time than that
            /// to stop in order, with [`ends_within`](crate::Held::ends_within).
            pub fn whole_lease(mut self) -> Self {
                self.request.whole = true;
                self
            }

            /// Identifies this claim to others (host, pid, user, reason).
            pub fn label(mut self, label: crate::Label) -> Self {
                self.request.claim.label = std::sync::Arc::new(label);
                self
            }

            /// Sets the reason: shown to others who inspect the lock.
            pub fn reason(mut self, reason: impl Into<String>) -> Self {
                std::sync::Arc::make_mut(&mut self.request.claim.label).reason = Some(reason.into());
                self
            }

            /// Sets what the lock lives by, besides its lease.
            pub fn lifetime(mut self, lifetime: crate::Lifetime) -> Self {
                self.request.claim.lifetime = lifetime;
                self
            }
        }
    };
}
pub(crate) use common_options;

/// The common options, and those of kinds that need no renewal and can have an owner.
macro_rules! lock_options {
    ($kind:ty) => {
        $crate::kinds::common_options!($kind);

        #[oarlock_macros::blocking]
        impl $kind {
            /// Does not renew: the lock ends one [`ttl`](Self::ttl) after it was granted.
            pub fn no_renewal(mut self) -> Self {
                self.request.renew = false;
                self
            }

            /// Sets the owner of the lock: waiting for a lock that the same owner holds is an error instead of a
            /// deadlock.
            pub fn owner(mut self, owner: &crate::Owner) -> Self {
                self.request.owner = Some(owner.clone());
                self
            }
        }
    };
}
pub(crate) use lock_options;

use crate::claim::ResourceName;
use crate::engine::{Patience, Request, Wait};
use crate::error::Error;
use crate::locks::Locks;

/// Locks are made without I/O and without errors: `lock()` refuses an invalid name.
#[oarlock_macros::blocking]
impl Locks {
    /// A lock with one holder at a time.
    pub fn mutex(&self, name: impl AsRef<str>) -> mutex::Mutex {
        mutex::Mutex::new(self.request(name.as_ref()))
    }

    /// A lock with many readers or one writer.
    pub fn rwlock(&self, name: impl AsRef<str>) -> rwlock::RwLock {
        rwlock::RwLock::new(self.request(name.as_ref()))
    }

    /// A lock of `permits` units, of which each holder takes some.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> semaphore::Semaphore {
        semaphore::Semaphore::new(self.request(name.as_ref()), permits)
    }

    /// An election of one leader among many candidates.
    pub fn election(&self, name: impl AsRef<str>) -> election::Election {
        election::Election::new(self.request(name.as_ref()))
    }

    /// Work that is done once per slot, by the first process that asks.
    pub fn once(&self, name: impl AsRef<str>) -> once::Once {
        once::Once::new(self.request(name.as_ref()))
    }

    fn request(&self, name: &str) -> Request {
        let checked = ResourceName::new(name);
        let invalid = checked.as_ref().err().cloned();
        Request {
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

impl Request {
    /// This request, which fails with `error` unless it has another error already.
    fn refuse(mut self, error: Error) -> Self {
        self.invalid.get_or_insert(error);
        self
    }
}
