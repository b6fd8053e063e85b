//! Reads of the queue: all of it (a poll), or only the claim right before this one (a peek). A peek is all that an
//! exclusive waiter needs, so a long queue costs it no more than a short one. In a long queue a claim that comes is not
//! even sorted among the others: a key names the claim that came last.
//!
//! The second claim in the queue also checks whether the first has taken its turn; the others check that when they
//! poll.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use oarlock_core::driver::Pending;
use oarlock_core::{Claim, ClaimId, Result, Weight};

use crate::Etcd;
use crate::api::{Compare, Is, KeyValue, Op, Range};
use crate::attempt::Arrival;
use crate::config::Layout;
use crate::connection::Outcome;
use crate::error::missing;
use crate::keys::Keys;
use crate::landmarks::Landmark;
use crate::lease::Entry;
use crate::operations::put;
use crate::queue::{Listing, Record, StoredClaim};

/// With no more claims than this a queue is short: to sort it costs the server less than another request.
pub(crate) const SHORT: i64 = 16;

/// The claim right before another one in the queue, if it was there when that one came.
///
/// That it is right before it is what a listing has shown, or the key that names the [last](Keys::last) claim: every
/// claim that comes while others are there is noted in that key by the transaction that makes it. A claim that finds no
/// other is not noted. So the claim that the key names may have gone long ago, and others may have come since; but if
/// it was there when the next one was noted, none has come in between.
#[derive(Clone, Debug)]
pub(crate) struct Predecessor {
    pub(crate) key: Range,
    created: i64,
    /// The revision that made the claim behind it.
    behind: i64,
    /// It has held alone and is gone, as a watch has shown.
    held: Arc<AtomicBool>,
}

impl Predecessor {
    pub(crate) fn new(key: Vec<u8>, created: i64, behind: i64) -> Self {
        Self { key: Range::key(key), created, behind, held: Arc::default() }
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        (&self.key, self.created, self.behind) == (&other.key, other.created, other.behind)
    }

    /// Notes how a claim with its key ended, and at which revision: this is the key as it was until then.
    pub(crate) fn ended(&self, last: &KeyValue, at: i64) {
        let held = |record: Record| record.granted && record.weight == Weight::All;
        let is_it = last.create_revision == self.created && last.key == self.key.key;
        // One that had gone before says nothing of the claims that have come since. A member that lags tells late.
        let was_there = at > self.behind;
        if is_it && was_there && Record::read(&last.value).is_ok_and(held) {
            self.held.store(true, Ordering::Release);
        }
    }

    /// What must be so before the claim behind it, made at revision `created`, may take its turn: no claim is before
    /// that one.
    ///
    /// The server reads all claims to compare them. It need not if the predecessor has held alone: all claims before it
    /// had gone by then, and no claim can come between the two.
    pub(crate) fn conditions(&self, queue: &Range, created: i64) -> Vec<Compare> {
        // The server stops at the first condition that is not met, and this one costs less than the other.
        let mut when = vec![self.gone()];
        if !self.has_held() {
            when.push(first(queue, created));
        }
        when
    }

    /// Whether a watch has shown that it held alone and is gone.
    pub(crate) fn has_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    /// It is there no more. Another claim may have its key.
    fn gone(&self) -> Compare {
        Compare::created(&self.key, Is::NotEqual, self.created)
    }
}

/// No claim is before the one that was made at this revision.
pub(crate) fn first(queue: &Range, created: i64) -> Compare {
    Compare::created(queue, Is::Greater, created - 1)
}

/// Reads what a claim that was just added at the end needs to know. To find the last two, the server sorts the queue.
pub(crate) fn on_arrival(keys: &Keys, seen: Option<&Landmark>) -> Vec<Op> {
    let is_long = seen.is_some_and(|seen| seen.claims > SHORT) && keys.last().is_some();
    vec![if is_long { keys.queue().count() } else { keys.queue().newest(2) }]
}

/// Reads what a claim that will be added at the end needs to know.
pub(crate) fn before_arrival(keys: &Keys) -> Vec<Op> {
    keys.last().iter().map(Range::get).chain([keys.queue().count()]).collect()
}

/// Reads what a claim that has peeked before needs to know.
fn once_more(keys: &Keys, entry: &Entry) -> Vec<Op> {
    vec![keys.claim(entry.named_after).get(), keys.queue().created_before(entry.created), keys.queue().oldest(1)]
}

