//! How many claims of one client may stand in the store's queue for one name.
//!
//! A store keeps a record of each waiter, and each is renewed: a client that runs away must not fill the queue that others stand in.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::claim::ResourceName;
use crate::error::{Error, ErrorKind, Result};

/// Those that stand in the store's queue, by name.
#[derive(Debug)]
pub(crate) struct Crowds {
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

/// One that stands there; it leaves when this is dropped.
#[derive(Debug)]
pub(crate) struct Stand {
    counts: Arc<Counts>,
    name: ResourceName,
}

impl Crowds {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, counts: Arc::default() }
    }

    /// # Errors
    /// [`ErrorKind::TooManyWaiters`].
    pub(crate) fn enter(&self, name: &ResourceName) -> Result<Stand> {
        let mut counts = self.counts.lock();
        let count = counts.entry(name.clone()).or_default();
        if *count >= self.most {
            let message = format!("{count} claims of this client wait for it already, as many as max_waiters allows");
            return Err(Error::new(ErrorKind::TooManyWaiters, message).retry_later().about(name));
        }
        *count += 1;
        Ok(Stand { counts: self.counts.clone(), name: name.clone() })
    }
}

impl Drop for Stand {
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
        let crowds = Crowds::new(2);
        let name = |name: &str| ResourceName::new(name).unwrap();
        let stands = [crowds.enter(&name("a")).unwrap(), crowds.enter(&name("a")).unwrap()];
        let error = crowds.enter(&name("a")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooManyWaiters);
        assert!(error.to_string().contains("2 claims"), "{error}");
        let other = crowds.enter(&name("b")).unwrap();
        drop(stands);
        drop((crowds.enter(&name("a")).unwrap(), other));
        assert!(crowds.counts.lock().is_empty());
    }
}
