//! One task per client that keeps every holder and waiter alive, in batches, and ends belief on time.

mod mailbox;
mod probe;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::backoff::Backoff;
use super::entropy::Entropy;
use super::gate::Lane;
use super::home::Home;
use super::leaving::Leaving;
use crate::belief::{BeliefCell, LossReason};
use crate::claim::{Claim, ClaimId, Fence, Tether};
use crate::clock::{Clock, Moment, sleep_until};
use crate::driver::{DynDriver, End, Gone, Lease, Renewal, Renewed};
use crate::error::{Error, Result};
use crate::event::{Observers, Step};
use crate::state::{Ending, Memo};
use mailbox::Mailbox;

/// The most claims in one request.
const BATCH: usize = 1024;

/// How long a hold that began with a part of its lease may last without a word to the store. Short ones cost no request more.
const SOON: Duration = Duration::from_millis(20);

/// Renewals that fall due within this part of a lease go out together.
const SLACK_DIVISOR: u32 = 12;

/// A waiter is renewed no more often than this many times in the life of a place, however short the lease that the store names: a turn
/// that is not taken gets shorter with every answer.
const MOST_RENEWALS: u32 = 36;

/// What the watchdog needs, and what it watches over.
#[derive(Clone)]
pub(crate) struct Watchdog(Arc<Shared>);

struct Shared {
    driver: Arc<dyn DynDriver>,
    clock: Arc<dyn Clock>,
    observers: Observers,
    entropy: Arc<Entropy>,
    op_timeout: Duration,
    home: Home,
    kept: Mutex<Kept>,
    /// When the task will look next; whoever is due earlier wakes it. Only written under the lock of `kept`.
    next_look: AtomicU64,
    wake: Notify,
    leaving: Leaving,
    stop: CancellationToken,
}

#[derive(Default)]
struct Kept {
    by_id: HashMap<ClaimId, Charge>,
    by_time: BTreeSet<(Moment, ClaimId)>,
    started: bool,
    /// How many news there were.
    news: u64,
}

/// One claim in its care.
struct Charge {
    claim: Arc<Claim>,
    who: Who,
    /// The fence of the grant that its holder believes in; `None` for a waiter.
    fence: Option<Fence>,
    /// When to look at it next.
    look: Moment,
    /// The lease that the store gave last: it may differ from the one asked for.
    ttl: Duration,
    /// When to renew it; `None` while a renewal is under way, and where none is wanted.
    renew_at: Option<Moment>,
    /// False for an explicit lease: looking at it must not extend it.
    renews: bool,
    /// A hint came while a renewal or a look was under way: its answer may be older than the news.
    again: bool,
    /// A look at it is under way, or will be repeated because it was not answered.
    looked_at: bool,
    /// The store has lost its place, and it has not taken another yet.
    misplaced: bool,
    /// To be told with the next renewal, and until one has got through.
    news: Option<News>,
    errors: Backoff,
}

/// What a holder has to say to the store.
struct News {
    /// Which renewals carry it: a late answer to an earlier one says nothing about it.
    number: u64,
    memo: Option<Memo>,
    told: oneshot::Sender<Result<()>>,
}

#[derive(Clone)]
enum Who {
    Holder(Arc<BeliefCell>),
    Waiter {
        /// Rung when it should look again.
        bell: Arc<Notify>,
        /// Those who wait behind it in this process, for others to see.
        lane: Option<Arc<Lane>>,
    },
}

impl Who {
    fn belief(&self) -> Option<&Arc<BeliefCell>> {
        match self {
            Self::Holder(belief) => Some(belief),
            Self::Waiter { .. } => None,
        }
    }
}

impl Watchdog {
    pub(crate) fn new(leaving: Leaving, observers: Observers, op_timeout: Duration, home: Home) -> Self {
        Self(Arc::new(Shared {
            driver: leaving.driver.clone(),
            clock: leaving.clock.clone(),
            observers,
            entropy: leaving.entropy.clone(),
            op_timeout,
            home,
            kept: Mutex::default(),
            next_look: AtomicU64::new(Moment::NEVER.as_nanos()),
            wake: Notify::new(),
            stop: leaving.over.clone(),
            leaving,
        }))
    }

