//! One leader, known to all.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::kept;
use crate::claim::{Claim, Fence, Kind, Label, ResourceName};
use crate::driver::Released;
use crate::engine::{Ask, Looks};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Guard, Held};
use crate::locks::Locks;
use crate::state::{Ending, HolderState, ResourceState};

/// The longest value that a leader can publish, in bytes.
pub const MAX_VALUE_BYTES: usize = 1024;

/// A choice of one leader among many candidates.
///
/// The leader publishes a value, such as its address, that everybody can read. Candidates are elected in order of
/// arrival where the store can queue, else whoever asks when there is no leader.
///
/// # Guarantees
/// - At most one leadership is believed in at a time: that of the old leader ends before another can be elected.
/// - Every leader has a larger [`fence`](Held::fence) than all leaders before it.
/// - Observers see the present leader in the end; leaders in between can go unseen.
///
/// A leader that is paused does not know that it is one no longer: hand its fence to whatever it commands.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// let locks = Locks::over(Memory::new())?;
/// let election = locks.election("scheduler");
/// let mut leadership = election.campaign("10.0.0.7:9000").await?;
/// assert_eq!(election.leader().await?.and_then(|leader| leader.value).as_deref(), Some("10.0.0.7:9000"));
/// leadership.proclaim("10.0.0.7:9001").await?;
/// leadership.resign().await?;
/// assert!(election.leader().await?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    ask: Ask,
}

kept!(Election);

#[oarlock_macros::blocking]
impl Election {
    pub(crate) fn new(mut ask: Ask) -> Self {
        ask.claim.kind = Kind::Election;
        Self { ask }
    }

    fn candidate(&self, value: Arc<str>) -> Result<Ask> {
        let mut ask = self.ask.clone();
        ask.claim.value = Some(checked(value, &ask.claim.resource)?);
        Ok(ask)
    }

    /// Becomes the leader, waiting as long as was asked for: 30 seconds unless
    /// [`wait_forever`](Self::wait_forever) was said.
    ///
    /// # Cancel safety
    /// If the future is dropped the candidate leaves the queue; nothing is held or left behind.
    ///
    /// # Errors
    /// As [`Mutex::lock`](super::mutex::Mutex::lock); [`ErrorKind::InvalidClaim`] for a value of more than
    /// [`MAX_VALUE_BYTES`].
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

    /// Who leads now, as the store sees it.
    ///
    /// # Errors
    /// What the store says.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        Ok(Leader::of(self.ask.client.inspect(&self.ask.claim.resource).await?))
    }

    /// Follows who leads.
    #[must_use]
    pub fn observe(&self) -> LeaderWatch {
        LeaderWatch::new(self.ask.client.clone(), self.ask.claim.resource.clone())
    }
}

fn checked(value: Arc<str>, resource: &ResourceName) -> Result<Arc<str>> {
    if value.len() <= MAX_VALUE_BYTES {
        return Ok(value);
    }
    let message = format!("a leader's value has at most {MAX_VALUE_BYTES} bytes, this one has {}", value.len());
    Err(Error::new(ErrorKind::InvalidClaim, message).about(resource))
}

/// Being the leader; it ends when this is dropped.
///
/// It is a [`Held`]: [`lost`](Held::lost) is the demotion. Whoever leads does its work under
/// [`token`](Held::token) or in a `select!` with `lost`.
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
    /// Observers see it with their next look: at once where the store tells of it, else within a third of the lease.
    ///
    /// # Cancel safety
    /// If the future is dropped the value is published all the same, if the leadership lasts.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if the leadership ended first: the value may have been published or not.
    /// [`ErrorKind::InvalidClaim`] for a value of more than [`MAX_VALUE_BYTES`].
    pub async fn proclaim(&mut self, value: impl AsRef<str>) -> Result<()> {
        let value = checked(value.as_ref().into(), self.0.resource())?;
        self.0.publish(|claim: &mut Claim| claim.value = Some(value), None).await
    }

    /// Steps down and waits for the store to say so.
    ///
    /// # Cancel safety
    /// If the future is dropped it goes on in the background.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub async fn resign(self) -> Result<Released> {
        self.0.release().await
    }

    /// The plain guard, for code that does not care which kind it holds.
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

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// What it publishes.
    pub value: Option<Arc<str>>,
    /// The fence of its leadership; `None` where the store has none.
    pub fence: Option<Fence>,
    /// Who it is.
    pub label: Arc<Label>,
    /// Somebody asked it to end.
    pub ending: Option<Ending>,
}

impl Leader {
    fn of(state: ResourceState) -> Option<Self> {
        let HolderState { value, fence, label, ending, .. } =
            state.holders.into_iter().find(|holder| holder.kind == Kind::Election)?;
        Some(Self { value, fence, label, ending })
    }
}

/// Follows who leads: by the store's hints, with a slow look now and then for stores that give none.
///
/// # Guarantees
/// Leaders that follow each other quickly can go unseen; the last one never does. What is seen is what the store says:
/// a leader may know a little earlier that it is one no longer.
pub struct LeaderWatch {
    looks: Looks,
    seen: Option<Option<Leader>>,
}

#[oarlock_macros::blocking]
impl LeaderWatch {
    fn new(client: Locks, name: ResourceName) -> Self {
        Self { looks: Looks::at(client, name), seen: None }
    }

    /// Who leads: at once the first time, and then when it is another, or none, or says another value.
    ///
    /// Outages are ridden out: while the store cannot be reached, the last answer stands.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// What the store says, where asking again is no use.
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
    pub async fn changed(&mut self) -> Result<Option<Leader>> {
        loop {
            let now = Leader::of(self.looks.next().await?);
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
