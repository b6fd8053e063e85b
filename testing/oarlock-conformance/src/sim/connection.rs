//! The connection of a client to a simulated store, with its faults.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oarlock_core::clock::{Clock, Moment, TokioClock};
use oarlock_core::driver::{Handed, Hint, Listeners, Waiters, Watch};
use oarlock_core::model::{Notified, Now, Session};
use oarlock_core::{Claim, ClaimId, Error, ErrorKind, Result};

use super::clocks::StoreClock;
use super::coverage::Faults;
use super::plan::Plan;

/// The listeners of a store and its clock: what the two kinds of store share.
#[derive(Debug)]
pub(super) struct Hub {
    clock: Arc<StoreClock>,
    listeners: Arc<Mutex<Mailboxes>>,
    rng: fastrand::Rng,
    plan: Plan,
    faults: Arc<Faults>,
    arrivals: Arc<Arrivals>,
}

/// The order in which claims came to queue in the store.
#[derive(Debug, Default)]
pub(super) struct Arrivals(Mutex<HashMap<ClaimId, u64>>);

impl Arrivals {
    fn note(&self, claim: ClaimId) {
        let mut all = lock(&self.0);
        let next = all.len() as u64;
        all.entry(claim).or_insert(next);
    }

    pub(super) fn number(&self, claim: ClaimId) -> Option<u64> {
        lock(&self.0).get(&claim).copied()
    }
}

/// Who is told of what.
#[derive(Debug, Default)]
struct Mailboxes {
    waiters: Waiters,
    sessions: BTreeMap<Session, Listeners>,
    /// Grants that came with a notification, until the claim attempts.
    handed: BTreeMap<ClaimId, Handed>,
}

impl Mailboxes {
    fn tell(&mut self, claim: ClaimId, session: Session, grant: Option<Handed>) {
        if let Some(grant) = grant {
            self.handed.insert(claim, grant);
        }
        if !self.waiters.notify(claim, |()| ())
            && let Some(mailboxes) = self.sessions.get(&session)
        {
            mailboxes.tell(Hint::about(claim));
        }
    }
}

impl Hub {
    pub(super) fn new(plan: &Plan, clock: Arc<StoreClock>, faults: Arc<Faults>, arrivals: Arc<Arrivals>) -> Self {
        let rng = fastrand::Rng::with_seed(plan.seed ^ 0x4855_4221);
        Self { clock, listeners: Arc::default(), rng, plan: plan.clone(), faults, arrivals }
    }

    /// This claim is carried out: it queues, unless it did before or does not wait.
    pub(super) fn arrived(&self, claim: &Claim) {
        if claim.wait {
            self.arrivals.note(claim.id);
        }
    }

    pub(super) fn now(&self) -> Now {
        Now { boot: self.clock.now(), wall_micros: self.clock.wall_micros() }
    }

    fn listeners(&self) -> MutexGuard<'_, Mailboxes> {
        lock(&self.listeners)
    }

    pub(super) fn turn(&self, claim: ClaimId) -> Watch {
        self.listeners().waiters.turn(claim)
    }

    pub(super) fn mailbox(&self, session: Session) -> Watch {
        self.listeners().sessions.entry(session).or_default().watch()
    }

    /// The grant that came with a notification of this claim.
    pub(super) fn take_handed(&self, claim: ClaimId) -> Option<Handed> {
        self.listeners().handed.remove(&claim)
    }

    pub(super) fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Notifies the claims that a step names, with what `grant` gives them, unless the hint is lost or late.
    pub(super) fn notify(&mut self, notified: &Notified, mut grant: impl FnMut(ClaimId) -> Option<Handed>) {
        for (claim, session) in notified {
            let (claim, session, grant) = (*claim, *session, grant(*claim));
            if self.rng.f64() < self.plan.chances.lost_hint && self.faults.may("hint lost") {
                continue;
            }
            if self.rng.f64() < self.plan.chances.late_hint && self.faults.may("hint late") {
                let (listeners, span) = (self.listeners.clone(), self.plan.ttl.mul_f64(self.rng.f64()));
                tokio::spawn(async move {
                    tokio::time::sleep(span).await;
                    lock(&listeners).tell(claim, session, grant);
                });
                continue;
            }
            self.listeners().tell(claim, session, grant);
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
    /// Until when the store itself does not answer; shared by all.
    down_until: Arc<AtomicU64>,
    dead: AtomicBool,
    faults: Arc<Faults>,
}

impl<S> fmt::Debug for Connection<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}

