//! One attempt: a single request where nobody is before the claim, and the rule over a listing where somebody is.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use oarlock_core::clock::wall_micros;
use oarlock_core::driver::{Attempt, Grant, Lease, Pending};
use oarlock_core::model::TURN_TTL;
use oarlock_core::queue::{UNSTATED, check_held, check_weight};
use oarlock_core::state::Memo;
use oarlock_core::{Applied, Capacity, Claim, ClaimId, Error, Result, Retry, Tether, Weight};

use crate::api::{Compare, Is, KeyValue, Op, Range};
use crate::config::Layout;
use crate::driver::{Etcd, put, read};
use crate::error::{ended, strange};
use crate::glance;
use crate::keys::Keys;
use crate::lease::{Entry, Leased, Majority, seconds};
use crate::link::transaction;
use crate::queue::{Listing, Place, Record, check_fence, read_memo};

/// A turn that nobody has looked at for so long is not remembered.
const FORGET_TURN_AFTER: Duration = Duration::from_secs(60);

/// Of a long line only so many look again as soon as a turn may have to be passed: in a line that moves, turns are open much of
/// the time, and everybody else would look at each of them. The others look later, should the next few not do it.
const LOOKOUTS: usize = 8;

/// When the others look. Well before what they saw of the turn is forgotten.
const LATER: Duration = Duration::from_secs(20);

/// After what time a claim with so many waiting before it looks again for a turn that may be passed `after` some time.
pub(crate) fn look_out(after: Duration, waiting: usize) -> Duration {
    if waiting <= LOOKOUTS { after } else { after.max(LATER) }
}

impl Etcd {
    /// Attempts with the leases that the claim has, or with new ones.
    pub(crate) async fn stand(&self, claim: &Claim, mut entry: Entry) -> Result<Attempt> {
        let keys = self.keys(&claim.resource);
        // Again only where it has to wait and had no lease for that, which it has the next time; or where a lease of the claim
        // is found to be over. Its place went with it, so what follows is not a second try but its first attempt; and each
        // time round it has a lease less.
        loop {
            let full = match entry.full {
                Some(lease) => lease,
                None => self.leases.take(&self.link, seconds(claim.ttl)).await?,
            };
            self.leases.edit(claim.id, |entry| entry.full = Some(full));
            if entry.full.is_none() {
                self.end_if_closed(full).await?;
            }
            // What a claim that was here before has for leases may be over by now.
            let kept = entry.leases().map(|lease| lease.id).collect::<Vec<_>>();
            let had = kept.len();
            let ask = || self.link.keep_alive(kept.clone());
            let keep = async { if had > 0 && !entry.is_fresh() { ask().await.map(Some) } else { Ok(None) } };
            let (mut kept, step) = tokio::join!(keep, self.first_step(claim, &keys, &entry, full));
            if had > 0 && matches!((&kept, &step), (Ok(None), Err(error)) if error.retry() == Retry::Now) {
                // One of them is over all the same: somebody has ended it.
                kept = ask().await.map(Some);
            }
            let kept = kept.map_err(|error| self.unkept(claim.id, full, &step, error))?;
            if let Some((from, lives)) = kept {
                entry.extend(from, &lives);
                let over = entry.leases().count() < had;
                self.leases.edit(claim.id, |entry| entry.extend(from, &lives));
                let holds = entry.full.is_some() && matches!(step, Ok(Step::Granted { .. }));
                if over && !holds {
                    let unheard = step.is_err();
                    self.leases.edit(claim.id, |entry| {
                        entry.note(None);
                        entry.unsure |= unheard;
                    });
                    // It may have got another lease meanwhile.
                    entry = self.leases.get(claim.id).unwrap_or_default();
                    continue;
                }
            }
            let full = entry.full.unwrap_or(full);
            return match step? {
                Step::Granted { revision, memo, majority } => {
                    self.note_grant(claim.id, full, revision);
                    // Noted before anything can go wrong with what was read: a lease with a key on it is not free.
                    let lease = full.lease(&majority)?;
                    grant(revision.unsigned_abs(), lease, memo.map(|kv| read_memo(&kv.value)).transpose()?)
                }
                Step::Waits(pending) => Ok(Attempt::Pending(pending)),
                Step::Unready => {
                    self.place_lease(claim, full).await?;
                    entry = self.leases.get(claim.id).unwrap_or_default();
                    continue;
                }
                Step::Refused(listing) => self.decide(claim, &keys, listing, full).await,
            };
        }
    }

