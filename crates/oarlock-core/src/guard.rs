//! The guard of a held lock: it releases the lock.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use crate::belief::LossReason;
use crate::claim::{Claim, Fence, Kind, Weight};
use crate::clock::{Moment, sleep_until};
use crate::driver::{Attempt, BoxFuture, End, Release, Released};
use crate::engine::cohort::{self, Baton};
use crate::engine::gate::{NameQueue, Pass};
use crate::engine::{Core, Orphan, Runtime, answer_within};
use crate::error::{Error, Result, Retry};
use crate::event::Step;
use crate::held::Held;
use crate::owner::Owner;
use crate::state::Memo;

/// A held lock; dropping it releases the lock.
///
/// # Guarantees
/// - [`is_held`](Held::is_held) becomes false before the store can grant the lock to another claim.
/// - [`fence`](Held::fence) is larger than that of every earlier grant of the resource.
/// - Dropping it never blocks and never panics, in or out of a runtime: the release happens in the background, and
///   the lease ends the hold if that fails. [`release`](Self::release) reports the result.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory, Released};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let guard = locks.mutex("report").lock().await?;
/// println!("writing with fence {}", guard.fence());
/// assert_eq!(guard.release().await?, Released::Released);
/// # Ok(()) }
/// ```
#[must_use = "a guard that is dropped at once releases the lock at once"]
pub struct Guard {
    held: Held,
    core: Arc<Core>,
    owner: Option<Owner>,
    renewed: bool,
    /// The right to hand the lock on within this process.
    baton: Option<Baton>,
    /// The queue of this process behind it, if its release may carry the next claim.
    queue: Option<Arc<NameQueue>>,
    /// Fences may have been reserved for it, even if the request failed.
    reserves: bool,
    /// Requests in flight, owned here so that the reaper can finish them.
    changing: InFlight<Attempt>,
    releasing: InFlight<Release>,
    /// How the hold ends, for the release by this guard or by the reaper.
    end: End,
    done: bool,
}

/// A request that may be in flight. Only used through `&mut`; the mutex makes a guard `Sync`, so that futures which
/// borrow it can be spawned.
type InFlight<T> = Mutex<Option<BoxFuture<Result<T>>>>;

fn slot<T>(in_flight: &mut InFlight<T>) -> &mut Option<BoxFuture<Result<T>>> {
    in_flight.get_mut().unwrap_or_else(PoisonError::into_inner)
}

#[oarlock_macros::blocking]
impl Guard {
    pub(crate) fn new(
        core: Arc<Core>,
        held: Held,
        lease: (Moment, Duration),
        renew: bool,
        owner: Option<Owner>,
    ) -> Self {
        let claim = held.claim();
        if let Some(owner) = &owner {
            owner.gained(core.store_number(), &claim, held.belief_cell());
        }
        core.watchdog.hold(claim, held.granted(), held.belief_cell().clone(), lease, renew, held.granted_at());
        if core.check_open().is_err() {
            // Granted while the client was shut down: the store releases it with the session.
            held.belief_cell().end(LossReason::Session);
        }
        Self::of(core, held, renew, owner)
    }

    fn of(core: Arc<Core>, held: Held, renewed: bool, owner: Option<Owner>) -> Self {
        let (changing, releasing) = (Mutex::default(), Mutex::default());
        let end = End::Done { memo: None };
        Self {
            held,
            core,
            owner,
            renewed,
            baton: None,
            queue: None,
            reserves: false,
            changing,
            releasing,
            end,
            done: false,
        }
    }

    /// A lock that was handed on, which the watchdog renews already.
    pub(crate) fn handed_on(core: Arc<Core>, held: Held, baton: Option<Baton>) -> Self {
        let mut guard = Self::of(core, held, true, None);
        guard.baton = baton;
        guard
    }

    /// Reports this hold from now on: its acquisition is over.
    pub(crate) fn report(&self) {
        let held = &self.held;
        held.belief_cell().report(self.core.telemetry, &held.claim(), held.fence(), held.granted_at());
    }

    pub(crate) fn set_baton(&mut self, baton: Option<Baton>) {
        (self.baton, self.reserves) = (baton, true);
    }

    /// Lets its release carry the next claim of this process.
    pub(crate) fn set_pass(&mut self, pass: Pass) {
        let (queue, now) = (pass.queue(), self.core.clock.now());
        if queue.line.keep(pass, now) {
            self.core.watchdog.check_queue(queue.clone(), now);
        }
        self.queue = Some(queue);
    }

