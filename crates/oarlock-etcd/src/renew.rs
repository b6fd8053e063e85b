//! One renewal: what keeps the claim alive is kept alive, and its key must still be there.

use oarlock_core::driver::{Fences, Gone, Lease, Renewal, Renewed};
use oarlock_core::state::{Ending, Memo};
use oarlock_core::{ClaimId, Error, ErrorKind, Result};

use crate::api::{Compare, Is, Op, PutRequest, Range};
use crate::config::Layout;
use crate::driver::{Etcd, put};
use crate::error::{SCHEME, ended, strange};
use crate::keys::Keys;
use crate::lease::{Entry, Majority};
use crate::queue::{Floor, Letter, Listing, Place, Record, check_fence, memo_bytes};

/// Transactions have at most 128 parts, and a renewal reads two keys.
const READS: usize = 60;

/// What was found of one claim: its place, and a letter about its end; and who vouches for its lease.
pub(crate) type Found = (Option<Place>, Option<Ending>, Majority);

impl Etcd {
    /// What there is of these claims.
    pub(crate) async fn find(&self, batch: &[Renewal]) -> Vec<Result<Found>> {
        let mut found = Vec::with_capacity(batch.len());
        for part in batch.chunks(READS) {
            let mut reads = Vec::with_capacity(2 * part.len());
            let mut unknown = None;
            for Renewal { claim, .. } in part {
                let keys = self.keys(&claim.resource);
                // Nothing is named after no lease.
                let seat = self.seat_of(&keys, claim.id).await.unwrap_or_else(|error| {
                    unknown = Some(error);
                    None
                });
                reads.extend([keys.claim(seat.map_or(0, |(seat, _)| seat)), self.space.letter(&self.client, claim.id)]);
            }
            if let Some(error) = unknown {
                found.extend(part.iter().map(|_| Err(error.clone())));
                continue;
            }
            match self.link.txn(Vec::new(), reads.iter().map(Range::get).collect(), Vec::new()).await {
                Ok(outcome) if outcome.reads.len() == 2 * part.len() => {
                    let majority = outcome.majority;
                    let mut reads = outcome.reads.into_iter().map(|range| range.kvs.into_iter().next());
                    for renewal in part {
                        let place = reads.next().flatten().map_or(Ok(None), Place::read);
                        let place = place.map(|place| place.filter(|place| place.id == renewal.claim.id));
                        let letter = reads.next().flatten().map(|kv| Letter::read(&kv.value)).transpose();
                        found.push(place.and_then(|place| Ok((place, letter?, majority))));
                    }
                }
                Ok(_) => found.extend(part.iter().map(|_| Err(strange("what was read")))),
                Err(error) => found.extend(part.iter().map(|_| Err(error.clone()))),
            }
        }
        if self.space.layout == Layout::Go { self.seated(batch, found).await } else { found }
    }