    fn note_grant(&self, id: ClaimId, full: Leased, revision: i64) {
        self.leases.granted(id, |entry| {
            entry.changed = revision;
            if entry.created == 0 {
                (entry.created, entry.seat) = (revision, full.id);
            }
        });
    }

    /// Its leases could not be kept alive; what the step beside that has done, or may have done, counts all the same.
    fn unkept(&self, id: ClaimId, full: Leased, step: &Result<Step>, error: Error) -> Error {
        match step {
            Ok(Step::Granted { revision, .. }) => {
                self.note_grant(id, full, *revision);
                error.applied_unknown()
            }
            Err(unheard) if unheard.applied() == Applied::Unknown => error.applied_unknown(),
            _ => error,
        }
    }

    /// The step that settles it where nobody is before the claim: one request, however many wait behind it.
    async fn first_step(&self, claim: &Claim, keys: &Keys, entry: &Entry, full: Leased) -> Result<Step> {
        let own = keys.claim(if entry.created == 0 { full.id } else { entry.seat });
        let line = keys.line();
        let mut when = vec![Compare::created(&keys.floor(), Is::Equal, 0)];
        let mut record = Record::of(claim, &self.client, None, true);
        if entry.created == 0 {
            when.push(Compare::created(&line, Is::Equal, 0));
            // Without a seat, a record of this claim from before would be taken for this one's.
            when.extend(keys.seat(full.id).map(|_| Compare::created(&own, Is::Equal, 0)));
        } else {
            when.push(Compare::changed(&own, Is::Equal, entry.changed));
            // The first condition that is not met is the last that is looked at, and this one costs less than the next.
            when.extend(entry.before.iter().map(glance::Before::gone));
            when.push(Compare::created(&line, Is::Greater, entry.created - 1));
            when.extend(keys.seat(entry.seat).map(|seat| Compare::created(&seat, Is::Equal, entry.created)));
            record.capacity = entry.record.as_ref().and_then(|written| written.capacity);
        }
        let alone = record.capacity.unwrap_or(UNSTATED);
        let asked_to_end = entry.record.as_ref().is_some_and(|written| written.ending.is_some());
        if entry.granted || asked_to_end || check_weight(claim.weight, alone).is_err() {
            let found = self.link.txn(Vec::new(), keys.look(), Vec::new()).await?;
            return Ok(Step::Refused(read(keys, found)?));
        }
        let mut then = match entry.created {
            0 => keys.sit(&record, full.id),
            _ => {
                let seat = keys.seat(entry.seat).map(|seat| put(&seat, record.published(), full.id));
                std::iter::once(put(&own, record.bytes(), full.id)).chain(seat).collect()
            }
        };
        then.push(keys.memo().get());
        let queue = self.queue_up(claim, keys, entry, full);
        let unshared = self.space.layout == Layout::Native;
        // That somebody is there is all it needs to know before it has a lease to wait on.
        let unready = unshared && queue.is_none() && comes_last(claim, entry);
        let look = match (&queue, &entry.before) {
            (Some(_), _) if unshared => glance::on_arrival(keys),
            (None, _) if unready => Vec::new(),
            // Looked at beside the others' requests, not in line with them: a long line takes the server a while.
            (None, Some(_)) if entry.created != 0 => Vec::new(),
            _ => keys.look(),
        };
        let otherwise = queue.iter().map(|(queue, _)| queue.clone()).chain(look).collect();
        let mut found = self.link.txn(when, then, otherwise).await?;
        if !found.succeeded {
            if let Some((_, lease)) = &queue {
                // Noted before the line is read: a lease with a key on it is not free.
                let (revision, seat) = (found.revision, lease.id);
                self.leases.edit(claim.id, |entry| {
                    (entry.created, entry.changed, entry.seat) = (revision, revision, seat);
                });
            }
            let glanced = match (&queue, &entry.before) {
                (Some(_), _) if unshared => self.arrived(claim, found)?,
                (None, _) if unready => return Ok(Step::Unready),
                (None, Some(_)) if entry.created != 0 => self.still_waits(claim, keys, entry).await?,
                _ => return Ok(Step::Refused(read(keys, found)?)),
            };
            return match glanced {
                Some(pending) => Ok(Step::Waits(pending)),
                None => self.look(keys).await.map(Step::Refused),
            };
        }
        let memo = found.reads.pop().and_then(|range| range.kvs.into_iter().next());
        Ok(Step::Granted { revision: found.revision, memo, majority: found.majority })
    }

