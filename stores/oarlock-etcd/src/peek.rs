//! Reads of the queue: all of it (a poll), or only the claim right before this one (a peek). A peek is all that an
//! exclusive waiter needs, so a long queue costs it no more than a short one.
//!
//! The second claim in the queue also checks whether the first has taken its turn; the others check that when they
//! poll.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use oarlock_core::driver::Pending;
use oarlock_core::{Claim, ClaimId, Result, Weight};

use crate::Etcd;
use crate::api::{Compare, Is, KeyValue, Op, Range};
use crate::config::Layout;
use crate::connection::Outcome;
use crate::error::missing;
use crate::keys::Keys;
use crate::lease::Entry;
use crate::queue::{Listing, Record, StoredClaim};

/// The claim right before another one in the queue.
#[derive(Clone, Debug)]
pub(crate) struct Predecessor {
    pub(crate) key: Range,
    created: i64,
    /// It has held alone and is gone, as a watch has shown.
    held: Arc<AtomicBool>,
}

impl Predecessor {
    fn new(key: Vec<u8>, created: i64) -> Self {
        Self { key: Range::key(key), created, held: Arc::default() }
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        (&self.key, self.created) == (&other.key, other.created)
    }

    /// Notes how it ended: this is its key as it was until then.
    pub(crate) fn ended(&self, last: &KeyValue) {
        let held = |record: Record| record.granted && record.weight == Weight::All;
        if last.create_revision == self.created && last.key == self.key.key && Record::read(&last.value).is_ok_and(held)
        {
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

/// Reads what a claim that was just added at the end needs to know.
pub(crate) fn on_arrival(keys: &Keys) -> Vec<Op> {
    vec![keys.queue().newest(2)]
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

    /// What a claim that was just added at the end has to wait for; `None` if it has to poll.
    pub(crate) fn arrived(&self, claim: &Claim, found: Outcome) -> Result<Option<Pending>> {
        let Some(newest) = found.reads.into_iter().next() else { return Ok(None) };
        let ahead = newest.count.saturating_sub(1);
        let mut kvs = newest.kvs.into_iter();
        let own = kvs.next().map_or(Ok(None), StoredClaim::read)?;
        let own = own.filter(|own| own.id == claim.id && !own.record.granted);
        let (Some(own), Some(before)) = (own, kvs.next()) else { return Ok(None) };
        let behind = Predecessor::new(before.key.clone(), before.create_revision);
        let key = behind.key.clone();
        self.landmarks.note(&claim.resource, key.clone());
        self.leases.edit(claim.id, |entry| {
            entry.note(Some(&own));
            entry.predecessor = Some(behind);
        });
        let waits = ahead > 1 || StoredClaim::read(before)?.is_some_and(|first| first.record.granted);
        Ok(waits.then(|| self.wait_for(claim, key, found.revision, ahead)))
    }

    /// Lets a claim that has polled, and waits at `at`, peek from now on.
    pub(crate) fn peek_next_time(&self, claim: &Claim, listing: &Listing, at: usize) {
        if claim.weight != Weight::All || self.space.layout != Layout::Native {
            return;
        }
        let before = at.checked_sub(1).and_then(|before| listing.claims.get(before));
        let before = before.map(|stored| Predecessor::new(stored.key.clone(), stored.created));
        self.leases.edit(claim.id, |entry| entry.follow(before));
    }

    /// The same for a claim that has peeked before. Its predecessor may have ended since, and another be right before
    /// it.
    pub(crate) async fn still_waits(&self, claim: &Claim, keys: &Keys, entry: &Entry) -> Result<Option<Pending>> {
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
        let before = Predecessor::new(before.key, before.create_revision);
        let mut pending = self.wait_for(claim, before.key.clone(), found.revision, ahead);
        pending.recheck_after = recheck_after;
        self.leases.edit(claim.id, |entry| entry.follow(Some(before)));
        Ok(Some(pending))
    }

    /// What a claim has to wait for, as seen at this revision: a watch that is armed later begins right after it.
    pub(crate) fn wait_for(&self, claim: &Claim, range: Range, revision: i64, ahead: i64) -> Pending {
        let mut pending = Pending::default();
        (pending.ahead, pending.cursor) = (u32::try_from(ahead).ok(), crate::watch::cursor(&range));
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
            let (before, value) =
                (Predecessor::new(b"q/1".to_vec(), 7), Record::of(&claim, "c", None, granted).bytes());
            let (key, create_revision) = (key.as_bytes().to_vec(), created);
            before.ended(&KeyValue { key, create_revision, value, ..KeyValue::default() });
            assert_eq!(before.has_held(), held, "{weight:?} {granted} {created}");
            assert_eq!(before.conditions(&Range::under("q/"), 9).len(), if held { 1 } else { 2 });
        }
    }
}
