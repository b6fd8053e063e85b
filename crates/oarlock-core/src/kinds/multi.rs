//! Several locks that are taken together.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::mutex::Mutex;
use crate::belief::{Ended, LossReason};
use crate::claim::{Label, ResourceName};
use crate::driver::Released;
use crate::engine::{LAST_CHANCE, Request, Runtime, Wait};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::held::{Held, while_held};
use crate::state::Ending;

/// One lock of a [`Multi`], not taken yet: a [`Mutex`], [`RwLock::for_reading`](crate::RwLock::for_reading),
/// [`RwLock::for_writing`](crate::RwLock::for_writing) or [`Semaphore::permits`](crate::Semaphore::permits).
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory, Multi, Part};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let parts: [Part; 2] = [locks.mutex("account/3").into(), locks.semaphore("workers", 8).permits(2)];
/// let both = Multi::all(parts).lock().await?;
/// both.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a part is taken by the Multi that it is given to"]
pub struct Part(pub(super) Request);

impl From<Mutex> for Part {
    fn from(mutex: Mutex) -> Self {
        Self(mutex.into_request())
    }
}

/// Where a lock is: the same for all clients.
type Address = (&'static str, String, ResourceName);

impl Part {
    fn address(&self) -> Address {
        let info = self.0.client.info();
        (info.scheme, info.address.clone(), self.0.claim.resource.clone())
    }
}

/// Several locks that are taken as one: all or none. They can be of different kinds and on different stores.
///
/// # Guarantees
/// - They are taken in the order of their stores' addresses and names, whatever the order they are named in: two
///   processes that take the same locks never wait for each other. (All must reach a store under the same address.)
/// - There is one deadline for all. When it passes, or anything fails, the locks taken so far are released.
/// - Together they are held only while each of them is: lost if any is lost.
///
/// The `wait` of a part has no effect. Its other options have, unless the `Multi` sets them: an option of the `Multi`
/// applies to every part, also to those that are added after it.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory, Multi};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let transfer = Multi::of(locks.mutex("account/7"))
///     .and(locks.mutex("account/3"))
///     .and(locks.rwlock("rates").for_reading());
/// let both = transfer.lock().await?;
/// assert!(both.is_held() && both.iter().count() == 3);
/// both.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is taken before lock() or try_lock()"]
pub struct Multi {
    parts: Vec<Part>,
    /// `None` = the default of the first part's client.
    wait: Option<Wait>,
    options: Options,
}

/// The options of all parts; `None` = each part's own.
#[derive(Clone, Debug, Default)]
struct Options {
    ttl: Option<Duration>,
    no_renewal: bool,
    max_hold: Option<Duration>,
    label: Option<Arc<Label>>,
    reason: Option<String>,
}

impl Options {
    /// The request of a part, with the options of all.
    fn applied_to(&self, Part(request): &Part) -> Request {
        let mut request = request.clone();
        if let Some(ttl) = self.ttl {
            request.claim.ttl = ttl;
        }
        if self.no_renewal {
            request.renew = false;
        }
        if self.max_hold.is_some() {
            request.max_hold = self.max_hold;
        }
        if let Some(label) = &self.label {
            request.claim.label = label.clone();
        }
        if self.reason.is_some() {
            Arc::make_mut(&mut request.claim.label).reason.clone_from(&self.reason);
        }
        request
    }
}

#[oarlock_macros::blocking]
impl Multi {
    fn new(parts: Vec<Part>) -> Self {
        Self { parts, wait: None, options: Options::default() }
    }

    /// One lock, to which others can be added.
    #[blocking(by_hand)]
    pub fn of(part: impl Into<Part>) -> Self {
        Self::new(vec![part.into()])
    }

    /// All of these locks; there must be one at least.
    #[blocking(by_hand)]
    pub fn all<P: Into<Part>>(parts: impl IntoIterator<Item = P>) -> Self {
        Self::new(parts.into_iter().map(Into::into).collect())
    }

    /// One more lock.
    #[blocking(by_hand)]
    pub fn and(mut self, part: impl Into<Part>) -> Self {
        self.parts.push(part.into());
        self
    }

    /// Sets the lease of each: how long it lives without renewal.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use oarlock_core::{Locks, Memory, Multi};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let locks = Locks::over(Memory::new())?;
    /// let both = Multi::of(locks.mutex("account/3")).and(locks.mutex("account/7"));
    /// let both = both.ttl(Duration::from_secs(10)).reason("transfer 4711").lock().await?;
    /// assert!(both.time_left() <= Duration::from_secs(10));
    /// # Ok(()) }
    /// ```
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = Some(ttl);
        self
    }

    /// Renews none of them: each ends one [`ttl`](Self::ttl) after it was granted.
    pub fn no_renewal(mut self) -> Self {
        self.options.no_renewal = true;
        self
    }

    /// Bounds how long each can be held, with renewals or without.
    pub fn max_hold(mut self, span: Duration) -> Self {
        self.options.max_hold = Some(span);
        self
    }

    /// Identifies these claims to others (host, pid, user, reason).
    pub fn label(mut self, label: Label) -> Self {
        self.options.label = Some(Arc::new(label));
        self.options.reason = None;
        self
    }

    /// Sets the reason: shown to others who inspect one of the locks.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.options.reason = Some(reason.into());
        self
    }

    /// Gives up waiting for all of them after `wait`. Without this, after the first one's client's default of 30
    /// seconds.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(Wait::AtMost(wait));
        self
    }

    /// Never gives up waiting.
    pub fn wait_forever(mut self) -> Self {
        self.wait = Some(Wait::Forever);
        self
    }

    /// Takes all if all are free; `None` if any is busy.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is held or left behind.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), without the wait.
    pub async fn try_lock(&self) -> Result<Option<MultiGuard>> {
        match self.acquire(Some(Wait::No)).await {
            Err(error) if error.kind() == ErrorKind::Busy => Ok(None),
            taken => taken.map(Some),
        }
    }

    /// Takes all; waits for at most [`wait`](Self::wait).
    ///
    /// # Cancel safety
    /// If the future is dropped its claims leave the queues and the locks taken so far are released.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when the wait ends, of the lock that was waited for last. [`ErrorKind::InvalidClaim`] if the
    /// same name on the same store is there twice, or no lock at all. [`ErrorKind::Lost`] if one was lost again and
    /// again while the others were waited for. Any error that a store returns.
    pub async fn lock(&self) -> Result<MultiGuard> {
        self.acquire(self.wait).await
    }

    async fn acquire(&self, wait: Option<Wait>) -> Result<MultiGuard> {
        self.parts.iter().try_for_each(|part| part.0.check_valid())?;
        let order = self.order()?;
        let Some(core) = self.parts.first().map(|part| part.0.client.core.clone()) else {
            return Err(Error::new(ErrorKind::InvalidClaim, "a Multi needs at least one lock"));
        };
        let (clock, wait) = (&core.clock, wait.unwrap_or(Wait::AtMost(core.wait)));
        let give_up = wait.until(clock.now());
        loop {
            let mut taken: Vec<(usize, Guard)> = Vec::with_capacity(order.len());
            let mut failed = None;
            for &at in &order {
                let mut request = self.options.applied_to(&self.parts[at]);
                request.wait = if wait == Wait::Forever { wait } else { Wait::AtMost(give_up.since(clock.now())) };
                let next = tokio::select! {
                    biased;
                    // There is no point in waiting for the next lock while an earlier one is lost.
                    _ = First::of(taken.iter().map(|(_, guard)| guard.lost())), if !taken.is_empty() => break,
                    next = request.lock() => next,
                };
                match next {
                    Ok(guard) => taken.push((at, guard)),
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
            }
            let loss = taken.iter().find_map(|(_, guard)| guard.check().err());
            if failed.is_none() && loss.is_none() && taken.len() == order.len() {
                taken.sort_by_key(|(at, _)| *at);
                return Ok(MultiGuard::new(taken.into_iter().map(|(_, guard)| guard).collect(), &core.runtime));
            }
            // What is not released in this time is released in the background.
            let patience = (give_up + LAST_CHANCE).since(clock.now()).min(LAST_CHANCE);
            let _ =
                tokio::time::timeout(patience, release_each(taken.into_iter().map(|(_, guard)| guard).collect())).await;
            match (failed, loss) {
                (Some(error), _) => return Err(error),
                (None, Some(error)) if clock.now() >= give_up => return Err(error),
                // One was lost while the others were waited for: begin anew, as long as there is time.
                _ => {}
            }
        }
    }

    /// The order in which all clients take them.
    fn order(&self) -> Result<Vec<usize>> {
        let addresses: Vec<_> = self.parts.iter().map(Part::address).collect();
        let mut seen = HashSet::new();
        if let Some((.., name)) = addresses.iter().find(|address| !seen.insert(*address)) {
            return Err(Error::new(ErrorKind::InvalidClaim, "this lock is named twice").about(name));
        }
        let mut order: Vec<_> = (0..addresses.len()).collect();
        order.sort_by(|&one, &other| addresses[one].cmp(&addresses[other]));
        Ok(order)
    }
}

