//! The watchdog: one task per client that renews all its holders and waiters, in batches, and ends belief on time.

mod entry;
mod mailbox;
mod probe;
mod session;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::backoff::Backoff;
use super::entropy::Entropy;
use super::gate::NameQueue;
use super::line::{Carried, SHORT};
use super::reaper::Orphan;
use super::releaser::Releaser;
use super::runtime::Runtime;
use crate::belief::{BeliefCell, LossReason};
use crate::claim::{Claim, ClaimId, Fence, Lifetime};
use crate::clock::{Clock, Moment, sleep_until};
use crate::driver::{DynDriver, End, Gone, Lease, Renewal, Renewed};
use crate::error::{Error, Result};
use crate::event::{Observers, Step};
use crate::state::{Ending, Memo};
use crate::telemetry::{Deferred, RenewalOutcome, Telemetry};
use entry::{Due, Entries, Entry, Publication, Role};
use mailbox::Mailbox;

/// When a hold that began with a part of its lease is first renewed. A shorter hold costs no renewal.
const SOON: Duration = Duration::from_millis(20);

/// Renewals that fall due within this part of a lease go out together.
const SLACK_DIVISOR: u32 = 12;

/// A waiter is renewed at most this often in the lease of a waiter, even if the store answers with a shorter one: the
/// lease of a turn that is not taken gets shorter with every answer.
const MOST_RENEWALS: u32 = 36;

/// A handle of the watchdog of a client.
#[derive(Clone)]
pub(crate) struct Watchdog(Arc<Shared>);

struct Shared {
    driver: Arc<dyn DynDriver>,
    clock: Arc<dyn Clock>,
    observers: Observers,
    telemetry: Telemetry,
    entropy: Arc<Entropy>,
    op_timeout: Duration,
    runtime: Runtime,
    entries: Mutex<Entries>,
    /// When the task will run next; an entry that is due earlier wakes it. Only written under the lock of `entries`.
    next_check: AtomicU64,
    wake: Arc<Notify>,
    /// Whether a thread outside of the runtime will wake the task.
    waking: Arc<AtomicBool>,
    releaser: Releaser,
    stop: CancellationToken,
}

impl Watchdog {
    pub(crate) fn new(
        releaser: Releaser,
        (observers, telemetry): (Observers, Telemetry),
        op_timeout: Duration,
        runtime: Runtime,
    ) -> Self {
        Self(Arc::new(Shared {
            driver: releaser.driver.clone(),
            clock: releaser.clock.clone(),
            observers,
            telemetry,
            entropy: releaser.entropy.clone(),
            op_timeout,
            runtime,
            entries: Mutex::default(),
            next_check: AtomicU64::new(Moment::NEVER.as_nanos()),
            wake: Arc::default(),
            waking: Arc::default(),
            stop: releaser.over.clone(),
            releaser,
        }))
    }

    /// Adds the holder of the grant with this `fence`, at `now`, and renews it unless its lease is explicit.
    pub(crate) fn hold(
        &self,
        claim: Arc<Claim>,
        fence: Fence,
        belief: Arc<BeliefCell>,
        lease: (Moment, Duration),
        renew: bool,
        now: Moment,
    ) {
        let (from, ttl) = lease;
        let at = from + self.0.entropy.jitter(ttl / 3);
        // The lock was handed on with a part of its lease: renew it soon, unless it is released before.
        let is_part = ttl < claim.ttl / 2 && !self.0.releaser.outlasts_leases;
        let at = if is_part { at.min(now + SOON) } else { at };
        // The grant may have taken long: a renewal that is due at once is not late.
        let at = at.max(now);
        // The holder may block this thread now, which may be the one that polls timers and sockets, and which keeps the
        // task that it woke last for itself.
        let from_outside = is_part && self.0.runtime.has_other_threads();
        let session = belief.ends_with().cloned();
        self.keep(claim, (Role::Holder(belief), Some(fence)), ttl, renew.then_some(at), from_outside);
        // After it was added, so that an end in between finds it.
        if let Some(session) = session {
            self.0.await_end_of(session);
        }
    }

    /// Adds a waiter, and notifies `wakeup` when it should attempt again.
    pub(crate) fn wait(&self, claim: Arc<Claim>, wakeup: Arc<Notify>, queue: Option<Arc<NameQueue>>, from: Moment) {
        let ttl = claim.waiter_ttl();
        let renew_at = Some(from + self.0.entropy.jitter(ttl / 3));
        self.keep(claim, (Role::Waiter { wakeup, queue }, None), ttl, renew_at, false);
    }

