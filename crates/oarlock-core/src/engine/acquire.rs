//! The acquire loop: attempt, watch, attempt again, sleep, until granted, refused or out of time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify as Bell;

use super::backoff::{Backoff, Patience};
use super::cohort::{Baton, Bounds, MAX_HAND_OFFS};
use super::crowd::Stand;
use super::gate::Pass;
use super::{Core, Orphan, check_ttl};
use crate::belief::BeliefCell;
use crate::capabilities::Notify;
use crate::claim::{Claim, Kind, Weight};
use crate::clock::{Moment, nap_until};
use crate::driver::{Attempt, BoxFuture, Cursor, End, Grant, Interest, Pending, Release, Watch};
use crate::error::{Applied, Busy, Error, ErrorKind, Result, Retry};
use crate::event::Step;
use crate::guard::{Guard, Held};
use crate::locks::Locks;
use crate::owner::{Holds, Owner};
use crate::state::{Query, Waiters};

/// What the last requests of a bounded wait may take beyond it, all together.
pub(crate) const LAST_CHANCE: Duration = Duration::from_secs(1);

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Not at all.
    No,
    /// At most this long.
    AtMost(Duration),
    /// As long as it takes. Say it only where you mean it.
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

/// Everything that is asked for: what the kinds fill in and the loop works off.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) client: Locks,
    /// What every claim of this asking looks like; each acquisition draws its own id.
    pub(crate) claim: Claim,
    /// What is wrong with it: a name or a number that cannot be. The first attempt says so.
    pub(crate) invalid: Option<Error>,
    pub(crate) wait: Wait,
    /// False for an explicit lease.
    pub(crate) renew: bool,
    /// Its first lease must be the whole one.
    pub(crate) whole: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) patience: Patience,
    /// It stands in the store's queue itself, not behind the other tasks of its process.
    pub(crate) fair: bool,
    pub(crate) owner: Option<Owner>,
    /// When an attempt that does not wait must have been answered, where that is sooner than for other requests.
    pub(crate) answer_by: Moment,
    /// Whether the lock may go from task to task of this process, and how far.
    pub(crate) cohort: Option<Bounds>,
}

/// How a claim gets past the other tasks of its process.
enum Entry {
    /// It stands before the store.
    Store(Option<Pass>),
    /// It was handed the lock.
    Handed(Guard),
}

impl Ask {
    /// Acquires without waiting; `None` if it is busy.
    pub(crate) async fn attempt(mut self) -> Result<Option<Guard>> {
        self.wait = Wait::No;
        self.acquire().await
    }

    /// Acquires within the wait asked for.
    pub(crate) async fn lock(self) -> Result<Guard> {
        let core = self.client.core.clone();
        let claim = self.claim.clone();
        let started = core.clock.now();
        let give_up = self.wait.until(started);
        match self.acquire().await? {
            Some(guard) => Ok(guard),
            None => {
                let give_up = if give_up > started { give_up } else { core.clock.now() };
                Err(busy(&core, &claim, started, give_up + LAST_CHANCE).await)
            }
        }
    }

    /// Acquires within the wait asked for; `None` if that ends.
    pub(crate) async fn acquire(mut self) -> Result<Option<Guard>> {
        let core = self.client.core.clone();
        self.check(&core)?;
        let started = core.clock.now();
        let give_up = self.wait.until(started);
        self.claim.wait = give_up > started;
        let joins = self.check_owner(&core)?;
        let pass = match self.enter_gate(&core, started, give_up).await {
            None => return Ok(None),
            Some(Entry::Handed(guard)) => return Ok(Some(guard)),
            Some(Entry::Store(pass)) => pass,
        };
        let place = self.check_crowd(&core, pass.as_ref())?;
        let mut granted = self.stand_in_line(&core, pass, joins, started, give_up).await?;
        drop(place);
        if let (Some(guard), Some(bounds), true) = (&mut granted, self.cohort, self.claim.wait) {
            let left = (give_up + LAST_CHANCE).since(core.clock.now());
            let baton = Baton::reserve(&core, guard, bounds, left.min(self.claim.ttl / 6)).await;
            guard.set_baton(baton);
        }
        Ok(granted)
    }

    /// Whether it can be asked for at all.
    pub(crate) fn check_valid(&self) -> Result<()> {
        self.invalid.clone().map_or(Ok(()), Err)
    }

