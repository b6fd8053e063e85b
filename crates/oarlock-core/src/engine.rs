//! One engine, where all policy lives: waiting, retrying, renewing, giving up, cleaning up.

mod acquire;
mod at_home;
mod backoff;
pub(crate) mod cohort;
mod crowd;
mod entropy;
mod gate;
mod home;
mod leaving;
mod look;
mod reaper;
mod uncut;
mod watchdog;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub use acquire::Wait;
pub(crate) use acquire::{Ask, LAST_CHANCE, busy};
pub(crate) use backoff::Patience;
use cohort::Cohorts;
pub(crate) use cohort::MAX_HAND_OFFS;
use crowd::Crowds;
use entropy::Entropy;
use gate::Gate;
pub use home::Home;
use leaving::Leaving;
pub(crate) use look::Looks;
pub(crate) use reaper::Orphan;
use uncut::Uncut;
use watchdog::Watchdog;

use crate::capabilities::Liveness;
use crate::claim::{Claim, ClaimId, Fence, Label, ResourceName, Tether};
use crate::clock::{BootClock, Clock, Moment};
use crate::driver::{BoxFuture, Driver, DynDriver, End, Info, Interest, Release, Released, Watch};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Observer, Observers};
use crate::state::{Ending, Page, Query, ResourceState};

/// How long a lock lives without renewal, unless said otherwise.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// How long `lock()` waits, unless said otherwise.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(30);

/// How long one request to a store may take.
pub const DEFAULT_OP_TIMEOUT: Duration = Duration::from_secs(5);

/// How many claims of one client may stand in the store's queue for one name, unless said otherwise. Far more than tasks that have a
/// use for one lock at once, and few enough for a store: ten thousand places are renewed with about 3,500 answers a second, in four requests.
pub const DEFAULT_MAX_WAITERS: usize = 10_000;

/// The longest time that one request to a store may be given.
pub const MAX_OP_TIMEOUT: Duration = MAX_TTL;

/// The shortest lease: below this, belief has no room beside margins and scheduling.
pub const MIN_TTL: Duration = Duration::from_millis(50);

/// The longest lease.
pub const MAX_TTL: Duration = Duration::from_secs(30 * 24 * 3600);

/// Locks on one store. Cheap to clone; every clone is the same client.
///
/// Dropping the last clone does not free locks: their guards keep what they need.
#[derive(Clone)]
pub struct Client {
    pub(crate) core: Arc<Core>,
}

/// What the parts of the engine share.
pub(crate) struct Core {
    pub(crate) driver: Arc<dyn DynDriver>,
    pub(crate) info: Info,
    pub(crate) clock: Arc<dyn Clock>,
    /// Tells the store from others in this process, whoever's requests it takes.
    store: usize,
    pub(crate) observers: Observers,
    pub(crate) entropy: Arc<Entropy>,
    pub(crate) watchdog: Watchdog,
    pub(crate) leaving: Leaving,
    pub(crate) gate: Gate,
    pub(crate) cohorts: Cohorts,
    pub(crate) crowds: Crowds,
    pub(crate) home: Home,
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
    pub(crate) op_timeout: Duration,
    pub(crate) label: Arc<Label>,
    closed: AtomicBool,
    /// A task that does nothing for as long as the home's runtime lives.
    pulse: tokio::task::AbortHandle,
}

impl Drop for Core {
    fn drop(&mut self) {
        self.watchdog.stop();
        self.pulse.abort();
    }
}

impl Core {
    pub(crate) fn release(&self, claim: &Claim, end: End) -> BoxFuture<Result<Release>> {
        self.driver.clone().release(claim.resource.clone(), claim.id, end)
    }

