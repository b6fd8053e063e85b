//! Several locks as one.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};

use super::mutex::Mutex;
use crate::belief::{Ended, LossReason};
use crate::claim::ResourceName;
use crate::driver::Released;
use crate::engine::{Ask, Home, LAST_CHANCE, Wait};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Guard, Held, while_held};
use crate::state::Ending;

/// One lock of a [`Multi`], not taken yet. A [`Mutex`] is one; of other kinds it is made by
/// [`RwLock::for_reading`](crate::RwLock::for_reading), [`RwLock::for_writing`](crate::RwLock::for_writing) and
/// [`Semaphore::permits`](crate::Semaphore::permits).
#[derive(Clone, Debug)]
pub struct Part(pub(super) Ask);

impl From<Mutex> for Part {
    fn from(mutex: Mutex) -> Self {
        Self(mutex.into_ask())
    }
}

/// Where a lock is: the same for everybody who asks for it.
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
/// - They are taken in one order, that of their stores' addresses and names, whatever the order they are named in: two who
///   want the same locks never wait for each other. (Locks on one store must be reached by everybody under one address.)
/// - There is one deadline for all. When it passes, or anything fails, those taken are let go.
/// - Together they are held only while each of them is: lost if any is lost.
///
/// What each part says of its own wait is not heeded; its lease and everything else is.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory, Multi};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// let locks = Locks::over(Memory::new())?;
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
}

#[oarlock_macros::blocking]
impl Multi {
    /// One lock, to which others can be added.
    #[blocking(by_hand)]
    pub fn of(part: impl Into<Part>) -> Self {
        Self { parts: vec![part.into()], wait: None }
    }

    /// All of these locks; there must be one at least.
    #[blocking(by_hand)]
    pub fn all<P: Into<Part>>(parts: impl IntoIterator<Item = P>) -> Self {
        Self { parts: parts.into_iter().map(Into::into).collect(), wait: None }
    }

    /// One more lock.
    #[blocking(by_hand)]
    pub fn and(mut self, part: impl Into<Part>) -> Self {
        self.parts.push(part.into());
        self
    }

    /// Gives up waiting for all of them after `wait`. Without this, after the first one's client's default of 30 seconds.
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

    /// Takes all, waiting as long as was asked for.
    ///
    /// # Cancel safety
    /// If the future is dropped you lose your places and what was taken so far; nothing is held or left behind.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when the wait ends, of the lock that was waited for last. [`ErrorKind::InvalidClaim`] if the
    /// same name on the same store is there twice, or no lock at all. [`ErrorKind::Lost`] if one was lost again and again while the others were
    /// waited for. What any of the stores says.
    pub async fn lock(&self) -> Result<MultiGuard> {
        self.acquire(self.wait).await
    }

    async fn acquire(&self, wait: Option<Wait>) -> Result<MultiGuard> {
        self.parts.iter().try_for_each(|part| part.0.check_valid())?;
        let order = self.order()?;
        let Some(core) = self.parts.first().map(|part| part.0.client.core.clone()) else {
            return Err(Error::new(ErrorKind::InvalidClaim, "there is nothing to lock"));
        };
        let (clock, wait) = (&core.clock, wait.unwrap_or(Wait::AtMost(core.wait)));
        let started = clock.now();
        let give_up = wait.until(started);
        loop {
            let mut taken = MultiGuard::default();
            for &at in &order {
                let mut ask = self.parts[at].0.clone();
                ask.wait = if wait == Wait::Forever { wait } else { Wait::AtMost(give_up.since(clock.now())) };
                let home = ask.client.core.home.clone();
                let next = tokio::select! {
                    biased;
                    // There is no point in waiting for the next while one before it is gone.
                    _ = taken.lost(), if !taken.parts.is_empty() => break,
                    next = ask.lock() => next,
                };
                match next {
                    Ok(guard) => taken.push(at, guard, &home),
                    Err(error) => {
                        taken.let_go((give_up + LAST_CHANCE).since(clock.now()).min(LAST_CHANCE)).await;
                        return Err(error);
                    }
                }
            }
            if taken.parts.len() == order.len() && taken.is_held() {
                taken.parts.sort_by_key(|(at, _)| *at);
                return Ok(taken);
            }
            // One was lost while the others were waited for: all over again, as long as there is time.
            let loss = taken.loss().map(|(held, reason)| Error::lost(reason).about(held.resource()));
            taken.let_go((give_up + LAST_CHANCE).since(clock.now()).min(LAST_CHANCE)).await;
            match loss {
                Some(error) if clock.now() >= give_up => return Err(error),
                _ => {}
            }
        }
    }

    /// The order in which everybody takes them.
    fn order(&self) -> Result<Vec<usize>> {
        let addresses: Vec<_> = self.parts.iter().map(Part::address).collect();
        let mut seen = HashSet::new();
        if let Some((.., name)) = addresses.iter().find(|address| !seen.insert(*address)) {
            return Err(Error::new(ErrorKind::InvalidClaim, "it is asked for twice at once").about(name));
        }
        let mut order: Vec<_> = (0..addresses.len()).collect();
        order.sort_by(|&one, &other| addresses[one].cmp(&addresses[other]));
        Ok(order)
    }
}

