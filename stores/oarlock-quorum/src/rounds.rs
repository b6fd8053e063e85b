//! What this client knows of its own rounds and holds.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use oarlock_core::claim::{Claim, ClaimId, Fence, Label};
use oarlock_core::clock::wall_micros;
use oarlock_core::driver::memo::{Version, Versioned};
use oarlock_core::driver::{Grant, Lease};
use oarlock_core::error::{Error, ErrorKind, Result};
use oarlock_core::state::{HolderState, Memo};

/// Under what a label says which claim a round is of, where its id is not that of the claim.
const TAG: &str = "oarlock.claim";

/// Under what a label says which fence a hold has, on a node that gave a vote of its own when it was won back.
const FENCE: &str = "oarlock.fence";

/// Everything that is under way.
#[derive(Debug, Default)]
pub(super) struct Registry {
    /// How many rounds of a claim may still have votes or releases on their way.
    rounds: Mutex<HashMap<ClaimId, u32>>,
    holds: Mutex<HashMap<ClaimId, Arc<Hold>>>,
}

/// One try to get a majority, under an id of its own.
#[derive(Debug)]
pub(super) struct Round {
    registry: Arc<Registry>,
    /// The id that the engine knows.
    pub(super) outer: ClaimId,
    /// The claim as the nodes know it.
    pub(super) claim: Arc<Claim>,
    /// Votes that come from now on are to be given back.
    over: AtomicBool,
    ends: Mutex<Ends>,
}

/// How a release and a late vote of one round met on each node, as a bit for each of the first 64. A node for which
/// nothing is noted is told once more.
#[derive(Debug, Default)]
struct Ends {
    /// The release is on its way.
    releasing: u64,
    /// It found the vote.
    released: u64,
    /// The vote was answered while the release was on its way.
    voted: u64,
}

fn bit(node: usize) -> u64 {
    u32::try_from(node).ok().and_then(|node| 1_u64.checked_shl(node)).unwrap_or_default()
}

/// A round that was won.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) round: Arc<Round>,
    /// What its holder was given.
    own: AtomicU64,
    /// The largest fence that belongs to it.
    top: AtomicU64,
    /// The nodes that count for its fences: no other vote there is larger than its fence, and its key has been there
    /// since.
    confirmed: Mutex<Vec<usize>>,
    /// The nodes that may have its vote.
    voters: Mutex<Vec<usize>>,
    /// The nodes that had lost its vote when no majority was known to keep it, and until when the votes of the others
    /// must last. They may have voted again since; but where too many had lost it at once, another may have held it in
    /// between.
    doubted: Mutex<Option<(Vec<usize>, Instant)>>,
    /// What is on its resource, as far as it knows.
    memo: Mutex<Option<Versioned>>,
    /// The version of the last memo that it wrote.
    version: Mutex<Version>,
    /// Its holder was asked to end.
    pub(super) ending: AtomicBool,
    until: Mutex<Instant>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    /// The hold of this claim, if it has one that has not ended.
    pub(super) fn hold(&self, claim: ClaimId) -> Option<Arc<Hold>> {
        lock(&self.holds).get(&claim).filter(|hold| !hold.round.is_over()).cloned()
    }

    /// The hold that this round has become.
    pub(super) fn of(&self, round: &Arc<Round>) -> Option<Arc<Hold>> {
        self.last(round.outer).filter(|hold| Arc::ptr_eq(&hold.round, round))
    }

    /// The last round of this claim that was won, whether or not its end has begun.
    pub(super) fn last(&self, claim: ClaimId) -> Option<Arc<Hold>> {
        lock(&self.holds).get(&claim).cloned()
    }

    /// Whether a round of this claim may still have votes or releases on their way.
    pub(super) fn is_busy(&self, claim: ClaimId) -> bool {
        lock(&self.rounds).contains_key(&claim)
    }

    /// The claim whose round has this id.
    pub(super) fn outer(&self, round: ClaimId) -> Option<ClaimId> {
        let holds = lock(&self.holds);
        if holds.contains_key(&round) {
            return Some(round);
        }
        holds.values().find(|hold| hold.round.claim.id == round).map(|hold| hold.round.outer)
    }

    pub(super) fn keep(&self, hold: Arc<Hold>) {
        let mut holds = lock(&self.holds);
        let replaced = holds.insert(hold.round.outer, hold);
        // This client does not release a hold that it handed over to another process: the hold is removed after its
        // lease.
        let mut ended = Vec::new();
        if holds.len().is_power_of_two() {
            let now = Instant::now();
            ended.extend(holds.extract_if(|_, hold| *lock(&hold.until) < now));
        }
        drop(holds);
        drop((replaced, ended));
    }

    pub(super) fn forget(&self, hold: &Arc<Hold>) {
        let mut holds = lock(&self.holds);
        let same = holds.get(&hold.round.outer).is_some_and(|kept| Arc::ptr_eq(kept, hold));
        let forgotten = if same { holds.remove(&hold.round.outer) } else { None };
        drop(holds);
        drop(forgotten);
    }
}