/// The state of several held locks, in the order in which they were named. Cheap to clone; it cannot release them.
///
/// # Examples
/// ```
/// # use oarlock_core::{Ended, Locks, Memory, Multi};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let both = Multi::of(locks.mutex("account/3")).and(locks.mutex("account/7")).lock().await?;
/// let held = both.held();
/// let watcher = tokio::spawn(async move { held.ended().await });
/// both.release().await?;
/// # let ended = watcher.await.map_err(|_| oarlock_core::Error::unreachable("the watcher panicked"))?;
/// assert_eq!(ended, Ended::Released);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MultiHeld(Arc<Several>);

struct Several {
    each: Vec<Held>,
    runtime: Runtime,
    /// Cancelled with the first loss or release, by a task or by the guard.
    token: OnceLock<CancellationToken>,
}

#[oarlock_macros::blocking]
impl MultiHeld {
    /// Each of them.
    #[blocking(by_hand)]
    pub fn iter(&self) -> impl Iterator<Item = &Held> {
        self.0.each.iter()
    }

    /// Whether all are still held, as far as this client may believe. No I/O.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.iter().all(Held::is_held)
    }

    /// Checks that all are still held, for `?` between two steps of work. No I/O.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if one was lost or released.
    pub fn check(&self) -> Result<()> {
        self.iter().try_for_each(Held::check)
    }

    /// How long belief in all lasts if no further renewal succeeds: that of the weakest.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.weakest().map(Held::time_left).unwrap_or_default()
    }

    /// The lock whose belief ends first.
    #[must_use]
    pub fn weakest(&self) -> Option<&Held> {
        self.iter().min_by_key(|held| held.time_left())
    }

    /// A lock that was lost, and why, if there is one.
    #[must_use]
    pub fn loss(&self) -> Option<(&Held, LossReason)> {
        self.iter().find_map(|held| Some((held, held.loss()?)))
    }

    /// Resolves when any lock is lost, and says which and why; never resolves if they are released first.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    #[blocking(within)]
    pub async fn lost(&self) -> (&Held, LossReason) {
        First::of(self.iter().map(|held| async move { (held, held.lost().await) })).await
    }

    /// Resolves when belief in any lock will end within `lead` unless a renewal succeeds, or has ended: time to stop
    /// the work in order.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn ends_within(&self, lead: Duration) {
        First::of(self.iter().map(|held| held.ends_within(lead))).await;
    }

    /// Resolves when any lock is lost or released, and says which of the two.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    #[blocking(within)]
    pub async fn ended(&self) -> Ended {
        First::of(self.iter().map(Held::ended)).await
    }

    /// Resolves when the end of any hold is asked for: which, by whom and why. `None` if they end without that.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    #[blocking(within)]
    pub async fn asked_to_end(&self) -> Option<(&Held, Ending)> {
        let each = self.iter().map(|held| async move { held.asked_to_end().await.map(|ending| (held, ending)) });
        First::of(each).await
    }

    /// A token that is cancelled when any lock is lost or released. Cancelling it does nothing to the locks.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        let token = self.0.token.get_or_init(|| {
            let token = CancellationToken::new();
            if !self.is_held() {
                token.cancel();
                return token;
            }
            let (all, each) = (token.clone(), self.iter().map(Held::token).collect::<Vec<_>>());
            self.0.runtime.spawn_daemon(async move {
                tokio::select! {
                    () = First::of(each.iter().map(CancellationToken::cancelled)) => all.cancel(),
                    // The guard was dropped.
                    () = all.cancelled() => {}
                }
            });
            token
        });
        token.child_token()
    }
}

