//! One attempt: a single request where nobody is before the claim, and the rule over a listing where somebody is.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use oarlock_core::clock::wall_micros;
use oarlock_core::driver::{Attempt, Grant, Lease, Pending};
use oarlock_core::model::TURN_TTL;
use oarlock_core::queue::{UNSTATED, check_held, check_weight};
use oarlock_core::state::Memo;
use oarlock_core::{Claim, ClaimId, Result};

use crate::api::{Compare, Is, KeyValue, Op, Range};
use crate::driver::{Etcd, delete, put, read};
use crate::error::{ended, strange};
use crate::keys::Keys;
use crate::lease::{Entry, Leased, seconds};
use crate::link::transaction;
use crate::queue::{Listing, Place, Record, check_fence, read_memo};
use crate::watch;

/// A turn that nobody has looked at for so long is not remembered.
const FORGET_TURN_AFTER: Duration = Duration::from_secs(60);

impl Etcd {
    /// Attempts with the leases that the claim has, or with new ones.
    pub(crate) async fn stand(&self, claim: &Claim, mut entry: Entry) -> Result<Attempt> {
        let keys = self.keys(&claim.resource);
        // Again only where a lease of the claim is found to be over. Its place went with it, so what follows is not a
        // second try but its first attempt; and each time round it has a lease less.
        loop {
            let full = match entry.full {
                Some(lease) => lease,
                None => self.leases.take(&self.link, seconds(claim.ttl)).await?,
            };
            self.leases.edit(claim.id, |entry| entry.full = Some(full));
            // What a claim that was here before has for leases may be over by now.
            let kept = entry.leases().map(|lease| lease.id).collect::<Vec<_>>();
            let had = kept.len();
            let keep = async { if had > 0 { self.link.keep_alive(kept).await.map(Some) } else { Ok(None) } };
            let (kept, step) = tokio::join!(keep, self.first_step(claim, &keys, &entry, full));
            if let Some((from, lives)) = kept? {
                entry.extend(from, &lives);
                let over = entry.leases().count() < had;
                let (full, place) = (entry.full, entry.place);
                self.leases.edit(claim.id, |entry| (entry.full, entry.place) = (full, place));
                let holds = entry.full.is_some() && matches!(step, Ok(Step::Granted { .. }));
                if over && !holds {
                    entry.note(None);
                    let unheard = step.is_err();
                    self.leases.edit(claim.id, |entry| {
                        entry.note(None);
                        entry.unsure |= unheard;
                    });
                    continue;
                }
            }
            let full = entry.full.unwrap_or(full);
            return match step? {
                Step::Granted { revision, memo } => {
                    self.leases.granted(claim.id, |entry| {
                        entry.changed = revision;
                        if entry.created == 0 {
                            entry.created = revision;
                        }
                    });
                    // Noted before anything can go wrong with what was read: a lease with a key on it is not free.
                    grant(revision.unsigned_abs(), full.lease(), memo.map(|kv| read_memo(&kv.value)).transpose()?)
                }
                Step::Refused(listing) => self.decide(claim, &keys, listing, full).await,
            };
        }
    }

    /// The step that settles it where nobody is before the claim: one request, however many wait behind it.
    async fn first_step(&self, claim: &Claim, keys: &Keys, entry: &Entry, full: Leased) -> Result<Step> {
        let (own, others) = (keys.claim(claim.id), keys.claims());
        let mut when = vec![Compare::created(&keys.floor(), Is::Equal, 0)];
        let mut record = Record::of(claim, &self.client, None, true);
        if entry.created == 0 {
            when.push(Compare::created(&others, Is::Equal, 0));
        } else {
            when.push(Compare::changed(&own, Is::Equal, entry.changed));
            when.push(Compare::created(&others, Is::Greater, entry.created - 1));
            record.capacity = entry.record.as_ref().and_then(|written| written.capacity);
        }
        let alone = record.capacity.unwrap_or(UNSTATED);
        if entry.granted || check_weight(claim.weight, alone).is_err() {
            let found = self.link.txn(Vec::new(), vec![keys.all().get()], Vec::new()).await?;
            return Ok(Step::Refused(read(keys, found)?));
        }
        let put = put(&own, record.bytes(), full.id);
        let mut found = self.link.txn(when, vec![put, keys.memo().get()], vec![keys.all().get()]).await?;
        if !found.succeeded {
            return Ok(Step::Refused(read(keys, found)?));
        }
        let memo = found.reads.pop().and_then(|range| range.kvs.into_iter().next());
        Ok(Step::Granted { revision: found.revision, memo })
    }