    /// Coming last in the same step that finds somebody there: whoever wants everything has to wait for them anyhow. Only
    /// where that needs neither another request nor a look at what the others have said of the capacity.
    fn queue_up(&self, claim: &Claim, keys: &Keys, entry: &Entry, full: Leased) -> Option<(Op, Leased)> {
        if !comes_last(claim, entry) {
            return None;
        }
        let spare = || self.leases.spare(claim.id, seconds(claim.place_ttl()), full);
        let lease = entry.place.or_else(spare)?;
        let record = Record::of(claim, &self.client, None, false);
        let sit = keys.sit(&record, lease.id);
        Some((Op::Txn(transaction(keys.absent([full.id, lease.id]), sit, Vec::new())), lease))
    }

    /// Somebody is there: the rule decides.
    async fn decide(&self, claim: &Claim, keys: &Keys, mut listing: Listing, full: Leased) -> Result<Attempt> {
        if listing.position(claim.id).is_none() {
            self.leases.edit(claim.id, |entry| entry.note(None));
            let last = listing.places.len();
            listing.admit(claim, last)?;
            if !claim.wait && !listing.bears(claim) {
                return Ok(Attempt::Pending(self.pending(claim, &listing, last, keys)));
            }
            self.sweep(claim.id, keys, &listing).await?;
            listing = self.arrive(claim, keys, &listing, full).await?;
        }
        let at = listing.position(claim.id).ok_or_else(|| ended("the claim ended"))?;
        let place = &listing.places[at];
        self.leases.edit(claim.id, |entry| entry.note(Some(place)));
        if place.record.granted {
            return self.hold_on(claim, keys, &listing, place, full).await;
        }
        if let Err(error) = listing.admit(claim, at) {
            self.withdraw(keys, place).await?;
            return Err(error);
        }
        if listing.may_hold(at) {
            return self.take_turn(claim, &listing, place, keys, full).await;
        }
        if !claim.wait {
            self.withdraw(keys, place).await?;
            return Ok(Attempt::Pending(self.pending(claim, &listing, at, keys)));
        }
        let mut pending = self.pending(claim, &listing, at, keys);
        let waiting = listing.places.iter().take(at).filter(|place| !place.record.granted).count();
        pending.recheck_after = self.pass_the_dead(keys, &listing, at).await?.map(|after| look_out(after, waiting));
        self.glance_next_time(claim, &listing, at);
        Ok(Attempt::Pending(pending))
    }

