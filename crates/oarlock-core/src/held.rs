//! The state of a held lock, which other tasks can watch.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::belief::{Belief, BeliefCell, Ended, LossReason};
use crate::claim::{Claim, ClaimId, Fence, Kind, ResourceName};
use crate::clock::Moment;
use crate::driver::Grant;
use crate::error::{Error, Result};
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

    /// The claim has changed in the store; its id and its resource are the same.
    pub(crate) fn replace_claim(&self, claim: Arc<Claim>) {
        *self.0.claim.lock().unwrap_or_else(PoisonError::into_inner) = claim;
    }

    /// The fence that the store granted the claim with.
    pub(crate) fn granted(&self) -> Fence {
        self.0.granted
    }

    /// What this client believes, for those that renew and end it.
    pub(crate) fn belief_cell(&self) -> &Arc<BeliefCell> {
        &self.0.belief
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

    /// When this holder got it.
    pub(crate) fn granted_at(&self) -> Moment {
        self.0.granted_at
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