    /// Waits for a request whose answer leaves nothing to undo, as long as one may take.
    pub(crate) async fn in_time<T>(&self, request: BoxFuture<Result<T>>, verb: &'static str) -> Result<T>
    where
        T: Send + 'static,
    {
        self.by(Moment::NEVER, request, verb).await
    }

    /// Waits for such a request, but no longer than until `end`.
    pub(crate) async fn by<T>(&self, end: Moment, request: BoxFuture<Result<T>>, verb: &'static str) -> Result<T>
    where
        T: Send + 'static,
    {
        let late = || Error::unreachable("no answer in time").on(self.info.scheme).during(verb);
        let patience = self.op_timeout.min(end.since(self.clock.now()));
        let request = Uncut::new(&self.home, request);
        tokio::time::timeout(patience, request).await.unwrap_or_else(|_| Err(late()))
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "this client was shut down").on(self.info.scheme));
        }
        if self.pulse.is_finished() {
            let message = "the runtime that this client renews its locks on is gone";
            return Err(Error::new(ErrorKind::Closed, message).on(self.info.scheme));
        }
        Ok(())
    }

    /// Whether the store can keep a claim by its lease alone.
    pub(crate) fn check_tether(&self, tether: Tether, resource: &ResourceName) -> Result<()> {
        if tether == Tether::Process || self.info.capabilities.tether_lease {
            return Ok(());
        }
        let message = "this store frees a lock with its process: it cannot be handed over";
        Err(Error::new(ErrorKind::Unsupported, message).on(self.info.scheme).about(resource))
    }

    /// A number that tells this client's store from others in this process.
    pub(crate) fn store_number(&self) -> usize {
        self.store
    }
}

impl Client {
    /// A client over `driver`, with defaults; its background work runs on the caller's runtime, or on a thread of its
    /// own where there is none. Its futures must be awaited on a tokio runtime with time in any case.
    ///
    /// # Errors
    /// [`ErrorKind::Os`] if that thread cannot be started.
    pub fn new(driver: impl Driver) -> Result<Self> {
        Self::builder(driver).build()
    }

    /// A client over `driver`, with choices.
    pub fn builder(driver: impl Driver) -> ClientBuilder {
        Self::builder_over(Arc::new(driver))
    }

    /// A client over a driver that is shared or chosen at run time.
    pub fn builder_over(driver: Arc<dyn DynDriver>) -> ClientBuilder {
        ClientBuilder {
            driver,
            clock: Arc::new(BootClock),
            observers: Vec::new(),
            entropy: Entropy::Os,
            home: None,
            ttl: DEFAULT_TTL,
            wait: DEFAULT_WAIT,
            op_timeout: DEFAULT_OP_TIMEOUT,
            max_waiters: DEFAULT_MAX_WAITERS,
            label: None,
        }
    }