/// Several locks in hand, in the order in which they were named; they are let go when this is dropped.
///
/// # Guarantees
/// Those of a [`Guard`], of all of them together: it is held while each is, and lost with the first that is lost.
#[derive(Default)]
#[must_use = "a guard that is dropped at once lets the locks go at once"]
pub struct MultiGuard {
    parts: Vec<(usize, Guard)>,
    home: Option<Home>,
    /// Cancelled with the first loss or release, by a task that ends with this guard.
    token: OnceLock<(CancellationToken, DropGuard)>,
}

#[oarlock_macros::blocking]
impl MultiGuard {
    fn push(&mut self, at: usize, guard: Guard, home: &Home) {
        self.parts.push((at, guard));
        self.home.get_or_insert_with(|| home.clone());
    }

    /// Releases those that are of no use without the others. What is not done within `patience` goes on in the background.
    async fn let_go(self, patience: Duration) {
        let _ = tokio::time::timeout(patience, self.release()).await;
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Held> {
        self.parts.iter().map(|(_, guard)| &**guard)
    }

    /// Whether all may still be believed in. No I/O.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.iter().all(Held::is_held)
    }

    /// How long belief in all lasts if no further renewal succeeds: that of the weakest.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.weakest().map(Held::time_left).unwrap_or_default()
    }

    /// The one whose belief ends first.
    #[must_use]
    pub fn weakest(&self) -> Option<&Held> {
        self.iter().min_by_key(|held| held.time_left())
    }

    /// One that was lost, and why, if any was.
    #[must_use]
    pub fn loss(&self) -> Option<(&Held, LossReason)> {
        self.iter().find_map(|held| Some((held, held.loss()?)))
    }

    /// Resolves when any is lost, and says which and why.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn lost(&self) -> (&Held, LossReason) {
        let each = self.iter().map(|held| async move { (held, held.lost().await) });
        First(each.map(|lost| Box::pin(lost) as _).collect()).await
    }

    /// Resolves when belief in any will end within `lead` unless a renewal succeeds: time to stop in order.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn ends_within(&self, lead: Duration) {
        First(self.iter().map(|held| Box::pin(held.ends_within(lead)) as _).collect()).await;
    }

    /// Resolves when any is lost, and says why. It borrows the guard, so it cannot see their release: a task that outlives the guard
    /// watches [`token`](Self::token), or [`Held::ended`] of one of [`iter`](Self::iter).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn ended(&self) -> Ended {
        First(self.iter().map(|held| Box::pin(held.ended()) as _).collect()).await
    }

    /// Resolves when the end of any is asked for: which, by whom and why. `None` if they end without that.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn asked_to_end(&self) -> Option<(&Held, Ending)> {
        let each = self.iter().map(|held| async move { held.asked_to_end().await.map(|ending| (held, ending)) });
        First(each.map(|asked| Box::pin(asked) as _).collect()).await
    }

    /// A token that is cancelled when any is lost or released. Cancelling it does nothing to the locks.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        let (token, _) = self.token.get_or_init(|| {
            let token = CancellationToken::new();
            let tokens: Vec<_> = self.iter().map(Held::token).collect();
            let all = token.clone();
            let watch = async move {
                let any = First(tokens.iter().map(|token| Box::pin(token.cancelled()) as _).collect());
                tokio::select! {
                    () = any => all.cancel(),
                    // Its guard is gone.
                    () = all.cancelled() => {}
                }
            };
            if !self.is_held() {
                token.cancel();
            } else if let Some(home) = &self.home {
                home.spawn_daemon(watch);
            }
            (token.clone(), token.drop_guard())
        });
        token.child_token()
    }

    /// Runs `body` while all are held, and drops it where it stands when any is lost. As with [`Guard::with`], belief is looked at
    /// before each step of `body`.
    ///
    /// # Errors
    /// Any error of `body`; [`ErrorKind::Lost`] if one was lost before `body` was done.
    #[blocking(by_hand)]
    pub async fn with<T, E, F>(&self, body: impl FnOnce(Vec<Held>) -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let lost = |(held, reason): (&Held, LossReason)| E::from(Error::lost(reason).about(held.resource()));
        if let Some(loss) = self.loss() {
            return Err(lost(loss));
        }
        let body = body(self.iter().cloned().collect());
        while_held(self.lost(), || self.loss(), body).await.unwrap_or_else(|loss| Err(lost(loss)))
    }

    /// Releases all, one after the other, and waits for the stores to say so: [`Released::NotHeld`] if one of them had ended
    /// before.
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

    /// Releases as [`release`](Self::release) does, and says what became of each, in the order in which they were named.
    ///
    /// # Cancel safety
    /// If the future is dropped the releases go on in the background.
    pub async fn release_each(mut self) -> Vec<(ResourceName, Result<Released>)> {
        let mut each = Vec::with_capacity(self.parts.len());
        while let Some((_, guard)) = self.parts.pop() {
            let name = guard.resource().clone();
            each.push((name, guard.release().await));
        }
        each.reverse();
        each
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The first of several futures to be done.
struct First<'a, T>(Vec<Pin<Box<dyn Future<Output = T> + Send + 'a>>>);

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