    /// Watches over the holder of the grant with this `fence`, and renews it unless its lease is explicit.
    pub(crate) fn hold(
        &self,
        claim: Arc<Claim>,
        fence: Fence,
        belief: Arc<BeliefCell>,
        lease: (Moment, Duration),
        renew: bool,
    ) {
        let (from, ttl) = lease;
        let at = from + self.0.entropy.jitter(ttl / 3);
        // Handed on with a part of its lease: the rest is asked for soon, unless it is released before.
        let is_part = ttl < claim.ttl / 2 && !self.0.leaving.outlasts_leases;
        let at = if is_part { at.min(self.0.clock.now() + SOON) } else { at };
        self.keep(claim, (Who::Holder(belief), Some(fence)), ttl, renew.then_some(at));
        if is_part {
            // The holder may block this thread now. tokio keeps the task that was woken last for the thread that woke it, and this
            // thread may be the one that waits for timers and sockets. A second new task makes it wake another thread, which takes
            // over both.
            for _ in 0..2 {
                self.0.home.spawn_daemon(std::future::ready(()));
            }
        }
    }

    /// Keeps a waiter's place; `bell` rings when it should look again.
    pub(crate) fn wait(&self, claim: Arc<Claim>, bell: Arc<Notify>, lane: Option<Arc<Lane>>, from: Moment) {
        let ttl = claim.place_ttl();
        let renew_at = Some(from + self.0.entropy.jitter(ttl / 3));
        self.keep(claim, (Who::Waiter { bell, lane }, None), ttl, renew_at);
    }

    /// Takes a claim into its care.
    fn keep(&self, claim: Arc<Claim>, (who, fence): (Who, Option<Fence>), ttl: Duration, renew_at: Option<Moment>) {
        let id = claim.id;
        let errors = Backoff::for_errors(ttl);
        let (look, renews, news) = (Moment::NEVER, renew_at.is_some(), None);
        let (again, looked_at, misplaced) = (false, false, false);
        let mut charge =
            Charge { claim, who, fence, look, ttl, renew_at, renews, again, looked_at, misplaced, news, errors };
        charge.look = charge.next_look();
        let mut kept = self.0.lock();
        if !kept.started {
            kept.started = true;
            self.0.home.spawn_daemon(run(self.0.clone()));
        }
        kept.remove(id);
        self.0.put(&mut kept, id, charge);
    }

    /// Uses `claim` from now on, for one that changed its weight.
    pub(crate) fn replace(&self, claim: Arc<Claim>) {
        if let Some(charge) = self.0.lock().by_id.get_mut(&claim.id) {
            charge.claim = claim;
        }
    }

    /// Renews a holder now, as `claim` and with `memo`, and tells when the store has said yes. Failures are ridden out as
    /// those of any renewal; the answer is dropped when the claim is gone, or is not renewed at all.
    pub(crate) fn publish(&self, claim: Arc<Claim>, memo: Option<Memo>) -> oneshot::Receiver<Result<()>> {
        let (told, answer) = oneshot::channel();
        let mut kept = self.0.lock();
        let Some(mut charge) = kept.remove(claim.id) else { return answer };
        let id = claim.id;
        if charge.renews {
            kept.news += 1;
            charge.claim = claim;
            charge.news = Some(News { number: kept.news, memo, told });
            if charge.renew_at.is_some() {
                charge.renew_at = Some(self.0.clock.now());
            } else {
                charge.again = true;
            }
            charge.look = charge.next_look();
        }
        self.0.put(&mut kept, id, charge);
        answer
    }

    /// Passes a hold on to another holder of the same claim; `None` if less than half of its lease is left.
    pub(crate) fn succeed(&self, id: ClaimId) -> Option<Arc<BeliefCell>> {
        // Under the lock that every answer to a renewal is applied under: none is applied to the old belief after this.
        let mut kept = self.0.lock();
        let charge = kept.by_id.get_mut(&id)?;
        let belief = charge.who.belief()?;
        if belief.is_ending() || belief.time_left() < charge.ttl / 2 {
            return None;
        }
        let next = Arc::new(belief.succeed()?);
        charge.who = Who::Holder(next.clone());
        Some(next)
    }

    /// Whether a claim is in its care.
    pub(crate) fn keeps(&self, id: ClaimId) -> bool {
        self.0.lock().by_id.contains_key(&id)
    }

    /// Lets a claim go: it is not renewed after this.
    pub(crate) fn forget(&self, id: ClaimId) {
        self.0.lock().remove(id);
    }

    pub(crate) fn stop(&self) {
        self.0.stop.cancel();
    }

