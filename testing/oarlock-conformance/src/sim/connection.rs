//! The connection of a client to a simulated store, with its faults.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oarlock_core::clock::{Clock, Moment, TokioClock};
use oarlock_core::driver::{Hint, Listeners, Waiters, Watch};
use oarlock_core::model::{Notified, Now, Session};
use oarlock_core::{ClaimId, Error, ErrorKind, Result};

use super::plan::Plan;

/// The listeners of a store and its clock: what the two kinds of store share.
#[derive(Debug)]
pub(super) struct Hub {
    pub(super) clock: TokioClock,
    waiters: Waiters,
    mailboxes: BTreeMap<Session, Listeners>,
    rng: fastrand::Rng,
    lost_hint: f64,
}

impl Hub {
    pub(super) fn new(plan: &Plan, clock: TokioClock) -> Self {
        let rng = fastrand::Rng::with_seed(plan.seed ^ 0x4855_4221);
        Self { clock, waiters: Waiters::default(), mailboxes: BTreeMap::new(), rng, lost_hint: plan.lost_hint }
    }

    pub(super) fn now(&self) -> Now {
        Now { boot: self.clock.now(), wall_micros: self.clock.wall_micros() }
    }

    pub(super) fn turn(&self, claim: ClaimId) -> Watch {
        self.waiters.turn(claim)
    }

    pub(super) fn mailbox(&mut self, session: Session) -> Watch {
        self.mailboxes.entry(session).or_default().watch()
    }

    /// Notifies the claims that a step names, unless the hint is lost.
    pub(super) fn notify(&mut self, notified: &Notified) {
        for (claim, session) in notified {
            if self.rng.f64() < self.lost_hint {
                continue;
            }
            if !self.waiters.notify(*claim, |()| ())
                && let Some(mailboxes) = self.mailboxes.get(session)
            {
                mailboxes.tell(Hint::about(*claim));
            }
        }
    }
}

/// The connection of one client to a store `S`.
pub(super) struct Connection<S> {
    store: Arc<Mutex<S>>,
    clock: TokioClock,
    plan: Plan,
    rng: Mutex<fastrand::Rng>,
    cut_until: AtomicU64,
    dead: AtomicBool,
    pub(super) faults: AtomicU64,
}

impl<S> fmt::Debug for Connection<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}

impl<S> Connection<S> {
    pub(super) fn new(store: Arc<Mutex<S>>, plan: &Plan, clock: TokioClock, salt: u64) -> Self {
        let rng = Mutex::new(fastrand::Rng::with_seed(plan.seed.rotate_left(17) ^ salt));
        let (cut_until, dead, faults) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
        Self { store, clock, plan: plan.clone(), rng, cut_until, dead, faults }
    }

    pub(super) fn store(&self) -> MutexGuard<'_, S> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets nothing through for `span`.
    pub(super) fn cut(&self, span: Duration) {
        self.cut_until.store((self.clock.now() + span).as_nanos(), Ordering::Relaxed);
    }

    /// The process at this end is no more: nothing it has sent and not delivered ever arrives.
    pub(super) fn kill(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    fn draw(&self) -> Trip {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        let mut trip = Trip {
            there: self.plan.delay.mul_f64(rng.f64()),
            back: self.plan.delay.mul_f64(rng.f64()),
            lost_request: rng.f64() < self.plan.lost_request,
            lost_reply: rng.f64() < self.plan.lost_reply,
            refused: rng.bool(),
        };
        if rng.f64() < self.plan.late {
            trip.there = self.plan.ttl.mul_f64(1.0 + rng.f64() * 2.0);
        }
        trip
    }

    /// Carries one request there and its answer back, unless something happens to either.
    pub(super) async fn call<T>(&self, step: impl FnOnce(&mut S) -> T) -> Result<T> {
        let trip = self.draw();
        let cut_until = Moment::from_nanos(self.cut_until.load(Ordering::Relaxed));
        tokio::time::sleep(cut_until.since(self.clock.now()) + trip.there).await;
        if self.dead.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Closed, "the process is dead"));
        }
        if trip.lost_request || trip.lost_reply {
            self.faults.fetch_add(1, Ordering::Relaxed);
        }
        if trip.lost_request {
            // A refused connection is known to have had no effect; a lost packet is not known at all.
            let refused = Error::new(ErrorKind::Unreachable, "the connection was refused").retry_later();
            return Err(if trip.refused { refused } else { Error::unreachable("the request was lost") });
        }
        let answer = step(&mut self.store());
        tokio::time::sleep(trip.back).await;
        if trip.lost_reply {
            return Err(Error::unreachable("the reply was lost"));
        }
        Ok(answer)
    }
}

/// What happens to one request.
struct Trip {
    there: Duration,
    back: Duration,
    lost_request: bool,
    lost_reply: bool,
    refused: bool,
}
