//! The acquire loop: attempt, arm a watch, attempt again, sleep; until the claim is granted, refused or out of time.

mod pending_claim;
mod turn_watch;

use std::sync::Arc;
use std::time::Duration;

use super::backoff::{Backoff, Patience};
use super::cohort::{Baton, Bounds, MAX_HAND_OFFS};
use super::gate::Pass;
use super::line::{Carried, InLine, Next};
use super::waiter_limit::WaiterPermit;
use super::{Core, check_ttl};
use crate::belief::BeliefCell;
use crate::capabilities::Notify;
use crate::claim::{Claim, Kind, Weight};
use crate::clock::{Moment, nap_until};
use crate::driver::{Attempt, Grant};
use crate::error::{Busy, Error, ErrorKind, Result, Retry};
use crate::event::Step;
use crate::guard::Guard;
use crate::held::Held;
use crate::locks::Locks;
use crate::owner::{Holds, Owner};
use crate::state::{Query, Waiters};
use pending_claim::PendingClaim;
use turn_watch::TurnWatch;

/// How much longer than its wait an acquisition may take for its last requests, all together.
pub(crate) const LAST_CHANCE: Duration = Duration::from_secs(1);

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Not at all.
    No,
    /// At most this long.
    AtMost(Duration),
    /// Without a bound.
    Forever,
}

impl Wait {
    /// When a wait that began at `started` ends.
    pub(crate) fn until(self, started: Moment) -> Moment {
        match self {
            Self::No => started,
            Self::AtMost(span) => started + span,
            Self::Forever => Moment::NEVER,
        }
    }
}

/// One request for a lock: the kinds fill it in, the acquire loop executes it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) client: Locks,
    /// The template of its claims; each acquisition draws its own id.
    pub(crate) claim: Claim,
    /// Why the request is invalid (its name or its permits); the first attempt returns this error.
    pub(crate) invalid: Option<Error>,
    pub(crate) wait: Wait,
    /// False for an explicit lease.
    pub(crate) renew: bool,
    /// The first lease must be a whole one.
    pub(crate) whole: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) patience: Patience,
    /// The claim waits in the store's queue itself, not behind other tasks of its process.
    pub(crate) fair: bool,
    pub(crate) owner: Option<Owner>,
    /// When an attempt that does not wait must be answered, if that is sooner than the timeout of a request.
    pub(crate) answer_by: Moment,
    /// Set if the lock may be handed from task to task of this process.
    pub(crate) cohort: Option<Bounds>,
}

/// How a claim gets past the other tasks of its process.
enum Admission {
    /// It may ask the store.
    Store(Option<Pass>),
    /// The release of another task carried its first attempt.
    Carried(Pass, PendingClaim),
    /// Another task handed it the lock.
    Handed(Guard),
}

impl Request {
    /// Acquires without waiting; `None` if the lock is busy.
    pub(crate) async fn attempt(mut self) -> Result<Option<Guard>> {
        self.wait = Wait::No;
        self.acquire().await
    }

    /// Acquires within the requested wait.
    pub(crate) async fn lock(mut self) -> Result<Guard> {
        let core = self.client.core.clone();
        let started = core.clock.now();
        let give_up = self.wait.until(started);
        match self.acquire_from(&core, started).await? {
            Some(guard) => Ok(guard),
            None => {
                let give_up = if give_up > started { give_up } else { core.clock.now() };
                Err(busy(&core, &self.claim, started, give_up + LAST_CHANCE).await)
            }
        }
    }

    /// Acquires within the requested wait; `None` when it ends.
    pub(crate) async fn acquire(mut self) -> Result<Option<Guard>> {
        let core = self.client.core.clone();
        let started = core.clock.now();
        self.acquire_from(&core, started).await
    }

    /// Acquires within a wait that began at `started`; `None` when it ends.
    async fn acquire_from(&mut self, core: &Arc<Core>, started: Moment) -> Result<Option<Guard>> {
        let acquisition = core.telemetry.acquisition(&self.claim, &core.clock);
        let granted = acquisition.run(self.wait != Wait::No, self.acquire_unreported(core, started)).await?;
        if let Some(guard) = &granted {
            guard.report();
        }
        Ok(granted)
    }

    async fn acquire_unreported(&mut self, core: &Arc<Core>, started: Moment) -> Result<Option<Guard>> {
        self.check(core)?;
        let give_up = self.wait.until(started);
        self.claim.wait = give_up > started;
        let joins = self.check_owner(core)?;
        let (pass, carried) = match self.enter_gate(core, started, give_up).await? {
            None => return Ok(None),
            Some(Admission::Handed(guard)) => return Ok(Some(guard)),
            Some(Admission::Store(pass)) => (pass, None),
            Some(Admission::Carried(pass, carried)) => (Some(pass), Some(carried)),
        };
        let permit = self.waiter_permit(core, pass.as_ref())?;
        let mut granted = self.acquire_from_store(core, pass, carried, joins, started, give_up).await?;
        drop(permit);
        if let (Some(guard), Some(bounds), true) = (&mut granted, self.cohort, self.claim.wait) {
            let left = (give_up + LAST_CHANCE).since(core.clock.now());
            let baton = Baton::reserve(core, guard, bounds, left.min(self.claim.ttl / 6)).await;
            guard.set_baton(baton);
        }
        Ok(granted)
    }