    /// Adds an entry, and wakes the task in time: from outside of the runtime if `from_outside`.
    fn keep(
        &self,
        claim: Arc<Claim>,
        (role, fence): (Role, Option<Fence>),
        ttl: Duration,
        renew_at: Option<Moment>,
        from_outside: bool,
    ) {
        let id = claim.id;
        let errors = Backoff::for_errors(ttl);
        let (check_at, renews, publication) = (Moment::NEVER, renew_at.is_some(), None);
        let (recheck, probing, evicted) = (false, false, false);
        let mut entry = Entry {
            claim,
            role,
            fence,
            check_at,
            ttl,
            renew_at,
            renews,
            recheck,
            probing,
            evicted,
            publication,
            errors,
        };
        entry.check_at = entry.next_check();
        let mut entries = self.0.lock();
        if !entries.started {
            entries.started = true;
            self.0.runtime.spawn_daemon(run(self.0.clone()));
        }
        entries.remove(id);
        if !from_outside {
            return self.0.put(&mut entries, id, entry);
        }
        // The entry first: a wake-up that is under way already must find it.
        let check_at = entry.check_at;
        entries.insert(id, entry);
        drop(entries);
        if !self.0.wake_from_outside() {
            let _entries = self.0.lock();
            self.0.wake_before(check_at);
        }
    }

    /// Uses `claim` from now on, for one that changed its weight, and the session that its new grant ends with.
    pub(crate) fn replace(&self, claim: Arc<Claim>) {
        let session = {
            let mut entries = self.0.lock();
            let Some(entry) = entries.by_id.get_mut(&claim.id) else { return };
            entry.claim = claim;
            entry.role.belief().and_then(|belief| belief.ends_with().cloned())
        };
        if let Some(session) = session {
            self.0.await_end_of(session);
        }
    }

    /// Renews a holder now, as `claim` and with `memo`, which the store must remember for `keep`, and reports when
    /// the store has confirmed it. Failed renewals are retried as usual. The sender is dropped when the claim is gone,
    /// or is not renewed at all.
    pub(crate) fn publish(
        &self,
        claim: Arc<Claim>,
        memo: Option<Memo>,
        keep: Duration,
    ) -> oneshot::Receiver<Result<()>> {
        let (done, answer) = oneshot::channel();
        let mut entries = self.0.lock();
        let Some(mut entry) = entries.remove(claim.id) else { return answer };
        let id = claim.id;
        if entry.renews {
            entries.publication += 1;
            entry.claim = claim;
            entry.publication = Some(Publication { number: entries.publication, memo, keep, done });
            if let Some(planned) = entry.renew_at {
                entry.renew_at = Some(planned.min(self.0.clock.now()));
            } else {
                entry.recheck = true;
            }
            entry.check_at = entry.next_check();
        }
        self.0.put(&mut entries, id, entry);
        answer
    }

    /// Checks the queue behind a holder of this process every millisecond, until nothing happens there.
    pub(crate) fn check_queue(&self, queue: Arc<NameQueue>, now: Moment) {
        self.0.lock().queues.push(queue);
        // A holder calls this, and may block its thread next: the task must not wait for that.
        if !(self.0.runtime.has_other_threads() && self.0.wake_from_outside()) {
            let _entries = self.0.lock();
            self.0.wake_before(now + SHORT);
        }
    }

    /// Passes a hold on to another holder of the same claim; `None` if less than half of its lease is left.
    pub(crate) fn succeed(&self, id: ClaimId) -> Option<Arc<BeliefCell>> {
        let _deferred = Deferred::begin();
        // Answers to renewals are applied under this lock: none is applied to the old belief after this.
        let mut entries = self.0.lock();
        let entry = entries.by_id.get_mut(&id)?;
        let belief = entry.role.belief()?;
        if belief.is_ending() || belief.time_left() < entry.ttl / 2 {
            return None;
        }
        let next = Arc::new(belief.succeed()?);
        entry.role = Role::Holder(next.clone());
        Some(next)
    }

    /// Whether it keeps this claim alive.
    pub(crate) fn keeps(&self, id: ClaimId) -> bool {
        self.0.lock().by_id.contains_key(&id)
    }

    /// Whether it keeps a claim alive that waits.
    pub(crate) fn keeps_waiters(&self) -> bool {
        self.0.lock().waiters > 0
    }

    /// Removes a claim: it is not renewed after this.
    pub(crate) fn forget(&self, id: ClaimId) {
        self.0.lock().remove(id);
    }

