//! Renewals: the lease of a claim is kept alive, and its key must still be there.

use oarlock_core::driver::{Fences, Gone, Lease, Renewal, Renewed};
use oarlock_core::state::{Ending, Memo};
use oarlock_core::{ClaimId, Error, ErrorKind, Result};

use crate::Etcd;
use crate::api::{Compare, Is, Op, PutRequest, Range};
use crate::config::Layout;
use crate::error::{SCHEME, ended, missing};
use crate::keys::Keys;
use crate::lease::{Entry, KeepAlive, Leased, Majority};
use crate::operations::put;
use crate::queue::{FenceOffset, Listing, Notification, Record, StoredClaim, check_fence, memo_bytes};

/// Transactions have at most 128 parts, and a renewal reads two keys.
const READS: usize = 60;

/// What was found of one claim: its keys, a notification of its end, and the majority that vouches for its lease.
pub(crate) type Found = (Option<StoredClaim>, Option<Ending>, Majority);

impl Etcd {
    /// Renews claims: one answer for each.
    pub(crate) async fn renew_batch(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        let entries: Vec<_> = batch.iter().map(|renewal| self.leases.get(renewal.claim.id)).collect();
        let leases = entries.iter().flatten().flat_map(|entry| entry.leases().map(|lease| lease.id)).collect();
        // In this order: what is found vouches for what is kept only if it is not asked for earlier.
        let (kept, found) = tokio::join!(self.connection.keep_alive(leases), self.find(batch));
        let mut answers = Vec::with_capacity(batch.len());
        for ((renewal, entry), found) in batch.iter().zip(entries).zip(found) {
            let answer = match (&kept, found) {
                (Ok((from, lives)), Ok(found)) => {
                    self.leases.edit(renewal.claim.id, |entry| entry.extend(*from, lives));
                    let mut kept = entry.clone();
                    if let Some(kept) = &mut kept {
                        kept.extend(*from, lives);
                    }
                    // Its lease was kept alive, whatever else failed.
                    self.renew_one(renewal, entry, kept, found).await.map_err(Error::applied_unknown)
                }
                (Err(error), _) => Err(error.clone()),
                (_, Err(error)) => Err(error),
            };
            answers.push(answer.map_err(|error| error.during("renew").about(&renewal.claim.resource)));
        }
        answers
    }

    /// What there is of these claims.
    pub(crate) async fn find(&self, batch: &[Renewal]) -> Vec<Result<Found>> {
        let mut found = Vec::with_capacity(batch.len());
        for part in batch.chunks(READS) {
            let mut reads = Vec::with_capacity(2 * part.len());
            let mut unknown = None;
            for Renewal { claim, .. } in part {
                let keys = self.keys(&claim.resource);
                // Nothing is named after no lease.
                let known = self.keys_of(&keys, claim.id).await.unwrap_or_else(|error| {
                    unknown = Some(error);
                    None
                });
                reads.extend([
                    keys.claim(known.map_or(0, |(named_after, _)| named_after)),
                    self.space.notification(&self.client, claim.id),
                ]);
            }
            if let Some(error) = unknown {
                found.extend(part.iter().map(|_| Err(error.clone())));
                continue;
            }
            match self.connection.txn(Vec::new(), reads.iter().map(Range::get).collect(), Vec::new()).await {
                Ok(outcome) if outcome.reads.len() == 2 * part.len() => {
                    let majority = outcome.majority;
                    let mut reads = outcome.reads.into_iter().map(|range| range.kvs.into_iter().next());
                    for renewal in part {
                        let stored = reads.next().flatten().map_or(Ok(None), StoredClaim::read);
                        let stored = stored.map(|stored| stored.filter(|stored| stored.id == renewal.claim.id));
                        let notification = reads.next().flatten().map(|kv| Notification::read(&kv.value)).transpose();
                        found.push(stored.and_then(|stored| Ok((stored, notification?, majority))));
                    }
                }
                Ok(_) => found.extend(part.iter().map(|_| Err(missing("what was read")))),
                Err(error) => found.extend(part.iter().map(|_| Err(error.clone()))),
            }
        }
        if self.space.layout == Layout::Go { self.with_shared_key(batch, found).await } else { found }
    }

