//! Something that is opened when it is needed, and again when it has ended.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oarlock_core::{Error, Result};

/// What may end by itself.
pub(crate) trait Ends {
    fn is_ended(&self) -> bool;
}

/// A place for one `T`, shared by all who need it.
pub(crate) struct Reopened<T> {
    current: Mutex<Option<Arc<T>>>,
    /// How often it was tried; the last error, while there is none.
    tries: AtomicU64,
    opening: tokio::sync::Mutex<Option<Error>>,
}

impl<T> Default for Reopened<T> {
    fn default() -> Self {
        Self { current: Mutex::default(), tries: AtomicU64::new(0), opening: tokio::sync::Mutex::default() }
    }
}

impl<T: Ends> Reopened<T> {
    /// What is there, or what `open` gives. Those who come while it is being opened share the outcome.
    pub(crate) async fn get(&self, open: impl Future<Output = Result<T>>) -> Result<Arc<T>> {
        let seen = self.tries.load(Ordering::Acquire);
        if let Some(current) = self.current() {
            return Ok(current);
        }
        let mut last = self.opening.lock().await;
        if let Some(current) = self.current() {
            return Ok(current);
        }
        if let Some(error) = last.as_ref().filter(|_| self.tries.load(Ordering::Acquire) > seen) {
            // Somebody else tried while this one waited to.
            return Err(error.clone());
        }
        let opened = open.await;
        self.tries.fetch_add(1, Ordering::AcqRel);
        *last = opened.as_ref().err().cloned();
        let opened = Arc::new(opened?);
        *self.lock() = Some(opened.clone());
        Ok(opened)
    }

    /// What is there and has not ended.
    pub(crate) fn current(&self) -> Option<Arc<T>> {
        let mut current = self.lock();
        current.take_if(|current| current.is_ended());
        current.clone()
    }

    /// Lets go of this one, unless another has taken its place.
    pub(crate) fn discard(&self, failed: &Arc<T>) {
        self.lock().take_if(|current| Arc::ptr_eq(current, failed));
    }

    pub(crate) fn take(&self) -> Option<Arc<T>> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<T>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