impl fmt::Debug for MultiHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Several held locks, in the order in which they were named; dropping it releases them.
///
/// # Guarantees
/// Those of a [`Guard`], for all locks together: it is held while each is, and lost with the first that is lost.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory, Multi};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let both = Multi::of(locks.mutex("account/3")).and(locks.mutex("account/7")).lock().await?;
/// let moved = both.with(|held| async move { held.check().map(|()| 20) }).await?;
/// # assert_eq!(moved, 20);
/// both.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "a guard that is dropped at once releases the locks at once"]
pub struct MultiGuard {
    guards: Vec<Guard>,
    held: MultiHeld,
}

#[oarlock_macros::blocking]
impl MultiGuard {
    fn new(guards: Vec<Guard>, runtime: &Runtime) -> Self {
        let each = guards.iter().map(Guard::held).collect();
        let held = MultiHeld(Arc::new(Several { each, runtime: runtime.clone(), token: OnceLock::new() }));
        Self { guards, held }
    }

    /// The state of these locks, for other tasks.
    #[must_use]
    #[blocking(by_hand)]
    pub fn held(&self) -> MultiHeld {
        self.held.clone()
    }

    /// Runs `body` while all are held, and drops it when any is lost. As with [`Guard::with`], belief is checked before
    /// each step of `body`.
    ///
    /// # Cancel safety
    /// If the future is dropped, `body` is dropped; the locks are still held.
    ///
    /// # Errors
    /// Any error of `body`; [`ErrorKind::Lost`] if one was lost before `body` was done.
    #[blocking(by_hand)]
    pub async fn with<T, E, F>(&self, body: impl FnOnce(MultiHeld) -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let lost = |(held, reason): (&Held, LossReason)| E::from(Error::lost(reason).about(held.resource()));
        if let Some(loss) = self.loss() {
            return Err(lost(loss));
        }
        while_held(self.lost(), || self.loss(), body(self.held())).await.unwrap_or_else(|loss| Err(lost(loss)))
    }

