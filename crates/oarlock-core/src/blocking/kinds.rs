//! The kinds of lock.

use super::guards::{EntryGuard, Guard, Leadership, MultiGuard, WriteGuard};
use super::{Blocking, Locks};
use crate::error::{Error, Result};
use crate::guard::Held;
use crate::kinds::election::Leader;
use crate::kinds::multi::Part;
use crate::kinds::once::Slot;
use crate::owner::Owner;

thread_local! {
    /// Who this thread is to re-entrant locks.
    static THIS_THREAD: Owner = Owner::new();
}

fn this_thread() -> Owner {
    // A thread that is ending has no identity left: it holds nothing that could be entered again.
    THIS_THREAD.try_with(Owner::clone).unwrap_or_default()
}

/// The choices of a kind, passed on.
macro_rules! chosen {
    ($kind:ident: $($name:ident($($argument:ident: $type:ty)?)),+ $(,)?) => {
        impl $kind {$(
            #[doc = concat!("See [`", stringify!($kind), "::", stringify!($name), "`](crate::", stringify!($kind), "::", stringify!($name), ").")]
            #[must_use]
            pub fn $name(mut self $(, $argument: $type)?) -> Self {
                self.inner = self.inner.$name($($argument)?);
                self
            }
        )+}
    };
}

/// The choices of everything that is kept by a lease.
macro_rules! kept {
    ($kind:ident $(, $name:ident($($argument:ident: $type:ty)?))* $(,)?) => {
        chosen!($kind:
            ttl(ttl: std::time::Duration),
            wait(wait: std::time::Duration),
            wait_forever(),
            max_hold(span: std::time::Duration),
            whole_lease(),
            label(label: crate::Label),
            reason(reason: impl Into<String>),
            tether(tether: crate::Tether),
            $($name($($argument: $type)?)),*
        );
    };
}

impl Locks {
    /// See [`Locks::mutex`](crate::Locks::mutex).
    #[must_use]
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        self.wrap(self.inner.mutex(name))
    }

    /// See [`Locks::rwlock`](crate::Locks::rwlock).
    #[must_use]
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        self.wrap(self.inner.rwlock(name))
    }

    /// See [`Locks::semaphore`](crate::Locks::semaphore).
    #[must_use]
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Semaphore {
        self.wrap(self.inner.semaphore(name, permits))
    }

    /// See [`Locks::election`](crate::Locks::election).
    #[must_use]
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        self.wrap(self.inner.election(name))
    }

    /// See [`Locks::once`](crate::Locks::once).
    #[must_use]
    pub fn once(&self, name: impl AsRef<str>) -> Once {
        self.wrap(self.inner.once(name))
    }
}

/// A lock that one can hold.
pub type Mutex = Blocking<crate::Mutex>;

kept!(Mutex, no_renewal(), fair(), spin());

impl Mutex {
    /// Takes the lock if it is free; `None` if it is busy.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub fn try_lock(&self) -> Result<Option<Guard>> {
        self.try_have(self.inner.try_lock())
    }

    /// Takes the lock, waiting as long as was asked for.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub fn lock(&self) -> Result<Guard> {
        self.have(self.inner.lock())
    }

    /// See [`Mutex::cohort`](crate::Mutex::cohort).
    #[must_use]
    pub fn cohort(mut self, hand_offs: u32, span: std::time::Duration) -> Self {
        self.inner = self.inner.cohort(hand_offs, span);
        self
    }

    /// A lock that the thread which holds it can enter again.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Memory, blocking::Locks};
    /// # fn main() -> oarlock_core::Result<()> {
    /// let ledger = Locks::over(Memory::new())?.mutex("ledger").reentrant();
    /// let outer = ledger.lock()?;
    /// let inner = ledger.lock()?;
    /// assert_eq!(inner.entries(), 2);
    /// let elsewhere = ledger.clone();
    /// assert!(std::thread::spawn(move || elsewhere.try_lock().map(|entry| entry.is_none())).join().unwrap()?);
    /// # drop((outer, inner));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn reentrant(self) -> ReentrantMutex {
        ReentrantMutex(self)
    }
}

