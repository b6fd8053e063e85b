//! One of the stores, and whether it answers.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::SCHEME;
use crate::driver::DynDriver;
use crate::error::{Error, ErrorKind};

/// A node that owes more answers than this, and has given none for a while, is not asked any more until it gives one: requests
/// to a stopped server must not pile up without end.
const MOST_OWED: usize = 256;
const A_WHILE: Duration = Duration::from_secs(1);

/// A store that votes.
pub(super) struct Node {
    driver: Arc<dyn DynDriver>,
    /// Requests that nobody waits for any more, and that have not been answered.
    owed: AtomicUsize,
    heard: Mutex<Option<Instant>>,
}

impl Node {
    pub(super) fn new(driver: Arc<dyn DynDriver>) -> Self {
        Self { driver, owed: AtomicUsize::new(0), heard: Mutex::new(None) }
    }

    pub(super) fn driver(&self) -> Arc<dyn DynDriver> {
        self.driver.clone()
    }

    /// It has answered.
    pub(super) fn heard(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// A request to it is not waited for any more.
    pub(super) fn owes(&self) {
        self.owed.fetch_add(1, Ordering::Relaxed);
    }

    /// Such a request was answered.
    pub(super) fn paid(&self) {
        self.owed.fetch_sub(1, Ordering::Relaxed);
        self.heard();
    }

    /// Why it is not asked now. Nothing was sent.
    pub(super) fn silence(&self) -> Option<Error> {
        if self.owed.load(Ordering::Relaxed) <= MOST_OWED {
            return None;
        }
        let heard = *self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        if heard.is_some_and(|heard| heard.elapsed() < A_WHILE) {
            return None;
        }
        Some(Error::new(ErrorKind::Unreachable, "it has not answered for a while").on(SCHEME).retry_later())
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.driver.info().address;
        f.debug_struct("Node").field("address", &address).field("owed", &self.owed).finish_non_exhaustive()
    }
}
