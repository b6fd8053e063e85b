//! The contract between the engine and a store: seven verbs, no policy.
//!
//! A driver need **not** be cancel safe, retry, back off, time out, renew, log, count, or know what a read-write lock
//! is. It must keep these promises:
//!
//! 1. `attempt` with the same claim id, any number of times, queues at most once, and once granted answers with
//!    the same fence while the grant lives. With `wait = false` a refusal leaves nothing behind.
//! 2. A claim's position and fence are fixed atomically in the store; leases run on the store's clock.
//! 3. After `release` has answered, the id neither holds nor waits. An unknown id is not an error.
//! 4. Every error says whether it may have taken effect.
//! 5. `watch` may fire without a change, and must not miss a change made after it resolved. It is only a hint.
//! 6. A grant that ends with a session names it ([`Grant::ends_with`]), and the driver says so as soon as it knows that
//!    the session is over.
//!
//! The enums that verbs take and return ([`Attempt`], [`End`], [`Interest`], [`Fences`], [`Renewed`], [`Gone`]) and the
//! capacity and weight of a claim are exhaustive, so that the compiler shows a driver each new case. Everything else
//! that may grow is `#[non_exhaustive]`.

mod handed;
pub mod memo;
mod session_end;
mod versioned;
mod waiters;
mod watch;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub use crate::locks::Opener;
pub use handed::Handed;
pub use session_end::SessionEnd;
pub use versioned::Versioned;
pub use waiters::Waiters;
pub use watch::{Hint, HintSender, Listeners, Watch};

use crate::capabilities::Capabilities;
use crate::claim::{Claim, ClaimId, Fence, Lifetime, ResourceName};
use crate::clock::Moment;
use crate::error::Result;
use crate::state::{Ending, Memo, Page, Query};

/// Identifies a driver and its store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Info {
    /// Its URL scheme.
    pub scheme: &'static str,
    /// Where its store is, without secrets.
    pub address: String,
    /// What it can do.
    pub capabilities: Capabilities,
    /// The most claims in one call of [`Driver::renew`].
    pub batch: usize,
    /// Whether [`Driver::release_and_attempt`] is one request. The engine uses it only then.
    pub joint: bool,
}

impl Info {
    /// A driver of this scheme at this address.
    #[must_use]
    pub fn new(scheme: &'static str, address: impl Into<String>, capabilities: Capabilities) -> Self {
        Self { scheme, address: address.into(), capabilities, batch: 1024, joint: false }
    }
}

/// The lease of a claim: since when and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// When the request was sent that last extended it: the keep-alive or heartbeat where liveness is shared.
    /// `None` = this very request; the engine noted the time before it called.
    pub from: Option<Moment>,
    /// How long it lasts from then on.
    pub ttl: Duration,
}

impl Lease {
    /// A lease that this very request extended.
    #[must_use]
    pub const fn of(ttl: Duration) -> Self {
        Self { from: None, ttl }
    }

    /// A lease that a request extended which was sent at `from`.
    #[must_use]
    pub const fn sent_at(from: Moment, ttl: Duration) -> Self {
        Self { from: Some(from), ttl }
    }
}

/// The claim holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// Larger than every earlier one of this resource.
    pub fence: Fence,
    /// What keeps it alive.
    pub lease: Lease,
    /// What the last holder left.
    pub memo: Option<Memo>,
    /// The session that it ends with, before its lease does; `None` if it lives by its lease alone.
    pub ends_with: Option<SessionEnd>,
}

impl Grant {
    /// A grant without a memo, which lives by its lease alone.
    #[must_use]
    pub fn new(fence: Fence, lease: Lease) -> Self {
        Self { fence, lease, memo: None, ends_with: None }
    }
}

/// The position of a pending claim: opaque to the engine, passed back to [`Driver::watch`].
///
/// It must stay the same while nothing relevant has changed: whenever it differs, the engine arms a new watch and
/// attempts again at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor(pub Vec<u8>);

/// The claim does not hold yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pending {
    /// How many claims are before this one, holders and waiters; `None` if the store does not tell.
    pub ahead: Option<u32>,
    /// A claim before this one can expire after this time: attempt again then.
    pub recheck_after: Option<Duration>,
    /// A holder, if the store tells: if the next answer names the same one, nothing has changed.
    pub holder: Option<ClaimId>,
    /// What to watch.
    pub cursor: Cursor,
    /// A watch that is armed for this claim also reports what happened between this answer and its arming, so that no
    /// further attempt is needed. On a store that has to be polled otherwise
    /// ([`Notify::Poll`](crate::capabilities::Notify)) it notifies this claim, so that a slow poll is enough.
    pub watched: bool,
}