    /// Who the driver is and what it can do.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.core.info
    }

    /// One resource as the store sees it now.
    ///
    /// # Errors
    /// What the store says; [`ErrorKind::Unreachable`] if it does not answer in time.
    pub async fn inspect(&self, name: &ResourceName) -> Result<ResourceState> {
        let page = self.page(Query::name(name.clone())).await?;
        Ok(page.resources.into_iter().next().unwrap_or_else(|| ResourceState::free(name.clone())))
    }

    /// Every live resource, in order of names.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the store cannot list; else as [`inspect`](Self::inspect).
    pub async fn list(&self) -> Result<Vec<ResourceState>> {
        self.all(Query::live()).await
    }

    /// As [`list`](Self::list), but found by looking at everything there is in the store: slow, and it finds the locks of
    /// other programs too.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub async fn scan(&self) -> Result<Vec<ResourceState>> {
        let mut query = Query::live();
        query.scan = true;
        // One page: each would look at everything again.
        query.limit = usize::MAX - 1;
        self.all(query).await
    }

    async fn all(&self, mut query: Query) -> Result<Vec<ResourceState>> {
        let mut all = Vec::new();
        loop {
            let page = self.page(query.clone()).await?;
            let last = page.resources.last().map(|state| state.name.clone());
            all.extend(page.resources);
            if !page.more || last.is_none() {
                return Ok(all);
            }
            query.after = last;
        }
    }

    async fn page(&self, query: Query) -> Result<Page> {
        self.core.check_open()?;
        self.core.in_time(self.core.driver.clone().inspect(query), "inspect").await
    }

    /// Hints that `name` changed: look with [`inspect`](Self::inspect) after each.
    ///
    /// # Errors
    /// What the store says.
    pub async fn watch(&self, name: &ResourceName) -> Result<Watch> {
        self.core.check_open()?;
        let interest = Interest::Resource(name.clone());
        self.core.in_time(self.core.driver.clone().watch(interest), "watch").await
    }

    /// Ends somebody else's hold. `fence` is the proof that the caller has looked: if another holds it by now, nothing
    /// happens. A lock that goes from task to task ([`Mutex::cohort`](crate::Mutex::cohort)) is one hold under the fence that
    /// [`inspect`](Self::inspect) shows, whichever of them has it now.
    ///
    /// With a `grace` the holder is asked: it is not renewed any more, hears of it at once where the store can tell,
    /// and is gone after that time at the latest. A grace shorter than its lease can end the hold before a holder that
    /// is cut off believes so; what is protected must then be protected by fences.
    ///
    /// # Errors
    /// What the store says.
    pub async fn break_hold(
        &self,
        name: &ResourceName,
        fence: Fence,
        ending: Ending,
        grace: Duration,
    ) -> Result<Released> {
        let state = self.inspect(name).await?;
        let Some(holder) = state.holders.iter().find(|holder| holder.fence == Some(fence)) else {
            return Ok(Released::NotHeld);
        };
        self.break_claim(name, holder.id, ending, grace).await
    }

    /// [`break_hold`](Self::break_hold) by the id that [`inspect`](Self::inspect) shows: for holds of other programs,
    /// which have no fence.
    ///
    /// # Errors
    /// What the store says.
    pub async fn break_claim(
        &self,
        name: &ResourceName,
        id: ClaimId,
        ending: Ending,
        grace: Duration,
    ) -> Result<Released> {
        let end = End::Broken { ending, grace };
        let release = self.core.driver.clone().release(name.clone(), id, end);
        Ok(self.core.in_time(release, "break").await?.outcome)
    }

    /// Waits for the releases that dropped guards and abandoned acquisitions left to be done, at most for `patience`,
    /// and lets go of the store, which may take a second more; what takes longer goes on in the background. Guards that still live lose their locks ([`LossReason::Session`]), unless they are
    /// tethered to their lease alone.
    ///
    /// [`LossReason::Session`]: crate::LossReason::Session
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] if something was still left to be done; what the store says when it is closed.
    pub async fn shutdown(&self, patience: Duration) -> Result<()> {
        self.core.closed.store(true, Ordering::Release);
        let end = self.core.clock.now() + patience;
        let flushed = tokio::time::timeout(patience, self.core.home.idle()).await;
        // Before the store can give them to others.
        self.core.watchdog.end_session();
        let left = end.since(self.core.clock.now()).max(LAST_CHANCE);
        let close = Uncut::new(&self.core.home, self.core.driver.clone().close());
        let late = || Error::unreachable("no answer in time").on(self.core.info.scheme).during("close");
        tokio::time::timeout(left, close).await.unwrap_or_else(|_| Err(late()))?;
        flushed.map_err(|_| Error::unreachable("some releases were not done in time").on(self.core.info.scheme))
    }

    pub(crate) fn claim(&self, name: ResourceName) -> Result<Claim> {
        let id: ClaimId = self.core.entropy.claim_id()?;
        let mut claim = Claim::new(id, name);
        claim.ttl = self.core.ttl;
        claim.label = self.core.label.clone();
        Ok(claim)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("info", &self.core.info).finish_non_exhaustive()
    }
}

/// Choices for a [`Client`].
#[must_use = "call build()"]
pub struct ClientBuilder {
    driver: Arc<dyn DynDriver>,
    clock: Arc<dyn Clock>,
    observers: Vec<Arc<dyn Observer>>,
    entropy: Entropy,
    home: Option<Home>,
    ttl: Duration,
    wait: Duration,
    op_timeout: Duration,
    max_waiters: usize,
    label: Option<Label>,
}

