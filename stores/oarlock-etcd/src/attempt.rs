//! Attempts: one request if no claim is before this one, else the rule over a listing.

use std::time::{Duration, Instant};

use oarlock_core::clock::wall_micros;
use oarlock_core::driver::{Attempt, Grant, Lease, Pending};
use oarlock_core::queue::{UNSTATED, check_held, check_weight};
use oarlock_core::state::Memo;
use oarlock_core::{Applied, Capacity, Claim, ClaimId, Error, ErrorKind, Lifetime, Result, Retry, Weight};

use crate::Etcd;
use crate::api::{Compare, Is, KeyValue, Op, Range};
use crate::config::Layout;
use crate::connection::transaction;
use crate::error::{SCHEME, ended, missing};
use crate::keys::Keys;
use crate::lease::{Entry, Leased, Majority, OpenAttempt, seconds};
use crate::operations::put;
use crate::peek::{self, read};
use crate::queue::{Listing, Record, StoredClaim, check_fence, read_memo};

impl Etcd {
    /// One attempt of a claim.
    pub(crate) async fn attempt_claim(&self, claim: &Claim) -> Result<Attempt> {
        self.connection.check_open()?;
        if self.space.layout == Layout::Go && claim.weight != Weight::All {
            let message = "locks shared with Go have one holder at a time";
            return Err(Error::new(ErrorKind::Unsupported, message).on(SCHEME).about(&claim.resource));
        }
        let (attempt, entry) = self.leases.begin_attempt(claim);
        let answer = self.attempt_with(claim, entry).await;
        self.conclude(claim, attempt, answer)
    }

    /// Notes whether an attempt has its answer, and what its error says of the claim.
    pub(crate) fn conclude(&self, claim: &Claim, attempt: OpenAttempt<'_>, answer: Result<Attempt>) -> Result<Attempt> {
        let answer = answer.map_err(|error| match error.kind() {
            // Its hold is unchanged.
            ErrorKind::Upgrade => error,
            // It has a key, and may hold by it.
            _ if self.leases.get(claim.id).is_some_and(|entry| entry.created > 0) => error.applied_unknown(),
            _ => error,
        });
        match &answer {
            Err(error) if error.applied() == Applied::Unknown => drop(attempt),
            _ => attempt.answered(),
        }
        self.leases.recycle(claim.id);
        answer
    }

