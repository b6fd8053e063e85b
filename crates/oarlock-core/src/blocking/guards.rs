//! Locks in hand.

use std::marker::PhantomData;
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

use super::Blocking;
use crate::belief::LossReason;
use crate::driver::Released;
use crate::error::Result;
use crate::guard::Held;
use crate::kinds::reentrant::ReentrantGuard;
use crate::state::Memo;
use crate::ticket::LockTicket;

/// A lock in hand; it is let go when this is dropped, which never blocks. What can be known of it is in [`Held`].
pub type Guard = Blocking<crate::Guard>;

impl Guard {
    /// See [`Guard::release`](crate::Guard::release).
    ///
    /// # Errors
    /// As there.
    pub fn release(self) -> Result<Released> {
        self.home.block_on(self.inner.release())?
    }

    /// See [`Guard::release_leaving`](crate::Guard::release_leaving).
    ///
    /// # Errors
    /// As there.
    pub fn release_leaving(self, memo: impl Into<Memo>) -> Result<Released> {
        self.home.block_on(self.inner.release_leaving(memo))?
    }

    /// See [`Guard::hand_over`](crate::Guard::hand_over).
    ///
    /// # Errors
    /// As there.
    pub fn hand_over(self) -> Result<LockTicket> {
        self.inner.hand_over()
    }

    /// Sleeps until the lock is lost, or for `patience`; says why it was lost.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) on the engine's own thread.
    pub fn lost_within(&self, patience: Duration) -> Result<Option<LossReason>> {
        self.home.block_on(async { tokio::time::timeout(patience, self.inner.lost()).await.ok() })
    }
}

impl Deref for Guard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.inner
    }
}

/// The guard of a writer: it can become a reader's.
pub type WriteGuard = Blocking<crate::WriteGuard>;

impl WriteGuard {
    /// See [`WriteGuard::downgrade`](crate::WriteGuard::downgrade).
    ///
    /// # Errors
    /// As there.
    pub fn downgrade(self) -> Result<Guard> {
        let inner = self.home.block_on(self.inner.downgrade())??;
        Ok(Blocking { inner, home: self.home })
    }

    /// The plain guard, for code that does not care which kind it holds.
    pub fn into_guard(self) -> Guard {
        Blocking { inner: self.inner.into_guard(), home: self.home }
    }

    /// See [`Guard::release`](crate::Guard::release).
    ///
    /// # Errors
    /// As there.
    pub fn release(self) -> Result<Released> {
        self.home.block_on(self.inner.release())?
    }
}

impl Deref for WriteGuard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.inner
    }
}

/// Several locks in hand.
pub type MultiGuard = Blocking<crate::MultiGuard>;

impl MultiGuard {
    /// See [`MultiGuard::release`](crate::MultiGuard::release).
    ///
    /// # Errors
    /// As there.
    pub fn release(self) -> Result<Released> {
        self.home.block_on(self.inner.release())?
    }
}

impl Deref for MultiGuard {
    type Target = crate::MultiGuard;

    fn deref(&self) -> &crate::MultiGuard {
        &self.inner
    }
}

/// A leadership in hand.
pub type Leadership = Blocking<crate::Leadership>;

impl Leadership {
    /// See [`Leadership::proclaim`](crate::Leadership::proclaim).
    ///
    /// # Errors
    /// As there.
    pub fn proclaim(&mut self, value: impl AsRef<str>) -> Result<()> {
        self.home.block_on(self.inner.proclaim(value))?
    }

    /// See [`Leadership::resign`](crate::Leadership::resign).
    ///
    /// # Errors
    /// As there.
    pub fn resign(self) -> Result<Released> {
        self.home.block_on(self.inner.resign())?
    }
}

impl Deref for Leadership {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.inner
    }
}

/// One entry of this thread. It stays on its thread, because the thread is what may enter again.
#[derive(Debug)]
#[must_use = "an entry that is dropped at once ends at once"]
pub struct EntryGuard {
    entry: Blocking<ReentrantGuard>,
    of_this_thread: PhantomData<Rc<()>>,
}

impl EntryGuard {
    pub(super) fn new(entry: Blocking<ReentrantGuard>) -> Self {
        Self { entry, of_this_thread: PhantomData }
    }

    /// How many entries of this thread share the lock.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.entry.inner.entries()
    }

    /// See [`ReentrantGuard::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(self) -> Result<Released> {
        self.entry.home.block_on(self.entry.inner.release())?
    }
}

impl Deref for EntryGuard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.entry.inner
    }
}
