//! The one hold of a name that all re-entrant entries of an owner share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

use crate::claim::{Claim, ResourceName, Weight};
use crate::clock::{Moment, nap_until};
use crate::engine::{Core, LAST_CHANCE, Request, Wait, busy};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::held::Held;

/// The shared holds of an owner, by store and name. Each lives as long as an entry or an acquisition uses it.
#[derive(Debug, Default)]
pub(super) struct SharedHolds(Mutex<HashMap<(usize, ResourceName), Weak<SharedHold>>>);

impl SharedHolds {
    pub(super) fn at(&self, store: usize, name: &ResourceName) -> Arc<SharedHold> {
        let mut shared_holds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (store, name.clone());
        if let Some(shared_hold) = shared_holds.get(&key).and_then(Weak::upgrade) {
            return shared_hold;
        }
        shared_holds.retain(|_, shared_hold| shared_hold.strong_count() > 0);
        let shared_hold = Arc::<SharedHold>::default();
        shared_holds.insert(key, Arc::downgrade(&shared_hold));
        shared_hold
    }
}

/// The hold of one name that the entries of an owner share.
#[derive(Debug, Default)]
pub(crate) struct SharedHold {
    state: Mutex<State>,
    /// Notified when an acquisition has ended, granted or not.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// One entry acquires the lock for all.
    entering: bool,
    /// The last hold; it may be lost by now.
    hold: Option<Arc<Hold>>,
}

/// One hold of the store, with the number of its shares.
#[derive(Debug)]
struct Hold {
    held: Held,
    weight: Weight,
    /// How many share it, and the guard until the last share is gone. Changed only under the lock of `state`.
    shares: Mutex<(usize, Option<Guard>)>,
}

impl Hold {
    fn shares(&self) -> MutexGuard<'_, (usize, Option<Guard>)> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this hold includes a claim of this weight.
    fn covers(&self, weight: Weight) -> bool {
        self.weight == Weight::All || weight != Weight::All
    }
}

/// One share of a hold.
#[derive(Debug)]
pub(crate) struct Share {
    shared_hold: Arc<SharedHold>,
    hold: Arc<Hold>,
    left: bool,
}

/// What an entry has to do.
enum NextStep {
    /// Nothing: it shares the hold.
    Join(Share),
    /// Acquire from the store, for all entries.
    Store,
    /// Wait for the entry that acquires.
    Wait,
}

impl SharedHold {
    /// Enters within the requested wait.
    pub(crate) async fn lock(self: Arc<Self>, request: Request) -> Result<Share> {
        let (core, claim) = (request.client.core.clone(), request.claim.clone());
        let started = core.clock.now();
        let give_up = request.wait.until(started);
        match self.enter(request, started).await? {
            Some(share) => Ok(share),
            None => {
                let give_up = if give_up > started { give_up } else { core.clock.now() };
                Err(busy(&core, &claim, started, give_up + LAST_CHANCE).await)
            }
        }
    }

    /// Enters without waiting; `None` if the lock is busy.
    pub(crate) async fn attempt(self: Arc<Self>, mut request: Request) -> Result<Option<Share>> {
        request.wait = Wait::No;
        let started = request.client.core.clock.now();
        self.enter(request, started).await
    }

    async fn enter(self: Arc<Self>, mut request: Request, started: Moment) -> Result<Option<Share>> {
        let core = request.client.core.clone();
        let give_up = request.wait.until(started);
        loop {
            // Created before the check, so that no notification after it is missed.
            let changed = self.changed.notified();
            match self.next_step(&core, &request.claim)? {
                NextStep::Join(share) => return Ok(Some(share)),
                NextStep::Store => break,
                NextStep::Wait => {}
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = nap_until(&*core.clock, give_up) => return Ok(None),
            }
        }
        // From here on other entries wait for this one. Dropping `entering` wakes them, however this ends.
        let entering = Entering(&self);
        let weight = request.claim.weight;
        if let Wait::AtMost(_) = request.wait {
            request.wait = Wait::AtMost(give_up.since(core.clock.now()));
        }
        let Some(guard) = request.acquire().await? else { return Ok(None) };
        let hold = Arc::new(Hold { held: guard.held(), weight, shares: Mutex::new((1, Some(guard))) });
        self.state().hold = Some(hold.clone());
        drop(entering);
        Ok(Some(Share { shared_hold: self.clone(), hold, left: false }))
    }

    fn next_step(self: &Arc<Self>, core: &Core, claim: &Claim) -> Result<NextStep> {
        let mut state = self.state();
        if let Some(hold) = state.hold.clone().filter(|hold| hold.held.is_held()) {
            core.check_open()?;
            if !hold.covers(claim.weight) {
                let message = "this owner holds the lock for reading, and would wait for itself to write";
                return Err(Error::new(ErrorKind::SelfDeadlock, message).about(&claim.resource));
            }
            hold.shares().0 += 1;
            return Ok(NextStep::Join(Share { shared_hold: self.clone(), hold, left: false }));
        }
        if state.entering {
            return Ok(NextStep::Wait);
        }
        state.entering = true;
        Ok(NextStep::Store)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An acquisition for all entries; dropping it wakes the others.
struct Entering<'a>(&'a SharedHold);

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        self.0.state().entering = false;
        self.0.changed.notify_waiters();
    }
}

impl Share {
    pub(crate) fn held(&self) -> &Held {
        &self.hold.held
    }

    /// How many share the hold.
    pub(crate) fn count(&self) -> usize {
        self.hold.shares().0
    }

    /// Ends this share; the last one gets the guard, to release it.
    pub(crate) fn leave(&mut self) -> Option<Guard> {
        if std::mem::replace(&mut self.left, true) {
            return None;
        }
        let mut state = self.shared_hold.state();
        let mut shares = self.hold.shares();
        shares.0 -= 1;
        if shares.0 > 0 {
            return None;
        }
        let guard = shares.1.take();
        // No entry can share it any more. The owner stops holding it before another entry checks.
        if let Some(guard) = &guard {
            guard.stop_keeping();
        }
        state.hold.take_if(|hold| Arc::ptr_eq(hold, &self.hold));
        guard
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        drop(self.leave());
    }
}
