//! Re-entrant locks of threads: the thread that holds one may enter again.

use std::marker::PhantomData;
use std::ops::Deref;
use std::rc::Rc;

use super::{Mutex, ReentrantGuard, RwLock, Twin};
use crate::driver::Released;
use crate::error::Result;
use crate::owner::Owner;

thread_local! {
    /// Identifies this thread to re-entrant locks.
    static THIS_THREAD: Owner = Owner::new();
}

fn this_thread() -> Owner {
    // A thread that is ending has no identity left: it holds nothing that could be entered again.
    THIS_THREAD.try_with(Owner::clone).unwrap_or_default()
}

impl Mutex {
    /// A lock that the thread which holds it can enter again.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Memory, blocking::Locks};
    /// # fn main() -> oarlock_core::Result<()> {
    /// let ledger = Locks::over(Memory::new())?.mutex("ledger").reentrant_by_thread();
    /// let outer = ledger.lock()?;
    /// let inner = ledger.lock()?;
    /// assert_eq!(inner.entries(), 2);
    /// let elsewhere = ledger.clone();
    /// assert!(std::thread::spawn(move || elsewhere.try_lock().map(|entry| entry.is_none())).join().unwrap()?);
    /// # drop((outer, inner));
    /// # Ok(()) }
    /// ```
    pub fn reentrant_by_thread(self) -> ThreadMutex {
        ThreadMutex(self)
    }
}

impl RwLock {
    /// A lock that the thread which holds it can enter again.
    pub fn reentrant_by_thread(self) -> ThreadRwLock {
        ThreadRwLock(self)
    }
}

/// The calls of a lock by the calling thread, passed on.
macro_rules! entered {
    ($kind:ident of $twin:ident: $($name:ident, $try_name:ident;)+) => {
        impl $kind {
            fn mine(&self) -> super::$twin {
                self.0.inner.clone().reentrant(&this_thread()).twin(&self.0.runtime)
            }

            $(
                #[doc = concat!("See [`", stringify!($twin), "::", stringify!($name), "`](crate::", stringify!($twin), "::", stringify!($name), "); the owner is the calling thread.")]
                ///
                /// # Errors
                /// As there.
                pub fn $name(&self) -> Result<ThreadGuard> {
                    self.mine().$name().map(ThreadGuard::new)
                }

                #[doc = concat!("See [`", stringify!($twin), "::", stringify!($try_name), "`](crate::", stringify!($twin), "::", stringify!($try_name), "); the owner is the calling thread.")]
                ///
                /// # Errors
                /// As there.
                pub fn $try_name(&self) -> Result<Option<ThreadGuard>> {
                    Ok(self.mine().$try_name()?.map(ThreadGuard::new))
                }
            )+
        }
    };
}

/// A mutex that the thread which holds it can enter again.
#[derive(Clone, Debug)]
#[must_use = "nothing is taken before lock() or try_lock()"]
pub struct ThreadMutex(Mutex);

entered!(ThreadMutex of ReentrantMutex: lock, try_lock;);

/// A read-write lock that the thread which holds it can enter again. A thread that holds it for reading and asks to
/// write is refused.
#[derive(Clone, Debug)]
#[must_use = "nothing is taken before read() or write()"]
pub struct ThreadRwLock(RwLock);

entered!(ThreadRwLock of ReentrantRwLock: read, try_read; write, try_write;);

/// One entry of a thread. It stays on its thread, because the thread is what may enter again.
#[derive(Debug)]
#[must_use = "an entry that is dropped at once ends at once"]
pub struct ThreadGuard {
    entry: ReentrantGuard,
    of_this_thread: PhantomData<Rc<()>>,
}

impl ThreadGuard {
    fn new(entry: ReentrantGuard) -> Self {
        Self { entry, of_this_thread: PhantomData }
    }

    /// See [`ReentrantGuard::release`](crate::ReentrantGuard::release).
    ///
    /// # Errors
    /// As there.
    pub fn release(self) -> Result<Released> {
        self.entry.release()
    }
}

impl Deref for ThreadGuard {
    type Target = ReentrantGuard;

    fn deref(&self) -> &ReentrantGuard {
        &self.entry
    }
}