    /// Releases all, one after the other, and waits for the stores to confirm it: [`Released::NotHeld`] if one of them
    /// had ended before.
    ///
    /// # Cancel safety
    /// If the future is dropped the releases go on in the background.
    ///
    /// # Errors
    /// The first error that a store returned; that release is tried again in the background. The others were released.
    pub async fn release(self) -> Result<Released> {
        let each = self.release_each().await;
        each.into_iter().try_fold(Released::Released, |all, (_, one)| match one? {
            Released::Released => Ok(all),
            other => Ok(other),
        })
    }

    /// The guards, in the order in which they were named: each lock on its own from now on.
    #[must_use = "a guard that is dropped releases its lock"]
    #[blocking(none)]
    pub fn into_guards(mut self) -> Vec<Guard> {
        std::mem::take(&mut self.guards)
    }

    /// Releases as [`release`](Self::release) does, and reports the result of each, in the order in which they were
    /// named.
    ///
    /// # Cancel safety
    /// If the future is dropped the releases go on in the background.
    pub async fn release_each(mut self) -> Vec<(ResourceName, Result<Released>)> {
        release_each(std::mem::take(&mut self.guards)).await
    }
}

/// Releases one after the other, the last one first; the results are in the order of `guards`.
async fn release_each(mut guards: Vec<Guard>) -> Vec<(ResourceName, Result<Released>)> {
    let mut each = Vec::with_capacity(guards.len());
    while let Some(guard) = guards.pop() {
        let name = guard.resource().clone();
        each.push((name, guard.release().await));
    }
    each.reverse();
    each
}

impl From<Guard> for MultiGuard {
    /// One lock, as a `Multi` of it would have taken it.
    fn from(guard: Guard) -> Self {
        let runtime = guard.runtime().clone();
        Self::new(vec![guard], &runtime)
    }
}

impl Deref for MultiGuard {
    type Target = MultiHeld;

    fn deref(&self) -> &MultiHeld {
        &self.held
    }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        // At once, also where the task that watches the locks cannot run.
        if let Some(token) = self.held.0.token.get() {
            token.cancel();
        }
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.held.fmt(f)
    }
}

/// The first of several futures to be done.
struct First<'a, T>(Vec<Pin<Box<dyn Future<Output = T> + Send + 'a>>>);

impl<'a, T> First<'a, T> {
    fn of<F: Future<Output = T> + Send + 'a>(futures: impl Iterator<Item = F>) -> Self {
        Self(futures.map(|future| Box::pin(future) as _).collect())
    }
}

impl<T> Future for First<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let done = self.0.iter_mut().find_map(|each| match each.as_mut().poll(cx) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        });
        done.map_or(Poll::Pending, Poll::Ready)
    }
}
