//! The election of one leader.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::options;
use crate::claim::{Claim, Fence, Kind, Label, ResourceName};
use crate::driver::Released;
use crate::engine::{Poller, Request};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::held::Held;
use crate::state::{Ending, HolderState, MAX_VALUE_BYTES, ResourceState};

/// An election of one leader among many candidates.
///
/// The leader publishes a value, such as its address, that every client can read. Where the store keeps a queue,
/// candidates are elected in order of arrival; else the first candidate that asks while there is no leader.
///
/// # Guarantees
/// - At most one leadership is believed in at a time: that of the old leader ends before another can be elected.
/// - Every leader has a larger [`fence`](Held::fence) than all leaders before it.
/// - Observers see the present leader in the end; leaders in between can go unseen.
///
/// A leadership is always renewed, because a leader publishes its value with a renewal: there is no `no_renewal()`.
/// A leader that was paused does not know that it was replaced: send its fence with every command.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let election = locks.election("scheduler");
/// let mut leadership = election.campaign("10.0.0.7:9000").await?;
/// assert_eq!(election.leader().await?.and_then(|leader| leader.value).as_deref(), Some("10.0.0.7:9000"));
/// leadership.proclaim("10.0.0.7:9001").await?;
/// leadership.resign().await?;
/// assert!(election.leader().await?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is taken before campaign() or try_campaign()"]
pub struct Election {
    request: Request,
}

options!(Election);

#[oarlock_macros::blocking]
impl Election {
    pub(crate) fn new(mut request: Request) -> Self {
        request.claim.kind = Kind::Election;
        Self { request }
    }

    fn candidate(&self, value: Arc<str>) -> Result<Request> {
        let mut request = self.request.clone();
        request.claim.value = Some(checked(value, &request.claim.resource)?);
        Ok(request)
    }

    /// Becomes the leader; waits for at most [`wait`](Self::wait), 30 seconds by default.
    ///
    /// # Cancel safety
    /// If the future is dropped the candidate leaves the queue; nothing is held or left behind.
    ///
    /// # Errors
    /// As [`Mutex::lock`](super::mutex::Mutex::lock); [`ErrorKind::InvalidClaim`] for a value of more than
    /// 1,024 bytes.
    pub async fn campaign(&self, value: impl AsRef<str>) -> Result<Leadership> {
        self.candidate(value.as_ref().into())?.lock().await.map(Leadership)
    }

    /// Becomes the leader if there is none; `None` if there is one.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is held or left behind.
    ///
    /// # Errors
    /// As [`campaign`](Self::campaign).
    pub async fn try_campaign(&self, value: impl AsRef<str>) -> Result<Option<Leadership>> {
        Ok(self.candidate(value.as_ref().into())?.attempt().await?.map(Leadership))
    }

    /// The present leader, as the store sees it.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`]; [`ErrorKind::Unsupported`] where the store cannot show who leads; any error that the
    /// store returns.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        self.check()?;
        Ok(Leader::of(self.request.client.inspect(&self.request.claim.resource).await?))
    }

    /// Follows the leader. [`changed`](LeaderWatch::changed) returns the errors of [`leader`](Self::leader).
    pub fn observe(&self) -> LeaderWatch {
        let poller = Poller::at(self.request.client.clone(), self.request.claim.resource.clone());
        LeaderWatch { poller, refused: self.check().err(), seen: None }
    }

    /// The errors that `campaign` would return without asking the store: an invalid name, a store that cannot do it.
    fn check(&self) -> Result<()> {
        self.request.check_valid()?;
        self.request.check_election()
    }
}

fn checked(value: Arc<str>, resource: &ResourceName) -> Result<Arc<str>> {
    if value.len() <= MAX_VALUE_BYTES {
        return Ok(value);
    }
    let message = format!("a leader's value has at most {MAX_VALUE_BYTES} bytes, this one has {}", value.len());
    Err(Error::new(ErrorKind::InvalidClaim, message).about(resource))
}

/// A leadership; dropping it resigns.
///
/// It is a [`Held`]: [`lost`](Held::lost) resolves when the leader is replaced. Do the work of the leader under
/// [`token`](Held::token) or in a `select!` with `lost`.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let leadership = locks.election("scheduler").campaign("10.0.0.7:9000").await?;
/// assert!(leadership.is_held());
/// leadership.resign().await?;
/// # Ok(()) }
/// ```
///
/// # Guarantees
/// As those of a [`Guard`].
#[derive(Debug)]
#[must_use = "a leadership that is dropped at once ends at once"]
pub struct Leadership(Guard);

