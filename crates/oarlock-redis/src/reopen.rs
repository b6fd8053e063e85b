//! Something that is opened when it is needed, and again when it has ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oarlock_core::{Error, ErrorKind, Result};

use crate::error::SCHEME;
use crate::joint::Joint;

/// What may end by itself.
pub(crate) trait Ends {
    fn is_ended(&self) -> bool;
}

/// A place for one `T`, shared by all who need it.
pub(crate) struct Reopened<T> {
    current: Arc<Mutex<Option<Arc<T>>>>,
    opening: Joint,
}

impl<T> Default for Reopened<T> {
    fn default() -> Self {
        Self { current: Arc::default(), opening: Joint::default() }
    }
}

impl<T: Ends + Send + Sync + 'static> Reopened<T> {
    /// What is there, or what `open` gives. Those who come while it is being opened share the outcome.
    pub(crate) async fn get<F>(&self, open: impl FnOnce() -> F) -> Result<Arc<T>>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        if let Some(current) = self.current() {
            return Ok(current);
        }
        let opened = self.opening.join(|| {
            let (current, open) = (self.current.clone(), open());
            async move {
                let lock = || current.lock().unwrap_or_else(PoisonError::into_inner);
                // Somebody may have been done just now.
                if lock().as_ref().is_some_and(|current| !current.is_ended()) {
                    return Ok(());
                }
                let opened = Arc::new(open.await?);
                *lock() = Some(opened);
                Ok(())
            }
        });
        opened.done().await?;
        let lost = || Error::new(ErrorKind::Unreachable, "the connection was lost at once").on(SCHEME).retry_later();
        self.current().ok_or_else(lost)
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
