//! How many connections there may be: in all, and of one address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for everything else: the store, files, the listener.
const OTHERS: u64 = 100;

/// The connections of each address.
#[derive(Debug)]
pub(crate) struct Places {
    /// `None` where one address stands for many clients.
    most_of_one: Option<usize>,
    taken: Mutex<HashMap<IpAddr, usize>>,
}

/// A place of an address; dropping it frees it.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    peer: IpAddr,
}

impl Places {
    pub(crate) fn new(most_of_one: Option<usize>) -> Arc<Self> {
        Arc::new(Self { most_of_one, taken: Mutex::default() })
    }

    /// A place for this address, if it has not too many. All users of this machine share its own.
    pub(crate) fn take(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let of_one = taken.get(&peer).copied().unwrap_or_default();
        if self.most_of_one.is_some_and(|most| of_one >= most) && !peer.to_canonical().is_loopback() {
            return None;
        }
        taken.insert(peer, of_one + 1);
        Some(Place { places: self.clone(), peer })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let left = taken.get(&self.peer).copied().unwrap_or_default().saturating_sub(1);
        if left == 0 {
            taken.remove(&self.peer);
        } else {
            taken.insert(self.peer, left);
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
        let (places, far, local) = (Places::new(Some(2)), [10, 0, 0, 7].into(), [127, 0, 0, 1].into());
        let first = places.take(far).unwrap();
        let _second = places.take(far).unwrap();
        assert!(places.take(far).is_none());
        assert!(places.take([10, 0, 0, 8].into()).is_some(), "another address");
        let _all: Vec<_> = (0..5).map(|_| places.take(local).expect("all users of this machine share one")).collect();
        drop(first);
        assert!(places.take(far).is_some(), "it was given back");
        let behind_a_proxy = Places::new(None);
        let all: Vec<_> = (0..5).map(|_| behind_a_proxy.take(far).expect("one address is many clients")).collect();
        drop(all);
        assert!(behind_a_proxy.taken.lock().unwrap().is_empty(), "nothing is left behind");
    }

    #[test]
    fn connections_fit_the_limit_of_open_files() {
        let fit = fitting(usize::MAX);
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert!(fit == usize::MAX || u64::try_from(fit).unwrap() + OTHERS <= files, "{fit} of {files}");
        assert_eq!(fitting(1), 1);
    }
}
