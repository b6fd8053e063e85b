//! Who of this process waits for a name, in which order. The server tells nobody anything, so waiters have to ask; when one of
//! ours leaves, the next of ours is told to ask now.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use oarlock_core::{ClaimId, ResourceName};

/// The waiters of each name, with when they arrived.
#[derive(Debug, Default)]
pub(crate) struct Queues(Mutex<HashMap<ResourceName, HashMap<ClaimId, i64>>>);

impl Queues {
    fn lock(&self) -> MutexGuard<'_, HashMap<ResourceName, HashMap<ClaimId, i64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server has just said where `id` stands.
    pub(crate) fn stands(&self, resource: &ResourceName, id: ClaimId, arrival: i64) {
        self.lock().entry(resource.clone()).or_default().insert(id, arrival);
    }

    /// `id` does not wait any more. Answers with the first of those who still do: it should ask now.
    pub(crate) fn left(&self, resource: &ResourceName, id: ClaimId) -> Option<ClaimId> {
        let mut queues = self.lock();
        let waiters = queues.get_mut(resource)?;
        let left = waiters.remove(&id).is_some();
        let first = waiters.iter().min_by_key(|(_, arrival)| **arrival).map(|(id, _)| *id);
        if waiters.is_empty() {
            queues.remove(resource);
        }
        first.filter(|_| left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_who_still_waits_is_told() {
        let (queues, name) = (Queues::default(), ResourceName::new("queue").unwrap());
        let id = ClaimId::from_bits;
        for (bits, arrival) in [(1, 10), (2, 30), (3, 20)] {
            queues.stands(&name, id(bits), arrival);
        }
        assert_eq!(queues.left(&name, id(1)), Some(id(3)));
        assert_eq!(queues.left(&name, id(1)), None, "it had left already");
        assert_eq!(queues.left(&name, id(3)), Some(id(2)));
        assert_eq!(queues.left(&name, id(2)), None);
        assert!(queues.lock().is_empty());
    }
}