    /// The same, without those whose seat is not there any more.
    async fn seated(&self, batch: &[Renewal], found: Vec<Result<Found>>) -> Vec<Result<Found>> {
        let seat = |renewal: &Renewal, place: &Place| self.keys(&renewal.claim.resource).seat(place.seat);
        let (mut kept, mut found) = (Vec::with_capacity(found.len()), batch.iter().zip(found).peekable());
        while found.peek().is_some() {
            let part: Vec<_> = found.by_ref().take(READS).collect();
            let seats = part.iter().map(|(renewal, found)| match found {
                Ok((Some(place), ..)) => seat(renewal, place),
                _ => None,
            });
            let seats: Vec<_> = seats.collect();
            let reads = self.link.txn(Vec::new(), seats.iter().flatten().map(Range::get).collect(), Vec::new()).await;
            let mut reads = reads.map(|outcome| outcome.reads.into_iter());
            kept.extend(part.into_iter().zip(seats).map(|((_, found), seat)| {
                let (place, letter, majority) = found?;
                let reads = reads.as_mut().map_err(|error| error.clone())?;
                let seat = seat.and_then(|_| reads.next()).and_then(|range| range.kvs.into_iter().next());
                Ok((place.and_then(|place| place.seated(seat)), letter, majority))
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
        let (Some(mut place), _, majority) = found else { return self.gone(claim.id, entry, found.1).await };
        let granted = place.record.granted;
        if let (true, Some(memo)) = (granted, &renewal.memo)
            && let Err(letter) = self.write_memo(&keys, &place, memo).await?
        {
            return self.gone(claim.id, entry, letter).await;
        }
        if let Some(ending) = &place.record.ending {
            let lease = Lease::of(self.link.left(place.lease).await?);
            let fence = place.fence().map(check_fence).transpose()?;
            return Ok(Renewed::Alive { lease, fence, ending: Some(ending.clone()) });
        }
        let stands_on = |entry: &Entry| entry.leases().find(|lease| lease.id == place.lease).copied();
        let lease = match &entry {
            Some(before) if stands_on(before).is_some() => kept.as_ref().and_then(stands_on),
            // It stood elsewhere when it was kept alive: an attempt has moved it since.
            Some(before) if !before.adopted => {
                let moved = self.leases.get(claim.id).as_ref().and_then(stands_on);
                Some(moved.ok_or_else(|| ended("the claim is on its way"))?)
            }
            _ => self.adopt(claim.id, place.lease).await?,
        };
        let Some(lease) = lease else { return Ok(Renewed::Gone(Gone::Unknown)) };
        let lease = lease.lease(&majority)?;
        let mut record = place.edited();
        record.behind = claim.behind;
        if granted {
            record.value.clone_from(&claim.value);
        }
        if (record.behind, &record.value) != (place.record.behind, &place.record.value) {
            place = self.rewrite(&keys, &place, record).await?;
        }
        let fence = match place.fence() {
            Some(fence) => Some(check_fence(self.raise(&keys, &place, fence, renewal.fences).await?)?),
            None => None,
        };
        Ok(Renewed::Alive { lease, fence, ending: None })
    }

    /// A claim is not there: nothing is kept for it, and its end is told.
    async fn gone(&self, id: ClaimId, entry: Option<Entry>, letter: Option<Ending>) -> Result<Renewed> {
        let looked_for = entry.as_ref().map_or(0, |entry| entry.created);
        if entry.is_some_and(|entry| entry.granted) {
            self.end_leases(self.leases.forget(id, false)).await;
        } else {
            let mut came_anew = false;
            self.leases.edit(id, |now| {
                came_anew = now.created != looked_for;
                if !came_anew {
                    now.note(None);
                }
            });
            if came_anew {
                // An attempt has made another key since: this one is missed for nothing.
                return Err(ended("the claim is on its way"));
            }
        }
        Ok(Renewed::Gone(letter.map_or(Gone::Unknown, Gone::Broken)))
    }

    /// Leaves a memo if the claim is still there; else whatever was written about its end.
    async fn write_memo(&self, keys: &Keys, place: &Place, memo: &Memo) -> Result<Result<(), Option<Ending>>> {
        let write = put(&keys.memo(), memo_bytes(memo), 0);
        let letter = self.space.letter(&self.client, place.id).get();
        let mut found = self.link.txn(keys.stands(place), vec![write], vec![letter]).await?;
        if found.succeeded {
            return Ok(Ok(()));
        }
        let letter = found.reads.pop().and_then(|range| range.kvs.into_iter().next());
        Ok(Err(letter.map(|kv| Letter::read(&kv.value)).transpose()?))
    }

    /// Moves the fences of all later grants ahead: they are their revision and an offset that only grows.
    async fn raise(&self, keys: &Keys, place: &Place, fence: u64, fences: Fences) -> Result<u64> {
        match fences {
            Fences::Keep => return Ok(fence),
            Fences::AtLeast(least) if least.get() <= fence => return Ok(fence),
            Fences::AtLeast(_) | Fences::Reserve(_) if self.space.layout == Layout::Go => {
                let message = "fences shared with Go are the store's own: none can be raised or reserved";
                return Err(Error::new(ErrorKind::Unsupported, message).on(SCHEME));
            }
            Fences::AtLeast(_) | Fences::Reserve(_) => {}
        }
        let Listing { revision, floor, .. } = self.look(keys).await?;
        let own = keys.claim(place.seat);
        let when = vec![
            Compare::changed(&own, Is::Equal, place.changed),
            Compare::changed(&keys.floor(), Is::Equal, floor.changed),
        ];
        let (offset, mut then) = match fences {
            Fences::AtLeast(least) => {
                let record = Record { fence: Some(check_fence(least.get())?.get()), ..place.edited() };
                let put = PutRequest { key: own.key, value: record.bytes(), lease: 0, ignore_lease: true };
                (floor.offset.max(least.get().saturating_sub(revision.unsigned_abs())), vec![Op::Put(put)])
            }
            Fences::Reserve(count) => (floor.offset.saturating_add(u64::from(count)), Vec::new()),
            Fences::Keep => return Ok(fence),
        };
        then.push(put(&keys.floor(), Floor::bytes(offset), 0));
        let found = self.link.txn(when, then, Vec::new()).await?;
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