    /// Ends the hold: the request, which carries the next claim of this process if one waits for it.
    fn end_request(&mut self, claim: &Arc<Claim>) -> BoxFuture<Result<Release>> {
        let core = &self.core;
        let joint = self.queue.take().and_then(|queue| {
            let now = core.clock.now();
            if core.check_open().is_err() {
                queue.line.end_alone(self.held.held_for(now));
                return None;
            }
            queue.line.end(self.held.held_for(now), |next, answered| {
                let (release, attempt) = core.release_and_attempt(claim, self.end.clone(), next.clone(), answered);
                (release, now, attempt)
            })
        });
        joint.unwrap_or_else(|| core.release(claim, self.end.clone()))
    }

    /// Whether the release is to leave a memo.
    pub(crate) fn leaves_memo(&self) -> bool {
        self.end != (End::Done { memo: None })
    }

    /// Hands the lock to the next task of this process, if it may and one waits. A memo has to go to the store.
    fn hand_on(&mut self) -> Option<Release> {
        if self.leaves_memo() {
            return None;
        }
        let release = cohort::hand_on(&self.core, &self.held, self.baton.take()?)?;
        self.done = true;
        Some(release)
    }

    /// The state of this lock, for other tasks.
    #[must_use]
    #[blocking(by_hand)]
    pub fn held(&self) -> Held {
        self.held.clone()
    }

    /// Runs `body` while the lock is held, and drops it when the lock is lost. Belief is checked before each step of
    /// `body`: none begins after the loss, also after a suspend, when timers are late. Only a future can be stopped: a
    /// thread (`spawn_blocking`) or a call that blocks runs to its end. In such work, call [`check`](Held::check)
    /// between the steps.
    ///
    /// # Cancel safety
    /// If the future is dropped, `body` is dropped; the lock is still held.
    ///
    /// # Errors
    /// Any error of `body`; [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lock was lost before `body` was done.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let locks = Locks::over(Memory::new())?;
    /// let guard = locks.mutex("report").lock().await?;
    /// let lines = guard.with(|held| report(held.fence())).await?;
    /// guard.release().await?;
    /// # assert_eq!(lines, 3);
    /// # async fn report(_: oarlock_core::Fence) -> oarlock_core::Result<u32> { Ok(3) }
    /// # Ok(()) }
    /// ```
    #[blocking(by_hand)]
    pub async fn with<T, E, F>(&self, body: impl FnOnce(Held) -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        self.held.while_held(body).await
    }

