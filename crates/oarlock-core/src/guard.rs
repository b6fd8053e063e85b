//! A held lock: its guard, and the view of its state.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::belief::{Belief, BeliefCell, Ended, LossReason};
use crate::claim::{Claim, ClaimId, Fence, Kind, ResourceName, Weight};
use crate::clock::{Moment, sleep_until};
use crate::driver::{Attempt, BoxFuture, End, Grant, Release, Released};
use crate::engine::cohort::{self, Baton};
use crate::engine::{Core, Orphan};
use crate::error::{Error, Result, Retry};
use crate::event::Step;
use crate::owner::Owner;
use crate::state::{Ending, Memo};

/// The state of a held lock, for other tasks. Cheap to clone; it cannot release the lock.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let guard = locks.mutex("report").lock().await?;
/// let held = guard.held();
/// assert!(held.is_held());
/// held.check()?; // between two steps of the work
/// guard.release().await?;
/// assert!(!held.is_held());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Held(Arc<Inner>);

struct Inner {
    claim: Mutex<Arc<Claim>>,
    resource: ResourceName,
    id: ClaimId,
    fence: Fence,
    /// The fence that the store granted the claim with: that of its first holder, where it was handed on.
    granted: Fence,
    memo: Option<Memo>,
    belief: Arc<BeliefCell>,
    granted_at: Moment,
    waited: Duration,
}

#[oarlock_macros::blocking]
impl Held {
    pub(crate) fn new(claim: Arc<Claim>, grant: &Grant, belief: BeliefCell, now: Moment, waited: Duration) -> Self {
        Self(Arc::new(Inner {
            resource: claim.resource.clone(),
            id: claim.id,
            claim: Mutex::new(claim),
            fence: grant.fence,
            granted: grant.fence,
            memo: grant.memo.clone(),
            belief: Arc::new(belief),
            granted_at: now,
            waited,
        }))
    }