    /// The same, without claims whose shared key is gone.
    async fn with_shared_key(&self, batch: &[Renewal], found: Vec<Result<Found>>) -> Vec<Result<Found>> {
        let shared =
            |renewal: &Renewal, stored: &StoredClaim| self.keys(&renewal.claim.resource).shared_key(stored.named_after);
        let (mut kept, mut found) = (Vec::with_capacity(found.len()), batch.iter().zip(found).peekable());
        while found.peek().is_some() {
            let part: Vec<_> = found.by_ref().take(READS).collect();
            let shared = part.iter().map(|(renewal, found)| match found {
                Ok((Some(stored), ..)) => shared(renewal, stored),
                _ => None,
            });
            let shared: Vec<_> = shared.collect();
            let reads =
                self.connection.txn(Vec::new(), shared.iter().flatten().map(Range::get).collect(), Vec::new()).await;
            let mut reads = reads.map(|outcome| outcome.reads.into_iter());
            kept.extend(part.into_iter().zip(shared).map(|((_, found), shared)| {
                let (stored, notification, majority) = found?;
                let reads = reads.as_mut().map_err(|error| error.clone())?;
                let shared = shared.and_then(|_| reads.next()).and_then(|range| range.kvs.into_iter().next());
                Ok((stored.and_then(|stored| stored.with_shared_key(shared)), notification, majority))
            }));
        }
        kept
    }

    pub(crate) async fn renew_one(
        &self,
        renewal: &Renewal,
        entry: Option<Entry>,
        kept: Option<Entry>,
        found: Found,
    ) -> Result<Renewed> {
        let (claim, keys) = (&renewal.claim, self.keys(&renewal.claim.resource));
        let (Some(mut stored), _, majority) = found else { return self.gone(claim.id, entry, found.1).await };
        let granted = stored.record.granted;
        if let (true, Some(memo)) = (granted, &renewal.memo)
            && let Err(notification) = self.write_memo(&keys, &stored, memo).await?
        {
            return self.gone(claim.id, entry, notification).await;
        }
        if let Some(ending) = &stored.record.ending {
            let lease = Lease::of(self.connection.left(stored.lease).await?);
            let fence = stored.fence().map(check_fence).transpose()?;
            return Ok(Renewed::Alive { lease, fence, ending: Some(ending.clone()) });
        }
        let stands_on = |entry: &Entry| entry.leases().find(|lease| lease.id == stored.lease).copied();
        let lease = match &entry {
            Some(before) if stands_on(before).is_some() => kept.as_ref().and_then(stands_on),
            // It was on another lease when that was kept alive: an attempt has moved it since.
            Some(before) if !before.adopted => {
                let moved = self.leases.get(claim.id).as_ref().and_then(stands_on);
                Some(moved.ok_or_else(|| ended("the claim is being moved to another lease"))?)
            }
            _ => self.adopt(claim.id, stored.lease).await?,
        };
        let Some(lease) = lease else { return Ok(Renewed::Gone(Gone::Unknown)) };
        let lease = lease.lease(&majority)?;
        let mut record = stored.edited();
        record.behind = claim.behind;
        if granted {
            record.value.clone_from(&claim.value);
        }
        if (record.behind, &record.value) != (stored.record.behind, &stored.record.value) {
            stored = self.rewrite(&keys, &stored, record).await?;
        }
        let fence = match stored.fence() {
            Some(fence) => Some(check_fence(self.raise(&keys, &stored, fence, renewal.fences).await?)?),
            None => None,
        };
        Ok(Renewed::Alive { lease, fence, ending: None })
    }

    /// Takes over a lease that another client created; it is never used for another claim.
    pub(crate) async fn adopt(&self, id: ClaimId, lease: i64) -> Result<Option<Leased>> {
        // In this order: the read by the majority must not be sent before the keep-alive.
        let read = self.connection.txn(Vec::new(), vec![self.space.probe_key().get()], Vec::new());
        let (kept, seen) = tokio::join!(self.connection.keep_alive(vec![lease]), read);
        let (from, lives) = kept?;
        let Some(KeepAlive { ttl, term }) = lives.get(&lease).copied().filter(|kept| !kept.ttl.is_zero()) else {
            return Ok(None);
        };
        let mut adopted = Leased { id: lease, seconds: ttl.as_secs(), ttl, from, term: Some(term) };
        adopted.lease(&seen?.majority)?;
        adopted.term = None;
        let mut spare = None;
        self.leases.edit(id, |entry| {
            spare = entry.full.replace(adopted).filter(|_| !entry.adopted);
            entry.adopted = true;
        });
        // Not used again: an attempt on it may be under way.
        self.end_leases(spare.filter(|spare| spare.id != lease).map(|spare| spare.id).into_iter().collect()).await;
        Ok(Some(adopted))
    }