    /// Releases the lock and waits for the store's answer.
    ///
    /// The answer is the store's: [`Released::Released`] if it was held until now, [`Released::NotHeld`] if it had
    /// ended before.
    ///
    /// # Cancel safety
    /// If the future is dropped the release goes on in the background.
    ///
    /// # Errors
    /// Any error that the store returns; the release is then tried again in the background for as long as the lease
    /// could last.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Locks, Memory, Released};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let locks = Locks::over(Memory::new())?;
    /// let guard = locks.mutex("report").lock().await?;
    /// match guard.release().await? {
    ///     Released::NotHeld => println!("it had ended before: was the work done under the lock?"),
    ///     _ => println!("done"),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn release(mut self) -> Result<Released> {
        if let Some(release) = self.hand_on() {
            return Ok(release.outcome);
        }
        self.stop_keeping();
        let claim = self.held.claim();
        let request = self.end_request(&claim);
        let request = slot(&mut self.releasing).insert(request);
        let answer = answer_within(self.core.op_timeout, request);
        match self.core.telemetry.releasing(&claim, answer).await {
            Some(Ok(release)) => {
                self.done = true;
                let outcome = release.outcome;
                let held_for = || self.held.held_for(self.core.clock.now());
                self.core.observers.emit(&claim, || Step::Released { outcome, held_for: held_for() });
                if release.others_waiting == Some(true) && self.core.watchdog.keeps_waiters() {
                    step_aside().await;
                }
                Ok(outcome)
            }
            Some(Err(error)) => {
                // This request is over; the reaper sends a new one.
                *slot(&mut self.releasing) = None;
                Err(error)
            }
            None => {
                let error = Error::unreachable("no answer in time; still trying in the background");
                Err(error.on(self.core.info.scheme).during("release").about(self.resource()))
            }
        }
    }

    /// Leaves `memo` on the resource for the next holder, when this lock is released: by [`release`](Self::release) or
    /// by dropping the guard. The last call counts. A lock that is lost leaves nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where the store keeps no memo;
    /// [`ErrorKind::InvalidClaim`](crate::ErrorKind::InvalidClaim) for a memo of more than
    /// [`MAX_MEMO_BYTES`](crate::state::MAX_MEMO_BYTES). The lock is still held then, and nothing has changed.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let locks = Locks::over(Memory::new())?;
    /// let mut guard = locks.mutex("import").lock().await?;
    /// guard.leave_memo("up to line 4711")?;
    /// guard.release().await?;
    /// assert_eq!(locks.mutex("import").lock().await?.memo(), Some(&b"up to line 4711"[..]));
    /// # Ok(()) }
    /// ```
    pub fn leave_memo(&mut self, memo: impl AsRef<[u8]>) -> Result<()> {
        let memo = memo.as_ref();
        self.core.check_memo(memo, self.resource())?;
        self.end = End::Done { memo: Some(memo.into()) };
        Ok(())
    }

    /// Releases the lock and leaves a memo on the resource for the next holder: [`leave_memo`](Self::leave_memo) and
    /// [`release`](Self::release) in one call.
    ///
    /// # Cancel safety
    /// As [`release`](Self::release). The memo is left in any case: also if the future is dropped before it was polled,
    /// and if the first request fails and another is sent in the background.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where the store keeps no memo;
    /// [`ErrorKind::InvalidClaim`](crate::ErrorKind::InvalidClaim) for a memo of more than
    /// [`MAX_MEMO_BYTES`](crate::state::MAX_MEMO_BYTES). No release was sent then, and the guard is dropped, which
    /// releases the lock in the background; to keep the lock, call [`leave_memo`](Self::leave_memo) first. Else as
    /// [`release`](Self::release).
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let locks = Locks::over(Memory::new())?;
    /// let guard = locks.mutex("import").lock().await?;
    /// guard.release_leaving("up to line 4711").await?;
    /// assert_eq!(locks.mutex("import").lock().await?.memo(), Some(&b"up to line 4711"[..]));
    /// # Ok(()) }
    /// ```
    pub fn release_leaving(mut self, memo: impl AsRef<[u8]>) -> impl Future<Output = Result<Released>> + Send {
        let accepted = self.leave_memo(memo);
        async move {
            accepted?;
            self.release().await
        }
    }

    /// Makes the hold lighter without a gap; the fence stays. It takes at most `op_timeout`: without an answer the hold
    /// is released in the background.
    pub(crate) async fn lighten(mut self, kind: Kind, weight: Weight) -> Result<Self> {
        let lighter = Arc::new(Claim { kind, weight, ..Claim::clone(&self.held.claim()) });
        let mut errors = crate::engine::error_backoff(lighter.ttl);
        let give_up = self.core.clock.now() + self.core.op_timeout;
        loop {
            let sent = self.core.clock.now();
            let request = slot(&mut self.changing).insert(self.core.driver.clone().attempt(lighter.clone()));
            let answer = tokio::select! {
                biased;
                answer = tokio::time::timeout(give_up.since(sent), request) => answer,
                reason = self.held.lost() => return Err(Error::lost(reason).about(&lighter.resource)),
            };
            let Ok(answer) = answer else {
                let error = Error::unreachable("no answer in time; the lock is released in the background");
                return Err(error.on(self.core.info.scheme).during("downgrade").about(&lighter.resource));
            };
            *slot(&mut self.changing) = None;
            match answer {
                Ok(Attempt::Granted(grant)) if grant.fence == self.fence() => {
                    let from = grant.lease.from.map_or(sent, |from| from.min(self.core.clock.now()));
                    let belief = self.held.belief_cell();
                    if !grant.ends_with.as_ref().is_none_or(|session| belief.tie(session)) {
                        belief.end(LossReason::Session);
                    }
                    if !belief.extend(from, grant.lease.ttl) {
                        let reason = self.held.loss().unwrap_or(LossReason::Expired);
                        return Err(Error::lost(reason).about(&lighter.resource));
                    }
                    self.held.replace_claim(lighter.clone());
                    self.core.watchdog.replace(lighter.clone());
                    if let Some(owner) = &self.owner {
                        owner.lost(lighter.id);
                        owner.gained(self.core.store_number(), &lighter, self.held.belief_cell());
                    }
                    return Ok(self);
                }
                // Another fence, or not granted: the hold had ended in the store.
                Ok(_) => {
                    self.held.belief_cell().end(LossReason::Gone);
                    return Err(Error::lost(LossReason::Gone).about(&lighter.resource));
                }
                Err(error) if error.retry() == Retry::Never => return Err(error),
                Err(error) => {
                    let pause = self.core.entropy.jitter(errors.pause());
                    if self.core.clock.now() + pause >= give_up {
                        return Err(error);
                    }
                    sleep_until(&*self.core.clock, self.core.clock.now() + pause).await;
                }
            }
        }
    }

    /// Changes the published data of this hold and leaves `memo` on its resource, with a renewal at once, and waits
    /// until the store has confirmed it.
    ///
    /// If the future is dropped the renewal goes on while the lock is held.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lock was lost before that, or its end was asked for: it may
    /// have been published or not.
    pub(crate) async fn publish(
        &mut self,
        change: impl FnOnce(&mut Claim),
        memo: Option<Memo>,
        keep: Duration,
    ) -> Result<()> {
        let mut claim = Claim::clone(&self.held.claim());
        change(&mut claim);
        let claim = Arc::new(claim);
        self.held.replace_claim(claim.clone());
        let told = self.core.watchdog.publish(claim, memo, keep);
        let lost = |reason| Err(Error::lost(reason).applied_unknown().about(self.resource()));
        tokio::select! {
            biased;
            reason = self.held.lost() => lost(reason),
            told = told => match told {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => lost(error.loss().cloned().unwrap_or(LossReason::Gone)),
                Err(_) => lost(self.loss().unwrap_or(LossReason::Gone)),
            },
        }
    }

    /// The runtime of its client.
    pub(crate) fn runtime(&self) -> &Runtime {
        &self.core.runtime
    }

    pub(crate) fn scheme(&self) -> &'static str {
        self.core.info.scheme
    }

    /// The fence that the store granted the lock with, where it may be handed on within this process.
    pub(crate) fn granted_in_a_cohort(&self) -> Option<Fence> {
        let granted = self.held.granted();
        (self.reserves || granted != self.fence()).then_some(granted)
    }

    /// False for an explicit lease.
    pub(crate) fn is_renewed(&self) -> bool {
        self.renewed
    }

    /// Ends belief here, and leaves the hold in the store.
    pub(crate) fn leave_to_its_lease(mut self) {
        self.held.belief_cell().telemetry.ends_as("handed_over");
        self.stop_keeping();
        self.done = true;
    }

    /// Ends renewal and belief, before the release is sent.
    pub(crate) fn stop_keeping(&self) {
        self.core.watchdog.forget(self.id());
        self.held.belief_cell().release();
        if let Some(owner) = &self.owner {
            owner.lost(self.id());
        }
    }
}