    /// This hold under another fence of its grant, for a lock that was handed on in a cohort before it was handed over.
    pub(crate) fn with_fence(mut self, fence: Fence) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.fence = fence;
        }
        self
    }

    pub(crate) fn claim(&self) -> Arc<Claim> {
        self.0.claim.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The next holder of the same claim.
    pub(crate) fn successor(&self, fence: Fence, belief: Arc<BeliefCell>, now: Moment, waited: Duration) -> Self {
        Self(Arc::new(Inner {
            claim: Mutex::new(self.claim()),
            resource: self.0.resource.clone(),
            id: self.0.id,
            fence,
            granted: self.0.granted,
            memo: self.0.memo.clone(),
            belief,
            granted_at: now,
            waited,
        }))
    }

    /// See [`Guard::with`].
    pub(crate) async fn while_held<T, E, F>(&self, body: impl FnOnce(Self) -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let lost = |reason| E::from(Error::lost(reason).about(self.resource()));
        if let Some(reason) = self.loss() {
            return Err(lost(reason));
        }
        while_held(self.lost(), || self.loss(), body(self.clone())).await.unwrap_or_else(|reason| Err(lost(reason)))
    }

    pub(crate) fn held_for(&self, now: Moment) -> Duration {
        now.since(self.0.granted_at)
    }

    /// The name of the lock.
    #[must_use]
    pub fn resource(&self) -> &ResourceName {
        &self.0.resource
    }

    /// The kind of the lock.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.claim().kind
    }

    /// The identity of this acquisition.
    #[must_use]
    pub fn id(&self) -> ClaimId {
        self.0.id
    }

    /// The fence: larger than that of every earlier holder. Send it with every write to what the lock protects.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.0.fence
    }

    /// The memo that the last holder left on the resource.
    #[must_use]
    pub fn memo(&self) -> Option<&[u8]> {
        self.0.memo.as_deref()
    }

    /// How long the acquisition took.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.0.waited
    }

    /// Whether the lock is still held, as far as this client may believe. No I/O.
    ///
    /// # Guarantees
    /// It becomes false before the store can grant the lock to another claim (except after a forced break), and never
    /// becomes true again. It may become false although the store still counts the lock as held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.0.belief.is_held()
    }

    /// Checks that the lock is still held, for `?` between two steps of work. No I/O.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if it was lost, with the reason ([`Error::loss`]); also if this
    /// client released it or handed it over, without a reason.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let locks = Locks::over(Memory::new())?;
    /// let guard = locks.mutex("report").lock().await?;
    /// for line in 0..3 {
    ///     guard.check()?; // stops after a loss
    ///     # let _ = line;
    /// }
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn check(&self) -> Result<()> {
        if self.is_held() {
            return Ok(());
        }
        Err(self.loss().map_or_else(Error::released, Error::lost).about(self.resource()))
    }

    /// Held, suspect (a renewal failed, or its end was asked for), or lost. No I/O.
    #[must_use]
    pub fn belief(&self) -> Belief {
        self.0.belief.belief()
    }

    /// When belief ends if no further renewal succeeds, or when it ended, by the client's clock.
    #[must_use]
    pub fn ends_at(&self) -> Moment {
        self.0.belief.deadline()
    }

    /// How long belief lasts if no further renewal succeeds.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.0.belief.time_left()
    }

    /// Resolves when the lock is lost, and says why; never resolves for one that was released first. A task that
    /// watches a lock for as long as it is held awaits [`ended`](Self::ended).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let locks = Locks::over(Memory::new())?;
    /// let guard = locks.mutex("report").lock().await?;
    /// tokio::select! {
    ///     reason = guard.lost() => println!("stop: {reason}"),
    ///     () = report() => {}
    /// }
    /// # async fn report() {}
    /// # Ok(()) }
    /// ```
    #[blocking(within)]
    pub async fn lost(&self) -> LossReason {
        self.0.belief.lost().await
    }

    /// Resolves when the lock is lost or released, and says which.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Ended, Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let locks = Locks::over(Memory::new())?;
    /// let guard = locks.mutex("report").lock().await?;
    /// let held = guard.held();
    /// let watcher = tokio::spawn(async move { held.ended().await });
    /// guard.release().await?;
    /// # let ended = watcher.await.map_err(|_| oarlock_core::Error::unreachable("the watcher panicked"))?;
    /// assert_eq!(ended, Ended::Released);
    /// # Ok(()) }
    /// ```
    #[blocking(within)]
    pub async fn ended(&self) -> Ended {
        self.0.belief.ended().await
    }

    /// Resolves when an operator or another program asks for the end of this hold
    /// ([`Locks::break_hold`](crate::Locks::break_hold)), and says who and why: time to finish. `None` if the hold ends
    /// without that. Where the store notifies its clients it resolves at once, else with the next renewal.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use oarlock_core::{Ending, Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let locks = Locks::over(Memory::new())?;
    /// let guard = locks.mutex("report").lock().await?;
    /// # let ending = Ending::new("ops", "maintenance");
    /// # locks.break_hold("report", guard.fence(), ending, Duration::from_secs(30)).await?;
    /// if let Some(ending) = guard.asked_to_end().await {
    ///     println!("{} asks for the lock: {}", ending.by, ending.why);
    ///     guard.release().await?;
    /// }
    /// # Ok(()) }
    /// ```
    #[blocking(within)]
    pub async fn asked_to_end(&self) -> Option<Ending> {
        self.0.belief.asked_to_end().await
    }

    /// Resolves when belief will end within `lead` unless a renewal succeeds, or has ended by a loss or a release: time
    /// to stop the work in order.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use oarlock_core::{Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let locks = Locks::over(Memory::new())?;
    /// let guard = locks.mutex("report").ttl(Duration::from_secs(1)).no_renewal().lock().await?;
    /// guard.ends_within(Duration::from_millis(900)).await; // 900 ms are left to stop in order
    /// assert!(guard.is_held());
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn ends_within(&self, lead: Duration) {
        self.0.belief.ends_within(lead).await;
    }

    /// Why the lock was lost, if it was.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.0.belief.reason()
    }

    /// A token that is cancelled when the lock is lost or released: work that checks it does not go on without the
    /// lock. Cancelling it does nothing to the lock.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let locks = Locks::over(Memory::new())?;
    /// let guard = locks.mutex("report").lock().await?;
    /// let token = guard.token();
    /// let worker = tokio::spawn(async move { token.run_until_cancelled(std::future::pending::<()>()).await });
    /// guard.release().await?;
    /// assert!(worker.await.is_ok_and(|done| done.is_none()), "it was stopped");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.0.belief.token().child_token()
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("resource", &self.0.resource)
            .field("fence", &self.0.fence)
            .field("belief", &self.belief())
            .finish_non_exhaustive()
    }
}

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
            owner.gained(core.store_number(), &claim, &held.0.belief);
        }
        core.watchdog.hold(claim, held.0.granted, held.0.belief.clone(), lease, renew);
        if core.check_open().is_err() {
            // Granted while the client was shut down: the store releases it with the session.
            held.0.belief.end(LossReason::Session);
        }
        Self::of(core, held, renew, owner)
    }

    fn of(core: Arc<Core>, held: Held, renewed: bool, owner: Option<Owner>) -> Self {
        let (changing, releasing) = (Mutex::default(), Mutex::default());
        let end = End::Done { memo: None };
        Self { held, core, owner, renewed, baton: None, reserves: false, changing, releasing, end, done: false }
    }

    /// A lock that was handed on, which the watchdog renews already.
    pub(crate) fn handed_on(core: Arc<Core>, held: Held, baton: Option<Baton>) -> Self {
        let mut guard = Self::of(core, held, true, None);
        guard.baton = baton;
        guard
    }

    pub(crate) fn set_baton(&mut self, baton: Option<Baton>) {
        (self.baton, self.reserves) = (baton, true);
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
        let request = slot(&mut self.releasing).insert(self.core.release(&claim, self.end.clone()));
        match tokio::time::timeout(self.core.op_timeout, request).await {
            Ok(Ok(release)) => {
                self.done = true;
                let held_for = self.held.held_for(self.core.clock.now());
                let outcome = release.outcome;
                self.core.observers.emit(&claim, || Step::Released { outcome, held_for });
                if release.others_waiting == Some(true) {
                    step_aside().await;
                }
                Ok(outcome)
            }
            Ok(Err(error)) => {
                // This request is over; the reaper sends a new one.
                *slot(&mut self.releasing) = None;
                Err(error)
            }
            Err(_) => {
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
                    if !self.held.0.belief.extend(from, grant.lease.ttl) {
                        let reason = self.held.loss().unwrap_or(LossReason::Expired);
                        return Err(Error::lost(reason).about(&lighter.resource));
                    }
                    *self.held.0.claim.lock().unwrap_or_else(PoisonError::into_inner) = lighter.clone();
                    self.core.watchdog.replace(lighter.clone());
                    if let Some(owner) = &self.owner {
                        owner.lost(lighter.id);
                        owner.gained(self.core.store_number(), &lighter, &self.held.0.belief);
                    }
                    return Ok(self);
                }
                // Another fence, or not granted: the hold had ended in the store.
                Ok(_) => {
                    self.held.0.belief.end(LossReason::Gone);
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
    pub(crate) async fn publish(&mut self, change: impl FnOnce(&mut Claim), memo: Option<Memo>) -> Result<()> {
        let mut claim = Claim::clone(&self.held.claim());
        change(&mut claim);
        let claim = Arc::new(claim);
        *self.held.0.claim.lock().unwrap_or_else(PoisonError::into_inner) = claim.clone();
        let told = self.core.watchdog.publish(claim, memo);
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

    pub(crate) fn scheme(&self) -> &'static str {
        self.core.info.scheme
    }

    /// The fence that the store granted the lock with, where it may be handed on within this process.
    pub(crate) fn granted_in_a_cohort(&self) -> Option<Fence> {
        let granted = self.held.0.granted;
        (self.reserves || granted != self.fence()).then_some(granted)
    }

    /// False for an explicit lease.
    pub(crate) fn is_renewed(&self) -> bool {
        self.renewed
    }

    /// Ends belief here, and leaves the hold in the store.
    pub(crate) fn leave_to_its_lease(mut self) {
        self.stop_keeping();
        self.done = true;
    }

    /// Ends renewal and belief, before the release is sent.
    pub(crate) fn stop_keeping(&self) {
        self.core.watchdog.forget(self.id());
        self.held.0.belief.release();
        if let Some(owner) = &self.owner {
            owner.lost(self.id());
        }
    }
}

/// Runs `body` until it is done or `lost` resolves. `loss` is checked before each poll of `body`, too: after a suspend
/// timers are late, and another event may wake `body` before them.
pub(crate) async fn while_held<T, L>(
    lost: impl Future<Output = L>,
    loss: impl Fn() -> Option<L>,
    body: impl Future<Output = T>,
) -> Result<T, L> {
    let (mut lost, mut body) = (pin!(lost), pin!(body));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(loss) = lost.as_mut().poll(cx) {
            return Poll::Ready(Err(loss));
        }
        if let Some(loss) = loss() {
            return Poll::Ready(Err(loss));
        }
        body.as_mut().poll(cx).map(|done| loss().map_or(Ok(done), Err))
    })
    .await
}

/// Yields to other tasks that are ready: the next holder may be one of them, and all others wait for it.
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
        if self.done || self.hand_on().is_some() {
            return;
        }
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
