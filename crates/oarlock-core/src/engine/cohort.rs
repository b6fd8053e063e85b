//! Cohort hand-off: a held lock goes to the next task of the same process, without asking the store.
//!
//! The store sees one long hold of one claim. The protected resource sees every holder: each has its own belief and its
//! own, larger fence, from a block that was reserved in the store while the claim was held. The hand-offs are bounded
//! in number and in time; then the lock is released for other processes.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::Core;
use crate::belief::Belief;
use crate::claim::{Claim, Fence, Lifetime, ResourceName};
use crate::clock::Moment;
use crate::driver::{Fences, Release, Released, Renewal, Renewed};
use crate::event::Step;
use crate::guard::Guard;
use crate::held::Held;

/// The most hand-offs: fences are reserved for all of them, and must not run far ahead of the clock.
pub(crate) const MAX_HAND_OFFS: u32 = 1024;

/// How often and how long a lock is handed on before other processes get their turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) hand_offs: u32,
    pub(crate) span: Duration,
}

/// The right to hand a held lock on, with the fences for the next holders.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Baton {
    next: Fence,
    last: Fence,
    until: Moment,
}

impl Baton {
    /// Reserves fences for handing on a lock that was just granted; `None` if no task here waits for it, or the store
    /// reserves none: then it is an ordinary lock.
    pub(crate) async fn reserve(core: &Core, guard: &Guard, bounds: Bounds, patience: Duration) -> Option<Self> {
        if !core.cohorts.has_waiters(guard.resource()) {
            return None;
        }
        let until = core.clock.now() + bounds.span;
        let mut renewal = Renewal::of(guard.claim());
        renewal.fences = Fences::Reserve(bounds.hand_offs);
        let request = core.driver.clone().renew(vec![renewal]);
        let request = Box::pin(async move { Ok(request.await.pop()) });
        // The lease of this answer is ignored: the watchdog's renewals keep the lock alive.
        match tokio::time::timeout(patience, core.in_time(request, "renew")).await.ok()? {
            Ok(Some(Ok(Renewed::Alive { fence: Some(last), ending: None, .. }))) => {
                // A store may reserve more than requested.
                let most = Fence::new(guard.fence().get().saturating_add(u64::from(bounds.hand_offs)));
                Some(Self { next: guard.fence().next()?, last: last.min(most), until })
            }
            _ => None,
        }
    }

    /// What is left after one more holder.
    fn after(self) -> Option<Self> {
        Some(Self { next: self.next.next()?, ..self })
    }
}

/// The tasks of this process that can be handed a lock, by name.
#[derive(Debug, Default)]
pub(crate) struct Cohorts(Mutex<HashMap<ResourceName, VecDeque<CohortWaiter>>>);

#[derive(Debug)]
struct CohortWaiter {
    ttl: Duration,
    lifetime: Lifetime,
    since: Moment,
    hand: oneshot::Sender<Guard>,
}

/// The wait of a task for a hand-off; it ends when this is dropped.
pub(crate) struct CohortWait<'a> {
    cohorts: &'a Cohorts,
    name: ResourceName,
    hand: oneshot::Receiver<Guard>,
}

impl Cohorts {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ResourceName, VecDeque<CohortWaiter>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn join(&self, claim: &Claim, since: Moment) -> CohortWait<'_> {
        let (hand, received) = oneshot::channel();
        let waiter = CohortWaiter { ttl: claim.ttl, lifetime: claim.lifetime, since, hand };
        self.lock().entry(claim.resource.clone()).or_default().push_back(waiter);
        CohortWait { cohorts: self, name: claim.resource.clone(), hand: received }
    }

    fn has_waiters(&self, name: &ResourceName) -> bool {
        self.lock().contains_key(name)
    }

    /// The next task that waits for exactly such a claim.
    fn next(&self, claim: &Claim) -> Option<CohortWaiter> {
        let mut all = self.lock();
        let waiters = all.get_mut(&claim.resource)?;
        while let Some(waiter) = waiters.pop_front() {
            if waiter.hand.is_closed() {
                continue;
            }
            if waiter.ttl == claim.ttl && waiter.lifetime == claim.lifetime {
                return Some(waiter);
            }
            // A task that wants another lease gets it from the store, and keeps its position before the others.
            waiters.push_front(waiter);
            break;
        }
        None
    }
}

impl CohortWait<'_> {
    /// The lock, from its last holder. Never resolves if the lock is not handed on.
    ///
    /// # Cancel safety
    /// A lock that was handed over and not taken is handed on, or released.
    pub(crate) async fn handed(&mut self) -> Guard {
        match (&mut self.hand).await {
            Ok(guard) => guard,
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for CohortWait<'_> {
    fn drop(&mut self) {
        self.hand.close();
        let mut all = self.cohorts.lock();
        if let Some(waiters) = all.get_mut(&self.name) {
            waiters.retain(|waiter| !waiter.hand.is_closed());
            if waiters.is_empty() {
                all.remove(&self.name);
            }
        }
    }
}

/// Hands a lock to the next task instead of releasing it, if that is allowed; returns the result for the old holder.
pub(crate) fn hand_on(core: &Arc<Core>, held: &Held, baton: Baton) -> Option<Release> {
    let now = core.clock.now();
    let claim = held.claim();
    let may =
        baton.next <= baton.last && now < baton.until && held.belief() == Belief::Held && core.check_open().is_ok();
    if !may {
        return None;
    }
    let waiter = core.cohorts.next(&claim)?;
    // Belief of the old holder ends here; that of the new one lasts as long as the old one's would have.
    let belief = core.watchdog.succeed(claim.id)?;
    let next = held.successor(baton.next, belief, now, now.since(waiter.since));
    // The guard is made before observers run: it releases the lock whatever they do.
    let guard = Guard::handed_on(core.clone(), next, baton.after());
    core.observers.emit(&claim, || Step::Released { outcome: Released::Released, held_for: held.held_for(now) });
    core.observers.emit(&claim, || Step::Granted { fence: guard.fence(), waited: guard.waited() });
    // If the task left just now, the guard comes back and is dropped: it is handed on again, or released.
    drop(waiter.hand.send(guard));
    Some(Release::new(Released::Released, Some(true)))
}