/// Yields to other tasks that are ready: the next holder may be one of them, and all others wait for it. If no claim of
/// this client waits, the next holder is elsewhere, and yielding would only wake another thread of the runtime.
async fn step_aside() {
    let mut aside = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut aside, true) {
            return Poll::Ready(());
        }
        // Not `yield_now`: tokio would delay its wake-up while a blocking call occupies the thread.
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl Deref for Guard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            queue.line.end_alone(self.held.held_for(self.core.clock.now()));
        }
        if self.done || self.hand_on().is_some() {
            return;
        }
        self.held.belief_cell().telemetry.ends_as("dropped");
        self.stop_keeping();
        Orphan {
            claim: self.held.claim(),
            attempt: slot(&mut self.changing).take(),
            release: slot(&mut self.releasing).take(),
            end: self.end.clone(),
            held_for: Some(self.held.held_for(self.core.clock.now())),
        }
        .reap(&self.core);
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.held, f)
    }
}

/// Guards and their views go from thread to thread, and can be shared between them.
const _: () = {
    const fn shared<T: Send + Sync + 'static>() {}
    shared::<Guard>();
    shared::<Held>();
    shared::<crate::Leadership>();
    shared::<crate::MultiGuard>();
    shared::<crate::MultiHeld>();
    shared::<crate::ReentrantGuard>();
    shared::<crate::WriteGuard>();
};