/// A mutex that the thread which holds it can enter again.
#[derive(Clone, Debug)]
pub struct ReentrantMutex(Mutex);

impl ReentrantMutex {
    fn mine(&self) -> crate::ReentrantMutex {
        self.0.inner.clone().reentrant(&this_thread())
    }

    /// Enters if this thread holds it or it is free; `None` if it is busy.
    ///
    /// # Errors
    /// As [`ReentrantMutex::try_lock`](crate::ReentrantMutex::try_lock).
    pub fn try_lock(&self) -> Result<Option<EntryGuard>> {
        Ok(self.0.try_have(self.mine().try_lock())?.map(EntryGuard::new))
    }

    /// Enters, waiting as long as was asked for if this thread does not hold it.
    ///
    /// # Errors
    /// As [`ReentrantMutex::lock`](crate::ReentrantMutex::lock).
    pub fn lock(&self) -> Result<EntryGuard> {
        self.0.have(self.mine().lock()).map(EntryGuard::new)
    }
}

/// A lock that many can read-hold or one can write-hold.
pub type RwLock = Blocking<crate::RwLock>;

kept!(RwLock, no_renewal());

impl RwLock {
    /// Read-holds if that is possible now.
    ///
    /// # Errors
    /// As [`RwLock::try_read`](crate::RwLock::try_read).
    pub fn try_read(&self) -> Result<Option<Guard>> {
        self.try_have(self.inner.try_read())
    }

    /// Read-holds, waiting as long as was asked for.
    ///
    /// # Errors
    /// As [`RwLock::read`](crate::RwLock::read).
    pub fn read(&self) -> Result<Guard> {
        self.have(self.inner.read())
    }

    /// Write-holds if that is possible now.
    ///
    /// # Errors
    /// As [`RwLock::try_write`](crate::RwLock::try_write).
    pub fn try_write(&self) -> Result<Option<WriteGuard>> {
        self.try_have(self.inner.try_write())
    }

    /// Write-holds, waiting as long as was asked for.
    ///
    /// # Errors
    /// As [`RwLock::write`](crate::RwLock::write).
    pub fn write(&self) -> Result<WriteGuard> {
        self.have(self.inner.write())
    }

    /// A lock that the thread which holds it can enter again.
    #[must_use]
    pub fn reentrant(self) -> ReentrantRwLock {
        ReentrantRwLock(self)
    }
}

/// A read-write lock that the thread which holds it can enter again.
#[derive(Clone, Debug)]
pub struct ReentrantRwLock(RwLock);

impl ReentrantRwLock {
    fn mine(&self) -> crate::ReentrantRwLock {
        self.0.inner.clone().reentrant(&this_thread())
    }

    /// Enters for reading, waiting as long as was asked for if this thread does not hold it.
    ///
    /// # Errors
    /// As [`ReentrantRwLock::read`](crate::ReentrantRwLock::read).
    pub fn read(&self) -> Result<EntryGuard> {
        self.0.have(self.mine().read()).map(EntryGuard::new)
    }

    /// Enters for writing, waiting as long as was asked for if this thread does not hold it.
    ///
    /// # Errors
    /// As [`ReentrantRwLock::write`](crate::ReentrantRwLock::write); a thread that holds it for reading is refused.
    pub fn write(&self) -> Result<EntryGuard> {
        self.0.have(self.mine().write()).map(EntryGuard::new)
    }

    /// Enters for reading if that is possible now.
    ///
    /// # Errors
    /// As [`ReentrantRwLock::try_read`](crate::ReentrantRwLock::try_read).
    pub fn try_read(&self) -> Result<Option<EntryGuard>> {
        Ok(self.0.try_have(self.mine().try_read())?.map(EntryGuard::new))
    }

    /// Enters for writing if that is possible now.
    ///
    /// # Errors
    /// As [`ReentrantRwLock::try_write`](crate::ReentrantRwLock::try_write).
    pub fn try_write(&self) -> Result<Option<EntryGuard>> {
        Ok(self.0.try_have(self.mine().try_write())?.map(EntryGuard::new))
    }
}

