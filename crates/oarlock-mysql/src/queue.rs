//! Who of this process waits for a name, in which order. The server tells nobody anything, so waiters have to ask; where one of
//! ours stands before another and is in its way, it is enough that the first one asks.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oarlock_core::driver::Pending;
use oarlock_core::{Claim, ClaimId, ResourceName, Weight};

/// Whoever has not asked for so long is not relied on: its task may be held up, and its place may be gone. At present nobody is:
/// an attempt also keeps the place of whoever makes it, and one that is not sent lets it end sooner than the rule says.
const RELIED_ON: Duration = Duration::ZERO;

#[derive(Debug, Default)]
pub(crate) struct Queues(Mutex<HashMap<ResourceName, Vec<Waiter>>>);

#[derive(Debug)]
struct Waiter {
    id: ClaimId,
    arrival: i64,
    weight: Weight,
    asked: Instant,
    pending: Pending,
}

impl Queues {
    fn lock(&self) -> MutexGuard<'_, HashMap<ResourceName, Vec<Waiter>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `claim` was told last, if one of ours stands before it that asks for both. In a fair queue nobody who cannot share
    /// with somebody ahead is granted before that one.
    pub(crate) fn behind(&self, claim: &Claim) -> Option<Pending> {
        if !claim.fair || !claim.wait {
            return None;
        }
        let queues = self.lock();
        let waiters = queues.get(&claim.resource)?;
        let mine = waiters.iter().find(|waiter| waiter.id == claim.id)?;
        let in_the_way = |waiter: &Waiter| {
            waiter.arrival < mine.arrival
                && !waiter.weight.coexists_with(claim.weight)
                && waiter.asked.elapsed() < RELIED_ON
        };
        // Others may have left since, in front of it or from other processes: how many stand there only the server knows.
        let mut pending = waiters.iter().any(in_the_way).then(|| mine.pending.clone())?;
        pending.ahead = None;
        Some(pending)
    }

    /// The server has just said where `claim` stands. Answers with those who must now ask for themselves.
    pub(crate) fn stands(&self, claim: &Claim, arrival: i64, pending: &Pending) -> Vec<ClaimId> {
        let mut queues = self.lock();
        let waiters = queues.entry(claim.resource.clone()).or_default();
        // Evicted and queued again, it does not stand before those that were behind it.
        let moved = waiters.iter().any(|waiter| waiter.id == claim.id && waiter.arrival != arrival);
        waiters.retain(|waiter| waiter.id != claim.id);
        let (id, weight) = (claim.id, claim.weight);
        waiters.push(Waiter { id, arrival, weight, asked: Instant::now(), pending: pending.clone() });
        if moved { waiters.iter().map(|waiter| waiter.id).collect() } else { Vec::new() }
    }

    /// `id` does not wait any more. Answers with the first of those who still do: it must ask for itself now.
    pub(crate) fn left(&self, resource: &ResourceName, id: ClaimId) -> Option<ClaimId> {
        let mut queues = self.lock();
        let waiters = queues.get_mut(resource)?;
        let before = waiters.len();
        waiters.retain(|waiter| waiter.id != id);
        let first = waiters.iter().min_by_key(|waiter| waiter.arrival).map(|waiter| waiter.id);
        let left = waiters.len() < before;
        if waiters.is_empty() {
            queues.remove(resource);
        }
        first.filter(|_| left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(bits: u128) -> Claim {
        let mut claim = Claim::new(ClaimId::from_bits(bits), ResourceName::new("queue").unwrap());
        (claim.fair, claim.wait) = (true, true);
        claim
    }

    #[test]
    fn sharers_and_the_unfair_ask_for_themselves() {
        let (queues, pending) = (Queues::default(), Pending::default());
        let (mut one, mut two, mut unfair) = (claim(1), claim(2), claim(3));
        (one.weight, two.weight, unfair.fair) = (Weight::ONE, Weight::ONE, false);
        for (arrival, claim) in [(10, &one), (20, &two), (30, &unfair)] {
            queues.stands(claim, arrival, &pending);
            assert!(queues.behind(claim).is_none());
        }
    }
}
