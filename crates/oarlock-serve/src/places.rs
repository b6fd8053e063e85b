//! How many connections and streams there may be: in all, and of one client.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for everything else: the store, files, the listener.
const OTHERS: u64 = 100;

/// The connections or streams of each client, by what tells clients apart.
#[derive(Debug)]
pub(crate) struct Places<K: Eq + Hash> {
    most_of_one: usize,
    taken: Mutex<HashMap<K, usize>>,
}

/// A place of a client; dropping it frees it.
#[derive(Debug)]
pub(crate) struct Place<K: Eq + Hash> {
    places: Arc<Places<K>>,
    /// `None` if it is not counted.
    of: Option<K>,
}

impl<K: Clone + Eq + Hash> Places<K> {
    pub(crate) fn new(most_of_one: usize) -> Arc<Self> {
        Arc::new(Self { most_of_one, taken: Mutex::default() })
    }

    /// A place for this client, if it has not too many; for `None`, which stands for many clients, always.
    pub(crate) fn take(self: &Arc<Self>, of: Option<K>) -> Option<Place<K>> {
        if let Some(of) = &of {
            let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
            let of_one = taken.get(of).copied().unwrap_or_default();
            if of_one >= self.most_of_one {
                return None;
            }
            taken.insert(of.clone(), of_one + 1);
        }
        Some(Place { places: self.clone(), of })
    }
}

impl<K: Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let Some(of) = self.of.take() else { return };
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let left = taken.get(&of).copied().unwrap_or_default().saturating_sub(1);
        if left == 0 {
            taken.remove(&of);
        } else {
            taken.insert(of, left);
        }
    }
}

/// Raises the limit of open files to what the system permits, and returns how many of `wanted` connections fit.
pub(crate) fn fitting(wanted: usize) -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok();
    let files = if raised { maximum } else { current };
    let fit = files.map_or(usize::MAX, |files| usize::try_from(files.saturating_sub(OTHERS)).unwrap_or(usize::MAX));
    wanted.min(fit.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_leaves_places_for_others() {
        let (places, far) = (Places::new(2), Some("10.0.0.7"));
        let first = places.take(far).unwrap();
        let second = places.take(far).unwrap();
        assert!(places.take(far).is_none());
        assert!(places.take(Some("10.0.0.8")).is_some(), "another address");
        let all: Vec<_> = (0..5).map(|_| places.take(None).expect("many clients")).collect();
        drop(first);
        assert!(places.take(far).is_some(), "it was given back");
        drop((second, all));
        assert!(places.taken.lock().unwrap().is_empty(), "nothing is left behind");
    }

    #[test]
    fn connections_fit_the_limit_of_open_files() {
        let fit = fitting(usize::MAX);
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert!(fit == usize::MAX || u64::try_from(fit).unwrap() + OTHERS <= files, "{fit} of {files}");
        assert_eq!(fitting(1), 1);
    }
}