    /// The error of an invalid name or number, if there is one.
    pub(crate) fn check_valid(&self) -> Result<()> {
        self.invalid.clone().map_or(Ok(()), Err)
    }

    fn check(&self, core: &Core) -> Result<()> {
        core.check_open()?;
        self.check_valid()?;
        check_ttl(self.claim.ttl)
            .and_then(|()| self.claim.label.check())
            .map_err(|error| error.about(&self.claim.resource))?;
        core.check_lifetime(self.claim.lifetime, &self.claim.resource)?;
        if let Some(message) = self.contradiction() {
            return Err(Error::new(ErrorKind::InvalidClaim, message).about(&self.claim.resource));
        }
        let can = &core.info.capabilities;
        if self.fair && !can.order {
            return Err(self.unsupported("grant in order of arrival"));
        }
        self.check_election()
    }

    /// Refuses an election where the store does not record who holds a lock.
    pub(crate) fn check_election(&self) -> Result<()> {
        if self.claim.kind == Kind::Election && !self.client.info().capabilities.records {
            return Err(self.unsupported("show who leads"));
        }
        Ok(())
    }

    fn unsupported(&self, what: &str) -> Error {
        let error = Error::new(ErrorKind::Unsupported, format!("this store cannot {what}"));
        error.on(self.client.info().scheme).about(&self.claim.resource)
    }

    /// Counts this claim against `max_waiters`. An exclusive claim that passed the gate is the only one of its name: it
    /// is not counted.
    fn waiter_permit(&self, core: &Core, pass: Option<&Pass>) -> Result<Option<WaiterPermit>> {
        if !self.claim.wait || (pass.is_some() && self.claim.weight == Weight::All) {
            return Ok(None);
        }
        core.waiter_limit.enter(&self.claim.resource).map(Some).map_err(|error| error.on(core.info.scheme))
    }

    /// Options that contradict each other, or are out of range.
    fn contradiction(&self) -> Option<String> {
        if self.max_hold.is_some_and(|span| span.is_zero()) {
            return Some("max_hold must be greater than zero".to_owned());
        }
        let Bounds { hand_offs, span } = self.cohort?;
        if self.fair || !self.renew || self.max_hold.is_some() || self.owner.is_some() {
            return Some("cohort cannot be combined with fair, no_renewal, max_hold or owner".to_owned());
        }
        if !(1..=MAX_HAND_OFFS).contains(&hand_offs) {
            return Some(format!("a cohort has between 1 and {MAX_HAND_OFFS} hand-offs, not {hand_offs}"));
        }
        // The claim of this process that waits in the store's queue waits for as long as the lock goes round.
        match self.wait {
            Wait::AtMost(wait) if wait <= span.saturating_mul(2) => Some(format!(
                "a wait of {wait:?} is too short for a cohort span of {span:?}: it must be longer than two spans"
            )),
            _ => None,
        }
    }

    /// True if the owner holds the name already and the claim can join: then it must not wait behind a claim that waits
    /// for this owner.
    fn check_owner(&self, core: &Core) -> Result<bool> {
        let Some(owner) = &self.owner else { return Ok(false) };
        match owner.holds(core.store_number(), &self.claim) {
            Holds::Incompatible if self.claim.wait => Err(self_deadlock("and would wait for itself", &self.claim)),
            Holds::Compatible => Ok(self.claim.wait && core.info.capabilities.order),
            Holds::Nothing | Holds::Incompatible => Ok(false),
        }
    }

    /// Whether a release of this process may carry this claim, and the release of this claim another one.
    fn may_be_carried(&self, core: &Core) -> bool {
        core.info.joint
            && self.claim.weight == Weight::All
            && self.patience == Patience::Hint
            && self.cohort.is_none()
            && self.owner.is_none()
    }