    /// Stops, and ends belief in what the store will free with the session.
    pub(crate) fn end_session(&self) {
        self.stop();
        let tethered: Vec<_> = {
            // Taken out before belief in them ends, so that none is handed on in between.
            let mut kept = self.0.lock();
            let is_tethered = |charge: &Charge| charge.claim.tether == Tether::Process && charge.who.belief().is_some();
            let ids: Vec<_> = kept.by_id.iter().filter(|(_, charge)| is_tethered(charge)).map(|(id, _)| *id).collect();
            let charges = ids.into_iter().filter_map(|id| kept.remove(id));
            charges.filter_map(|charge| Some((charge.claim.clone(), charge.who.belief()?.clone()))).collect()
        };
        for (claim, belief) in tethered {
            belief.end(LossReason::Session);
            self.0.observers.emit(&claim, || Step::Lost { reason: LossReason::Session });
        }
    }
}

impl Kept {
    fn remove(&mut self, id: ClaimId) -> Option<Charge> {
        let charge = self.by_id.remove(&id)?;
        self.by_time.remove(&(charge.look, id));
        Some(charge)
    }
}

impl Charge {
    /// The earlier of its renewal and the end of belief.
    fn next_look(&self) -> Moment {
        let renewal = self.renew_at.unwrap_or(Moment::NEVER);
        match &self.who {
            Who::Holder(belief) => renewal.min(belief.deadline()),
            Who::Waiter { .. } => renewal,
        }
    }

    /// The lease that a late answer would endanger. The place of a waiter may be about to end: that is no alarm.
    fn patient_for(&self) -> Duration {
        match self.who {
            Who::Holder(_) => self.ttl,
            Who::Waiter { .. } => self.claim.ttl,
        }
    }

    /// Whether the store keeps this claim alive, but not by the grant that its holder believes in: it fell back to an earlier state, in
    /// which the claim waits, or was granted again after that. Others may have held the lock in between.
    fn is_of_another_grant(&self, answer: &Result<Renewed>) -> bool {
        matches!(answer, Ok(Renewed::Alive { fence, .. }) if self.fence.is_some() && *fence != self.fence)
    }

    /// The store has said yes to the renewal that carried news of this number.
    fn tell(&mut self, number: Option<u64>, ending: Option<&Ending>) {
        if let Some(news) = self.news.take_if(|news| number == Some(news.number) || ending.is_some()) {
            // Stores need not take news of a hold that was asked to end. Whoever does not wait for it any more is not told.
            let _ = news.told.send(match ending {
                None => Ok(()),
                Some(ending) => Err(Error::lost(LossReason::Broken(ending.clone()))),
            });
        }
    }

    /// What is to be renewed now.
    fn to_renew(&self) -> Due {
        let (memo, news) = self.news.as_ref().map_or((None, None), |news| (news.memo.clone(), Some(news.number)));
        let (held, failed) = (self.who.belief().is_some(), !self.errors.is_fresh());
        Due { claim: self.as_seen_now(), lease: self.patient_for(), memo, held, news, failed }
    }

    fn as_seen_now(&self) -> Arc<Claim> {
        match &self.who {
            Who::Waiter { lane: Some(lane), .. } => {
                Arc::new(Claim { behind: lane.behind(), ..Claim::clone(&self.claim) })
            }
            Who::Waiter { .. } | Who::Holder(_) => self.claim.clone(),
        }
    }
}

/// The task: sleeps until something is due, a hint arrives, or somebody wakes it.
async fn run(shared: Arc<Shared>) {
    let mut mailbox = Mailbox::default();
    loop {
        let next = shared.note_next_look();
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => break,
            () = shared.wake.notified() => {}
            claim = mailbox.hint(&shared) => shared.look_again_at(claim),
            () = sleep_until(&*shared.clock, next) => {}
        }
        let (due, lost) = shared.due();
        if shared.leaving.outlasts_leases {
            for claim in lost {
                shared.home.spawn(shared.clone().let_go(claim));
            }
        }
        // What failed is asked again by itself: an answer that takes long must not be given up on for the sake of others.
        let (failed, well): (Vec<_>, Vec<_>) = due.into_iter().partition(|due| due.failed);
        for mut due in [well, failed] {
            while !due.is_empty() {
                let batch = due.split_off(due.len().saturating_sub(BATCH));
                shared.home.spawn_daemon(shared.clone().renew(batch));
            }
        }
    }
    // What lives by its lease alone is not renewed after a shutdown, and belief in it ends when its time has come.
    loop {
        let next = shared.note_next_look();
        if next == Moment::NEVER {
            return;
        }
        tokio::select! {
            biased;
            () = shared.wake.notified() => {}
            () = sleep_until(&*shared.clock, next) => {}
        }
        drop(shared.due());
    }
}