impl Round {
    /// A new round of `claim`. It has the id of the claim, unless an earlier round may still have something on its way:
    /// a late release of that one must not end a vote of this one.
    pub(super) fn begin(registry: &Arc<Registry>, claim: &Claim) -> Result<Arc<Self>> {
        let first = {
            let mut rounds = lock(&registry.rounds);
            let count = rounds.entry(claim.id).or_default();
            *count += 1;
            *count == 1
        };
        let mut proposing = claim.clone();
        // A node that refuses must keep nothing of a round: no client would remove it.
        proposing.wait = false;
        // What all nodes give that have no larger one: their own clocks would never agree to the microsecond.
        proposing.least_fence = claim.least_fence.or_else(|| Some(Fence::new(wall_micros())));
        // Made at once, so that the count is right again whatever happens next.
        let mut round = Self::of(registry, proposing, claim.id);
        if !first {
            let mut bits = [0; 16];
            getrandom::fill(&mut bits)
                .map_err(|error| Error::new(ErrorKind::Os, "no random numbers").because(error))?;
            round.claim = Arc::new(renamed(&round.claim, ClaimId::from_bits(u128::from_ne_bytes(bits))));
        }
        Ok(Arc::new(round))
    }

    /// The round `id`, which another client has won for `claim`.
    pub(super) fn take_over(registry: &Arc<Registry>, claim: &Claim, id: ClaimId) -> Arc<Self> {
        *lock(&registry.rounds).entry(claim.id).or_default() += 1;
        Arc::new(Self::of(registry, renamed(claim, id), claim.id))
    }

    fn of(registry: &Arc<Registry>, claim: Claim, outer: ClaimId) -> Self {
        Self {
            registry: registry.clone(),
            outer,
            claim: Arc::new(claim),
            over: AtomicBool::new(false),
            ends: Mutex::default(),
        }
    }

    /// `claim`, as this round knows it.
    pub(super) fn inner(&self, claim: &Claim) -> Claim {
        renamed(claim, self.claim.id)
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// It is being released on these nodes.
    pub(super) fn releases_on(&self, nodes: impl Iterator<Item = usize>) {
        lock(&self.ends).releasing |= nodes.map(bit).fold(0, |nodes, node| nodes | node);
    }

    /// A node answered its release, and had a vote of it or not. True if a vote that came late has to be given back.
    pub(super) fn is_left_by_release(&self, node: usize, found: bool) -> bool {
        let (mut ends, node) = (lock(&self.ends), bit(node));
        ends.releasing &= !node;
        if found {
            ends.released |= node;
        }
        !found && ends.voted & node != 0
    }

    /// A vote came after its end. True if it has to be given back: no release has found it, or may still do so.
    pub(super) fn is_left_by_vote(&self, node: usize) -> bool {
        let (mut ends, node) = (lock(&self.ends), bit(node));
        ends.voted |= ends.releasing & node;
        (ends.releasing | ends.released) & node == 0
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        let mut rounds = lock(&self.registry.rounds);
        if let Some(count) = rounds.get_mut(&self.outer) {
            *count -= 1;
            if *count == 0 {
                rounds.remove(&self.outer);
            }
        }
    }
}

impl Hold {
    pub(super) fn new(round: Arc<Round>, fence: Fence, confirmed: Vec<usize>, until: Instant) -> Arc<Self> {
        let (own, top) = (AtomicU64::new(fence.get()), AtomicU64::new(fence.get()));
        let voters = Mutex::new(confirmed.clone());
        let (confirmed, ending, until) = (Mutex::new(confirmed), AtomicBool::new(false), Mutex::new(until));
        let (doubted, memo, version) = (Mutex::default(), Mutex::default(), Mutex::default());
        Arc::new(Self { round, own, top, confirmed, voters, doubted, memo, version, ending, until })
    }

    /// What its holder is told.
    pub(super) fn grant(&self, lease: Lease) -> Grant {
        let mut grant = Grant::new(self.fence(), lease);
        grant.memo = self.memo().map(|memo| memo.memo());
        grant
    }

    /// This memo is on a majority.
    pub(super) fn remember(&self, memo: &Versioned) {
        let mut known = lock(&self.memo);
        // An answer to an earlier renewal may come after that to a later one.
        if known.as_ref().is_none_or(|known| known.version <= memo.version) {
            *known = Some(memo.clone());
        }
        drop(known);
        let mut version = lock(&self.version);
        *version = memo.version.max(*version);
    }

    /// What is on a majority.
    pub(super) fn memo(&self) -> Option<Versioned> {
        lock(&self.memo).clone()
    }

    /// The next memo that it leaves.
    pub(super) fn stamp(&self, memo: &Memo) -> Versioned {
        let mut version = lock(&self.version);
        *version = version.next(self.top());
        Versioned::new(memo, *version)
    }

