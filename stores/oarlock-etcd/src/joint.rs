//! A release that carries the next claim of its client: one transaction ends the one and adds the other.

use std::time::Duration;

use oarlock_core::driver::{Attempt, End, Pending, Release, Released};
use oarlock_core::{Applied, Claim, ClaimId, ResourceName, Result, Retry};

use crate::Etcd;
use crate::api::{Compare, Is, Op};
use crate::attempt::{comes_last, grant};
use crate::config::Layout;
use crate::connection::{Outcome, transaction};
use crate::keys::Keys;
use crate::lease::{Entry, Leased, seconds};
use crate::operations::delete;
use crate::peek;
use crate::queue::{Record, read_memo};

/// The leases of the claim that is carried.
struct ReadyLeases {
    full: Leased,
    /// For waiting; `None` if none is ready.
    waiting: Option<Leased>,
}

impl Etcd {
    /// Whether a release can carry an attempt. In the layout of other programs a claim has two keys.
    pub(crate) fn is_joint(&self) -> bool {
        self.space.layout == Layout::Native
    }

    /// Ends a claim and attempts another one: in one transaction if both are ready for it.
    pub(crate) async fn end_and_attempt(
        &self,
        resource: &ResourceName,
        id: ClaimId,
        end: &End,
        next: &Claim,
    ) -> (Result<Release>, Result<Attempt>) {
        let held = self.leases.get(id).filter(|held| held.created != 0 && held.named_after != 0);
        let plain = *end == End::Done { memo: None } && *resource == next.resource;
        if let (Some(held), true, true, Ok(())) = (held, plain, self.is_joint(), self.connection.check_open()) {
            let (attempt, entry) = self.leases.begin_attempt(next);
            let Some(ready) = self.ready_leases(next, &entry) else {
                let prepare = async {
                    if entry.leases().next().is_none() {
                        self.prepare(next).await;
                    }
                };
                let (release, ()) = tokio::join!(self.release_claim(resource, id, end), prepare);
                attempt.answered();
                return (release, self.attempt_claim(next).await);
            };
            let keys = self.keys(resource);
            // The claim that ends had to wait, and the next one has no lease for that: from now on there are two. It is
            // requested beside the transaction, so that the release does not wait for it alone.
            let spare = async {
                if ready.waiting.is_none() && held.waiting.is_some() {
                    let _ = self.waiting_lease(next, ready.full).await;
                }
            };
            let (answer, ()) = tokio::join!(self.request(&keys, &held, next, &ready), spare);
            match answer {
                Ok(found) if found.succeeded => {
                    let answer = self.read_answer(&keys, next, &ready, found);
                    let answer = self.conclude(next, attempt, answer);
                    self.end_leases(self.leases.forget(id, true)).await;
                    return (Ok(Release::new(Released::Released, None)), answer);
                }
                // A lease of the next claim is over, though it was kept alive just now: it was revoked, or it expired
                // while this process was suspended. The server found that before it did anything. It does not say
                // which lease it is, so neither is used again.
                Err(error) if error.retry() == Retry::Now => {
                    attempt.answered();
                    let dead = self.end_leases(self.leases.forget(next.id, false));
                    let (release, ()) = tokio::join!(self.release_claim(resource, id, end), dead);
                    return (release, self.attempt_claim(next).await);
                }
                Err(error) if error.applied() == Applied::Unknown => {
                    return (Err(error.clone()), self.conclude(next, attempt, Err(error)));
                }
                // Nothing was done.
                Ok(_) | Err(_) => {
                    attempt.answered();
                    self.leases.recycle(next.id);
                }
            }
        }
        (self.release_claim(resource, id, end).await, self.attempt_claim(next).await)
    }

    /// The leases of a claim that can be carried, if it needs no request to get them.
    fn ready_leases(&self, next: &Claim, entry: &Entry) -> Option<ReadyLeases> {
        if !comes_last(next, entry) || entry.leases().next().is_some() {
            return None;
        }
        let full = self.leases.fresh(seconds(next.ttl))?;
        self.leases.edit(next.id, |entry| entry.full = Some(full));
        let waiting = self.leases.spare(next.id, seconds(next.waiter_ttl()), full);
        Some(ReadyLeases { full, waiting })
    }