    pub(crate) fn stop(&self) {
        self.0.stop.cancel();
    }

    /// Stops, and ends belief in the locks that the store releases with the session.
    pub(crate) fn end_session(&self) {
        self.stop();
        self.0.lose(|entry, _| entry.claim.lifetime == Lifetime::Process);
    }
}

/// The task: sleeps until an entry is due, a hint arrives, or it is woken.
async fn run(shared: Arc<Shared>) {
    let (mut mailbox, batch) = (Mailbox::default(), shared.driver.info().batch.max(1));
    loop {
        let next = shared.note_next_check();
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => break,
            () = shared.wake.notified() => {}
            claim = mailbox.hint(&shared) => shared.apply_hint(claim),
            () = sleep_until(&*shared.clock, next) => {}
        }
        shared.check_queues();
        let (due, lost) = shared.due();
        if shared.releaser.outlasts_leases {
            for claim in lost {
                shared.runtime.spawn(shared.clone().give_back(claim));
            }
        }
        // Renewals that failed before go in a batch of their own: a driver may give up a slow server once the others
        // have answered. Alone, it is waited for.
        let (failed, well): (Vec<_>, Vec<_>) = due.into_iter().partition(|due| due.failed);
        for mut due in [well, failed] {
            while !due.is_empty() {
                let part = due.split_off(due.len().saturating_sub(batch));
                shared.runtime.spawn_daemon(shared.clone().renew(part));
            }
        }
    }
    // After a shutdown, locks that live by their lease alone are not renewed. Belief in them ends with their lease.
    loop {
        let next = shared.note_next_check();
        if next == Moment::NEVER {
            return;
        }
        tokio::select! {
            biased;
            () = shared.wake.notified() => {}
            () = sleep_until(&*shared.clock, next) => {}
        }
        shared.check_queues();
        drop(shared.due());
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a thread outside of the runtime wake the task within [`SOON`], so that another thread of the runtime runs it
    /// and polls timers and sockets. False if there is no such thread.
    ///
    /// To wake another thread at once would cost more than all else at a hand-over: one wake-up is enough for all
    /// calls of that time.
    fn wake_from_outside(&self) -> bool {
        if self.waking.swap(true, Ordering::AcqRel) {
            return true;
        }
        let (wake, waking) = (self.wake.clone(), self.waking.clone());
        let work = move || {
            std::thread::sleep(SOON);
            // First, so that a call that comes now starts another thread.
            waking.store(false, Ordering::Release);
            wake.notify_one();
        };
        let started = std::thread::Builder::new().name("oarlock-wake".into()).spawn(work).is_ok();
        if !started {
            self.waking.store(false, Ordering::Release);
        }
        started
    }

    /// Inserts an entry, and wakes the task if the entry is due before all others.
    fn put(&self, entries: &mut Entries, id: ClaimId, entry: Entry) {
        let check_at = entry.check_at;
        entries.insert(id, entry);
        self.wake_before(check_at);
    }

    /// Wakes the task if it would sleep longer. Call it while the entries are locked.
    fn wake_before(&self, check_at: Moment) {
        if check_at.as_nanos() < self.next_check.load(Ordering::Relaxed) {
            self.next_check.store(check_at.as_nanos(), Ordering::Relaxed);
            self.wake.notify_one();
        }
    }

    /// Wakes claims that wait for too long behind a holder of this process, and withdraws those whose tasks do not
    /// react.
    fn check_queues(&self) {
        let mut queues = std::mem::take(&mut self.lock().queues);
        if queues.is_empty() {
            return;
        }
        let now = self.clock.now();
        for Carried { claim, pass, attempt, .. } in queues.iter().filter_map(|queue| queue.line.take_abandoned(now)) {
            let orphan = Orphan { claim, attempt: Some(attempt), release: None, end: End::Withdrawn, held_for: None };
            self.runtime.spawn(orphan.finish(self.releaser.clone(), self.observers.clone()));
            drop(pass);
        }
        queues.retain(|queue| queue.line.wake_late(now));
        self.lock().queues.append(&mut queues);
    }

    fn note_next_check(&self) -> Moment {
        let entries = self.lock();
        let first = entries.by_time.first().map_or(Moment::NEVER, |(check_at, _)| *check_at);
        // A planned check is kept when its claim is gone: otherwise every short hold would wake the task.
        let planned = Moment::from_nanos(self.next_check.load(Ordering::Relaxed));
        let now = self.clock.now();
        let next = if planned > now { planned.min(first) } else { first };
        let next = if entries.queues.is_empty() { next } else { next.min(now + SHORT) };
        self.next_check.store(next.as_nanos(), Ordering::Relaxed);
        next
    }

    /// Ends belief that is over, and returns the claims to renew now and those that were lost.
    fn due(&self) -> (Vec<Due>, Vec<Arc<Claim>>) {
        let now = self.clock.now();
        let mut batch = Vec::new();
        let (mut lost, mut late) = (Vec::new(), Vec::new());
        let _deferred = Deferred::begin();
        let mut entries = self.lock();
        while let Some((check_at, id)) = entries.by_time.first().copied() {
            let Some(entry) = entries.by_id.get_mut(&id) else {
                entries.by_time.remove(&(check_at, id));
                continue;
            };
            if check_at > now + entry.ttl / SLACK_DIVISOR {
                break;
            }
            if let (Role::Holder(_), Some(planned)) = (&entry.role, entry.renew_at)
                && now.since(planned) > entry.ttl / SLACK_DIVISOR
            {
                late.push((entry.claim.clone(), now.since(planned)));
            }
            if let Role::Holder(belief) = &entry.role
                && (belief.deadline() <= now || belief.has_ended())
                && belief.end_if_due()
            {
                lost.push((entry.claim.clone(), belief.reason()));
                entries.remove(id);
                continue;
            }
            if entry.renew_at.is_none() && check_at > now {
                break;
            }
            if entry.renew_at.take().is_some() {
                batch.push(entry.to_renew());
            }
            let check_next = entry.next_check();
            entry.check_at = check_next;
            entries.by_time.remove(&(check_at, id));
            entries.by_time.insert((check_next, id));
        }
        drop(entries);
        for (claim, by) in late {
            self.telemetry.late(&claim, by);
            self.observers.emit(&claim, || Step::Late { by });
        }
        let lost = lost.into_iter().map(|(claim, reason)| {
            self.observers.emit(&claim, || Step::Lost { reason: reason.unwrap_or(LossReason::Expired) });
            claim
        });
        (batch, lost.collect())
    }

    /// Releases a lock that was lost on this side only: it has no holder any more, so no claim should wait for it.
    async fn give_back(self: Arc<Self>, claim: Arc<Claim>) {
        // If this fails, the release by the guard or the end of the session frees it.
        let _ = self.releaser.release(&claim, &End::Withdrawn, None).await;
    }

    /// Sends one batch and applies the answers. A slow answer counts as a failure for the schedule, and is still
    /// applied when it comes: its lease counts from when the request was sent.
    async fn renew(self: Arc<Self>, due: Vec<Due>) {
        let (sent, begun) = (self.clock.now(), Instant::now());
        let renewal = |due: &Due| {
            let Due { claim, memo, keep, held, .. } = due;
            Renewal { memo: memo.clone(), keep: *keep, held: *held, ..Renewal::of(claim.clone()) }
        };
        let batch = due.iter().map(renewal).collect();
        let mut request = Box::pin(self.telemetry.renewing(due.len(), self.driver.clone().renew(batch)));
        // The patience for each depends on its own lease: a short lease makes no other claim suspect.
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
            self.apply(next.claim.id, (next.held, next.publication), sent, Err(error));
        };
        for (due, answer) in due.iter().zip(answers) {
            // A late failure was counted already, and a later renewal may have succeeded since.
            if answer.is_ok() || !late.contains(&due.claim.id) {
                self.apply(due.claim.id, (due.held, due.publication), sent, answer);
            }
        }
    }

    /// Applies the answer to a renewal that was sent for a holder (`held`) or a waiter, with a publication or without.
    fn apply(
        self: &Arc<Self>,
        id: ClaimId,
        (held, publication): (bool, Option<u64>),
        sent: Moment,
        answer: Result<Renewed>,
    ) {
        let _deferred = Deferred::begin();
        let mut entries = self.lock();
        // It was granted meanwhile: an answer about its position in the queue has no meaning for the grant.
        if !held && entries.by_id.get(&id).is_some_and(|entry| entry.role.belief().is_some()) {
            return;
        }
        // It was released meanwhile: the answer concerns no claim.
        let Some(mut entry) = entries.remove(id) else { return };
        let claim = entry.claim.clone();
        let other_grant = entry.is_of_another_grant(&answer);
        let answer = if other_grant { Ok(Renewed::Gone(Gone::Unknown)) } else { answer };
        if let Ok(Renewed::Alive { ending, .. }) = &answer {
            entry.tell(publication, ending.as_ref());
        }
        let report = entry.role.belief().cloned().map(|belief| {
            let outcome = match &answer {
                Ok(Renewed::Alive { .. }) => RenewalOutcome::Ok,
                Ok(Renewed::Gone(_)) => RenewalOutcome::Gone,
                Err(_) => RenewalOutcome::Error,
            };
            (outcome, self.clock.now().since(sent), belief.time_left(), entry.ttl, belief)
        });
        let (keep, step) = match (answer, entry.role.clone()) {
            // An explicit lease is never extended, also not by the renewal that checks it.
            (Ok(Renewed::Alive { ending: None, .. }), Role::Holder(_)) if !entry.renews => (true, None),
            (Ok(Renewed::Alive { lease, ending, .. }), Role::Holder(belief)) => {
                self.extend(&mut entry, &belief, sent, lease, ending)
            }
            (Ok(Renewed::Alive { lease, .. }), Role::Waiter { .. }) => {
                (entry.ttl, entry.evicted) = (lease.ttl.min(claim.waiter_ttl()), false);
                self.plan(&mut entry, lease.from.unwrap_or(sent));
                (true, None)
            }
            (Ok(Renewed::Gone(gone)), Role::Holder(belief)) => {
                belief.end(gone.into());
                (false, belief.reason().map(|reason| Step::Lost { reason }))
            }
            (Ok(Renewed::Gone(_)), Role::Waiter { wakeup, .. }) => {
                wakeup.notify_one();
                // It is not in the queue until its next attempt, which may take long: there is no lease to keep.
                entry.ttl = claim.waiter_ttl();
                self.plan(&mut entry, sent);
                (true, (!std::mem::replace(&mut entry.evicted, true)).then_some(Step::Requeued))
            }
            (Err(error), role) => {
                entry.renew_at = Some(self.clock.now() + self.entropy.jitter(entry.errors.pause()));
                match role {
                    Role::Holder(belief) if belief.set_suspect(true) => (true, Some(Step::Suspect { error })),
                    Role::Holder(_) | Role::Waiter { .. } => (true, None),
                }
            }
        };
        if keep {
            if std::mem::take(&mut entry.recheck) && entry.renew_at.is_some() {
                entry.renew_at = Some(self.clock.now());
            }
            entry.check_at = entry.next_check();
            self.put(&mut entries, id, entry);
        }
        drop(entries);
        if let Some((outcome, took, left, lease, belief)) = report {
            self.telemetry.renewed(&belief.telemetry, outcome, took, left, lease);
        }
        if let Some(step) = step {
            self.observers.emit(&claim, || step);
        }
        if other_grant {
            // No holder believes in what the store has now.
            self.runtime.spawn(self.clone().give_back(claim));
        }
    }

    fn plan(&self, entry: &mut Entry, from: Moment) {
        entry.errors.reset();
        let pause = match entry.role {
            Role::Holder(_) => entry.ttl / 3,
            Role::Waiter { .. } => (entry.ttl / 3).max(entry.claim.waiter_ttl() / MOST_RENEWALS),
        };
        // The answer may have taken long: a renewal that is due at once is not late.
        entry.renew_at = Some((from + self.entropy.jitter(pause)).max(self.clock.now()));
    }

    /// Plans the next check anew, after the end of belief has moved to an earlier time.
    fn plan_anew(&self, id: ClaimId) {
        let mut entries = self.lock();
        if let Some(mut entry) = entries.remove(id) {
            entry.check_at = entry.next_check();
            self.put(&mut entries, id, entry);
        }
    }

    fn extend(
        &self,
        entry: &mut Entry,
        belief: &BeliefCell,
        sent: Moment,
        lease: Lease,
        ending: Option<Ending>,
    ) -> (bool, Option<Step>) {
        let from = lease.from.map_or(sent, |from| from.min(self.clock.now()));
        if let Some(ending) = ending {
            // This was the last renewal: the rest of the lease is for finishing the work.
            belief.end_by(from, lease.ttl, LossReason::Broken(ending.clone()));
            entry.renew_at = None;
            let left = belief.deadline().since(self.clock.now());
            return (true, Some(Step::Ending { ending, left }));
        }
        if !belief.extend(from, lease.ttl) {
            return (true, None);
        }
        entry.ttl = lease.ttl;
        self.plan(entry, from);
        let step = if belief.set_suspect(false) { Step::Recovered } else { Step::Renewed };
        (true, Some(step))
    }
}

#[cfg(test)]
mod tests;
