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
pub use once::{LastSlot, Once, Slot};
pub use reentrant::{ReentrantGuard, ReentrantMutex, ReentrantRwLock};
pub use rwlock::{RwLock, WriteGuard};
pub use semaphore::Semaphore;

/// The options that every kind has, as inherent methods: no trait has to be imported.
macro_rules! options {
    ($kind:ty) => {
        #[oarlock_macros::blocking]
        impl $kind {
            /// Sets the lease: how long the lock lives without renewal. The client renews it every third of that.
            ///
            /// # Examples
            /// ```
            /// # use oarlock_core::{Locks, Memory};
            /// # use std::time::Duration;
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
            /// # let locks = Locks::over(Memory::new())?;
            /// let guard = locks.mutex("import").ttl(Duration::from_secs(10)).lock().await?;
            /// assert!(guard.time_left() <= Duration::from_secs(10));
            /// # Ok(()) }
            /// ```
            pub fn ttl(mut self, ttl: std::time::Duration) -> Self {
                self.request.claim.ttl = ttl;
                self
            }

            /// Gives up waiting after `wait`. Without this, after the client's default of 30 seconds.
            ///
            /// # Examples
            /// ```
            /// # use oarlock_core::{ErrorKind, Locks, Memory};
            /// # use std::time::Duration;
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
            /// # let locks = Locks::over(Memory::new())?;
            /// let _held = locks.mutex("import").lock().await?;
            /// let error = locks.mutex("import").wait(Duration::from_millis(20)).lock().await.unwrap_err();
            /// assert_eq!(error.kind(), ErrorKind::Busy);
            /// # Ok(()) }
            /// ```
            pub fn wait(mut self, wait: std::time::Duration) -> Self {
                self.request.wait = crate::engine::Wait::AtMost(wait);
                self
            }

            /// Never gives up waiting.
            ///
            /// # Examples
            /// ```
            /// # use oarlock_core::{Locks, Memory};
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
            /// # let locks = Locks::over(Memory::new())?;
            /// let guard = locks.mutex("import").wait_forever().lock().await?;
            /// # drop(guard);
            /// # Ok(()) }
            /// ```
            pub fn wait_forever(mut self) -> Self {
                self.request.wait = crate::engine::Wait::Forever;
                self
            }

            /// Bounds how long the lock can be held, with renewals or without.
            ///
            /// # Examples
            /// ```
            /// # use oarlock_core::{Locks, LossReason, Memory};
            /// # use std::time::Duration;
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
            /// # let locks = Locks::over(Memory::new())?;
            /// let guard = locks.mutex("import").max_hold(Duration::from_millis(20)).lock().await?;
            /// assert_eq!(guard.lost().await, LossReason::MaxHold);
            /// # Ok(()) }
            /// ```
            pub fn max_hold(mut self, span: std::time::Duration) -> Self {
                self.request.max_hold = Some(span);
                self
            }

            /// Begins with a whole lease. Without this, a lock that its last holder handed on may begin with a lease of
            /// one or two seconds, which the client renews at once. Use it for a program that needs more time than that
            /// to stop in order, with [`ends_within`](crate::Held::ends_within).
            ///
            /// # Examples
            /// ```
            /// # use oarlock_core::{Locks, Memory};
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
            /// # let locks = Locks::over(Memory::new())?;
            /// let guard = locks.mutex("import").whole_lease().lock().await?;
            /// # drop(guard);
            /// # Ok(()) }
            /// ```
            pub fn whole_lease(mut self) -> Self {
                self.request.whole = true;
                self
            }

            /// Identifies this claim to others (host, pid, user, reason).
            ///
            /// # Examples
            /// ```
            /// # use oarlock_core::{Label, Locks, Memory};
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
            /// # let locks = Locks::over(Memory::new())?;
            /// let label = Label::of_this_process().reason("nightly").tag("job", "7");
            /// let guard = locks.mutex("import").label(label).lock().await?;
            /// # drop(guard);
            /// # Ok(()) }
            /// ```
            pub fn label(mut self, label: crate::Label) -> Self {
                self.request.claim.label = std::sync::Arc::new(label);
                self
            }

            /// Sets the reason: shown to others who inspect the lock.
            ///
            /// # Examples
            /// ```
            /// # use oarlock_core::{Locks, Memory};
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
            /// # let locks = Locks::over(Memory::new())?;
            /// let guard = locks.mutex("import").reason("nightly").lock().await?;
            /// assert_eq!(locks.inspect("import").await?.holders[0].label.reason.as_deref(), Some("nightly"));
            /// # drop(guard);
            /// # Ok(()) }
            /// ```
            pub fn reason(mut self, reason: impl Into<String>) -> Self {
                std::sync::Arc::make_mut(&mut self.request.claim.label).reason = Some(reason.into());
                self
            }

            /// Sets what the lock lives by, besides its lease.
            ///
            /// # Examples
            /// ```
            /// # use oarlock_core::{Lifetime, Locks, Memory};
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
            /// # let locks = Locks::over(Memory::new())?;
            /// let guard = locks.mutex("import").lifetime(Lifetime::Lease).lock().await?; // survives this process
            /// # drop(guard);
            /// # Ok(()) }
            /// ```
            pub fn lifetime(mut self, lifetime: crate::Lifetime) -> Self {
                self.request.claim.lifetime = lifetime;
                self
            }

            /// Sets the owner of the lock: waiting for a lock that the same owner holds is an error instead of a
            /// deadlock.
            ///
            /// # Examples
            /// ```
            /// # use oarlock_core::{ErrorKind, Locks, Memory, Owner};
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
            /// # let locks = Locks::over(Memory::new())?;
            /// let ledger = locks.mutex("ledger").owner(&Owner::new());
            /// let _held = ledger.lock().await?;
            /// assert_eq!(ledger.lock().await.unwrap_err().kind(), ErrorKind::SelfDeadlock);
            /// # Ok(()) }
            /// ```
            pub fn owner(mut self, owner: &crate::Owner) -> Self {
                self.request.owner = Some(owner.clone());
                self
            }

            /// Gives every task a position of its own in the store's queue: tasks of all processes are served in order
            /// of arrival. Without this, tasks of one process that wait for an exclusive lock stand behind its one
            /// position, and shares are equal for each process. Readers and permits each have a position anyway.
            ///
            /// A store without a queue refuses to lock then
            /// ([`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported)).
            ///
            /// # Examples
            /// ```
            /// # use oarlock_core::{Locks, Memory};
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
            /// # let locks = Locks::over(Memory::new())?;
            /// let guard = locks.mutex("import").fair().lock().await?;
            /// # drop(guard);
            /// # Ok(()) }
            /// ```
            pub fn fair(mut self) -> Self {
                self.request.fair = true;
                self
            }
        }
    };
}
pub(crate) use options;

/// The option of kinds that publish nothing while they are held: a publication is a renewal.
macro_rules! no_renewal {
    ($kind:ty) => {
        #[oarlock_macros::blocking]
        impl $kind {
            /// Does not renew: the lock ends one [`ttl`](Self::ttl) after it was granted.
            ///
            /// # Examples
            /// ```
            /// # use oarlock_core::{Locks, LossReason, Memory};
            /// # use std::time::Duration;
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
            /// # let locks = Locks::over(Memory::new())?;
            /// let guard = locks.mutex("import").ttl(Duration::from_millis(50)).no_renewal().lock().await?;
            /// assert_eq!(guard.lost().await, LossReason::Expired);
            /// # Ok(()) }
            /// ```
            pub fn no_renewal(mut self) -> Self {
                self.request.renew = false;
                self
            }
        }
    };
}
pub(crate) use no_renewal;

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
