//! The reference store with one rule broken.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oarlock_core::clock::{BootClock, Clock};
use oarlock_core::driver::{
    Attempt, Driver, End, Info, Interest, Lease, Pending, Release, Released, Renewal, Renewed, Watch,
};
use oarlock_core::memory::Memory;
use oarlock_core::state::{Page, Query};
use oarlock_core::{Capacity, Claim, ClaimId, Fence, Lifetime, Limit, ResourceName, Result, Weight};

use super::{Flaw, Notes};

#[derive(Debug)]
pub(super) struct Flawed {
    pub(super) inner: Memory,
    pub(super) flaw: Flaw,
    pub(super) notes: Arc<Mutex<Notes>>,
}

impl Flawed {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claim as the broken store keeps it.
    fn kept(&self, claim: &Claim) -> Claim {
        let mut kept = claim.clone();
        match self.flaw {
            Flaw::IgnoresWeight => {
                (kept.weight, kept.capacity) = (Weight::ONE, Capacity::Fixed(Limit::Unlimited));
            }
            Flaw::ExpiresEarly => kept.ttl = claim.ttl / 3,
            Flaw::NeverExpires => (kept.ttl, kept.lifetime) = (Duration::from_secs(3600), Lifetime::Lease),
            Flaw::TakesSecondPlaces => kept.id = self.notes().places.get(&claim.id).copied().unwrap_or(claim.id),
            _ => {}
        }
        kept
    }

    /// Whether this claim is the first of a queue that claims leave only by release.
    fn is_first(&self, claim: &Claim) -> bool {
        let mut notes = self.notes();
        let queue = notes.queues.entry(claim.resource.clone()).or_default();
        if !queue.contains(&claim.id) {
            if !claim.wait && !queue.is_empty() {
                return false;
            }
            queue.push_back(claim.id);
        }
        queue.front() == Some(&claim.id)
    }

    /// The next number of the lock; a claim that asks again has one.
    fn counted(&self, claim: &Claim) -> Fence {
        let mut notes = self.notes();
        if let Some(fence) = notes.fences.get(&claim.id) {
            return *fence;
        }
        let counter = notes.counters.entry(claim.resource.clone()).or_default();
        *counter += 1;
        Fence::new(*counter)
    }

    /// The answer takes its time, and the lease is said to begin when it arrives.
    async fn late(&self, ttl: Duration, lease: &mut Lease) {
        tokio::time::sleep(ttl / 3).await;
        lease.from = Some(BootClock.now());
    }
}

/// It is renewed in time, and ends long after the one in the store.
fn outlived(ttl: Duration) -> Duration {
    ttl * 5 / 2
}