    /// Somebody is there: the rule decides.
    async fn decide(&self, claim: &Claim, keys: &Keys, mut listing: Listing, full: Leased) -> Result<Attempt> {
        if listing.position(claim.id).is_none() {
            self.leases.edit(claim.id, |entry| entry.note(None));
            let last = listing.places.len();
            listing.admit(claim, last)?;
            if !claim.wait && !listing.bears(claim) {
                return Ok(Attempt::Pending(pending(&listing, last, None, keys)));
            }
            listing = self.arrive(claim, keys, &listing, full).await?;
        }
        let at = listing.position(claim.id).ok_or_else(|| ended("the claim ended"))?;
        let place = &listing.places[at];
        self.leases.edit(claim.id, |entry| entry.note(Some(place)));
        if place.record.granted {
            return self.hold_on(claim, keys, &listing, place, full).await;
        }
        if let Err(error) = listing.admit(claim, at) {
            self.withdraw(claim.id, place).await?;
            return Err(error);
        }
        if listing.may_hold(at) {
            return self.take_turn(claim, &listing, place, keys, full).await;
        }
        if !claim.wait {
            self.withdraw(claim.id, place).await?;
            return Ok(Attempt::Pending(pending(&listing, at, None, keys)));
        }
        let recheck_after = self.pass_the_dead(&listing, at).await?;
        Ok(Attempt::Pending(pending(&listing, at, recheck_after, keys)))
    }

    /// Comes last; granted at once if it fits and nobody came meanwhile.
    async fn arrive(&self, claim: &Claim, keys: &Keys, listing: &Listing, full: Leased) -> Result<Listing> {
        let (own, fits) = (keys.claim(claim.id), listing.bears(claim));
        let waiting = Record::of(claim, &self.client, listing.stated(listing.places.len()), false);
        let put = if fits {
            let granted = Record { granted: true, offset: listing.floor.offset, ..waiting.clone() };
            let unchanged = vec![
                Compare::changed(&keys.claims(), Is::Less, listing.revision + 1),
                Compare::changed(&keys.floor(), Is::Equal, listing.floor.changed),
            ];
            let (granted, waiting) = (put(&own, granted.bytes(), full.id), put(&own, waiting.bytes(), full.id));
            Op::Txn(transaction(unchanged, vec![granted], vec![waiting]))
        } else {
            put(&own, waiting.bytes(), self.place_lease(claim, full).await?.id)
        };
        let absent = vec![Compare::created(&own, Is::Equal, 0)];
        let found = self.link.txn(absent, vec![put, keys.all().get()], vec![keys.all().get()]).await?;
        if found.succeeded {
            // Noted before the listing is read. It may be granted; whoever finds that noted looks before it writes.
            let revision = found.revision;
            self.leases
                .edit(claim.id, |entry| (entry.created, entry.changed, entry.granted) = (revision, revision, fits));
        }
        let listing = read(keys, found)?;
        let lost = listing.position(claim.id).map(|at| &listing.places[at]).filter(|own| fits && !own.record.granted);
        let Some(lost) = lost else { return Ok(listing) };
        // Somebody came first: what was to hold waits, on the lease of a waiter.
        let lease = self.place_lease(claim, full).await?;
        if lease.id == lost.lease {
            return Ok(listing);
        }
        let unchanged = vec![Compare::changed(&own, Is::Equal, lost.changed)];
        let then = vec![self::put(&own, lost.record.bytes(), lease.id), keys.all().get()];
        read(keys, self.link.txn(unchanged, then, vec![keys.all().get()]).await?)
    }

    /// What a waiter stands on: a dead one must not be in the way for as long as a hold may last.
    async fn place_lease(&self, claim: &Claim, full: Leased) -> Result<Leased> {
        let length = seconds(claim.place_ttl());
        if length == full.seconds {
            return Ok(full);
        }
        let lease = match self.leases.get(claim.id).and_then(|entry| entry.place) {
            Some(lease) => lease,
            None => self.leases.take(&self.link, length).await?,
        };
        self.leases.edit(claim.id, |entry| entry.place = Some(lease));
        Ok(lease)
    }

    /// Marks a waiter whose turn has come as a holder. Only those before it matter, and they can only go.
    async fn take_turn(
        &self,
        claim: &Claim,
        listing: &Listing,
        place: &Place,
        keys: &Keys,
        full: Leased,
    ) -> Result<Attempt> {
        let (own, offset) = (keys.claim(claim.id), listing.floor.offset);
        let record = Record { granted: true, offset, since_micros: wall_micros(), ..place.record.clone() };
        let when = vec![
            Compare::created(&own, Is::Equal, place.created),
            Compare::changed(&keys.floor(), Is::Equal, listing.floor.changed),
        ];
        let found = self.link.txn(when, vec![put(&own, record.bytes(), full.id)], Vec::new()).await?;
        if !found.succeeded {
            return Err(ended("the claim ended when its turn had come"));
        }
        self.leases.granted(claim.id, |entry| (entry.changed, entry.record) = (found.revision, Some(record)));
        grant(found.revision.unsigned_abs().saturating_add(offset), full.lease(), listing.memo.clone())
    }