/// The answer to an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The claim holds.
    Granted(Grant),
    /// It does not; with `wait` it has a position in the queue now. With a [`recheck_after`](Pending::recheck_after) of
    /// zero it may have none yet: the claim attempts again at once.
    Pending(Pending),
}

impl Attempt {
    /// The same answer. A grant of a claim that lives as long as its process ends with this session, too.
    #[must_use]
    pub fn ending_with(mut self, claim: &Claim, session: &SessionEnd) -> Self {
        if let (Self::Granted(grant), Lifetime::Process) = (&mut self, claim.lifetime) {
            grant.ends_with = Some(session.clone());
        }
        self
    }
}

/// What a renewal does to the fences of a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fences {
    /// Nothing.
    #[default]
    Keep,
    /// Raise the claim's fence to at least this.
    AtLeast(Fence),
    /// Reserve this many further fences for the claim.
    Reserve(u32),
}

/// One claim to be kept alive, holder or waiter.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Renewal {
    /// The claim.
    pub claim: Arc<Claim>,
    /// What to do with its fences.
    pub fences: Fences,
    /// A memo to leave on the resource now.
    pub memo: Option<Memo>,
    /// How long the store must remember the memo at least, even if the name is not used. Zero: for as long as it
    /// remembers unused names. A later request never shortens this. The engine asks for ten years at most.
    pub keep: Duration,
    /// An attempt was answered with a grant: a turn that the store gave to a waiter has been taken.
    pub held: bool,
}

impl Renewal {
    /// Keeps `claim` alive and changes nothing else.
    #[must_use]
    pub fn of(claim: Arc<Claim>) -> Self {
        Self { claim, fences: Fences::Keep, memo: None, keep: Duration::ZERO, held: false }
    }
}

/// Why the store no longer knows a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gone {
    /// The store does not say: expired, evicted, or forgotten.
    Unknown,
    /// An operator or another program broke it.
    Broken(Ending),
    /// Its session or process ended.
    Session,
}

/// The answer to a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The claim is alive.
    Alive {
        /// From when and how long.
        lease: Lease,
        /// `None` for a waiter. For a holder, the fence of its grant; if more were requested ([`Fences`]), the largest
        /// that belongs to the claim now. If a holder's grant has another fence, or none, the engine treats the lock as
        /// lost: the store fell back to an earlier state.
        fence: Option<Fence>,
        /// Its end was asked for: it will not live longer than this lease.
        ending: Option<Ending>,
    },
    /// The claim neither holds nor waits, and never will again.
    Gone(Gone),
}

/// Why a claim ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Its holder releases it.
    Done {
        /// To be left on the resource.
        memo: Option<Memo>,
    },
    /// Its waiter gave up.
    Withdrawn,
    /// An operator or another program ends it.
    Broken {
        /// Who, and why.
        ending: Ending,
        /// How long the holder has to finish; zero ends the hold at once.
        grace: Duration,
    },
}

/// The result of a release or a break.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory, Released};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let guard = locks.mutex("report").lock().await?;
/// assert_eq!(guard.release().await?, Released::Released);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// It was held until now, and is released.
    Released,
    /// It had ended before.
    NotHeld,
    /// Another entry of the same owner still holds it (re-entrant locks only).
    StillHeld,
    /// Its holder was asked to end within the given grace (breaks only).
    Asked,
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Release {
    /// The result for the claim.
    pub outcome: Released,
    /// Whether other claims wait; `None` if the store does not tell.
    pub others_waiting: Option<bool>,
}

impl Release {
    /// An answer.
    #[must_use]
    pub fn new(outcome: Released, others_waiting: Option<bool>) -> Self {
        Self { outcome, others_waiting }
    }
}

/// What a watch is for.
#[derive(Clone, Debug)]
pub enum Interest {
    /// The turn of this pending claim, which was at this position.
    Turn(Arc<Claim>, Cursor),
    /// Any change of this resource.
    Resource(ResourceName),
    /// All claims of this client: one stream for any number of locks.
    Mailbox,
}