impl Etcd {
    /// Reads the whole queue of a name.
    pub(crate) async fn poll(&self, keys: &Keys) -> Result<Listing> {
        read(keys, self.connection.txn(Vec::new(), keys.read_all(), Vec::new()).await?)
    }

    /// The lease that the keys of a claim are named after, and the revision that created them, if there are any.
    pub(crate) async fn keys_of(&self, keys: &Keys, id: ClaimId) -> Result<Option<(i64, i64)>> {
        if let Some(entry) = self.leases.get(id).filter(|entry| entry.named_after != 0 && entry.created != 0) {
            return Ok(Some((entry.named_after, entry.created)));
        }
        let listing = self.poll(keys).await?;
        let mut claims = listing.claims.iter().chain(&listing.orphans);
        Ok(claims.find(|stored| stored.id == id).map(|stored| (stored.named_after, stored.created)))
    }

    /// Notes the claim that came last, for one that comes next.
    pub(crate) fn note_landmark(&self, claim: &Claim, keys: &Keys, found: &Outcome) {
        let [last, queue] = &found.reads[..] else { return };
        if let Some(key) = last.kvs.first().and_then(|last| keys.claim_in(&last.value)) {
            self.landmarks.note(&claim.resource, key, queue.count);
        }
    }

    /// What a claim that was just added at the end has to wait for; `None` if it has to poll.
    pub(crate) async fn arrived(
        &self,
        claim: &Claim,
        keys: &Keys,
        arrival: &Arrival,
        mut found: Outcome,
    ) -> Result<Option<Pending>> {
        let counted = found.reads.first().filter(|queue| queue.kvs.is_empty()).map(|queue| queue.count);
        if let Some(claims) = counted {
            let last = found.replaced.take().filter(|_| claims > SHORT);
            if let Some((key, last)) = last.and_then(|last| Some((keys.claim_in(&last.value)?, last))) {
                self.landmarks.note(&claim.resource, key.clone(), claims);
                let behind = Predecessor::new(key.key.clone(), last.mod_revision, found.revision);
                self.leases.edit(claim.id, |entry| {
                    entry.record = Some(arrival.record.clone());
                    (entry.ahead, entry.saw_turn) = (claims - 1, false);
                    entry.follow(Some(behind));
                });
                // It was there when it was made. A watch reads whether it is there now.
                return Ok(Some(self.wait_for(claim, key, last.mod_revision, Some(claims - 1))));
            }
            found = self.connection.txn(Vec::new(), vec![keys.queue().newest(2)], Vec::new()).await?;
        }
        let Some(newest) = found.reads.into_iter().next() else { return Ok(None) };
        let ahead = newest.count.saturating_sub(1);
        let mut kvs = newest.kvs.into_iter();
        let own = kvs.next().map_or(Ok(None), StoredClaim::read)?;
        let own = own.filter(|own| own.id == claim.id && !own.record.granted);
        let (Some(own), Some(before)) = (own, kvs.next()) else { return Ok(None) };
        let behind = Predecessor::new(before.key.clone(), before.create_revision, own.created);
        let key = behind.key.clone();
        self.landmarks.note(&claim.resource, key.clone(), newest.count);
        self.leases.edit(claim.id, |entry| {
            entry.note(Some(&own));
            (entry.ahead, entry.saw_turn) = (ahead, false);
            entry.predecessor = Some(behind);
        });
        let waits = ahead > 1 || StoredClaim::read(before)?.is_some_and(|first| first.record.granted);
        Ok(waits.then(|| self.wait_for(claim, key, found.revision, Some(ahead))))
    }

    /// Lets a claim that has polled, and waits at `at`, peek from now on.
    pub(crate) fn peek_next_time(&self, claim: &Claim, listing: &Listing, at: usize, saw_turn: bool) {
        if claim.weight != Weight::All || self.space.layout != Layout::Native {
            return;
        }
        let (before, created) =
            (at.checked_sub(1).and_then(|before| listing.claims.get(before)), listing.claims[at].created);
        let before = before.map(|stored| Predecessor::new(stored.key.clone(), stored.created, created));
        self.leases.edit(claim.id, |entry| {
            (entry.ahead, entry.saw_turn) = (i64::try_from(at).unwrap_or(i64::MAX), saw_turn);
            entry.follow(before);
        });
    }

