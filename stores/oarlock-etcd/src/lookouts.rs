//! Who reads the whole of a long queue: one of its waiters from time to time, and not each of them whenever it polls.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use oarlock_core::ResourceName;

/// How long no other waiter reads the queue after one has. Counted by each client from when it first saw that one did.
pub(crate) const EVERY: Duration = Duration::from_secs(10);

/// So many names are remembered. With one more, all are forgotten.
const MOST: usize = 1024;

/// When a waiter of any client last began to read the queue of a name: the revision at which it noted that, and since
/// when this client knows.
#[derive(Debug, Default)]
pub(crate) struct Lookouts(Mutex<HashMap<ResourceName, (i64, Instant)>>);

impl Lookouts {
    /// Whether it was read lately, if that was `noted` at this revision; zero = never.
    pub(crate) fn is_recent(&self, name: &ResourceName, noted: i64, now: Instant) -> bool {
        if noted == 0 {
            return false;
        }
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() == MOST && !seen.contains_key(name) {
            seen.clear();
        }
        let (revision, since) = seen.entry(name.clone()).or_insert((noted, now));
        if *revision != noted {
            (*revision, *since) = (noted, now);
        }
        now.duration_since(*since) < EVERY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_was_read_long_ago_is_read_again() {
        let (lookouts, start) = (Lookouts::default(), Instant::now());
        let name = ResourceName::new("n").unwrap();
        let recent = |noted, after| lookouts.is_recent(&name, noted, start + after);
        assert!(!recent(0, Duration::ZERO), "it was never read");
        assert!(recent(7, Duration::ZERO) && recent(7, EVERY / 2) && !recent(7, EVERY));
        assert!(recent(9, EVERY) && !recent(9, EVERY * 2), "another one has read it");
    }

    #[test]
    fn names_are_few() {
        let lookouts = Lookouts::default();
        for number in 0..3 * MOST {
            let name = ResourceName::new(number.to_string()).unwrap();
            assert!(lookouts.is_recent(&name, 1, Instant::now()));
            assert!(lookouts.0.lock().unwrap().len() <= MOST);
        }
    }
}
