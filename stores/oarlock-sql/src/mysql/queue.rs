//! Who of this process waits for a name, in which order. Where one of ours stands before another and is in its way,
//! only that one asks and [listens](crate::mysql::listener); the other is told when it has left.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use oarlock_core::{Claim, ClaimId, ResourceName, Weight};

/// The waiters of each name, by when they arrived.
#[derive(Debug, Default)]
pub(crate) struct Queues(Mutex<HashMap<ResourceName, Queue>>);

#[derive(Debug, Default)]
struct Queue(BTreeMap<i64, Waiter>);

#[derive(Debug)]
struct Waiter {
    id: ClaimId,
    weight: Weight,
}

impl Queue {
    /// Those who must ask for themselves. A claim is not granted before one ahead of it with which it cannot share.
    fn askers(&self) -> Vec<ClaimId> {
        let (mut any, mut all) = (false, false);
        let mut askers = Vec::new();
        for waiter in self.0.values() {
            let is_whole = waiter.weight == Weight::All;
            if !(all || any && is_whole) {
                askers.push(waiter.id);
            }
            (any, all) = (true, all || is_whole);
        }
        askers
    }

    fn remove(&mut self, id: ClaimId) -> Option<i64> {
        let arrival = self.0.iter().find(|(_, waiter)| waiter.id == id).map(|(arrival, _)| *arrival)?;
        self.0.remove(&arrival).map(|_| arrival)
    }
}

impl Queues {
    fn lock(&self) -> MutexGuard<'_, HashMap<ResourceName, Queue>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server has just said where `claim` stands. Answers whether it will be told when to ask, and who must ask now
    /// because it stands elsewhere than before.
    pub(crate) fn stands(&self, claim: &Claim, arrival: i64) -> (bool, Vec<ClaimId>) {
        let mut queues = self.lock();
        let queue = queues.entry(claim.resource.clone()).or_default();
        let before = queue.askers();
        let moved = queue.remove(claim.id).is_some_and(|old| old != arrival);
        queue.0.insert(arrival, Waiter { id: claim.id, weight: claim.weight });
        let mut now = queue.askers();
        let is_told = !now.contains(&claim.id);
        now.retain(|id| moved && *id != claim.id && !before.contains(id));
        (is_told, now)
    }

    /// `id` does not wait any more. Answers with those who must ask for themselves now.
    pub(crate) fn left(&self, resource: &ResourceName, id: ClaimId) -> Vec<ClaimId> {
        let mut queues = self.lock();
        let Some(queue) = queues.get_mut(resource) else { return Vec::new() };
        let before = queue.askers();
        queue.remove(id);
        let mut now = queue.askers();
        now.retain(|id| !before.contains(id));
        if queue.0.is_empty() {
            queues.remove(resource);
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(bits: u128, weight: Weight) -> Claim {
        let mut claim = Claim::new(ClaimId::from_bits(bits), ResourceName::new("queue").unwrap());
        (claim.weight, claim.wait) = (weight, true);
        claim
    }

    #[test]
    fn only_the_first_asks_and_the_next_is_told_when_it_leaves() {
        let queues = Queues::default();
        let [one, two, three] = [1, 2, 3].map(|bits| claim(bits, Weight::All));
        assert_eq!(queues.stands(&one, 10), (false, vec![]));
        assert_eq!(queues.stands(&three, 30), (true, vec![]));
        assert_eq!(queues.stands(&two, 20), (true, vec![]));
        assert_eq!(queues.stands(&one, 10), (false, vec![]), "it stands where it stood");
        assert_eq!(queues.left(&one.resource, one.id), [two.id]);
        assert_eq!(queues.left(&one.resource, one.id), [], "it had left already");
        assert_eq!(queues.left(&one.resource, three.id), []);
        assert_eq!(queues.left(&one.resource, two.id), []);
        assert!(queues.lock().is_empty());
    }

    #[test]
    fn a_claim_that_lost_its_place_is_not_waited_for() {
        let queues = Queues::default();
        let [one, two] = [1, 2].map(|bits| claim(bits, Weight::All));
        queues.stands(&one, 10);
        queues.stands(&two, 20);
        assert_eq!(queues.stands(&one, 30), (true, vec![two.id]));
    }

    #[test]
    fn those_who_can_share_ask_for_themselves() {
        let queues = Queues::default();
        let (writer, readers) = (claim(1, Weight::All), [2, 3].map(|bits| claim(bits, Weight::ONE)));
        queues.stands(&writer, 10);
        for (arrival, reader) in [20, 30].into_iter().zip(&readers) {
            assert_eq!(queues.stands(reader, arrival), (true, vec![]));
        }
        assert_eq!(queues.left(&writer.resource, writer.id), readers.map(|reader| reader.id));
    }
}