    pub(super) fn fence(&self) -> Fence {
        Fence::new(self.own.load(Ordering::Acquire))
    }

    pub(super) fn top(&self) -> Fence {
        Fence::new(self.top.load(Ordering::Acquire))
    }

    /// It has all fences up to this one, which is its own from now on or one more.
    pub(super) fn raise(&self, to: Fence, own: bool) {
        self.top.fetch_max(to.get(), Ordering::AcqRel);
        if own {
            self.own.fetch_max(to.get(), Ordering::AcqRel);
        }
    }

    /// Its claim, for a node that has lost its vote. That node gives a number of its own, so the label says what the
    /// fence is.
    pub(super) fn again(&self) -> Claim {
        let mut claim = (*self.round.claim).clone();
        claim.least_fence = Some(self.top());
        claim.label = Arc::new((*claim.label).clone().tag(FENCE, self.fence().to_string()));
        claim
    }

    /// This node may have a vote of it.
    pub(super) fn voted(&self, node: usize) {
        let mut voters = lock(&self.voters);
        if !voters.contains(&node) {
            voters.push(node);
        }
    }

    pub(super) fn may_be_on(&self, node: usize) -> bool {
        lock(&self.voters).contains(&node)
    }

    pub(super) fn confirmed(&self) -> Vec<usize> {
        lock(&self.confirmed).clone()
    }

    /// Its key was lost on this node, which may vote for it again but does not count for its fences any more.
    pub(super) fn lost_on(&self, node: usize) {
        lock(&self.confirmed).retain(|confirmed| *confirmed != node);
        if let Some((doubted, _)) = &mut *lock(&self.doubted)
            && !doubted.contains(&node)
        {
            doubted.push(node);
        }
    }

    /// These nodes have lost its vote, and no majority is known to keep it.
    pub(super) fn doubt(&self, nodes: &[usize]) {
        let until = *lock(&self.until);
        // What is doubted already has been told by `lost_on`.
        lock(&self.doubted).get_or_insert_with(|| (nodes.to_vec(), until));
    }

    /// A majority kept it all the while.
    pub(super) fn trust(&self) {
        *lock(&self.doubted) = None;
    }

    /// The nodes whose votes prove nothing. A vote that is gone after its lease was not forgotten: that is no reason
    /// for doubt.
    pub(super) fn doubted(&self) -> Vec<usize> {
        let mut doubted = lock(&self.doubted);
        doubted.take_if(|(_, until)| *until <= Instant::now());
        doubted.as_ref().map(|(nodes, _)| nodes.clone()).unwrap_or_default()
    }

    /// Whether the lease that a majority gave is over, so that another may have held it since.
    pub(super) fn is_past(&self) -> bool {
        *lock(&self.until) <= Instant::now()
    }

    pub(super) fn extend(&self, from: Instant, lease: Duration) {
        *lock(&self.until) = from + lease;
    }
}

/// `claim` under another id, with its own in the label, so that others can tell.
fn renamed(claim: &Claim, id: ClaimId) -> Claim {
    let mut renamed = claim.clone();
    if id != claim.id {
        renamed.id = id;
        let label = (*claim.label).clone().tag(TAG, claim.id.to_string());
        renamed.label = Arc::new(label);
    }
    renamed
}

/// The claim that a holder is of, by what its label says.
pub(super) fn claim_of(holder: &HolderState) -> ClaimId {
    holder.label.tags.get(TAG).and_then(|id| id.parse().ok()).unwrap_or(holder.id)
}

/// The fence that the holder has, where the label says it: a node that was won back has another one.
pub(super) fn fence_of(holder: &HolderState) -> Option<Fence> {
    holder.label.tags.get(FENCE).and_then(|fence| fence.parse().ok())
}

/// A label without what we put there.
pub(super) fn untagged(label: &Label) -> Label {
    let mut label = label.clone();
    label.tags.retain(|tag, _| tag != TAG && tag != FENCE);
    label
}

#[cfg(test)]
mod tests {
    use super::*;
    use oarlock_core::claim::ResourceName;

    #[test]
    fn a_round_has_an_id_of_its_own_while_another_is_under_way() {
        let registry = Arc::new(Registry::default());
        let claim = Claim::new(ClaimId::from_bits(7), ResourceName::new("x").unwrap());
        let first = Round::begin(&registry, &claim).unwrap();
        assert_eq!(first.claim.id, claim.id);
        let second = Round::begin(&registry, &claim).unwrap();
        assert_ne!(second.claim.id, claim.id);
        let mut shown = HolderState::new(second.claim.id, claim.kind, claim.weight);
        shown.label = second.claim.label.clone();
        assert_eq!((claim_of(&shown), untagged(&shown.label)), (claim.id, (*claim.label).clone()));
        drop((first, second));
        assert_eq!(Round::begin(&registry, &claim).unwrap().claim.id, claim.id);
    }
}