    /// Where a claim that stands, or would stand, at `at` has to wait.
    fn pending(&self, claim: &Claim, listing: &Listing, at: usize, keys: &Keys) -> Pending {
        let behind = listing.places.iter().skip(at + 1).filter(|place| place.record.granted).count();
        let blocker = if at < listing.places.len() { listing.blocker(at) } else { None };
        let range = blocker.map_or_else(|| keys.line(), |place| Range::key(place.key.clone()));
        self.wait_for(claim, range, listing.revision, i64::try_from(at + behind).unwrap_or(i64::MAX))
    }

    /// Comes last; granted at once if it fits and nobody came meanwhile.
    async fn arrive(&self, claim: &Claim, keys: &Keys, listing: &Listing, full: Leased) -> Result<Listing> {
        let fits = listing.bears(claim);
        let waiting = Record::of(claim, &self.client, listing.stated(listing.places.len()), false);
        let lease = if fits { full } else { self.place_lease(claim, full).await? };
        let mut then = if fits {
            let granted = Record { granted: true, offset: listing.floor.offset, ..waiting.clone() };
            let unchanged = vec![
                Compare::changed(&keys.line(), Is::Less, listing.revision + 1),
                Compare::changed(&keys.floor(), Is::Equal, listing.floor.changed),
            ];
            let sit = |record| keys.sit(record, full.id);
            vec![Op::Txn(transaction(unchanged, sit(&granted), sit(&waiting)))]
        } else {
            keys.sit(&waiting, lease.id)
        };
        then.extend(keys.look());
        let found = self.link.txn(keys.absent([full.id, lease.id]), then, keys.look()).await?;
        if found.succeeded {
            // Noted before the listing is read. It may be granted; whoever finds that noted looks before it writes.
            let revision = found.revision;
            self.leases.edit(claim.id, |entry| {
                (entry.created, entry.changed, entry.granted) = (revision, revision, fits);
                entry.seat = lease.id;
            });
        }
        let listing = read(keys, found)?;
        let lost = listing.position(claim.id).map(|at| &listing.places[at]).filter(|own| fits && !own.record.granted);
        let Some(lost) = lost else { return Ok(listing) };
        // Somebody came first: what was to hold waits, on the lease of a waiter.
        let lease = self.place_lease(claim, full).await?;
        if lease.id == lost.lease {
            return Ok(listing);
        }
        let mut then = keys.move_to(lost, &lost.record, lease.id);
        then.extend(keys.look());
        read(keys, self.link.txn(keys.unchanged(lost), then, keys.look()).await?)
    }

    /// Removes what is left of a claim whose seat, or whose record, somebody else took away.
    async fn sweep(&self, id: ClaimId, keys: &Keys, listing: &Listing) -> Result<()> {
        let entry = self.leases.get(id).unwrap_or_default();
        let seats: Vec<_> = entry.leases().filter_map(|lease| keys.seat(lease.id)).collect();
        let ours = |place: &&Place| place.theirs && seats.iter().any(|seat| seat.key == place.key);
        let left = listing.unseated.iter().find(|place| place.id == id).or_else(|| listing.places.iter().find(ours));
        match left {
            Some(left) => self.withdraw(keys, left).await,
            None => Ok(()),
        }
    }

    /// What a waiter stands on: a dead one must not be in the way for as long as a hold may last.
    async fn place_lease(&self, claim: &Claim, full: Leased) -> Result<Leased> {
        let length = seconds(claim.place_ttl());
        if length == full.seconds {
            return Ok(full);
        }
        if let Some(lease) = self.leases.get(claim.id).and_then(|entry| entry.place) {
            return Ok(lease);
        }
        let lease = self.leases.take(&self.link, length).await?;
        self.leases.edit(claim.id, |entry| entry.place = Some(lease));
        self.end_if_closed(lease).await?;
        Ok(lease)
    }