/// Whether a request may be carried out again by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeats {
    /// At any time, also long after it was answered.
    Always,
    /// Only before it is answered, as by a client library that sends a request again.
    BeforeItsAnswer,
}

impl<S: Send + 'static> Connection<S> {
    pub(super) fn new(
        store: Arc<Mutex<S>>,
        plan: &Plan,
        clock: TokioClock,
        salt: u64,
        down_until: Arc<AtomicU64>,
        faults: Arc<Faults>,
    ) -> Self {
        let rng = Mutex::new(fastrand::Rng::with_seed(plan.seed.rotate_left(17) ^ salt));
        let (cut_until, dead) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { store, clock, plan: plan.clone(), rng, cut_until, down_until, dead, faults }
    }

    pub(super) fn store(&self) -> MutexGuard<'_, S> {
        lock(&self.store)
    }

    /// Lets nothing through for `span`.
    pub(super) fn cut(&self, span: Duration) {
        self.cut_until.store((self.clock.now() + span).as_nanos(), Ordering::Relaxed);
    }

    /// The process at this end is no more: nothing it has sent and not delivered ever arrives.
    pub(super) fn kill(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    /// What would happen to the next request, if the plan allows more faults. Each counts where it takes effect.
    fn draw(&self) -> Trip {
        let (plan, chances, mut rng) = (&self.plan, &self.plan.chances, lock(&self.rng));
        let mut trip = Trip {
            there: plan.delay.mul_f64(rng.f64()),
            back: plan.delay.mul_f64(rng.f64()),
            lost_request: rng.f64() < chances.lost_request,
            refused: rng.bool(),
            lost_reply: rng.f64() < chances.lost_reply,
            late: None,
            late_reply: None,
            again: None,
        };
        if rng.f64() < chances.late {
            trip.late = Some(plan.ttl.mul_f64(1.0 + rng.f64() * 2.0));
        }
        if rng.f64() < chances.late_reply {
            trip.late_reply = Some(plan.ttl.mul_f64(1.0 + rng.f64() * 2.0));
        }
        if rng.f64() < chances.twice {
            let (later, share) = (rng.bool(), rng.f64());
            trip.again = Some((later, if later { plan.ttl.mul_f64(share * 2.0) } else { plan.delay.mul_f64(share) }));
        }
        trip
    }

    /// Carries one request there and its answer back, unless something happens to either.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        repeats: Repeats,
        mut step: impl FnMut(&mut S) -> T + Send + 'static,
    ) -> Result<T> {
        let trip = self.draw();
        let cut_until = Moment::from_nanos(self.cut_until.load(Ordering::Relaxed));
        let late = trip.late.filter(|_| self.faults.may("request late"));
        tokio::time::sleep(cut_until.since(self.clock.now()) + late.unwrap_or(trip.there)).await;
        if self.dead.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Closed, "the process is dead"));
        }
        let refused = || Error::new(ErrorKind::Unreachable, "the connection was refused").retry_later();
        if self.clock.now() < Moment::from_nanos(self.down_until.load(Ordering::Relaxed)) {
            self.faults.note(super::coverage::FAULT, "store down");
            return Err(refused());
        }
        // A refused connection is known to have had no effect; a lost packet is not known at all.
        if trip.lost_request && self.faults.may(if trip.refused { "connection refused" } else { "request lost" }) {
            return Err(if trip.refused { refused() } else { Error::unreachable("the request was lost") });
        }
        let mut answer = step(&mut self.store());
        match trip.again {
            Some((true, after)) if repeats == Repeats::Always && self.faults.may("request again later") => {
                let store = self.store.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(after).await;
                    drop(step(&mut lock(&store)));
                });
            }
            Some((false, after)) if self.faults.may("request twice") => {
                tokio::time::sleep(after).await;
                answer = step(&mut self.store());
            }
            _ => {}
        }
        let late = trip.late_reply.filter(|_| self.faults.may("reply late"));
        tokio::time::sleep(late.unwrap_or(trip.back)).await;
        if trip.lost_reply && self.faults.may("reply lost") {
            return Err(Error::unreachable("the reply was lost"));
        }
        Ok(answer)
    }
}

/// What would happen to one request.
struct Trip {
    there: Duration,
    back: Duration,
    lost_request: bool,
    refused: bool,
    lost_reply: bool,
    late: Option<Duration>,
    late_reply: Option<Duration>,
    /// It is carried out once more: after its answer or before, and how long after the first time.
    again: Option<(bool, Duration)>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
