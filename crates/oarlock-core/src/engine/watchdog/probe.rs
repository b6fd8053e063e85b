//! Checks claims after a hint.

use std::sync::Arc;

use super::Shared;
use super::entry::{Entries, Role};
use crate::belief::{BeliefCell, LossReason, drift_margin};
use crate::claim::{Claim, ClaimId, Fence};
use crate::clock::sleep_until;
use crate::driver::{BoxFuture, Renewal};
use crate::engine::backoff::Backoff;
use crate::engine::finish_on_drop::FinishOnDrop;
use crate::event::Step;
use crate::state::Query;

/// How many explicit leases are probed at the same time.
const PROBES: usize = 16;

/// A hold with an explicit lease, which a renewal would extend: it is inspected instead.
struct Probe {
    claim: Arc<Claim>,
    fence: Option<Fence>,
    belief: Arc<BeliefCell>,
}

impl Shared {
    /// After a hint: renews this claim (or all) now, and wakes waiters for another attempt.
    pub(super) fn apply_hint(self: &Arc<Self>, claim: Option<ClaimId>) {
        let now = self.clock.now();
        let mut probes = Vec::new();
        let mut entries = self.lock();
        // In an order that is the same for the same seed.
        let all = |entries: &Entries| entries.by_time.iter().map(|(_, id)| *id).collect();
        let ids: Vec<_> = claim.map_or_else(|| all(&entries), |id| vec![id]);
        for id in ids {
            let Some(mut entry) = entries.remove(id) else { continue };
            match &entry.role {
                Role::Waiter { wakeup, .. } => wakeup.notify_one(),
                Role::Holder(_) if !entry.renews && entry.probing => entry.recheck = true,
                Role::Holder(belief) if !entry.renews => {
                    entry.probing = true;
                    probes.push(Probe { claim: entry.claim.clone(), fence: entry.fence, belief: belief.clone() });
                }
                // A hold that was asked to end is not extended by another renewal.
                // One that is due already stays due since then: it is late.
                Role::Holder(belief) if entry.renew_at.is_some() || belief.is_ending() => {
                    entry.renew_at = Some(entry.renew_at.map_or(now, |planned| planned.min(now)));
                }
                Role::Holder(_) => entry.recheck = true,
            }
            entry.check_at = entry.next_check();
            self.put(&mut entries, id, entry);
        }
        drop(entries);
        let share = probes.len().div_ceil(PROBES);
        while !probes.is_empty() {
            let some = probes.split_off(probes.len().saturating_sub(share));
            self.runtime.spawn_daemon(self.clone().probe_each(some));
        }
    }

    /// Probes each until the store has answered: there is no later renewal that would notice what a failed probe
    /// missed.
    async fn probe_each(self: Arc<Self>, mut probes: Vec<Probe>) {
        let longest = probes.iter().map(|probe| probe.claim.ttl).max().unwrap_or_default();
        let mut pauses = Backoff::for_errors(longest);
        loop {
            let mut unanswered = Vec::new();
            for probe in probes {
                let is_answered = self.probe(&probe).await;
                if self.must_probe_again(&probe, is_answered) {
                    unanswered.push(probe);
                }
            }
            if unanswered.is_empty() {
                return;
            }
            probes = unanswered;
            sleep_until(&*self.clock, self.clock.now() + self.entropy.jitter(pauses.pause())).await;
        }
    }

    fn must_probe_again(&self, probe: &Probe, is_answered: bool) -> bool {
        let mut entries = self.lock();
        let Some(entry) = entries.by_id.get_mut(&probe.claim.id) else { return false };
        let recheck = std::mem::take(&mut entry.recheck) || !is_answered;
        entry.probing = recheck && probe.belief.is_held() && !self.stop.is_cancelled();
        entry.probing
    }

    /// Inspects a hold without extending it; true if the store answered.
    async fn probe(self: &Arc<Self>, Probe { claim, fence, belief }: &Probe) -> bool {
        let sent = self.clock.now();
        let Some(Ok(page)) = self.in_time(self.driver.clone().inspect(Query::name(claim.resource.clone()))).await
        else {
            return self.renew_to_learn_the_end(claim, belief).await;
        };
        let mut holders = page.resources.into_iter().flat_map(|state| state.holders);
        let is_this_grant = |shown: Option<Fence>| shown.is_none() || shown == *fence;
        let Some(holder) = holders.find(|holder| holder.id == claim.id && is_this_grant(holder.fence)) else {
            return self.renew_to_learn_the_end(claim, belief).await;
        };
        if let Some(ending) = holder.ending {
            belief.end_by(sent, holder.lease_left, LossReason::Broken(ending.clone()));
            self.plan_anew(claim.id);
            let left = belief.time_left();
            self.observers.emit(claim, || Step::Ending { ending, left });
        }
        true
    }

    /// Learns why a hold is gone. The inspected state may be older than the hold, so only the answer to a renewal
    /// counts. If the hold still exists, this renewal does not extend its lease.
    async fn renew_to_learn_the_end(self: &Arc<Self>, claim: &Arc<Claim>, belief: &BeliefCell) -> bool {
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
        tokio::time::timeout(self.op_timeout, FinishOnDrop::new(&self.runtime, request)).await.ok()
    }
}