    /// Changes the record of a claim; it keeps its lease.
    pub(crate) async fn rewrite(&self, keys: &Keys, stored: &StoredClaim, record: Record) -> Result<StoredClaim> {
        let found = self.connection.txn(keys.unchanged(stored), keys.write(stored, &record), Vec::new()).await?;
        if !found.succeeded {
            return Err(ended("another client changed the claim"));
        }
        let published = record.published();
        let stored = StoredClaim { changed: found.revision, published, record, ..stored.clone() };
        self.leases.edit(stored.id, |entry| entry.note(Some(&stored)));
        Ok(stored)
    }

    /// The claim is gone: nothing is kept for it, and its end is reported.
    async fn gone(&self, id: ClaimId, entry: Option<Entry>, notification: Option<Ending>) -> Result<Renewed> {
        let polled_for = entry.as_ref().map_or(0, |entry| entry.created);
        if entry.is_some_and(|entry| entry.granted) {
            self.end_leases(self.leases.forget(id, false)).await;
        } else {
            let mut came_anew = false;
            self.leases.edit(id, |now| {
                came_anew = now.created != polled_for;
                if !came_anew {
                    now.note(None);
                }
            });
            if came_anew {
                // An attempt has made another key since: this one is missed for nothing.
                return Err(ended("the claim is being moved to another lease"));
            }
        }
        Ok(Renewed::Gone(notification.map_or(Gone::Unknown, Gone::Broken)))
    }

    /// Leaves a memo if the claim is still there; else whatever was written about its end.
    async fn write_memo(&self, keys: &Keys, stored: &StoredClaim, memo: &Memo) -> Result<Result<(), Option<Ending>>> {
        let write = put(&keys.memo(), memo_bytes(memo), 0);
        let notification = self.space.notification(&self.client, stored.id).get();
        let mut found = self.connection.txn(keys.same(stored), vec![write], vec![notification]).await?;
        if found.succeeded {
            return Ok(Ok(()));
        }
        let notification = found.reads.pop().and_then(|range| range.kvs.into_iter().next());
        Ok(Err(notification.map(|kv| Notification::read(&kv.value)).transpose()?))
    }

    /// Moves the fences of all later grants ahead. A fence is a revision plus an offset, and the offset only grows.
    async fn raise(&self, keys: &Keys, stored: &StoredClaim, fence: u64, fences: Fences) -> Result<u64> {
        match fences {
            Fences::Keep => return Ok(fence),
            Fences::AtLeast(least) if least.get() <= fence => return Ok(fence),
            Fences::AtLeast(_) | Fences::Reserve(_) if self.space.layout == Layout::Go => {
                let message = "fences shared with Go are the store's own: none can be raised or reserved";
                return Err(Error::new(ErrorKind::Unsupported, message).on(SCHEME));
            }
            Fences::AtLeast(_) | Fences::Reserve(_) => {}
        }
        let Listing { revision, fence_offset, .. } = self.poll(keys).await?;
        let own = keys.claim(stored.named_after);
        let when = vec![
            Compare::changed(&own, Is::Equal, stored.changed),
            Compare::changed(&keys.fence_offset(), Is::Equal, fence_offset.changed),
        ];
        let (offset, mut then) = match fences {
            Fences::AtLeast(least) => {
                let record = Record { fence: Some(check_fence(least.get())?.get()), ..stored.edited() };
                let put = PutRequest { key: own.key, value: record.bytes(), lease: 0, ignore_lease: true };
                (fence_offset.offset.max(least.get().saturating_sub(revision.unsigned_abs())), vec![Op::Put(put)])
            }
            Fences::Reserve(count) => (fence_offset.offset.saturating_add(u64::from(count)), Vec::new()),
            Fences::Keep => return Ok(fence),
        };
        then.push(put(&keys.fence_offset(), FenceOffset::bytes(offset), 0));
        let found = self.connection.txn(when, then, Vec::new()).await?;
        match fences {
            _ if !found.succeeded => Err(ended("another fence was given meanwhile")),
            // No grant has this revision, so all before it are smaller than the block and all after it larger.
            Fences::Reserve(_) => Ok(found.revision.unsigned_abs().saturating_add(offset)),
            Fences::AtLeast(least) => Ok(least.get()),
            Fences::Keep => Ok(fence),
        }
    }
}

#[cfg(test)]
mod tests;