    /// Whether the claim still waits for its predecessor, and need not read the queue: far back in a long queue, where
    /// another waiter has done that lately.
    async fn waits_far_back(&self, claim: &Claim, keys: &Keys, entry: &Entry) -> Result<Option<Pending>> {
        let far = entry.predecessor.as_ref().filter(|_| entry.ahead > SHORT && !entry.saw_turn);
        let (Some(before), Some(lookout)) = (far, keys.lookout()) else { return Ok(None) };
        let reads = vec![keys.claim(entry.named_after).get(), before.key.get(), lookout.get()];
        let found = self.connection.txn(Vec::new(), reads, Vec::new()).await?;
        let mut reads = found.reads.iter().map(|range| range.kvs.first());
        let (own, ahead) = (reads.next().flatten(), reads.next().flatten());
        let stands = own.is_some_and(|own| own.mod_revision == entry.changed);
        if !stands || ahead.is_none_or(|ahead| ahead.create_revision != before.created) {
            return Ok(None);
        }
        let noted = reads.next().flatten().map_or(0, |lookout| lookout.mod_revision);
        if !self.lookouts.is_recent(&claim.resource, noted, Instant::now()) {
            // This one reads it, unless another one has begun to.
            let unread = vec![Compare::changed(&lookout, Is::Equal, noted)];
            let note = vec![put(&lookout, Vec::new(), entry.named_after)];
            if self.connection.txn(unread, note, Vec::new()).await?.succeeded {
                return Ok(None);
            }
        }
        Ok(Some(self.wait_for(claim, before.key.clone(), found.revision, None)))
    }

    /// The same for a claim that has peeked before. Its predecessor may have ended since, and another be right before
    /// it.
    pub(crate) async fn still_waits(&self, claim: &Claim, keys: &Keys, entry: &Entry) -> Result<Option<Pending>> {
        if let Some(pending) = self.waits_far_back(claim, keys, entry).await? {
            return Ok(Some(pending));
        }
        let found = self.connection.txn(Vec::new(), once_more(keys, entry), Vec::new()).await?;
        let mut reads = found.reads.into_iter().map(|range| range.kvs);
        let (Some(own), Some(queue), Some(oldest)) = (reads.next(), reads.next(), reads.next()) else {
            return Ok(None);
        };
        let (waiting, ahead) = (queue.len(), i64::try_from(queue.len()).unwrap_or(i64::MAX));
        let stands = own.first().is_some_and(|own| own.mod_revision == entry.changed);
        let before = queue.into_iter().max_by_key(|kv| kv.create_revision);
        let first = oldest.into_iter().next().map_or(Ok(None), StoredClaim::read)?;
        let (true, Some(before), Some(first)) = (stands, before, first) else { return Ok(None) };
        let recheck_after = match (first.record.granted, first.record.weight) {
            (true, _) => None,
            // The turn of this claim is open, and of no other.
            (false, Weight::All) => {
                let alone = Listing { revision: found.revision, claims: vec![first], ..Listing::default() };
                self.evict_silent(keys, &alone, 1, waiting).await?
            }
            (false, Weight::Units(_)) => return Ok(None),
        };
        let before = Predecessor::new(before.key, before.create_revision, entry.created);
        let mut pending = self.wait_for(claim, before.key.clone(), found.revision, Some(ahead));
        pending.recheck_after = recheck_after;
        self.leases.edit(claim.id, |entry| {
            (entry.ahead, entry.saw_turn) = (ahead, recheck_after.is_some());
            entry.follow(Some(before));
        });
        Ok(Some(pending))
    }

    /// What a claim has to wait for, as seen at this revision: a watch that is armed later begins right after it.
    pub(crate) fn wait_for(&self, claim: &Claim, range: Range, revision: i64, ahead: Option<i64>) -> Pending {
        let mut pending = Pending::default();
        (pending.ahead, pending.cursor) =
            (ahead.and_then(|ahead| u32::try_from(ahead).ok()), crate::watch::cursor(&range));
        pending.watched = true;
        self.leases.edit(claim.id, |entry| entry.waits_for = Some((range, revision)));
        pending
    }
}

/// The listing that a transaction has read, and nothing else.
pub(crate) fn read(keys: &Keys, found: Outcome) -> Result<Listing> {
    if found.reads.is_empty() {
        return Err(missing("a listing"));
    }
    let mut listing =
        Listing::read(keys, found.revision, found.reads.into_iter().flat_map(|range| range.kvs).collect())?;
    listing.majority = found.majority;
    Ok(listing)
}

#[cfg(test)]
mod tests {
    use oarlock_core::ResourceName;

    use super::*;

