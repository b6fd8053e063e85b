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
mod settings;
mod uncut;
mod watchdog;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub(crate) use acquire::{Ask, LAST_CHANCE, Wait, busy};
pub(crate) use backoff::Patience;
use cohort::Cohorts;
pub(crate) use cohort::MAX_HAND_OFFS;
use crowd::Crowds;
pub(crate) use entropy::Entropy;
use gate::Gate;
pub use home::Home;
use leaving::Leaving;
pub(crate) use look::Looks;
pub(crate) use reaper::Orphan;
pub(crate) use settings::Settings;
use uncut::Uncut;
use watchdog::Watchdog;

use crate::capabilities::Liveness;
use crate::claim::{Claim, Label, ResourceName, Tether};
use crate::clock::{Clock, Moment};
use crate::driver::{BoxFuture, DynDriver, End, Info, Release};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Observers;

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
    pub(crate) fn new(driver: Arc<dyn DynDriver>, mut settings: Settings) -> Result<Self> {
        let home = match settings.take_home()? {
            Some(home) => home,
            None => Home::here().or_else(|_| Home::own_thread())?,
        };
        let label = settings.label.unwrap_or_else(Label::of_this_process);
        label.check()?;
        let observers = Observers::new(settings.observers);
        let (entropy, info) = (Arc::new(settings.entropy), driver.info());
        let store = Arc::as_ptr(&driver).cast::<()>().addr();
        let driver = home.of(driver);
        let leaving = Leaving {
            driver: driver.clone(),
            clock: settings.clock.clone(),
            entropy: entropy.clone(),
            over: CancellationToken::new(),
            outlasts_leases: info.capabilities.liveness == Liveness::Session,
        };
        let watchdog = Watchdog::new(leaving.clone(), observers.clone(), settings.op_timeout, home.clone());
        Ok(Self {
            info,
            store,
            driver,
            clock: settings.clock,
            observers,
            entropy,
            watchdog,
            leaving,
            gate: Gate::default(),
            cohorts: Cohorts::default(),
            crowds: Crowds::new(settings.max_waiters),
            pulse: home.pulse(),
            home,
            ttl: settings.ttl,
            wait: settings.wait,
            op_timeout: settings.op_timeout,
            label: Arc::new(label),
            closed: AtomicBool::new(false),
        })
    }

    /// See [`Locks::shutdown`](crate::Locks::shutdown).
    pub(crate) async fn shutdown(&self, patience: Duration) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        let end = self.clock.now() + patience;
        let flushed = tokio::time::timeout(patience, self.home.idle()).await;
        // Before the store can give them to others.
        self.watchdog.end_session();
        let left = end.since(self.clock.now()).max(LAST_CHANCE);
        let close = Uncut::new(&self.home, self.driver.clone().close());
        let late = || Error::unreachable("no answer in time").on(self.info.scheme).during("close");
        tokio::time::timeout(left, close).await.unwrap_or_else(|_| Err(late()))?;
        flushed.map_err(|_| Error::unreachable("some releases were not done in time").on(self.info.scheme))
    }

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

/// Pauses between failed requests for a lease of `ttl`.
pub(crate) fn error_backoff(ttl: Duration) -> backoff::Backoff {
    backoff::Backoff::for_errors(ttl)
}

pub(crate) fn check_ttl(ttl: Duration) -> Result<()> {
    if (MIN_TTL..=MAX_TTL).contains(&ttl) {
        return Ok(());
    }
    let message = format!("a lease is between {MIN_TTL:?} and {} days long, not {ttl:?}", MAX_TTL.as_secs() / 86_400);
    Err(Error::new(ErrorKind::Config, message))
}