/// A store. See the [module](self) for what it must guarantee.
pub trait Driver: Send + Sync + 'static {
    /// Its scheme, address and capabilities.
    fn info(&self) -> Info;

    /// Grants or queues a claim, or refuses it. Idempotent by claim id. A client holds only after `attempt` has
    /// answered `Granted`; the store may have decided that earlier, when the previous holder released. A held claim
    /// that asks for less weight becomes lighter and keeps its fence.
    fn attempt(&self, claim: &Claim) -> impl Future<Output = Result<Attempt>> + Send;

    /// Keeps holders and waiters alive: one answer per claim, in order. An error means "unknown" for that claim.
    fn renew(&self, batch: &[Renewal]) -> impl Future<Output = Vec<Result<Renewed>>> + Send;

    /// Ends a claim, holder or waiter, and notifies the claims that can be granted now.
    fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> impl Future<Output = Result<Release>> + Send;

    /// Ends a claim, and then attempts another one on the same resource: as [`release`](Self::release) and
    /// [`attempt`](Self::attempt), each with its own answer. Both are repeated apart if an answer is lost.
    fn release_and_attempt(
        &self,
        resource: &ResourceName,
        id: ClaimId,
        end: &End,
        next: &Claim,
    ) -> impl Future<Output = (Result<Release>, Result<Attempt>)> + Send {
        async move { (self.release(resource, id, end).await, self.attempt(next).await) }
    }

    /// Arms a watch.
    fn watch(&self, interest: &Interest) -> impl Future<Output = Result<Watch>> + Send;

    /// Returns the state of resources.
    fn inspect(&self, query: &Query) -> impl Future<Output = Result<Page>> + Send;

    /// Closes connections and sessions. Where claims live as long as their session, those still held are released. The
    /// end of a session that grants name ([`Grant::ends_with`]) is told first, before anything is sent or closed.
    fn close(&self) -> impl Future<Output = Result<()>> + Send;
}

/// A future that owns its data, so that it can be finished in the background when its caller drops it.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The boxed twin of [`Driver`], implemented for every driver: what the engine holds.
pub trait DynDriver: Send + Sync {
    /// See [`Driver::info`].
    fn info(&self) -> Info;
    /// See [`Driver::attempt`].
    fn attempt(self: Arc<Self>, claim: Arc<Claim>) -> BoxFuture<Result<Attempt>>;
    /// See [`Driver::renew`].
    fn renew(self: Arc<Self>, batch: Vec<Renewal>) -> BoxFuture<Vec<Result<Renewed>>>;
    /// See [`Driver::release`].
    fn release(self: Arc<Self>, resource: ResourceName, id: ClaimId, end: End) -> BoxFuture<Result<Release>>;
    /// See [`Driver::release_and_attempt`].
    fn release_and_attempt(
        self: Arc<Self>,
        resource: ResourceName,
        id: ClaimId,
        end: End,
        next: Arc<Claim>,
    ) -> BoxFuture<(Result<Release>, Result<Attempt>)> {
        let (release, attempt) = (self.clone().release(resource, id, end), self.attempt(next));
        Box::pin(async move { (release.await, attempt.await) })
    }
    /// See [`Driver::watch`].
    fn watch(self: Arc<Self>, interest: Interest) -> BoxFuture<Result<Watch>>;
    /// See [`Driver::inspect`].
    fn inspect(self: Arc<Self>, query: Query) -> BoxFuture<Result<Page>>;
    /// See [`Driver::close`].
    fn close(self: Arc<Self>) -> BoxFuture<Result<()>>;
}

impl<D: Driver> DynDriver for D {
    fn info(&self) -> Info {
        Driver::info(self)
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>) -> BoxFuture<Result<Attempt>> {
        Box::pin(async move { Driver::attempt(&*self, &claim).await })
    }

    fn renew(self: Arc<Self>, batch: Vec<Renewal>) -> BoxFuture<Vec<Result<Renewed>>> {
        Box::pin(async move { Driver::renew(&*self, &batch).await })
    }

    fn release(self: Arc<Self>, resource: ResourceName, id: ClaimId, end: End) -> BoxFuture<Result<Release>> {
        Box::pin(async move { Driver::release(&*self, &resource, id, &end).await })
    }

    fn release_and_attempt(
        self: Arc<Self>,
        resource: ResourceName,
        id: ClaimId,
        end: End,
        next: Arc<Claim>,
    ) -> BoxFuture<(Result<Release>, Result<Attempt>)> {
        Box::pin(async move { Driver::release_and_attempt(&*self, &resource, id, &end, &next).await })
    }

    fn watch(self: Arc<Self>, interest: Interest) -> BoxFuture<Result<Watch>> {
        Box::pin(async move { Driver::watch(&*self, &interest).await })
    }

    fn inspect(self: Arc<Self>, query: Query) -> BoxFuture<Result<Page>> {
        Box::pin(async move { Driver::inspect(&*self, &query).await })
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move { Driver::close(&*self).await })
    }
}