    /// Gives a claim a lease of its own, not that of the claim that ends: the next release finds an idle one. If that
    /// fails, the attempt tries it again.
    async fn prepare(&self, next: &Claim) {
        let Ok(lease) = self.leases.take(&self.connection, seconds(next.ttl)).await else { return };
        self.leases.edit(next.id, |entry| entry.full = Some(lease));
        let _ = self.end_if_closed(lease).await;
    }

    /// The transaction. The next claim is granted at once if no other one is in the queue, else it waits there, if it
    /// has a lease for that.
    async fn request(&self, keys: &Keys, held: &Entry, next: &Claim, ready: &ReadyLeases) -> Result<Outcome> {
        let ReadyLeases { full, waiting } = ready;
        let (own, others) = (keys.claim(held.named_after), keys.queue());
        // All conditions are compared before anything is done. If the landmark is there, the server need not read the
        // queue to find that others wait.
        let landmark = self.landmarks.get(&next.resource).filter(|key| *key != own);
        let mut alone: Vec<_> = landmark.iter().map(|key| Compare::created(key, Is::Equal, 0)).collect();
        alone.push(Compare::created(&keys.fence_offset(), Is::Equal, 0));
        alone.push(Compare::created(&others, Is::Equal, held.created));
        let record = |granted| Record::of(next, &self.client, None, granted);
        let mut hold = keys.create(&record(true), full.id);
        hold.push(keys.memo().get());
        let mut wait = Vec::new();
        if let Some(lease) = waiting {
            let join = transaction(keys.absent([full.id, lease.id]), keys.create(&record(false), lease.id), Vec::new());
            wait.push(Op::Txn(join));
            wait.extend(peek::on_arrival(keys));
        }
        let then = vec![delete(&own.key), Op::Txn(transaction(alone, hold, wait))];
        let when = vec![Compare::created(&own, Is::Equal, held.created)];
        self.connection.txn(when, then, Vec::new()).await
    }

    /// The answer for the claim that was carried. It needs no further request: the caller of the release does not wait
    /// for the next claim.
    fn read_answer(&self, keys: &Keys, next: &Claim, ready: &ReadyLeases, found: Outcome) -> Result<Attempt> {
        let (full, revision) = (ready.full, found.revision);
        if found.within {
            self.landmarks.forget(&next.resource);
            self.note_grant(next.id, full, revision);
            // Noted before the memo is read, which can fail: a lease with a key on it is not free.
            let lease = full.lease(&found.majority)?;
            let memo = found.reads.into_iter().find_map(|range| range.kvs.into_iter().next());
            return grant(revision.unsigned_abs(), lease, memo.map(|kv| read_memo(&kv.value)).transpose()?);
        }
        if let Some(lease) = ready.waiting {
            // Noted before the queue is read: a lease with a key on it is not free.
            self.leases.edit(next.id, |entry| {
                (entry.created, entry.changed, entry.named_after) = (revision, revision, lease.id);
            });
            if let Some(pending) = self.arrived(next, found)? {
                return Ok(Attempt::Pending(pending));
            }
        }
        Ok(Attempt::Pending(self.attempt_again(keys, next, revision)))
    }

    /// For a claim that has no lease to wait on, or has to read the queue: its client attempts again at once.
    fn attempt_again(&self, keys: &Keys, next: &Claim, revision: i64) -> Pending {
        let before = self.leases.get(next.id).and_then(|entry| entry.predecessor);
        let mut pending = self.wait_for(next, before.map_or_else(|| keys.queue(), |before| before.key), revision, -1);
        (pending.watched, pending.recheck_after) = (false, Some(Duration::ZERO));
        pending
    }
}

#[cfg(test)]
mod tests;
