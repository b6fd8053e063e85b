//! Cohort hand-off: a held lock goes to the next task of the same process, without asking the store.
//!
//! What the store sees is one long hold of one claim. What it protects sees every holder: each has its own belief and its own,
//! larger fence, from a block that was reserved in the store while the claim was held. Bounded in number and in time, after which
//! the lock is really released, for other processes.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::Core;
use crate::belief::Belief;
use crate::claim::{Claim, Fence, ResourceName, Tether};
use crate::clock::Moment;
use crate::driver::{Fences, Release, Released, Renewal, Renewed};
use crate::event::Step;
use crate::guard::{Guard, Held};

/// The most times a lock is handed on: fences are reserved for all of them, and must not run far ahead of the clock.
pub(crate) const MAX_HAND_OFFS: u32 = 1024;

/// How far a lock may go from task to task before others get their turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) hand_offs: u32,
    pub(crate) span: Duration,
}

/// The right to hand a held lock on, and the fences for that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Baton {
    next: Fence,
    last: Fence,
    until: Moment,
}

impl Baton {
    /// Reserves fences for handing on a lock that was just granted; `None` if nobody here waits for it, or the store does not
    /// give any: then it is an ordinary lock.
    pub(crate) async fn reserve(core: &Core, guard: &Guard, bounds: Bounds, patience: Duration) -> Option<Self> {
        if !core.cohorts.is_sought(guard.resource()) {
            return None;
        }
        let until = core.clock.now() + bounds.span;
        let mut renewal = Renewal::of(guard.claim());
        renewal.fences = Fences::Reserve(bounds.hand_offs);
        let request = core.driver.clone().renew(vec![renewal]);
        let request = Box::pin(async move { Ok(request.await.pop()) });
        // Its lease is not counted: the watchdog's renewals keep the lock alive.
        match tokio::time::timeout(patience, core.in_time(request, "renew")).await.ok()? {
            Ok(Some(Ok(Renewed::Alive { fence: Some(last), ending: None, .. }))) => {
                // Stores may reserve more than they were asked for.
                let most = Fence::new(guard.fence().get().saturating_add(u64::from(bounds.hand_offs)));
                Some(Self { next: guard.fence().next()?, last: last.min(most), until })
            }
            _ => None,
        }
    }

    /// What is left of it after one more holder.
    fn after(self) -> Option<Self> {
        Some(Self { next: self.next.next()?, ..self })
    }
}

/// Tasks of this process that would take a lock from another one.
#[derive(Debug, Default)]
pub(crate) struct Cohorts(Mutex<HashMap<ResourceName, VecDeque<Seeker>>>);

#[derive(Debug)]
struct Seeker {
    ttl: Duration,
    tether: Tether,
    since: Moment,
    hand: oneshot::Sender<Guard>,
}

/// A task's wish to be handed the lock; it ends when this is dropped.
pub(crate) struct Seek<'a> {
    cohorts: &'a Cohorts,
    name: ResourceName,
    hand: oneshot::Receiver<Guard>,
}

impl Cohorts {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ResourceName, VecDeque<Seeker>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn seek(&self, claim: &Claim, since: Moment) -> Seek<'_> {
        let (hand, received) = oneshot::channel();
        let seeker = Seeker { ttl: claim.ttl, tether: claim.tether, since, hand };
        self.lock().entry(claim.resource.clone()).or_default().push_back(seeker);
        Seek { cohorts: self, name: claim.resource.clone(), hand: received }
    }

    fn is_sought(&self, name: &ResourceName) -> bool {
        self.lock().contains_key(name)
    }

    /// The next one who wants exactly what `claim` is.
    fn next(&self, claim: &Claim) -> Option<Seeker> {
        let mut all = self.lock();
        let seekers = all.get_mut(&claim.resource)?;
        while let Some(seeker) = seekers.pop_front() {
            if seeker.hand.is_closed() {
                continue;
            }
            if seeker.ttl == claim.ttl && seeker.tether == claim.tether {
                return Some(seeker);
            }
            // Somebody who wants another lease gets it from the store, and is not passed by.
            seekers.push_front(seeker);
            break;
        }
        None
    }
}

impl Seek<'_> {
    /// The lock, from its last holder. Never resolves if nobody hands it on.
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

impl Drop for Seek<'_> {
    fn drop(&mut self) {
        self.hand.close();
        let mut all = self.cohorts.lock();
        if let Some(seekers) = all.get_mut(&self.name) {
            seekers.retain(|seeker| !seeker.hand.is_closed());
            if seekers.is_empty() {
                all.remove(&self.name);
            }
        }
    }
}

/// Hands a lock that its holder is done with to the next task, if that may be; the answer is what its holder is told.
pub(crate) fn hand_on(core: &Arc<Core>, held: &Held, baton: Baton) -> Option<Release> {
    let now = core.clock.now();
    let claim = held.claim();
    let may =
        baton.next <= baton.last && now < baton.until && held.belief() == Belief::Held && core.check_open().is_ok();
    if !may {
        return None;
    }
    let seeker = core.cohorts.next(&claim)?;
    // From here on the old holder believes in nothing; the new one believes for as long as the old one did.
    let belief = core.watchdog.succeed(claim.id)?;
    let next = held.successor(baton.next, belief, now, now.since(seeker.since));
    // Made before anybody is told: whatever an observer does, somebody has the lock, and lets it go.
    let guard = Guard::handed_on(core.clone(), next, baton.after());
    core.observers.emit(&claim, || Step::Released { outcome: Released::Released, held_for: held.held_for(now) });
    core.observers.emit(&claim, || Step::Granted { fence: guard.fence(), waited: guard.waited() });
    // If it left just now, the guard comes back and is dropped: handed on again, or released.
    drop(seeker.hand.send(guard));
    Some(Release::new(Released::Released, Some(true)))
}