    /// A lease that came when everything had been ended, because the client was closed meanwhile, is not left behind. Asked after
    /// it was noted: whoever closes later finds it.
    async fn end_if_closed(&self, lease: Leased) -> Result<()> {
        let open = self.link.check_open();
        if open.is_err() {
            self.end_leases(vec![lease.id]).await;
        }
        open
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
        let offset = listing.floor.offset;
        let record = Record { granted: true, offset, since_micros: wall_micros(), ..place.record.clone() };
        // Nor may anybody have asked it to end since it was seen.
        let mut when = keys.unchanged(place);
        when.push(Compare::changed(&keys.floor(), Is::Equal, listing.floor.changed));
        // Whoever was asked to end stays on its last lease, and is given no more than that has left.
        let last = if place.record.ending.is_some() { Some(self.link.left(place.lease).await?) } else { None };
        let onto = if last.is_some() { place.lease } else { full.id };
        let found = self.link.txn(when, keys.move_to(place, &record, onto), Vec::new()).await?;
        if !found.succeeded {
            return Err(ended("the claim ended when its turn had come"));
        }
        self.leases.granted(claim.id, |entry| {
            (entry.created, entry.changed, entry.record) = (place.created, found.revision, Some(record));
        });
        let lease = last.map_or_else(|| full.lease(&found.majority), |left| Ok(Lease::of(left)))?;
        grant(found.revision.unsigned_abs().saturating_add(offset), lease, listing.memo.clone())
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
            full.lease(&listing.majority)?
        } else if place.record.ending.is_some() {
            Lease::of(self.link.left(place.lease).await?)
        } else {
            self.adopt(claim.id, place.lease)
                .await?
                .ok_or_else(|| ended("the claim ended"))?
                .lease(&listing.majority)?
        };
        if place.record.weight != claim.weight {
            let record = Record { weight: claim.weight, kind: claim.kind, ..place.edited() };
            self.rewrite(keys, place, record).await?;
        }
        let fence = place.fence().ok_or_else(|| strange("a fence"))?;
        grant(fence, lease, listing.memo.clone())
    }

    async fn withdraw(&self, keys: &Keys, place: &Place) -> Result<()> {
        self.link.txn(keys.stands(place), keys.clear(place), Vec::new()).await?;
        self.leases.edit(place.id, |entry| entry.note(None));
        Ok(())
    }

    /// Removes those before `at` who did not take their turn, and says when to look at the others again.
    ///
    /// The store cannot say since when a turn is open, so this counts from when we first saw it open, which is never
    /// before it was: whoever has just come, or was away, gives more time and not less. Nobody loses a turn he has taken:
    /// that changes the key, and the removal rests on its being unchanged. Time asleep does not count, because the
    /// one who is called may sleep on the same machine.
    pub(crate) async fn pass_the_dead(&self, keys: &Keys, listing: &Listing, at: usize) -> Result<Option<Duration>> {
        let mut recheck_after = None;
        for (place, open_for) in self.open_turns(listing, at) {
            let left = TURN_TTL.saturating_sub(open_for);
            if left.is_zero() {
                self.link.txn(keys.unchanged(place), keys.clear(place), Vec::new()).await?;
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
    /// Behind somebody, as a glance has shown.
    Waits(Pending),
    /// Behind somebody, and without a lease to wait on.
    Unready,
    Granted {
        revision: i64,
        memo: Option<KeyValue>,
        majority: Majority,
    },
    Refused(Listing),
}

/// Whether the claim may come last without a look at the others.
fn comes_last(claim: &Claim, entry: &Entry) -> bool {
    let waits = claim.wait && claim.weight == Weight::All && claim.capacity == Capacity::Any;
    // What outlives its process may be there already, on a lease of another client.
    waits && claim.tether == Tether::Process && entry.created == 0
}

fn grant(fence: u64, lease: Lease, memo: Option<Memo>) -> Result<Attempt> {
    let mut grant = Grant::new(check_fence(fence)?, lease);
    grant.memo = memo;
    Ok(Attempt::Granted(grant))
}

#[cfg(test)]
mod tests;