    fn check(&self, core: &Core) -> Result<()> {
        core.check_open()?;
        self.check_valid()?;
        check_ttl(self.claim.ttl)?;
        self.claim.label.check()?;
        core.check_tether(self.claim.tether, &self.claim.resource)?;
        if let Some(message) = self.contradiction() {
            return Err(Error::new(ErrorKind::InvalidClaim, message).about(&self.claim.resource));
        }
        let can = &core.info.capabilities;
        let missing = if self.fair && !can.order {
            "grant in order of arrival"
        } else if self.claim.kind == Kind::Election && !can.records {
            "show who leads"
        } else {
            return Ok(());
        };
        let message = format!("this store cannot {missing}");
        Err(Error::new(ErrorKind::Unsupported, message).on(core.info.scheme).about(&self.claim.resource))
    }

    /// A place among those of this client that stand in the store's queue for this name. Whoever passed the gate alone is the only one.
    fn check_crowd(&self, core: &Core, pass: Option<&Pass>) -> Result<Option<Stand>> {
        if !self.claim.wait || (pass.is_some() && self.claim.weight == Weight::All) {
            return Ok(None);
        }
        core.crowds.enter(&self.claim.resource).map(Some).map_err(|error| error.on(core.info.scheme))
    }

    /// What cannot be asked for together, or at all.
    fn contradiction(&self) -> Option<String> {
        if self.max_hold.is_some_and(|span| span.is_zero()) {
            return Some("a lock cannot be held for no time at all".to_owned());
        }
        let Bounds { hand_offs, span } = self.cohort?;
        if self.fair || !self.renew || self.max_hold.is_some() || self.owner.is_some() {
            let other = "be fair, or have an explicit lease, a longest hold or an owner";
            return Some(format!("a lock that goes from task to task cannot {other}"));
        }
        if !(1..=MAX_HAND_OFFS).contains(&hand_offs) {
            return Some(format!("a lock is handed on between 1 and {MAX_HAND_OFFS} times, not {hand_offs}"));
        }
        // Whoever stands before the store for this process waits while the lock goes round.
        match self.wait {
            Wait::AtMost(wait) if wait <= span.saturating_mul(2) => {
                Some(format!("a wait of {wait:?} is too short for a lock that goes round for {span:?}"))
            }
            _ => None,
        }
    }

    /// True if the owner holds the name already: this claim may join, but must not wait behind a claim that waits for this owner.
    fn check_owner(&self, core: &Core) -> Result<bool> {
        let Some(owner) = &self.owner else { return Ok(false) };
        match owner.holds(core.store_number(), &self.claim) {
            Holds::Incompatible if self.claim.wait => Err(self_deadlock("and would wait for itself", &self.claim)),
            Holds::Compatible => Ok(self.claim.wait && core.info.capabilities.order),
            Holds::Nothing | Holds::Incompatible => Ok(false),
        }
    }

    /// `None`: out of time.
    async fn enter_gate(&self, core: &Core, started: Moment, give_up: Moment) -> Option<Entry> {
        // Readers and permits of a process can hold side by side: where the store keeps the order, each stands in its queue.
        let is_shared = core.info.capabilities.order && self.claim.weight != Weight::All;
        if !self.claim.wait || self.fair || is_shared {
            return Some(Entry::Store(None));
        }
        let mut seek = self.cohort.map(|_| core.cohorts.seek(&self.claim, started));
        let handed = async {
            match &mut seek {
                Some(seek) => seek.handed().await,
                None => std::future::pending().await,
            }
        };
        let enter = core.gate.enter(&self.claim.resource, self.claim.weight);
        tokio::select! {
            biased;
            guard = handed => Some(Entry::Handed(guard)),
            pass = enter => Some(Entry::Store(Some(pass))),
            () = nap_until(&*core.clock, give_up) => None,
        }
    }