    /// A holder asks again: a repeated request, one for less weight, or one that goes on with another client's hold.
    async fn hold_on(
        &self,
        claim: &Claim,
        keys: &Keys,
        listing: &Listing,
        place: &Place,
        full: Leased,
    ) -> Result<Attempt> {
        check_held(place.record.weight, claim.weight)?;
        let lease = if place.lease == full.id {
            full.lease()
        } else if place.record.ending.is_some() {
            Lease::of(self.link.left(place.lease).await?)
        } else {
            self.adopt(claim.id, place.lease).await?.ok_or_else(|| ended("the claim ended"))?.lease()
        };
        if place.record.weight != claim.weight {
            let record = Record { weight: claim.weight, kind: claim.kind, ..place.edited() };
            self.rewrite(keys, place, record).await?;
        }
        let fence = place.fence().ok_or_else(|| strange("a fence"))?;
        grant(fence, lease, listing.memo.clone())
    }

    async fn withdraw(&self, id: ClaimId, place: &Place) -> Result<()> {
        let when = vec![Compare::created(&Range::key(place.key.clone()), Is::Equal, place.created)];
        self.link.txn(when, vec![delete(&place.key)], Vec::new()).await?;
        self.leases.edit(id, |entry| entry.note(None));
        Ok(())
    }

    /// Removes those before `at` who did not take their turn, and says when to look at the others again.
    ///
    /// The store cannot say since when a turn is open, so this counts from when we first saw it open, which is never
    /// before it was: whoever has just come, or was away, gives more time and not less. Nobody loses a turn he has taken:
    /// that changes the key, and the removal rests on its being unchanged. Time asleep does not count, because the
    /// one who is called may sleep on the same machine.
    async fn pass_the_dead(&self, listing: &Listing, at: usize) -> Result<Option<Duration>> {
        let mut recheck_after = None;
        for (place, open_for) in self.open_turns(listing, at) {
            let left = TURN_TTL.saturating_sub(open_for);
            if left.is_zero() {
                let when = vec![Compare::changed(&Range::key(place.key.clone()), Is::Equal, place.changed)];
                self.link.txn(when, vec![delete(&place.key)], Vec::new()).await?;
            }
            recheck_after = Some(recheck_after.map_or(left, |other: Duration| other.min(left)));
        }
        Ok(recheck_after)
    }

    /// The turns before `at` that are open and not taken, and for how long we have seen them so.
    fn open_turns<'a>(&self, listing: &'a Listing, at: usize) -> Vec<(&'a Place, Duration)> {
        let now = Instant::now();
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, since| now.duration_since(*since) < FORGET_TURN_AFTER);
        let called: Vec<_> = listing.called(at).collect();
        // A turn that has closed meanwhile is another one when it opens again.
        for place in listing.places.iter().take(at).filter(|place| called.iter().all(|open| open.id != place.id)) {
            turns.remove(&place.created);
        }
        called
            .into_iter()
            .map(|place| (place, now.duration_since(*turns.entry(place.created).or_insert(now))))
            .collect()
    }
}

/// What the first step of an attempt came to.
enum Step {
    Granted { revision: i64, memo: Option<KeyValue> },
    Refused(Listing),
}

fn grant(fence: u64, lease: Lease, memo: Option<Memo>) -> Result<Attempt> {
    let mut grant = Grant::new(check_fence(fence)?, lease);
    grant.memo = memo;
    Ok(Attempt::Granted(grant))
}

/// Where a claim that stands, or would stand, at `at` has to wait.
fn pending(listing: &Listing, at: usize, recheck_after: Option<Duration>, keys: &Keys) -> Pending {
    let behind = listing.places.iter().skip(at + 1).filter(|place| place.record.granted).count();
    let blocker = if at < listing.places.len() { listing.blocker(at) } else { None };
    let mut pending = Pending::default();
    pending.ahead = u32::try_from(at + behind).ok();
    pending.recheck_after = recheck_after;
    pending.cursor = watch::cursor(&blocker.map_or_else(|| keys.claims(), |place| Range::key(place.key.clone())));
    pending
}

#[cfg(test)]
mod tests;