/// A lock of a number of units, of which each holder takes some.
pub type Semaphore = Blocking<crate::Semaphore>;

kept!(Semaphore, no_renewal(), fair(), use_stored_permits());

impl Semaphore {
    /// Takes `permits` if they are free; `None` if not.
    ///
    /// # Errors
    /// As [`Semaphore::try_acquire`](crate::Semaphore::try_acquire).
    pub fn try_acquire(&self, permits: u32) -> Result<Option<Guard>> {
        self.try_have(self.inner.try_acquire(permits))
    }

    /// Takes `permits`, waiting as long as was asked for.
    ///
    /// # Errors
    /// As [`Semaphore::acquire`](crate::Semaphore::acquire).
    pub fn acquire(&self, permits: u32) -> Result<Guard> {
        self.have(self.inner.acquire(permits))
    }
}

/// Several locks that are taken as one.
pub type Multi = Blocking<crate::Multi>;

chosen!(Multi: wait(wait: std::time::Duration), wait_forever());

impl Multi {
    /// One lock, to which others can be added.
    pub fn of<T: Into<Part>>(lock: Blocking<T>) -> Self {
        Blocking { inner: crate::Multi::of(lock.inner), home: lock.home }
    }

    /// One more lock.
    #[must_use]
    pub fn and<T: Into<Part>>(mut self, lock: Blocking<T>) -> Self {
        self.inner = self.inner.and(lock.inner);
        self
    }

    /// Takes all if all are free; `None` if any is busy.
    ///
    /// # Errors
    /// As [`Multi::try_lock`](crate::Multi::try_lock).
    pub fn try_lock(&self) -> Result<Option<MultiGuard>> {
        self.try_have(self.inner.try_lock())
    }

    /// Takes all, waiting as long as was asked for.
    ///
    /// # Errors
    /// As [`Multi::lock`](crate::Multi::lock).
    pub fn lock(&self) -> Result<MultiGuard> {
        self.have(self.inner.lock())
    }
}

/// An election of a leader that publishes a value.
pub type Election = Blocking<crate::Election>;

kept!(Election);

impl Election {
    /// See [`Election::campaign`](crate::Election::campaign).
    ///
    /// # Errors
    /// As there.
    pub fn campaign(&self, value: impl AsRef<str>) -> Result<Leadership> {
        self.have(self.inner.campaign(value))
    }

    /// See [`Election::try_campaign`](crate::Election::try_campaign).
    ///
    /// # Errors
    /// As there.
    pub fn try_campaign(&self, value: impl AsRef<str>) -> Result<Option<Leadership>> {
        self.try_have(self.inner.try_campaign(value))
    }

    /// See [`Election::leader`](crate::Election::leader).
    ///
    /// # Errors
    /// As there.
    pub fn leader(&self) -> Result<Option<Leader>> {
        self.answer(self.inner.leader())
    }

    /// See [`Election::observe`](crate::Election::observe).
    #[must_use]
    pub fn observe(&self) -> LeaderWatch {
        self.wrap(self.inner.observe())
    }
}

/// Who leads, as it changes.
pub type LeaderWatch = Blocking<crate::LeaderWatch>;

impl LeaderWatch {
    /// See [`LeaderWatch::changed`](crate::LeaderWatch::changed).
    ///
    /// # Errors
    /// As there.
    pub fn changed(&mut self) -> Result<Option<Leader>> {
        self.home.block_on(self.inner.changed())?
    }
}

/// Work that is done once per slot.
pub type Once = Blocking<crate::Once>;

kept!(Once, at_least_once());

impl Once {
    /// See [`Once::run`](crate::Once::run). Work that blocks cannot be stopped when the lock is lost: let it look at
    /// [`Held::check`] between its steps.
    ///
    /// # Errors
    /// As there.
    pub fn run<T, E: From<Error>>(&self, slot: &str, work: impl FnOnce(Held) -> Result<T, E>) -> Result<Slot<T>, E> {
        self.home.block_on(self.inner.run(slot, |held| async move { work(held) }))?
    }
}