    /// Waits for its turn among the tasks of this process; `None` when the time is over.
    async fn enter_gate(&self, core: &Arc<Core>, started: Moment, give_up: Moment) -> Result<Option<Admission>> {
        // Readers and permits of one process can hold together. Where the store keeps the order, each waits in the
        // store's queue.
        let is_shared = core.info.capabilities.order && self.claim.weight != Weight::All;
        if !self.claim.wait || self.fair || is_shared {
            return Ok(Some(Admission::Store(None)));
        }
        // Nearly always no other task waits, and no timer is needed.
        if self.cohort.is_none()
            && let Some(pass) = core.gate.try_enter(&self.claim.resource, self.claim.weight)
        {
            return Ok(Some(Admission::Store(Some(pass))));
        }
        let entrant = core.gate.entrant(&self.claim.resource);
        let queue = entrant.queue().clone();
        let waiting = if self.may_be_carried(core) {
            Some(WaitingInLine { core, in_line: queue.line.join(self.next_claim(core, None)?) })
        } else {
            None
        };
        let carried = async {
            match &waiting {
                Some(waiting) => waiting.in_line.next(&*core.clock).await,
                None => std::future::pending().await,
            }
        };
        let mut join = self.cohort.map(|_| core.cohorts.join(&self.claim, started));
        let handed = async {
            match &mut join {
                Some(join) => join.handed().await,
                None => std::future::pending().await,
            }
        };
        let admission = tokio::select! {
            biased;
            guard = handed => Some(Admission::Handed(guard)),
            next = carried => Some(match next {
                Next::Carried(carried) => carried.admit(core),
                Next::Passed(pass) => Admission::Store(Some(pass)),
            }),
            pass = entrant.enter(self.claim.weight) => Some(Admission::Store(Some(pass))),
            () = nap_until(&*core.clock, give_up) => None,
        };
        Ok(admission)
    }

    /// Asks the store until the claim is granted (`Some`), refused (`None`) or failed.
    async fn acquire_from_store(
        &self,
        core: &Arc<Core>,
        pass: Option<Pass>,
        carried: Option<PendingClaim>,
        joins: bool,
        started: Moment,
        give_up: Moment,
    ) -> Result<Option<Guard>> {
        let mut pending_claim = match carried {
            Some(carried) => carried,
            None => PendingClaim::new(core, self.next_claim(core, pass.as_ref())?),
        };
        core.observers.emit(&pending_claim.claim, || Step::Requested);
        let notify = core.info.capabilities.notify;
        let mut pauses = Backoff::for_waiting(self.patience, notify, self.claim.ttl);
        let mut slow = Backoff::for_waiting(self.patience, Notify::Push, self.claim.ttl);
        let mut errors = Backoff::for_errors(self.claim.ttl);
        let mut may_repeat_at_once = true;
        let mut turn = TurnWatch::default();
        // No request lasts longer, whatever the store does.
        let end = if self.claim.wait { give_up + LAST_CHANCE } else { self.answer_by };
        loop {
            let answer = pending_claim.attempt(end).await;
            let pause = match answer {
                Ok(Attempt::Granted(grant)) => match self.granted(core, &mut pending_claim, &grant, started) {
                    // If the client was shut down meanwhile, the lock is lost already, and dropping the guard releases
                    // it.
                    Some(mut guard) => {
                        if let Some(pass) = pass.filter(|_| self.may_be_carried(core)) {
                            guard.set_pass(pass);
                        }
                        return core.check_open().map(|()| Some(guard));
                    }
                    // The answer took longer than the lease: the grant is useless, and the claim was abandoned.
                    None => core.entropy.jitter(errors.pause()),
                },
                Ok(Attempt::Pending(_)) if !self.claim.wait => {
                    pending_claim.settle();
                    return Ok(None);
                }
                Ok(Attempt::Pending(pending)) => {
                    errors.reset();
                    may_repeat_at_once = true;
                    pending_claim.queue(pending.ahead, pass.as_ref());
                    // After every answer, because a claim that lost its place waits behind others. If the check fails,
                    // the next one decides.
                    if joins && waits_behind_another(core, &pending_claim.claim, end).await.unwrap_or(false) {
                        pending_claim.withdraw(end).await;
                        return Err(self_deadlock("and would wait behind a claim that waits for it", &self.claim));
                    }
                    if self.patience == Patience::Hint && turn.arm(core, &pending_claim.claim, &pending, give_up).await
                    {
                        // One more attempt sees what changed before the watch was armed.
                        continue;
                    }
                    // A claim that the store will notify polls rarely, also on a store that has to be polled otherwise.
                    let pauses = if pending.watched && turn.watch.is_armed() { &mut slow } else { &mut pauses };
                    if let (true, Weight::All, Some(ahead)) =
                        (core.info.capabilities.order, self.claim.weight, pending.ahead)
                    {
                        pauses.set_ahead(ahead);
                    }
                    let pause = core.entropy.jitter(pauses.pause());
                    let recheck = pending.recheck_after.map(|after| after + Duration::from_millis(1));
                    recheck.map_or(pause, |after| after.min(pause))
                }
                Err(error) if error.retry() == Retry::Never => return Err(pending_claim.fail(error)),
                Err(error) => {
                    let is_quick = error.retry() == Retry::Now;
                    // Only once: a repeated error needs a pause.
                    let at_once = is_quick && std::mem::take(&mut may_repeat_at_once);
                    let pause = if at_once { Duration::ZERO } else { core.entropy.jitter(errors.pause()) };
                    let until = match self.claim.wait {
                        true => give_up,
                        // Without a wait, an error that a retry repairs is retried for a short time.
                        false if is_quick => (started + LAST_CHANCE).min(end),
                        false => started,
                    };
                    let again = core.clock.now() + pause;
                    if again >= until {
                        return Err(pending_claim.fail(error));
                    }
                    core.observers.emit(&pending_claim.claim, || Step::Retrying { error });
                    if !self.claim.wait {
                        nap_until(&*core.clock, again).await;
                        continue;
                    }
                    pause
                }
            };
            if pending_claim.is_abandoned() {
                turn = TurnWatch::default();
                pending_claim = PendingClaim::new(core, self.next_claim(core, pass.as_ref())?);
            }
            let now = core.clock.now();
            if now >= give_up {
                pending_claim.withdraw(end).await;
                return Ok(None);
            }
            // A claim that spins is woken by its timer only.
            let wakeup = (self.patience == Patience::Hint).then_some(&*pending_claim.wakeup);
            turn.wait(core, wakeup, (now + pause).min(give_up)).await;
        }
    }

