//! Limits how many claims of one client wait in the store's queue for one name.
//!
//! The store keeps a record of each waiter, and the client renews each. A faulty client must not fill the queue that
//! others wait in.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::claim::ResourceName;
use crate::error::{Error, ErrorKind, Result};

/// Counts the waiting claims by name.
#[derive(Debug)]
pub(crate) struct WaiterLimit {
    most: usize,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts(Mutex<HashMap<ResourceName, usize>>);

impl Counts {
    fn lock(&self) -> MutexGuard<'_, HashMap<ResourceName, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to wait in the store's queue; it is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct WaiterPermit {
    counts: Arc<Counts>,
    name: ResourceName,
}

impl WaiterLimit {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, counts: Arc::default() }
    }

    /// # Errors
    /// [`ErrorKind::TooManyWaiters`].
    pub(crate) fn enter(&self, name: &ResourceName) -> Result<WaiterPermit> {
        let mut counts = self.counts.lock();
        let count = counts.entry(name.clone()).or_default();
        if *count >= self.most {
            let message =
                format!("{count} claims of this client wait for this lock already; max_waiters allows no more");
            return Err(Error::new(ErrorKind::TooManyWaiters, message).retry_later().about(name));
        }
        *count += 1;
        Ok(WaiterPermit { counts: self.counts.clone(), name: name.clone() })
    }
}

impl Drop for WaiterPermit {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_counted_apart_and_forgotten() {
        let waiter_limit = WaiterLimit::new(2);
        let name = |name: &str| ResourceName::new(name).unwrap();
        let stands = [waiter_limit.enter(&name("a")).unwrap(), waiter_limit.enter(&name("a")).unwrap()];
        let error = waiter_limit.enter(&name("a")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooManyWaiters);
        assert!(error.to_string().contains("2 claims"), "{error}");
        let other = waiter_limit.enter(&name("b")).unwrap();
        drop(stands);
        drop((waiter_limit.enter(&name("a")).unwrap(), other));
        assert!(waiter_limit.counts.lock().is_empty());
    }
}