    /// Stands before the store until granted (`Some`), refused (`None`) or failed.
    async fn stand_in_line(
        &self,
        core: &Arc<Core>,
        pass: Option<Pass>,
        joins: bool,
        started: Moment,
        give_up: Moment,
    ) -> Result<Option<Guard>> {
        let mut place = Place::new(core, self.next_claim(core, pass.as_ref())?);
        core.observers.emit(&place.claim, || Step::Requested);
        let notify = core.info.capabilities.notify;
        let mut pauses = Backoff::for_waiting(self.patience, notify, self.claim.ttl);
        let mut slow = Backoff::for_waiting(self.patience, Notify::Push, self.claim.ttl);
        let mut errors = Backoff::for_errors(self.claim.ttl);
        let mut may_repeat_at_once = true;
        let mut turn = Turn::default();
        // Everything has ended by then, whatever the store does.
        let end = if self.claim.wait { give_up + LAST_CHANCE } else { self.answer_by };
        loop {
            let answer = place.attempt(end).await;
            let pause = match answer {
                Ok(Attempt::Granted(grant)) => match self.granted(core, &mut place, &grant, started) {
                    // Of a client that was shut down meanwhile it is already lost, and let go by being dropped.
                    Some(guard) => return core.check_open().map(|()| Some(guard)),
                    // The answer took longer than the lease: it is worth nothing, and neither is its claim.
                    None => core.entropy.jitter(errors.next()),
                },
                Ok(Attempt::Pending(_)) if !self.claim.wait => {
                    place.settle();
                    return Ok(None);
                }
                Ok(Attempt::Pending(pending)) => {
                    errors.reset();
                    may_repeat_at_once = true;
                    place.queue(pending.ahead, pass.as_ref());
                    // After every answer: a claim that lost its place stands behind others. If the look fails, the next one tells.
                    if joins && stands_behind(core, &place.claim, end).await.unwrap_or(false) {
                        place.withdraw(end).await;
                        return Err(self_deadlock("and would wait behind a claim that waits for it", &self.claim));
                    }
                    if self.patience == Patience::Hint && turn.arm(core, &place.claim, &pending, give_up).await {
                        // Whatever changed before the watch was armed is seen by looking once more.
                        continue;
                    }
                    // Whoever will be told has no need to look often, also where others have.
                    let pauses = if pending.watched && turn.watch.is_some() { &mut slow } else { &mut pauses };
                    if let (true, Weight::All, Some(ahead)) =
                        (core.info.capabilities.order, self.claim.weight, pending.ahead)
                    {
                        pauses.stand(ahead);
                    }
                    let pause = core.entropy.jitter(pauses.next());
                    let recheck = pending.recheck_after.map(|after| after + Duration::from_millis(1));
                    recheck.map_or(pause, |after| after.min(pause))
                }
                Err(error) if error.retry() == Retry::Never => return Err(place.fail(error)),
                Err(error) => {
                    let is_quick = error.retry() == Retry::Now;
                    // Once; an error that comes again and again is no better for being met sooner.
                    let at_once = is_quick && std::mem::take(&mut may_repeat_at_once);
                    let pause = if at_once { Duration::ZERO } else { core.entropy.jitter(errors.next()) };
                    let until = match self.claim.wait {
                        true => give_up,
                        // Whoever does not wait is not told of what another try mends.
                        false if is_quick => (started + LAST_CHANCE).min(end),
                        false => started,
                    };
                    let again = core.clock.now() + pause;
                    if again >= until {
                        return Err(place.fail(error));
                    }
                    core.observers.emit(&place.claim, || Step::Retrying { error });
                    if !self.claim.wait {
                        nap_until(&*core.clock, again).await;
                        continue;
                    }
                    pause
                }
            };
            if place.is_spent() {
                turn = Turn::default();
                place = Place::new(core, self.next_claim(core, pass.as_ref())?);
            }
            let now = core.clock.now();
            if now >= give_up {
                place.withdraw(end).await;
                return Ok(None);
            }
            // Whoever spins goes by the timer, whatever the mailbox says.
            let bell = (self.patience == Patience::Hint).then_some(&*place.bell);
            turn.wait(core, bell, (now + pause).min(give_up)).await;
        }
    }

    fn next_claim(&self, core: &Core, pass: Option<&Pass>) -> Result<Claim> {
        let mut claim = self.claim.clone();
        claim.id = core.entropy.claim_id()?;
        claim.behind = pass.map_or(0, Pass::behind);
        claim.renews = self.renew && !self.whole;
        Ok(claim)
    }