impl ClientBuilder {
    /// The clock that belief is counted on.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Somebody to be told of every step.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(Arc::new(observer));
        self
    }

    /// Jitter and the order of ids from a seed instead of the operating system, to replay a test. The ids themselves stay unique:
    /// clients of one seed do not share their locks.
    pub fn seed(mut self, seed: u64) -> Self {
        self.entropy = Entropy::seeded(seed);
        self
    }

    /// Where the background work runs.
    pub fn home(mut self, home: Home) -> Self {
        self.home = Some(home);
        self
    }

    /// The lease of locks that do not say their own.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The bound on waiting of locks that do not say their own.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// How long one request to the store may take: more than nothing, and at most [`MAX_OP_TIMEOUT`].
    pub fn op_timeout(mut self, op_timeout: Duration) -> Self {
        self.op_timeout = op_timeout;
        self
    }

    /// How many claims of this client may stand in the store's queue for one name; [`DEFAULT_MAX_WAITERS`] unless said otherwise. One
    /// more is refused with [`ErrorKind::TooManyWaiters`] before the store is asked.
    ///
    /// Tasks that wait for one exclusive lock in this client show the store one of them, and do not count. Readers, permits and fair locks
    /// each stand in the queue.
    pub fn max_waiters(mut self, max_waiters: usize) -> Self {
        self.max_waiters = max_waiters;
        self
    }

    /// Who asks, for the eyes of others; this process, unless said otherwise.
    pub fn label(mut self, label: Label) -> Self {
        self.label = Some(label);
        self
    }

    /// The client.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a lease or a time-out out of bounds and for no waiters at all, [`ErrorKind::InvalidClaim`] for a label that is too long,
    /// [`ErrorKind::Os`] if a thread was needed and could not be started.
    pub fn build(self) -> Result<Client> {
        check_ttl(self.ttl)?;
        check_op_timeout(self.op_timeout)?;
        if self.max_waiters == 0 {
            return Err(Error::new(ErrorKind::Config, "max_waiters is at least 1"));
        }
        let label = self.label.unwrap_or_else(Label::of_this_process);
        label.check()?;
        let home = match self.home {
            Some(home) => home,
            None => Home::here().or_else(|_| Home::own_thread())?,
        };
        let observers = Observers::new(self.observers);
        let (entropy, info) = (Arc::new(self.entropy), self.driver.info());
        let store = Arc::as_ptr(&self.driver).cast::<()>().addr();
        let driver = home.of(self.driver);
        let leaving = Leaving {
            driver: driver.clone(),
            clock: self.clock.clone(),
            entropy: entropy.clone(),
            over: CancellationToken::new(),
            outlasts_leases: info.capabilities.liveness == Liveness::Session,
        };
        let watchdog = Watchdog::new(leaving.clone(), observers.clone(), self.op_timeout, home.clone());
        let core = Core {
            info,
            store,
            driver,
            clock: self.clock,
            observers,
            entropy,
            watchdog,
            leaving,
            gate: Gate::default(),
            cohorts: Cohorts::default(),
            crowds: Crowds::new(self.max_waiters),
            pulse: home.pulse(),
            home,
            ttl: self.ttl,
            wait: self.wait,
            op_timeout: self.op_timeout,
            label: Arc::new(label),
            closed: AtomicBool::new(false),
        };
        Ok(Client { core: Arc::new(core) })
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("info", &self.driver.info()).finish_non_exhaustive()
    }
}

/// Pauses between failed requests for a lease of `ttl`.
pub(crate) fn error_backoff(ttl: Duration) -> backoff::Backoff {
    backoff::Backoff::for_errors(ttl)
}

fn check_op_timeout(op_timeout: Duration) -> Result<()> {
    if !op_timeout.is_zero() && op_timeout <= MAX_OP_TIMEOUT {
        return Ok(());
    }
    let days = MAX_OP_TIMEOUT.as_secs() / 86_400;
    let message = format!("op_timeout must be greater than 0 and at most {days} days, not {op_timeout:?}");
    Err(Error::new(ErrorKind::Config, message))
}

pub(crate) fn check_ttl(ttl: Duration) -> Result<()> {
    if (MIN_TTL..=MAX_TTL).contains(&ttl) {
        return Ok(());
    }
    let message = format!("a lease is between {MIN_TTL:?} and {} days long, not {ttl:?}", MAX_TTL.as_secs() / 86_400);
    Err(Error::new(ErrorKind::Config, message))
}