impl Driver for Flawed {
    fn info(&self) -> Info {
        Driver::info(&self.inner)
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        if self.flaw == Flaw::KeepsDeadWaiters && !self.is_first(claim) {
            return Ok(Attempt::Pending(Pending::default()));
        }
        if self.flaw == Flaw::TakesSecondPlaces {
            self.notes().places.insert(claim.id, ClaimId::from_bits(fastrand::u128(..)));
        }
        let mut answer = Driver::attempt(&self.inner, &self.kept(claim)).await?;
        match (&mut answer, self.flaw) {
            (Attempt::Granted(grant), Flaw::ExpiresEarly | Flaw::NeverExpires) => grant.lease.ttl = claim.ttl,
            (Attempt::Granted(grant), Flaw::RepeatsFences) => grant.fence = Fence::new(7),
            (Attempt::Granted(grant), Flaw::FencesFall) => grant.fence = Fence::new(Fence::LIMIT - grant.fence.get()),
            (Attempt::Granted(grant), Flaw::FencesFallBack) => grant.fence = self.counted(claim),
            (Attempt::Granted(grant), Flaw::OutlivesItsLease) => grant.lease.ttl = outlived(claim.ttl),
            // Who has waited is answered at once, or both answers of a takeover would be late alike.
            (Attempt::Pending(_), Flaw::CountsFromTheReply) => {
                self.notes().places.insert(claim.id, claim.id);
            }
            (Attempt::Granted(grant), Flaw::CountsFromTheReply) if !self.notes().places.contains_key(&claim.id) => {
                self.late(claim.ttl, &mut grant.lease).await;
            }
            (Attempt::Pending(pending), Flaw::LosesWakeUps) => pending.recheck_after = None,
            (Attempt::Pending(_), Flaw::KeepsDeadWaiters) if !claim.wait => {
                self.notes().queues.entry(claim.resource.clone()).or_default().retain(|id| *id != claim.id);
            }
            _ => {}
        }
        if let Attempt::Granted(grant) = &answer {
            self.notes().fences.insert(claim.id, grant.fence);
        }
        Ok(answer)
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        // Each flaw comes alone: a holder always gets the same fence for one grant.
        let fence = |renewal: &Renewal| self.notes().fences.get(&renewal.claim.id).copied();
        let alive = |renewal: &Renewal| Renewed::Alive {
            lease: Lease::of(renewal.claim.ttl),
            fence: fence(renewal),
            ending: None,
        };
        if self.flaw == Flaw::RenewsNothing {
            // The request arrives and has no effect.
            let heard = Driver::inspect(&self.inner, &Query::live()).await;
            let answer = |renewal: &Renewal| heard.as_ref().map(|_| alive(renewal)).map_err(Clone::clone);
            return batch.iter().map(answer).collect();
        }
        let kept = |renewal: &Renewal| Renewal::of(Arc::new(self.kept(&renewal.claim)));
        let kept: Vec<_> = match self.flaw {
            Flaw::ExpiresEarly | Flaw::NeverExpires | Flaw::TakesSecondPlaces => batch.iter().map(kept).collect(),
            _ => batch.to_vec(),
        };
        let mut answers = Driver::renew(&self.inner, &kept).await;
        for (renewal, answer) in batch.iter().zip(&mut answers) {
            if let Ok(Renewed::Alive { fence: told @ Some(_), .. }) = answer {
                *told = fence(renewal).or(*told);
            }
            match (answer, self.flaw) {
                (Ok(Renewed::Alive { lease, .. }), Flaw::ExpiresEarly | Flaw::NeverExpires) => {
                    lease.ttl = renewal.claim.ttl;
                }
                (Ok(Renewed::Alive { lease, .. }), Flaw::CountsFromTheReply) => {
                    self.late(renewal.claim.ttl, lease).await;
                }
                (Ok(Renewed::Alive { lease, .. }), Flaw::OutlivesItsLease) => lease.ttl = outlived(renewal.claim.ttl),
                (Ok(answer @ Renewed::Gone(_)), Flaw::RenewsAnyone) => *answer = alive(renewal),
                _ => {}
            }
        }
        answers
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        if self.flaw == Flaw::ReleasesAnyone {
            let page = Driver::inspect(&self.inner, &Query::name(resource.clone())).await?;
            for holder in page.resources.iter().flat_map(|state| &state.holders) {
                Driver::release(&self.inner, resource, holder.id, end).await?;
            }
            Driver::release(&self.inner, resource, id, end).await?;
            return Ok(Release::new(Released::Released, None));
        }
        let kept = {
            let mut notes = self.notes();
            if let Some(queue) = notes.queues.get_mut(resource) {
                queue.retain(|queued| *queued != id);
            }
            notes.places.get(&id).copied().unwrap_or(id)
        };
        Driver::release(&self.inner, resource, kept, end).await
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        match (self.flaw, interest) {
            (Flaw::LosesWakeUps, _) => Ok(Watch::never()),
            (Flaw::TakesSecondPlaces, Interest::Turn(claim, cursor)) => {
                let kept = Interest::Turn(Arc::new(self.kept(claim)), cursor.clone());
                Driver::watch(&self.inner, &kept).await
            }
            _ => Driver::watch(&self.inner, interest).await,
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        Driver::inspect(&self.inner, query).await
    }

    async fn close(&self) -> Result<()> {
        Driver::close(&self.inner).await
    }
}