    fn granted(&self, core: &Arc<Core>, place: &mut Place, grant: &Grant, started: Moment) -> Option<Guard> {
        let now = core.clock.now();
        let from = grant.lease.from.map_or(place.sent, |from| from.min(now));
        let belief = BeliefCell::new(core.clock.clone(), from, grant.lease.ttl, self.max_hold);
        if !belief.is_held() {
            place.abandon();
            return None;
        }
        place.settle();
        let held = Held::new(place.claim.clone(), grant, belief, now, now.since(started));
        core.observers.emit(&place.claim, || Step::Granted { fence: held.fence(), waited: held.waited() });
        Some(Guard::new(core.clone(), held, (from, grant.lease.ttl), self.renew, self.owner.clone()))
    }
}

/// A claim before it is granted. Dropping it, at any moment, leaves nothing in the store.
struct Place {
    core: Arc<Core>,
    claim: Arc<Claim>,
    bell: Arc<Bell>,
    /// The attempt under way: owned here, so that it can be handed over whole.
    under_way: Option<BoxFuture<Result<Attempt>>>,
    leaving: Option<BoxFuture<Result<Release>>>,
    sent: Moment,
    standing: Standing,
    /// Some attempt may have taken effect without our knowing.
    doubtful: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// The store has nothing of it.
    Clean,
    /// The store may know it.
    Known,
    /// The store has it queued, and the watchdog keeps it alive.
    Queued,
    /// It was handed to the reaper: another claim must take its place.
    Spent,
}

impl Place {
    fn new(core: &Arc<Core>, claim: Claim) -> Self {
        Self {
            core: core.clone(),
            claim: Arc::new(claim),
            bell: Arc::default(),
            under_way: None,
            leaving: None,
            sent: Moment::ZERO,
            standing: Standing::Clean,
            doubtful: false,
        }
    }

    /// One attempt. If the store does not answer in time the claim is given up, because its answer may still come.
    async fn attempt(&mut self, end: Moment) -> Result<Attempt> {
        if self.standing == Standing::Clean {
            self.standing = Standing::Known;
        }
        self.sent = self.core.clock.now();
        let request = self.under_way.insert(self.core.driver.clone().attempt(self.claim.clone()));
        let patience = self.core.op_timeout.min(end.since(self.sent));
        match tokio::time::timeout(patience, request).await {
            Ok(answer) => {
                self.under_way = None;
                self.doubtful |= answer.as_ref().is_err_and(|error| error.applied() == Applied::Unknown);
                answer
            }
            Err(_) => {
                self.abandon();
                let error = Error::unreachable("no answer in time").on(self.core.info.scheme).during("attempt");
                Err(error.about(&self.claim.resource))
            }
        }
    }

    fn queue(&mut self, ahead: Option<u32>, pass: Option<&Pass>) {
        if self.standing != Standing::Queued {
            self.standing = Standing::Queued;
            let lane = pass.map(Pass::lane);
            self.core.watchdog.wait(self.claim.clone(), self.bell.clone(), lane, self.sent);
        }
        self.core.observers.emit(&self.claim, || Step::Waiting { ahead });
    }

    /// The store has nothing of it that is not somebody's: a guard has it, or the refusal left nothing.
    fn settle(&mut self) {
        self.core.watchdog.forget(self.claim.id);
        self.standing = Standing::Clean;
    }

    /// Leaves the queue and waits for the store to say so, so that whoever looks next does not see it there.
    async fn withdraw(&mut self, end: Moment) {
        if !matches!(self.standing, Standing::Known | Standing::Queued) {
            return;
        }
        self.core.watchdog.forget(self.claim.id);
        let request = self.leaving.insert(self.core.release(&self.claim, End::Withdrawn));
        let patience = self.core.op_timeout.min(end.since(self.core.clock.now()));
        let Ok(answer) = tokio::time::timeout(patience, request).await else { return };
        self.leaving = None;
        if answer.is_ok() {
            self.standing = Standing::Clean;
            self.core.observers.emit(&self.claim, || Step::Withdrawn);
        }
    }

    /// Gives the error its place, after which nothing may be left of this claim.
    fn fail(&mut self, error: Error) -> Error {
        // An earlier attempt of this claim may have been granted, whatever became of the last one.
        if error.applied() == Applied::No && !self.doubtful && self.standing == Standing::Known {
            self.standing = Standing::Clean;
        }
        error
    }

    fn is_spent(&self) -> bool {
        self.standing == Standing::Spent
    }