/// A claim to be renewed.
struct Due {
    claim: Arc<Claim>,
    /// The lease that its answer must not outlast.
    lease: Duration,
    memo: Option<Memo>,
    /// Whether it holds.
    held: bool,
    /// The number of the news it carries.
    news: Option<u64>,
    /// Whether the last try failed.
    failed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a claim in its place, and wakes the task if it is due before all others.
    fn put(&self, kept: &mut Kept, id: ClaimId, charge: Charge) {
        kept.by_time.insert((charge.look, id));
        if charge.look.as_nanos() < self.next_look.load(Ordering::Relaxed) {
            self.next_look.store(charge.look.as_nanos(), Ordering::Relaxed);
            self.wake.notify_one();
        }
        kept.by_id.insert(id, charge);
    }

    fn note_next_look(&self) -> Moment {
        let kept = self.lock();
        let first = kept.by_time.first().map_or(Moment::NEVER, |(look, _)| *look);
        // A look that was asked for is kept, also when its claim is gone by now: else every short hold would wake the task.
        let planned = Moment::from_nanos(self.next_look.load(Ordering::Relaxed));
        let next = if planned > self.clock.now() { planned.min(first) } else { first };
        self.next_look.store(next.as_nanos(), Ordering::Relaxed);
        next
    }

    /// Ends what is over and takes out what is to be renewed now: the claims to renew, and those that were lost.
    fn due(&self) -> (Vec<Due>, Vec<Arc<Claim>>) {
        let now = self.clock.now();
        let mut batch = Vec::new();
        let mut lost = Vec::new();
        let mut kept = self.lock();
        while let Some((look, id)) = kept.by_time.first().copied() {
            let Some(charge) = kept.by_id.get_mut(&id) else {
                kept.by_time.remove(&(look, id));
                continue;
            };
            if look > now + charge.ttl / SLACK_DIVISOR {
                break;
            }
            if let Who::Holder(belief) = &charge.who
                && (belief.deadline() <= now || belief.token().is_cancelled())
                && belief.end_if_due()
            {
                lost.push((charge.claim.clone(), belief.reason()));
                kept.remove(id);
                continue;
            }
            if charge.renew_at.is_none() && look > now {
                break;
            }
            if charge.renew_at.take().is_some() {
                batch.push(charge.to_renew());
            }
            let look_next = charge.next_look();
            charge.look = look_next;
            kept.by_time.remove(&(look, id));
            kept.by_time.insert((look_next, id));
        }
        drop(kept);
        let lost = lost.into_iter().map(|(claim, reason)| {
            self.observers.emit(&claim, || Step::Lost { reason: reason.unwrap_or(LossReason::Expired) });
            claim
        });
        (batch, lost.collect())
    }

    /// Gives back what was lost without the store's doing: nobody believes in it any more, so nobody should wait for it.
    async fn let_go(self: Arc<Self>, claim: Arc<Claim>) {
        // If it fails for good, the guard's own release or the end of the session is left to do it.
        let _ = self.leaving.release(&claim, &End::Withdrawn, None).await;
    }

    /// Sends one batch and applies the answers. A slow answer is given up on for the plan, but not thrown away:
    /// it counts from when its question left.
    async fn renew(self: Arc<Self>, due: Vec<Due>) {
        let (sent, begun) = (self.clock.now(), Instant::now());
        let renewal = |due: &Due| Renewal { memo: due.memo.clone(), held: due.held, ..Renewal::of(due.claim.clone()) };
        let batch = due.iter().map(renewal).collect();
        let mut request = self.driver.clone().renew(batch);
        // Each is waited for as long as its own lease bears it: a short one makes no other suspect.
        let patience = |due: &Due| self.op_timeout.min(due.lease / 3);
        let mut waiting: Vec<&Due> = due.iter().collect();
        waiting.sort_by_key(|due| std::cmp::Reverse(patience(due)));
        let mut late = HashSet::new();
        let answers = loop {
            let Some(next) = waiting.pop() else { break request.await };
            let left = patience(next).saturating_sub(begun.elapsed());
            if let Ok(answers) = tokio::time::timeout(left, &mut request).await {
                break answers;
            }
            late.insert(next.claim.id);
            let error = Error::unreachable("no answer to a renewal in time");
            self.apply(next.claim.id, (next.held, next.news), sent, Err(error));
        };
        for (due, answer) in due.iter().zip(answers) {
            // A late failure has counted already, and a later renewal may have worked since.
            if answer.is_ok() || !late.contains(&due.claim.id) {
                self.apply(due.claim.id, (due.held, due.news), sent, answer);
            }
        }
    }