    fn next_claim(&self, core: &Core, pass: Option<&Pass>) -> Result<Claim> {
        let mut claim = self.claim.clone();
        claim.id = core.entropy.claim_id()?;
        claim.behind = pass.map_or(0, Pass::behind);
        claim.renews = self.renew && !self.whole;
        Ok(claim)
    }

    fn granted(
        &self,
        core: &Arc<Core>,
        pending_claim: &mut PendingClaim,
        grant: &Grant,
        started: Moment,
    ) -> Option<Guard> {
        let now = core.clock.now();
        let from = grant.lease.from.map_or(pending_claim.sent, |from| from.min(now));
        let belief = BeliefCell::new(core.clock.clone(), from, grant.lease.ttl, self.max_hold)
            .ending_with(grant.ends_with.clone());
        if !belief.is_held() {
            pending_claim.abandon();
            return None;
        }
        pending_claim.settle();
        let held = Held::new(pending_claim.claim.clone(), grant, belief, now, now.since(started));
        core.observers.emit(&pending_claim.claim, || Step::Granted { fence: held.fence(), waited: held.waited() });
        Some(Guard::new(core.clone(), held, (from, grant.lease.ttl), self.renew, self.owner.clone()))
    }
}

/// A claim that waits for the release of another task of its process. When it is dropped, nothing of it stays in the
/// store: a release may have carried it just before.
struct WaitingInLine<'a> {
    core: &'a Arc<Core>,
    in_line: InLine<'a>,
}

impl Drop for WaitingInLine<'_> {
    fn drop(&mut self) {
        if let Some(carried) = self.in_line.leave() {
            drop(carried.admit(self.core));
        }
    }
}

impl Carried {
    fn admit(self, core: &Arc<Core>) -> Admission {
        let Self { claim, pass, sent, attempt } = self;
        Admission::Carried(pass, PendingClaim::carried(core, claim, sent, attempt))
    }
}

/// Whether another claim waits before `claim`. True if the store does not list its waiters.
async fn waits_behind_another(core: &Core, claim: &Claim, end: Moment) -> Result<bool> {
    let request = core.driver.clone().inspect(Query::name(claim.resource.clone()));
    let page = core.by(end, request, "inspect").await?;
    Ok(page.resources.first().is_some_and(|state| match &state.waiters {
        Waiters::Listed(waiters) => waiters.iter().position(|waiter| waiter.id == claim.id).is_some_and(|at| at > 0),
        Waiters::Counted(_) | Waiters::Hidden => true,
    }))
}

fn self_deadlock(what: &str, claim: &Claim) -> Error {
    let message = format!("this owner holds the lock already {what}");
    Error::new(ErrorKind::SelfDeadlock, message).about(&claim.resource)
}

/// The error of a wait that ended: it names the holder, since when it holds, and how many claims wait.
pub(crate) async fn busy(core: &Arc<Core>, claim: &Claim, started: Moment, end: Moment) -> Error {
    let request = core.driver.clone().inspect(Query::name(claim.resource.clone()));
    // If the store does not answer in time, the error has no details.
    let page = core.by(end, request, "inspect").await.ok();
    let state = page.and_then(|page| page.resources.into_iter().next());
    let busy = Busy {
        holders: state.as_ref().map_or(0, |state| state.holders.len()),
        ahead: state.as_ref().and_then(|state| state.waiters.count()),
        holder: state.and_then(|state| state.holders.into_iter().next()),
        waited: core.clock.now().since(started),
    };
    Error::busy_with(busy).on(core.info.scheme).about(&claim.resource)
}
