//! How many connections, streams and leases one client may have, and how many connections fit in this process.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for everything else: the store, files, the listener.
const OTHERS: u64 = 100;

/// How many things each client has, by what tells clients apart, and how many it may have.
#[derive(Debug)]
pub(crate) struct Quota<K: Eq + Hash> {
    most_of_one: usize,
    used: Mutex<HashMap<K, usize>>,
}

/// One of the things that count; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Slot<K: Eq + Hash> {
    quota: Arc<Quota<K>>,
    /// `None` if it is not counted.
    of: Option<K>,
}

impl<K: Clone + Eq + Hash> Quota<K> {
    pub(crate) fn new(most_of_one: usize) -> Arc<Self> {
        Arc::new(Self { most_of_one, used: Mutex::default() })
    }

    /// A slot for this client, if it has not too many; for `None`, which stands for many clients, always.
    pub(crate) fn take(self: &Arc<Self>, of: Option<K>) -> Option<Slot<K>> {
        let is_refused = of.as_ref().is_some_and(|of| !self.add(of, self.most_of_one));
        (!is_refused).then(|| Slot { quota: self.clone(), of })
    }

    /// A slot for what this client has already: it counts, and is not refused.
    pub(crate) fn count(self: &Arc<Self>, of: K) -> Slot<K> {
        self.add(&of, usize::MAX);
        Slot { quota: self.clone(), of: Some(of) }
    }

    /// Counts one more, unless there are so many.
    fn add(&self, of: &K, most: usize) -> bool {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let of_one = used.get(of).copied().unwrap_or_default();
        if of_one >= most {
            return false;
        }
        used.insert(of.clone(), of_one + 1);
        true
    }
}

impl<K: Eq + Hash> Drop for Slot<K> {
    fn drop(&mut self) {
        let Some(of) = self.of.take() else { return };
        let mut used = self.quota.used.lock().unwrap_or_else(PoisonError::into_inner);
        let left = used.get(&of).copied().unwrap_or_default().saturating_sub(1);
        if left == 0 {
            used.remove(&of);
        } else {
            used.insert(of, left);
        }
    }
}

/// What counts as one address. A machine with IPv6 has a network of 2^64 addresses (RFC 4291): it must not have a quota
/// for each of them.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
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
    fn one_client_leaves_slots_for_others() {
        let (quota, far) = (Quota::new(2), Some("10.0.0.7"));
        let first = quota.take(far).unwrap();
        let second = quota.take(far).unwrap();
        assert!(quota.take(far).is_none());
        assert!(quota.take(Some("10.0.0.8")).is_some(), "another address");
        let all: Vec<_> = (0..5).map(|_| quota.take(None).expect("many clients")).collect();
        drop(first);
        let third = quota.take(far).expect("it was given back");
        let known = quota.count("10.0.0.7");
        drop((second, third));
        assert!(quota.take(far).is_some(), "one is left");
        let second = quota.take(far).unwrap();
        assert!(quota.take(far).is_none(), "what it had already counts");
        drop((known, second, all));
        assert!(quota.used.lock().unwrap().is_empty(), "nothing is left behind");
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let of = |address: &str| network(address.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::7"), of("2001:db8:1:2:ffff:ffff:ffff:ffff"));
        assert_ne!(of("2001:db8:1:2::7"), of("2001:db8:1:3::7"));
        assert_ne!(of("10.0.0.7"), of("10.0.0.8"));
        assert_eq!(of("::ffff:10.0.0.7"), of("10.0.0.7"));
    }

    #[test]
    fn connections_fit_the_limit_of_open_files() {
        let fit = fitting(usize::MAX);
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert!(fit == usize::MAX || u64::try_from(fit).unwrap() + OTHERS <= files, "{fit} of {files}");
        assert_eq!(fitting(1), 1);
    }
}