    /// What was asked, as a holder or not and with which news, has been answered.
    fn apply(self: &Arc<Self>, id: ClaimId, (held, news): (bool, Option<u64>), sent: Moment, answer: Result<Renewed>) {
        let mut kept = self.lock();
        // Granted meanwhile: what was said of its place, which may have lived longer than the grant does, means nothing now.
        if !held && kept.by_id.get(&id).is_some_and(|charge| charge.who.belief().is_some()) {
            return;
        }
        // Released meanwhile: whatever the answer is, it is nobody's any more.
        let Some(mut charge) = kept.remove(id) else { return };
        let claim = charge.claim.clone();
        let other_grant = charge.is_of_another_grant(&answer);
        let answer = if other_grant { Ok(Renewed::Gone(Gone::Unknown)) } else { answer };
        if let Ok(Renewed::Alive { ending, .. }) = &answer {
            charge.tell(news, ending.as_ref());
        }
        let (keep, step) = match (answer, charge.who.clone()) {
            // An explicit lease is never extended, whatever was asked to learn what became of it.
            (Ok(Renewed::Alive { ending: None, .. }), Who::Holder(_)) if !charge.renews => (true, None),
            (Ok(Renewed::Alive { lease, ending, .. }), Who::Holder(belief)) => {
                self.extend(&mut charge, &belief, sent, lease, ending)
            }
            (Ok(Renewed::Alive { lease, .. }), Who::Waiter { .. }) => {
                (charge.ttl, charge.misplaced) = (lease.ttl.min(claim.place_ttl()), false);
                self.plan(&mut charge, lease.from.unwrap_or(sent));
                (true, None)
            }
            (Ok(Renewed::Gone(gone)), Who::Holder(belief)) => {
                belief.end(gone.into());
                (false, belief.reason().map(|reason| Step::Lost { reason }))
            }
            (Ok(Renewed::Gone(_)), Who::Waiter { bell, .. }) => {
                bell.notify_one();
                // It stands nowhere until it asks again, which it may not do for long: there is no lease to keep.
                charge.ttl = claim.place_ttl();
                self.plan(&mut charge, sent);
                (true, (!std::mem::replace(&mut charge.misplaced, true)).then_some(Step::Requeued))
            }
            (Err(error), who) => {
                charge.renew_at = Some(self.clock.now() + self.entropy.jitter(charge.errors.next()));
                match who {
                    Who::Holder(belief) if belief.set_suspect(true) => (true, Some(Step::Suspect { error })),
                    Who::Holder(_) | Who::Waiter { .. } => (true, None),
                }
            }
        };
        if keep {
            if std::mem::take(&mut charge.again) && charge.renew_at.is_some() {
                charge.renew_at = Some(self.clock.now());
            }
            charge.look = charge.next_look();
            self.put(&mut kept, id, charge);
        }
        drop(kept);
        if let Some(step) = step {
            self.observers.emit(&claim, || step);
        }
        if other_grant {
            // What the store has of it now is believed in by no holder.
            self.home.spawn(self.clone().let_go(claim));
        }
    }

    fn plan(&self, charge: &mut Charge, from: Moment) {
        charge.errors.reset();
        let pause = match charge.who {
            Who::Holder(_) => charge.ttl / 3,
            Who::Waiter { .. } => (charge.ttl / 3).max(charge.claim.place_ttl() / MOST_RENEWALS),
        };
        charge.renew_at = Some(from + self.entropy.jitter(pause));
    }

    /// Looks at a claim in time for the end of its belief, which has come nearer.
    fn plan_anew(&self, id: ClaimId) {
        let mut kept = self.lock();
        if let Some(mut charge) = kept.remove(id) {
            charge.look = charge.next_look();
            self.put(&mut kept, id, charge);
        }
    }

    fn extend(
        &self,
        charge: &mut Charge,
        belief: &BeliefCell,
        sent: Moment,
        lease: Lease,
        ending: Option<Ending>,
    ) -> (bool, Option<Step>) {
        let from = lease.from.map_or(sent, |from| from.min(self.clock.now()));
        if let Some(ending) = ending {
            // It was renewed for the last time: what is left is for finishing.
            belief.end_by(from, lease.ttl, LossReason::Broken(ending.clone()));
            charge.renew_at = None;
            let left = belief.deadline().since(self.clock.now());
            return (true, Some(Step::Ending { ending, left }));
        }
        if !belief.extend(from, lease.ttl) {
            return (true, None);
        }
        charge.ttl = lease.ttl;
        self.plan(charge, from);
        let step = if belief.set_suspect(false) { Step::Recovered } else { Step::Renewed };
        (true, Some(step))
    }
}

#[cfg(test)]
mod tests;