#[oarlock_macros::blocking]
impl Leadership {
    /// Publishes another value, and waits until the store has it. The fence stays.
    ///
    /// Observers see it at once where the store notifies them, else within a third of the lease.
    ///
    /// # Cancel safety
    /// If the future is dropped the value is published all the same, if the leadership lasts.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if the leadership ended first: the value may have been published or not.
    /// [`ErrorKind::InvalidClaim`] for a value of more than 1,024 bytes.
    pub async fn proclaim(&mut self, value: impl AsRef<str>) -> Result<()> {
        let value = checked(value.as_ref().into(), self.0.resource())?;
        self.0.publish(|claim: &mut Claim| claim.value = Some(value), None, Duration::ZERO).await
    }

    /// The state of this leadership, for other tasks.
    #[must_use]
    #[blocking(by_hand)]
    pub fn held(&self) -> Held {
        self.0.held()
    }

    /// Runs `body` while the leadership lasts, and drops it when the leadership is lost: see [`Guard::with`].
    ///
    /// # Cancel safety
    /// If the future is dropped, `body` is dropped; the leadership goes on.
    ///
    /// # Errors
    /// As [`Guard::with`].
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Error, Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let locks = Locks::over(Memory::new())?;
    /// let leadership = locks.election("scheduler").campaign("10.0.0.7:9000").await?;
    /// let planned = leadership.with(|held| plan(held.fence())).await?;
    /// leadership.resign().await?;
    /// # assert_eq!(planned, 3);
    /// # async fn plan(_: oarlock_core::Fence) -> oarlock_core::Result<u32> { Ok(3) }
    /// # Ok(()) }
    /// ```
    #[blocking(by_hand)]
    pub async fn with<T, E, F>(&self, body: impl FnOnce(Held) -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        self.0.with(body).await
    }

    /// Resigns and waits for the store's answer.
    ///
    /// # Cancel safety
    /// If the future is dropped it goes on in the background.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub async fn resign(self) -> Result<Released> {
        self.0.release().await
    }

    /// Resigns: [`resign`](Self::resign) under the name that every guard has.
    ///
    /// # Cancel safety
    /// As [`resign`](Self::resign).
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub async fn release(self) -> Result<Released> {
        self.resign().await
    }

    /// The plain guard, for code that works with any kind.
    pub fn into_guard(self) -> Guard {
        self.0
    }
}

impl Deref for Leadership {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.0
    }
}

/// The leader of an election.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let election = locks.election("scheduler");
/// let _leadership = election.campaign("10.0.0.7:9000").await?;
/// if let Some(leader) = election.leader().await? {
///     println!("{:?} on {}", leader.value, leader.label.host);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The value that it publishes.
    pub value: Option<Arc<str>>,
    /// The fence of its leadership; `None` where the store has none.
    pub fence: Option<Fence>,
    /// Identifies the leader.
    pub label: Arc<Label>,
    /// Its end was asked for.
    pub ending: Option<Ending>,
}

impl Leader {
    fn of(state: ResourceState) -> Option<Self> {
        let HolderState { value, fence, label, ending, .. } =
            state.holders.into_iter().find(|holder| holder.kind == Kind::Election)?;
        Some(Self { value, fence, label, ending })
    }
}

/// Follows the leader of an election: by notifications of the store, and by a slow poll.
///
/// # Guarantees
/// Leaders that follow each other quickly can be missed; the last one never is. The store decides what is seen: a
/// leader may know a little earlier that it was replaced.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let election = locks.election("scheduler");
/// let _leads = election.campaign("10.0.0.7:9000").await?;
/// let mut leaders = election.observe();
/// if let Some(leader) = leaders.changed().await? {
///     println!("send commands to {:?}", leader.value);
/// }
/// # Ok(()) }
/// ```
#[must_use = "call changed()"]
pub struct LeaderWatch {
    poller: Poller,
    /// Why there is nothing to follow.
    refused: Option<Error>,
    seen: Option<Option<Leader>>,
}

#[oarlock_macros::blocking]
impl LeaderWatch {
    /// The present leader: at once for the first call, then when the leader or its value changes; `None` without a
    /// leader.
    ///
    /// Transient errors are retried: while the store cannot be reached, nothing changes.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`]; [`ErrorKind::Unsupported`] where the store cannot show who leads; any error that the
    /// store returns and that a retry cannot repair.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let locks = Locks::over(Memory::new())?;
    /// let election = locks.election("scheduler");
    /// let mut leaders = election.observe();
    /// assert!(leaders.changed().await?.is_none());
    /// let leadership = election.campaign("node 1").await?;
    /// assert_eq!(leaders.changed().await?.and_then(|leader| leader.fence), Some(leadership.fence()));
    /// # Ok(()) }
    /// ```
    #[blocking(within)]
    pub async fn changed(&mut self) -> Result<Option<Leader>> {
        if let Some(error) = &self.refused {
            return Err(error.clone());
        }
        loop {
            let now = Leader::of(self.poller.next().await?);
            if self.seen.as_ref() != Some(&now) {
                self.seen = Some(now.clone());
                return Ok(now);
            }
        }
    }
}

impl fmt::Debug for LeaderWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderWatch").field("seen", &self.seen).finish_non_exhaustive()
    }
}