    /// Attempts with the leases that the claim has, or with new ones.
    pub(crate) async fn attempt_with(&self, claim: &Claim, mut entry: Entry) -> Result<Attempt> {
        let keys = self.keys(&claim.resource);
        // Repeated in two cases only. The claim has to wait and had no lease for that: it has one in the next round.
        // Or a lease of the claim has expired: its keys went with it, so the next round is its first attempt and not a
        // retry. Each round has a lease less.
        loop {
            let full = match entry.full {
                Some(lease) => lease,
                None => self.leases.take(&self.connection, seconds(claim.ttl)).await?,
            };
            self.leases.edit(claim.id, |entry| entry.full = Some(full));
            if entry.full.is_none() {
                self.end_if_closed(full).await?;
            }
            // The leases of a claim that attempted before may have expired.
            let kept = entry.leases().map(|lease| lease.id).collect::<Vec<_>>();
            let had = kept.len();
            let ask = || self.connection.keep_alive(kept.clone());
            let keep = async { if had > 0 && !entry.is_fresh() { ask().await.map(Some) } else { Ok(None) } };
            let (mut kept, step) = tokio::join!(keep, self.first_step(claim, &keys, &entry, full));
            if had > 0 && matches!((&kept, &step), (Ok(None), Err(error)) if error.retry() == Retry::Now) {
                // A lease is over although it was fresh: another client has revoked it.
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
                    // It may have another lease by now.
                    entry = self.leases.get(claim.id).unwrap_or_default();
                    continue;
                }
            }
            let full = entry.full.unwrap_or(full);
            return match step? {
                Step::Granted { revision, memo, majority } => {
                    self.note_grant(claim.id, full, revision);
                    // Noted before the memo is read, which can fail: a lease with a key on it is not free.
                    let lease = full.lease(&majority)?;
                    grant(revision.unsigned_abs(), lease, memo.map(|kv| read_memo(&kv.value)).transpose()?)
                }
                Step::Waits(pending) => Ok(Attempt::Pending(pending)),
                Step::Unready => {
                    self.waiting_lease(claim, full).await?;
                    entry = self.leases.get(claim.id).unwrap_or_default();
                    continue;
                }
                Step::Refused(listing) => self.decide(claim, &keys, listing, full).await,
            };
        }
    }

    pub(crate) fn note_grant(&self, id: ClaimId, full: Leased, revision: i64) {
        self.leases.granted(id, |entry| {
            entry.changed = revision;
            if entry.created == 0 {
                (entry.created, entry.named_after) = (revision, full.id);
            }
        });
    }

    /// The error of an attempt whose leases could not be kept alive. The step that ran beside that may have been
    /// applied.
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

    /// The first step. It grants the claim if no other is before it: one request, however many wait behind it.
    async fn first_step(&self, claim: &Claim, keys: &Keys, entry: &Entry, full: Leased) -> Result<Step> {
        let own = keys.claim(if entry.created == 0 { full.id } else { entry.named_after });
        let others = keys.queue();
        // The server stops at the first condition that is not met: the one that costs least comes first.
        let landmark = if entry.created == 0 { self.landmarks.get(&claim.resource) } else { None };
        let mut when: Vec<_> = landmark.iter().map(|key| Compare::created(key, Is::Equal, 0)).collect();
        when.push(Compare::created(&keys.fence_offset(), Is::Equal, 0));
        let mut record = Record::of(claim, &self.client, None, true);
        if entry.created == 0 {
            when.push(Compare::created(&others, Is::Equal, 0));
            // Without a shared key, an earlier record of this claim would be taken for this one.
            when.extend(keys.shared_key(full.id).map(|_| Compare::created(&own, Is::Equal, 0)));
        } else {
            when.push(Compare::changed(&own, Is::Equal, entry.changed));
            match &entry.predecessor {
                Some(before) => when.extend(before.conditions(&others, entry.created)),
                None => when.push(peek::first(&others, entry.created)),
            }
            when.extend(
                keys.shared_key(entry.named_after).map(|shared| Compare::created(&shared, Is::Equal, entry.created)),
            );
            record.capacity = entry.record.as_ref().and_then(|written| written.capacity);
        }
        let alone = record.capacity.unwrap_or(UNSTATED);
        let asked_to_end = entry.record.as_ref().is_some_and(|written| written.ending.is_some());
        if entry.granted || asked_to_end || check_weight(claim.weight, alone).is_err() {
            let found = self.connection.txn(Vec::new(), keys.read_all(), Vec::new()).await?;
            return Ok(Step::Refused(read(keys, found)?));
        }
        let mut then = match entry.created {
            0 => keys.create(&record, full.id),
            _ => {
                let shared = keys.shared_key(entry.named_after).map(|shared| put(&shared, record.published(), full.id));
                std::iter::once(put(&own, record.bytes(), full.id)).chain(shared).collect()
            }
        };
        // With nothing at all of the name there is no claim, no memo and no raised fence: one condition, and no read.
        let is_new = entry.created == 0 && landmark.is_none() && self.space.layout == Layout::Native;
        let shortcut = is_new.then(|| (Compare::created(&keys.all(), Is::Equal, 0), then.clone()));
        then.push(keys.memo().get());
        let arrival = self.arrive_last(claim, keys, entry, full);
        let unshared = self.space.layout == Layout::Native;
        // Until it has a lease to wait on, all that it needs to know is that another claim is there.
        let unready = unshared && arrival.is_none() && comes_last(claim, entry);
        let reads = match (&arrival, &entry.predecessor) {
            (Some(_), _) if unshared => peek::on_arrival(keys),
            (None, _) if unready => Vec::new(),
            // Read by a request of its own, not within the transaction: reading a long queue would delay other
            // transactions.
            (None, Some(_)) if entry.created != 0 => Vec::new(),
            _ => keys.read_all(),
        };
        let otherwise = arrival.iter().map(|(op, _)| op.clone()).chain(reads).collect();
        let mut found = match shortcut {
            Some((short, put)) => self.connection.txn_or(short, put, transaction(when, then, otherwise)).await?,
            None => self.connection.txn(when, then, otherwise).await?,
        };
        if !found.succeeded {
            if let Some((_, lease)) = &arrival {
                // Noted before the queue is read: a lease with a key on it is not free.
                let (revision, named_after) = (found.revision, lease.id);
                self.leases.edit(claim.id, |entry| {
                    (entry.created, entry.changed, entry.named_after) = (revision, revision, named_after);
                });
            }
            let peeked = match (&arrival, &entry.predecessor) {
                (Some(_), _) if unshared => self.arrived(claim, found)?,
                (None, _) if unready => return Ok(Step::Unready),
                (None, Some(_)) if entry.created != 0 => self.still_waits(claim, keys, entry).await?,
                _ => return Ok(Step::Refused(read(keys, found)?)),
            };
            return match peeked {
                Some(pending) => Ok(Step::Waits(pending)),
                None => self.poll(keys).await.map(Step::Refused),
            };
        }
        if landmark.is_some() {
            self.landmarks.forget(&claim.resource);
        }
        let memo = found.reads.pop().and_then(|range| range.kvs.into_iter().next());
        Ok(Step::Granted { revision: found.revision, memo, majority: found.majority })
    }

    /// Adds the claim at the end of the queue in the step that finds another claim there: an exclusive claim has to
    /// wait for it in any case. Only if this needs neither another request nor the capacity that other claims state.
    fn arrive_last(&self, claim: &Claim, keys: &Keys, entry: &Entry, full: Leased) -> Option<(Op, Leased)> {
        if !comes_last(claim, entry) {
            return None;
        }
        let spare = || self.leases.spare(claim.id, seconds(claim.waiter_ttl()), full);
        let lease = entry.waiting.or_else(spare)?;
        let record = Record::of(claim, &self.client, None, false);
        let create = keys.create(&record, lease.id);
        Some((Op::Txn(transaction(keys.absent([full.id, lease.id]), create, Vec::new())), lease))
    }

    /// Other claims are there: the rule decides.
    async fn decide(&self, claim: &Claim, keys: &Keys, mut listing: Listing, full: Leased) -> Result<Attempt> {
        if listing.position(claim.id).is_none() {
            self.leases.edit(claim.id, |entry| entry.note(None));
            let last = listing.claims.len();
            listing.admit(claim, last)?;
            if !claim.wait && !listing.bears(claim) {
                return Ok(Attempt::Pending(self.pending(claim, &listing, last, keys)));
            }
            self.sweep(claim.id, keys, &listing).await?;
            listing = self.arrive(claim, keys, &listing, full).await?;
        }
        let at = listing.position(claim.id).ok_or_else(|| ended("the claim ended"))?;
        let stored = &listing.claims[at];
        self.leases.edit(claim.id, |entry| entry.note(Some(stored)));
        if stored.record.granted {
            return self.hold_on(claim, keys, &listing, stored, full).await;
        }
        if let Err(error) = listing.admit(claim, at) {
            self.withdraw(keys, stored).await?;
            return Err(error);
        }
        if listing.may_hold(at) {
            return self.take_turn(claim, &listing, stored, keys, full).await;
        }
        if !claim.wait {
            self.withdraw(keys, stored).await?;
            return Ok(Attempt::Pending(self.pending(claim, &listing, at, keys)));
        }
        let mut pending = self.pending(claim, &listing, at, keys);
        let waiting = listing.claims.iter().take(at).filter(|stored| !stored.record.granted).count();
        pending.recheck_after = self.evict_silent(keys, &listing, at, waiting).await?;
        self.peek_next_time(claim, &listing, at);
        Ok(Attempt::Pending(pending))
    }

    /// What a claim at position `at` (or one that would be there) has to wait for.
    fn pending(&self, claim: &Claim, listing: &Listing, at: usize, keys: &Keys) -> Pending {
        let behind = listing.claims.iter().skip(at + 1).filter(|stored| stored.record.granted).count();
        let blocker = if at < listing.claims.len() { listing.blocker(at) } else { None };
        let range = blocker.map_or_else(|| keys.queue(), |stored| Range::key(stored.key.clone()));
        self.wait_for(claim, range, listing.revision, i64::try_from(at + behind).unwrap_or(i64::MAX))
    }

    /// Adds the claim at the end of the queue. It is granted at once if it fits and no other claim was added
    /// meanwhile.
    async fn arrive(&self, claim: &Claim, keys: &Keys, listing: &Listing, full: Leased) -> Result<Listing> {
        let fits = listing.bears(claim);
        let waiting = Record::of(claim, &self.client, listing.stated(listing.claims.len()), false);
        let lease = if fits { full } else { self.waiting_lease(claim, full).await? };
        let mut then = if fits {
            let granted = Record { granted: true, offset: listing.fence_offset.offset, ..waiting.clone() };
            let unchanged = vec![
                Compare::changed(&keys.queue(), Is::Less, listing.revision + 1),
                Compare::changed(&keys.fence_offset(), Is::Equal, listing.fence_offset.changed),
            ];
            let create = |record| keys.create(record, full.id);
            vec![Op::Txn(transaction(unchanged, create(&granted), create(&waiting)))]
        } else {
            keys.create(&waiting, lease.id)
        };
        then.extend(keys.read_all());
        let found = self.connection.txn(keys.absent([full.id, lease.id]), then, keys.read_all()).await?;
        if found.succeeded {
            // Noted before the listing is read. It may be granted: a later step that finds this note reads before it
            // writes.
            let revision = found.revision;
            self.leases.edit(claim.id, |entry| {
                (entry.created, entry.changed, entry.granted) = (revision, revision, fits);
                entry.named_after = lease.id;
            });
        }
        let listing = read(keys, found)?;
        let lost = listing.position(claim.id).map(|at| &listing.claims[at]).filter(|own| fits && !own.record.granted);
        let Some(lost) = lost else { return Ok(listing) };
        // Another claim was first: this one waits, on the lease of a waiter.
        let lease = self.waiting_lease(claim, full).await?;
        if lease.id == lost.lease {
            return Ok(listing);
        }
        let mut then = keys.move_to(lost, &lost.record, lease.id);
        then.extend(keys.read_all());
        read(keys, self.connection.txn(keys.unchanged(lost), then, keys.read_all()).await?)
    }

    /// Removes the rest of a claim if another program deleted its shared key or its record.
    async fn sweep(&self, id: ClaimId, keys: &Keys, listing: &Listing) -> Result<()> {
        let entry = self.leases.get(id).unwrap_or_default();
        let shared: Vec<_> = entry.leases().filter_map(|lease| keys.shared_key(lease.id)).collect();
        let ours = |stored: &&StoredClaim| stored.external && shared.iter().any(|shared| shared.key == stored.key);
        let left = listing.orphans.iter().find(|stored| stored.id == id).or_else(|| listing.claims.iter().find(ours));
        match left {
            Some(left) => self.withdraw(keys, left).await,
            None => Ok(()),
        }
    }

    /// The lease of a waiter. It is short, so that a dead waiter blocks the queue for less time than a holder may.
    pub(crate) async fn waiting_lease(&self, claim: &Claim, full: Leased) -> Result<Leased> {
        let length = seconds(claim.waiter_ttl());
        if length == full.seconds {
            return Ok(full);
        }
        if let Some(lease) = self.leases.get(claim.id).and_then(|entry| entry.waiting) {
            return Ok(lease);
        }
        let lease = self.leases.take(&self.connection, length).await?;
        self.leases.edit(claim.id, |entry| entry.waiting = Some(lease));
        self.end_if_closed(lease).await?;
        Ok(lease)
    }

    /// If the client was closed while this lease was created, ends it: it would be left behind. Checked after it was
    /// noted, so that a later close finds it.
    pub(crate) async fn end_if_closed(&self, lease: Leased) -> Result<()> {
        let open = self.connection.check_open();
        if open.is_err() {
            self.end_leases(vec![lease.id]).await;
        }
        open
    }

    /// Marks a waiter as a holder when its turn has come. Only earlier claims matter, and they can only end.
    async fn take_turn(
        &self,
        claim: &Claim,
        listing: &Listing,
        stored: &StoredClaim,
        keys: &Keys,
        full: Leased,
    ) -> Result<Attempt> {
        let offset = listing.fence_offset.offset;
        let record = Record { granted: true, offset, since_micros: wall_micros(), ..stored.record.clone() };
        // No other client may have asked it to end since it was read.
        let mut when = keys.unchanged(stored);
        when.push(Compare::changed(&keys.fence_offset(), Is::Equal, listing.fence_offset.changed));
        // A claim that was asked to end stays on its last lease, and is granted only the rest of that.
        let last = if stored.record.ending.is_some() { Some(self.connection.left(stored.lease).await?) } else { None };
        let onto = if last.is_some() { stored.lease } else { full.id };
        let found = self.connection.txn(when, keys.move_to(stored, &record, onto), Vec::new()).await?;
        if !found.succeeded {
            return Err(ended("the claim ended when its turn had come"));
        }
        self.leases.granted(claim.id, |entry| {
            (entry.created, entry.changed, entry.record) = (stored.created, found.revision, Some(record));
        });
        let lease = last.map_or_else(|| full.lease(&found.majority), |left| Ok(Lease::of(left)))?;
        grant(found.revision.unsigned_abs().saturating_add(offset), lease, listing.memo.clone())
    }

    /// A holder attempts again: a repeated request, one for less weight, or one that takes over another client's hold.
    async fn hold_on(
        &self,
        claim: &Claim,
        keys: &Keys,
        listing: &Listing,
        stored: &StoredClaim,
        full: Leased,
    ) -> Result<Attempt> {
        check_held(stored.record.weight, claim.weight)?;
        let lease = if stored.lease == full.id {
            full.lease(&listing.majority)?
        } else if stored.record.ending.is_some() {
            Lease::of(self.connection.left(stored.lease).await?)
        } else {
            self.adopt(claim.id, stored.lease)
                .await?
                .ok_or_else(|| ended("the claim ended"))?
                .lease(&listing.majority)?
        };
        if stored.record.weight != claim.weight {
            let record = Record { weight: claim.weight, kind: claim.kind, ..stored.edited() };
            self.rewrite(keys, stored, record).await?;
        }
        let fence = stored.fence().ok_or_else(|| missing("a fence"))?;
        grant(fence, lease, listing.memo.clone())
    }

    async fn withdraw(&self, keys: &Keys, stored: &StoredClaim) -> Result<()> {
        self.connection.txn(keys.same(stored), keys.remove(stored), Vec::new()).await?;
        self.leases.edit(stored.id, |entry| entry.note(None));
        Ok(())
    }

    /// Evicts waiters before `at` that did not take their turn, and says when to poll for the others again; `waiting`
    /// claims wait there.
    pub(crate) async fn evict_silent(
        &self,
        keys: &Keys,
        listing: &Listing,
        at: usize,
        waiting: usize,
    ) -> Result<Option<Duration>> {
        let notified: Vec<_> = listing.notified(at).map(|stored| stored.created).collect();
        let before = || listing.claims.iter().take(at);
        let turns = before().map(|stored| (stored.created, notified.contains(&stored.created)));
        let (expired, recheck_after) = self.turns.observe(turns, waiting, Instant::now());
        for stored in before().filter(|stored| expired.contains(&stored.created)) {
            // A waiter that has taken its turn is never evicted: taking it changes the key.
            self.connection.txn(keys.unchanged(stored), keys.remove(stored), Vec::new()).await?;
        }
        Ok(recheck_after)
    }
}

/// The outcome of the first step of an attempt.
enum Step {
    /// It waits behind another claim, as a peek has shown.
    Waits(Pending),
    /// It has to wait, and has no lease to wait on.
    Unready,
    Granted {
        revision: i64,
        memo: Option<KeyValue>,
        majority: Majority,
    },
    Refused(Listing),
}

/// Whether the claim may be added at the end of the queue without reading the others.
pub(crate) fn comes_last(claim: &Claim, entry: &Entry) -> bool {
    let waits = claim.wait && claim.weight == Weight::All && claim.capacity == Capacity::Any;
    // A claim that outlives its process may be there already, on a lease of another client.
    waits && claim.lifetime == Lifetime::Process && entry.created == 0
}

pub(crate) fn grant(fence: u64, lease: Lease, memo: Option<Memo>) -> Result<Attempt> {
    let mut grant = Grant::new(check_fence(fence)?, lease);
    grant.memo = memo;
    Ok(Attempt::Granted(grant))
}

#[cfg(test)]
mod tests;
