//! Looking at claims because of a hint.

use std::sync::Arc;

use super::{Kept, Shared, Who};
use crate::belief::{BeliefCell, LossReason, drift_margin};
use crate::claim::{Claim, ClaimId, Fence};
use crate::clock::sleep_until;
use crate::driver::{BoxFuture, Renewal};
use crate::engine::backoff::Backoff;
use crate::engine::uncut::Uncut;
use crate::event::Step;
use crate::state::Query;

/// The most explicit leases that are looked at at once.
const PROBES: usize = 16;

/// A hold with an explicit lease, which a renewal would extend.
struct Probe {
    claim: Arc<Claim>,
    fence: Option<Fence>,
    belief: Arc<BeliefCell>,
}

impl Shared {
    /// A hint: renew this claim (or all) now, and let waiters look for themselves.
    pub(super) fn look_again_at(self: &Arc<Self>, claim: Option<ClaimId>) {
        let now = self.clock.now();
        let mut probes = Vec::new();
        let mut kept = self.lock();
        // In an order that a seed repeats.
        let all = |kept: &Kept| kept.by_time.iter().map(|(_, id)| *id).collect();
        let ids: Vec<_> = claim.map_or_else(|| all(&kept), |id| vec![id]);
        for id in ids {
            let Some(mut charge) = kept.remove(id) else { continue };
            match &charge.who {
                Who::Waiter { bell, .. } => bell.notify_one(),
                Who::Holder(_) if !charge.renews && charge.looked_at => charge.again = true,
                Who::Holder(belief) if !charge.renews => {
                    charge.looked_at = true;
                    probes.push(Probe { claim: charge.claim.clone(), fence: charge.fence, belief: belief.clone() });
                }
                // Asked to end, it is not extended by being asked again.
                Who::Holder(belief) if charge.renew_at.is_some() || belief.is_ending() => charge.renew_at = Some(now),
                Who::Holder(_) => charge.again = true,
            }
            charge.look = charge.next_look();
            self.put(&mut kept, id, charge);
        }
        drop(kept);
        let share = probes.len().div_ceil(PROBES);
        while !probes.is_empty() {
            let some = probes.split_off(probes.len().saturating_sub(share));
            self.home.spawn_daemon(self.clone().probe_each(some));
        }
    }

    /// Looks at each until the store has answered: no renewal would notice later what a failed look missed.
    async fn probe_each(self: Arc<Self>, mut probes: Vec<Probe>) {
        let longest = probes.iter().map(|probe| probe.claim.ttl).max().unwrap_or_default();
        let mut pauses = Backoff::for_errors(longest);
        loop {
            let mut unanswered = Vec::new();
            for probe in probes {
                let is_answered = self.probe(&probe).await;
                if self.is_to_be_looked_at_again(&probe, is_answered) {
                    unanswered.push(probe);
                }
            }
            if unanswered.is_empty() {
                return;
            }
            probes = unanswered;
            sleep_until(&*self.clock, self.clock.now() + self.entropy.jitter(pauses.next())).await;
        }
    }

    fn is_to_be_looked_at_again(&self, probe: &Probe, is_answered: bool) -> bool {
        let mut kept = self.lock();
        let Some(charge) = kept.by_id.get_mut(&probe.claim.id) else { return false };
        let again = std::mem::take(&mut charge.again) || !is_answered;
        charge.looked_at = again && probe.belief.is_held() && !self.stop.is_cancelled();
        charge.looked_at
    }

    /// Looks at a hold without extending it; says whether the store answered.
    async fn probe(self: &Arc<Self>, Probe { claim, fence, belief }: &Probe) -> bool {
        let sent = self.clock.now();
        let Some(Ok(page)) = self.in_time(self.driver.clone().inspect(Query::name(claim.resource.clone()))).await
        else {
            return self.ask_for_the_end(claim, belief).await;
        };
        let mut holders = page.resources.into_iter().flat_map(|state| state.holders);
        let is_this_grant = |shown: Option<Fence>| shown.is_none() || shown == *fence;
        let Some(holder) = holders.find(|holder| holder.id == claim.id && is_this_grant(holder.fence)) else {
            return self.ask_for_the_end(claim, belief).await;
        };
        if let Some(ending) = holder.ending {
            belief.end_by(sent, holder.lease_left, LossReason::Broken(ending.clone()));
            self.plan_anew(claim.id);
            let left = belief.time_left();
            self.observers.emit(claim, || Step::Ending { ending, left });
        }
        true
    }

    /// Learns why a hold is gone. What was shown may be older than the hold, so only the answer to a renewal counts; should the hold be
    /// there after all, then this renewal leaves it the lease that it has.
    async fn ask_for_the_end(self: &Arc<Self>, claim: &Arc<Claim>, belief: &BeliefCell) -> bool {
        let sent = self.clock.now();
        let ttl = belief.deadline().since(sent) + drift_margin(claim.ttl);
        let asked = Renewal::of(Arc::new(Claim { ttl, ..Claim::clone(claim) }));
        let renewal = self.in_time(self.driver.clone().renew(vec![Renewal { held: true, ..asked }]));
        let Some(Some(Ok(answer))) = renewal.await.map(|mut answers| answers.pop()) else { return false };
        self.apply(claim.id, (true, None), sent, Ok(answer));
        true
    }

    /// The answer to a request, if it comes in time.
    async fn in_time<T: Send + 'static>(&self, request: BoxFuture<T>) -> Option<T> {
        tokio::time::timeout(self.op_timeout, Uncut::new(&self.home, request)).await.ok()
    }
}
