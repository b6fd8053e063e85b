//! Where an owner sits on a name: the one hold that all its entries share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

use crate::claim::{Claim, ResourceName, Weight};
use crate::clock::{Moment, nap_until};
use crate::engine::{Ask, Core, LAST_CHANCE, Wait, busy};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Guard, Held};

/// The seats of an owner, by store and name. A seat lives as long as somebody enters or sits.
#[derive(Debug, Default)]
pub(super) struct Seats(Mutex<HashMap<(usize, ResourceName), Weak<Seat>>>);

impl Seats {
    pub(super) fn at(&self, store: usize, name: &ResourceName) -> Arc<Seat> {
        let mut seats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (store, name.clone());
        if let Some(seat) = seats.get(&key).and_then(Weak::upgrade) {
            return seat;
        }
        seats.retain(|_, seat| seat.strong_count() > 0);
        let seat = Arc::<Seat>::default();
        seats.insert(key, Arc::downgrade(&seat));
        seat
    }
}

#[derive(Debug, Default)]
pub(crate) struct Seat {
    desk: Mutex<Desk>,
    /// Rung when an entering is over, one way or the other.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Desk {
    /// Somebody stands before the store for all.
    entering: bool,
    /// The last hold that was had; it may be lost by now.
    hold: Option<Arc<Hold>>,
}

/// One hold of the store, and those who share it.
#[derive(Debug)]
struct Hold {
    held: Held,
    weight: Weight,
    /// Changed only under the desk's lock: how many share it, and the guard until the last has gone.
    shares: Mutex<(usize, Option<Guard>)>,
}

impl Hold {
    fn shares(&self) -> MutexGuard<'_, (usize, Option<Guard>)> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a claim of this weight is had by having this one.
    fn covers(&self, weight: Weight) -> bool {
        self.weight == Weight::All || weight != Weight::All
    }
}

/// One share of a hold.
#[derive(Debug)]
pub(crate) struct Share {
    seat: Arc<Seat>,
    hold: Arc<Hold>,
    left: bool,
}

/// What is to be done to enter.
enum Way {
    /// Nothing: it is had.
    In(Share),
    /// Going to the store, for everybody.
    Store,
    /// Waiting for whoever goes.
    Wait,
}

impl Seat {
    /// Enters within the wait asked for.
    pub(crate) async fn lock(self: Arc<Self>, ask: Ask) -> Result<Share> {
        let (core, claim) = (ask.client.core.clone(), ask.claim.clone());
        let started = core.clock.now();
        let give_up = ask.wait.until(started);
        match self.enter(ask, started).await? {
            Some(share) => Ok(share),
            None => {
                let give_up = if give_up > started { give_up } else { core.clock.now() };
                Err(busy(&core, &claim, started, give_up + LAST_CHANCE).await)
            }
        }
    }

    /// Enters without waiting; `None` if it is busy.
    pub(crate) async fn attempt(self: Arc<Self>, mut ask: Ask) -> Result<Option<Share>> {
        ask.wait = Wait::No;
        let started = ask.client.core.clock.now();
        self.enter(ask, started).await
    }

    async fn enter(self: Arc<Self>, mut ask: Ask, started: Moment) -> Result<Option<Share>> {
        let core = ask.client.core.clone();
        let give_up = ask.wait.until(started);
        loop {
            // Made before the look, so that no ring is missed after it.
            let changed = self.changed.notified();
            match self.way_in(&core, &ask.claim)? {
                Way::In(share) => return Ok(Some(share)),
                Way::Store => break,
                Way::Wait => {}
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = nap_until(&*core.clock, give_up) => return Ok(None),
            }
        }
        // From here on the others wait for us; whatever becomes of us, they are told.
        let entering = Entering(&self);
        let weight = ask.claim.weight;
        if let Wait::AtMost(_) = ask.wait {
            ask.wait = Wait::AtMost(give_up.since(core.clock.now()));
        }
        let Some(guard) = ask.acquire().await? else { return Ok(None) };
        let hold = Arc::new(Hold { held: guard.held(), weight, shares: Mutex::new((1, Some(guard))) });
        self.desk().hold = Some(hold.clone());
        drop(entering);
        Ok(Some(Share { seat: self.clone(), hold, left: false }))
    }

    fn way_in(self: &Arc<Self>, core: &Core, claim: &Claim) -> Result<Way> {
        let mut desk = self.desk();
        if let Some(hold) = desk.hold.clone().filter(|hold| hold.held.is_held()) {
            core.check_open()?;
            if !hold.covers(claim.weight) {
                let message = "this owner holds it for reading, and would wait for itself to write";
                return Err(Error::new(ErrorKind::SelfDeadlock, message).about(&claim.resource));
            }
            hold.shares().0 += 1;
            return Ok(Way::In(Share { seat: self.clone(), hold, left: false }));
        }
        if desk.entering {
            return Ok(Way::Wait);
        }
        desk.entering = true;
        Ok(Way::Store)
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody goes to the store for all.
struct Entering<'a>(&'a Seat);

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        self.0.desk().entering = false;
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

    /// Leaves; the last one gets the guard, to let it go.
    pub(crate) fn leave(&mut self) -> Option<Guard> {
        if std::mem::replace(&mut self.left, true) {
            return None;
        }
        let mut desk = self.seat.desk();
        let mut shares = self.hold.shares();
        shares.0 -= 1;
        if shares.0 > 0 {
            return None;
        }
        let guard = shares.1.take();
        // Nobody can share it any more, and before anybody looks the owner holds it no longer.
        if let Some(guard) = &guard {
            guard.stop_keeping();
        }
        desk.hold.take_if(|hold| Arc::ptr_eq(hold, &self.hold));
        guard
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        drop(self.leave());
    }
}