    /// Hands the claim to the reaper, with the attempt that is still under way.
    fn abandon(&mut self) {
        self.core.watchdog.forget(self.claim.id);
        self.standing = Standing::Spent;
        Orphan {
            claim: self.claim.clone(),
            attempt: self.under_way.take(),
            release: self.leaving.take(),
            end: End::Withdrawn,
            held_for: None,
        }
        .adopt(&self.core);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if matches!(self.standing, Standing::Known | Standing::Queued) {
            self.abandon();
        }
    }
}

/// The watch for a claim's turn.
struct Turn {
    watch: Option<(Cursor, Watch)>,
    /// After a watch that failed or ended, not before this.
    arm_at: Moment,
    pauses: Backoff,
}

impl Default for Turn {
    fn default() -> Self {
        let pauses = Backoff::new(Duration::from_millis(20), Duration::from_secs(5));
        Self { watch: None, arm_at: Moment::ZERO, pauses }
    }
}

impl Turn {
    /// Arms a watch unless one for this cursor is armed; true if the store must be asked once more because of that.
    async fn arm(&mut self, core: &Core, claim: &Arc<Claim>, pending: &Pending, give_up: Moment) -> bool {
        if self.watch.as_ref().is_some_and(|(cursor, _)| *cursor == pending.cursor) {
            return false;
        }
        if core.clock.now() < self.arm_at {
            return false;
        }
        let interest = Interest::Turn(claim.clone(), pending.cursor.clone());
        let armed = core.by(give_up, core.driver.clone().watch(interest), "watch").await;
        // Without a watch the pauses still bring us back.
        self.watch = armed.ok().map(|watch| (pending.cursor.clone(), watch));
        if self.watch.is_none() {
            self.arm_later(core);
        }
        self.watch.is_some() && !pending.watched
    }

    /// A store whose watches fail or end at once must not be asked for them in a tight loop.
    fn arm_later(&mut self, core: &Core) {
        self.watch = None;
        self.arm_at = core.clock.now() + core.entropy.jitter(self.pauses.next());
    }

    /// Sleeps until a hint, the bell, or `until`.
    async fn wait(&mut self, core: &Core, bell: Option<&Bell>, until: Moment) {
        let hint = async {
            match &mut self.watch {
                Some((_, watch)) => watch.changed().await,
                None => std::future::pending().await,
            }
        };
        let ring = async {
            match bell {
                Some(bell) => bell.notified().await,
                None => std::future::pending().await,
            }
        };
        let until = if self.arm_at > core.clock.now() { until.min(self.arm_at) } else { until };
        let hinted = tokio::select! {
            biased;
            hint = hint => Some(hint),
            () = ring => None,
            () = nap_until(&*core.clock, until) => None,
        };
        match hinted {
            Some(None) => self.arm_later(core),
            Some(Some(_)) => self.pauses.reset(),
            None => {}
        }
    }
}

/// Whether another claim waits before `claim`. A store that does not list waiters is taken to have one.
async fn stands_behind(core: &Core, claim: &Claim, end: Moment) -> Result<bool> {
    let look = core.driver.clone().inspect(Query::name(claim.resource.clone()));
    let page = core.by(end, look, "inspect").await?;
    Ok(page.resources.first().is_some_and(|state| match &state.waiters {
        Waiters::Listed(waiters) => waiters.iter().position(|waiter| waiter.id == claim.id).is_some_and(|at| at > 0),
        Waiters::Counted(_) | Waiters::Hidden => true,
    }))
}

fn self_deadlock(what: &str, claim: &Claim) -> Error {
    let message = format!("this owner holds it already, {what}");
    Error::new(ErrorKind::SelfDeadlock, message).about(&claim.resource)
}

/// The error of a wait that ended: who holds it, since when, how many wait.
pub(crate) async fn busy(core: &Arc<Core>, claim: &Claim, started: Moment, end: Moment) -> Error {
    let look = core.driver.clone().inspect(Query::name(claim.resource.clone()));
    // If the store does not tell in time, the wait has still ended.
    let page = core.by(end, look, "inspect").await.ok();
    let state = page.and_then(|page| page.resources.into_iter().next());
    let busy = Busy {
        holders: state.as_ref().map_or(0, |state| state.holders.len()),
        ahead: state.as_ref().and_then(|state| state.waiters.count()),
        holder: state.and_then(|state| state.holders.into_iter().next()),
        waited: core.clock.now().since(started),
    };
    Error::busy_with(busy).on(core.info.scheme).about(&claim.resource)
}