    /// What the store has of one claim. Its key is a number that is used again.
    #[derive(Clone)]
    struct One {
        key: u8,
        created: i64,
        granted: bool,
        /// The claim that the last one was when it came: its key, and when that was made.
        before: Option<(u8, i64)>,
    }

    /// A queue, and everything that any member may still tell of its past.
    #[derive(Clone, Default)]
    struct World {
        revision: i64,
        come: u32,
        queue: Vec<One>,
        last: Option<(u8, i64)>,
        ends: Vec<(One, i64)>,
    }

    impl World {
        /// Each next step: a claim comes, the first is granted, any ends, with or without the key that names the last.
        fn steps(&self) -> Vec<Self> {
            let next = || Self { revision: self.revision + 1, ..self.clone() };
            let mut steps = Vec::new();
            if self.come < 5 {
                let mut world = next();
                let key = (0..).find(|key| self.queue.iter().all(|one| one.key != *key)).unwrap();
                let (created, granted) = (world.revision, self.queue.is_empty());
                world.come += 1;
                world.queue.push(One { key, created, granted, before: self.last.filter(|_| !granted) });
                if !granted {
                    world.last = Some((key, created));
                }
                steps.push(world);
            }
            if self.queue.first().is_some_and(|first| !first.granted) {
                let mut world = next();
                world.queue[0].granted = true;
                steps.push(world);
            }
            for at in 0..self.queue.len() {
                let mut world = next();
                let one = world.queue.remove(at);
                let is_named = self.last == Some((one.key, one.created));
                world.ends.push((one, world.revision));
                steps.push(world.clone());
                if is_named {
                    steps.push(Self { last: None, ..world });
                }
            }
            steps
        }

        /// How many claims know that the way is clear. It must be, whatever is told, and however late.
        fn check(&self) -> usize {
            let mut claim = Claim::new(ClaimId::from_bits(1), ResourceName::new("n").unwrap());
            claim.weight = Weight::All;
            let told = |(one, at): &(One, i64)| {
                let (key, value) = (vec![one.key], Record::of(&claim, "c", None, one.granted).bytes());
                (KeyValue { key, create_revision: one.created, value, ..KeyValue::default() }, *at)
            };
            let told: Vec<_> = self.ends.iter().map(told).collect();
            let mut clear = 0;
            for (at, one) in self.queue.iter().enumerate() {
                let Some((key, created)) = one.before else { continue };
                let before = Predecessor::new(vec![key], created, one.created);
                told.iter().for_each(|(last, at)| before.ended(last, *at));
                let first = self.queue.iter().map(|one| (one.key, one.created)).collect::<Vec<_>>();
                assert!(!before.has_held() || at == 0, "{} is not the first of {first:?}", one.created);
                clear += usize::from(before.has_held());
            }
            clear
        }
    }

    /// Every order in which five claims can come, be granted and go.
    #[test]
    fn only_the_first_finds_the_way_clear() {
        let (mut worlds, mut clear, mut seen) = (vec![World::default()], 0, 0);
        while let Some(world) = worlds.pop() {
            clear += world.check();
            seen += 1;
            worlds.extend(world.steps());
        }
        assert!(clear > 1000 && seen > 10_000, "{clear} of {seen}");
    }

    /// Another claim may have had the same key, and a claim that shares does not hold alone.
    #[test]
    fn only_an_exclusive_holder_clears_the_way() {
        let mut claim = Claim::new(ClaimId::from_bits(1), ResourceName::new("n").unwrap());
        for (weight, granted, created, key, held) in [
            (Weight::All, true, 7, "q/1", true),
            (Weight::All, false, 7, "q/1", false),
            (Weight::ONE, true, 7, "q/1", false),
            (Weight::All, true, 8, "q/1", false),
            (Weight::All, true, 7, "q/2", false),
        ] {
            claim.weight = weight;
            let (key, create_revision) = (key.as_bytes().to_vec(), created);
            let value = Record::of(&claim, "c", None, granted).bytes();
            let before = Predecessor::new(b"q/1".to_vec(), 7, 9);
            let last = KeyValue { key, create_revision, value, ..KeyValue::default() };
            // It had gone before the claim behind it came: another one may be between the two.
            before.ended(&last, 8);
            assert!(!before.has_held());
            before.ended(&last, 10);
            assert_eq!(before.has_held(), held, "{weight:?} {granted} {created}");
            assert_eq!(before.conditions(&Range::under("q/"), 9).len(), if held { 1 } else { 2 });
        }
    }
}
