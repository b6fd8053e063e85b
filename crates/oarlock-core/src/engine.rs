//! The engine: all policy of the client. It waits, retries, renews, gives up and cleans up, over any store.

mod acquire;
mod armed_watch;
pub(crate) mod backoff;
pub(crate) mod cohort;
mod entropy;
mod finish_on_drop;
pub(crate) mod gate;
mod joint;
mod line;
mod on_runtime;
mod poller;
mod reaper;
mod releaser;
mod runtime;
mod settings;
#[cfg(any(test, feature = "testing"))]
mod stop_switch;
mod waiter_limit;
mod watchdog;

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub(crate) use acquire::{LAST_CHANCE, Request, Wait, busy};
pub(crate) use backoff::Patience;
use cohort::Cohorts;
pub(crate) use cohort::MAX_HAND_OFFS;
pub(crate) use entropy::Entropy;
use finish_on_drop::FinishOnDrop;
use gate::Gate;
pub(crate) use poller::Poller;
pub(crate) use reaper::Orphan;
use releaser::Releaser;
pub use runtime::Runtime;
pub(crate) use settings::Settings;
#[cfg(any(test, feature = "testing"))]
pub use stop_switch::StopSwitch;
use waiter_limit::WaiterLimit;
use watchdog::Watchdog;

use crate::capabilities::Liveness;
use crate::claim::{Claim, Label, Lifetime, ResourceName};
use crate::clock::{Clock, Moment};
use crate::driver::{Attempt, BoxFuture, DynDriver, End, Info, Release};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Observers;
use crate::state::MAX_MEMO_BYTES;
use crate::telemetry::Telemetry;
use crate::text;

/// The default lease: how long a lock lives without renewal.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// The default wait: how long `lock()` waits.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(30);

/// The default timeout of one request to a store.
pub const DEFAULT_OP_TIMEOUT: Duration = Duration::from_secs(5);

/// The default limit of claims of one client that wait in the store's queue for one name. It is far above what a
/// program needs, and low enough for a store: 10,000 waiters are renewed in four requests, with about 3,500 answers a
/// second.
pub const DEFAULT_MAX_WAITERS: usize = 10_000;

/// The longest timeout of one request to a store.
pub const MAX_OP_TIMEOUT: Duration = MAX_TTL;

/// The shortest lease. A shorter one leaves no time for the safety margin and for scheduling delays.
pub const MIN_TTL: Duration = Duration::from_millis(50);

/// The longest lease.
pub const MAX_TTL: Duration = Duration::from_secs(30 * 24 * 3600);

/// The state that all parts of the engine share.
pub(crate) struct Core {
    pub(crate) driver: Arc<dyn DynDriver>,
    pub(crate) info: Info,
    pub(crate) clock: Arc<dyn Clock>,
    /// Distinguishes this store from others in this process.
    store: usize,
    pub(crate) observers: Observers,
    pub(crate) telemetry: Telemetry,
    pub(crate) entropy: Arc<Entropy>,
    pub(crate) watchdog: Watchdog,
    pub(crate) releaser: Releaser,
    pub(crate) gate: Gate,
    pub(crate) cohorts: Cohorts,
    pub(crate) waiter_limit: WaiterLimit,
    pub(crate) runtime: Runtime,
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
    pub(crate) op_timeout: Duration,
    pub(crate) label: Arc<Label>,
    closed: AtomicBool,
    /// A task that never ends by itself: once it is finished, the runtime is gone.
    pulse: tokio::task::AbortHandle,
}

/// The answer to a request; `None` after `patience`. A request that is answered at once needs no timer, and a driver in
/// this process answers nearly all like that.
pub(crate) async fn answer_within<T>(patience: Duration, request: &mut BoxFuture<T>) -> Option<T> {
    if let Poll::Ready(answer) = poll_fn(|cx| Poll::Ready(request.as_mut().poll(cx))).await {
        return Some(answer);
    }
    tokio::time::timeout(patience, request).await.ok()
}

impl Drop for Core {
    fn drop(&mut self) {
        self.watchdog.stop();
        self.pulse.abort();
    }
}

impl Core {
    pub(crate) fn new(driver: Arc<dyn DynDriver>, mut settings: Settings) -> Result<Self> {
        let runtime = match settings.take_runtime()? {
            Some(runtime) => runtime,
            None => Runtime::here().or_else(|_| Runtime::own_thread())?,
        };
        let label = settings.label.unwrap_or_else(Label::of_this_process);
        label.check()?;
        let observers = Observers::new(settings.observers);
        let (entropy, info) = (Arc::new(settings.entropy), driver.info());
        let store = Arc::as_ptr(&driver).cast::<()>().addr();
        let driver = runtime.of(driver);
        let releaser = Releaser {
            driver: driver.clone(),
            clock: settings.clock.clone(),
            entropy: entropy.clone(),
            over: CancellationToken::new(),
            outlasts_leases: info.capabilities.liveness == Liveness::Session,
        };
        let telemetry = Telemetry::new(info.scheme, settings.names_in_metrics);
        let reports = (observers.clone(), telemetry);
        let watchdog = Watchdog::new(releaser.clone(), reports, settings.op_timeout, runtime.clone());
        Ok(Self {
            info,
            store,
            driver,
            clock: settings.clock,
            observers,
            telemetry,
            entropy,
            watchdog,
            releaser,
            gate: Gate::default(),
            cohorts: Cohorts::default(),
            waiter_limit: WaiterLimit::new(settings.max_waiters),
            pulse: runtime.pulse(),
            runtime,
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
        let flushed = tokio::time::timeout(patience, self.runtime.idle()).await;
        // Belief ends before the store can grant these locks to other claims.
        self.watchdog.end_session();
        let left = end.since(self.clock.now()).max(LAST_CHANCE);
        let close = FinishOnDrop::new(&self.runtime, self.driver.clone().close());
        let late = || Error::unreachable("no answer in time").on(self.info.scheme).during("close");
        tokio::time::timeout(left, close).await.unwrap_or_else(|_| Err(late()))?;
        flushed.map_err(|_| {
            Error::unreachable("some locks were not released in time; they end with their leases").on(self.info.scheme)
        })
    }

    pub(crate) fn release(&self, claim: &Claim, end: End) -> BoxFuture<Result<Release>> {
        self.driver.clone().release(claim.resource.clone(), claim.id, end)
    }

    /// Releases `claim` and attempts `next` in one request: the answer for each of them. `answered` is woken when they are
    /// there, if the one for `next` has not been polled.
    pub(crate) fn release_and_attempt(
        &self,
        claim: &Claim,
        end: End,
        next: Arc<Claim>,
        answered: Waker,
    ) -> (BoxFuture<Result<Release>>, BoxFuture<Result<Attempt>>) {
        let request = self.driver.clone().release_and_attempt(claim.resource.clone(), claim.id, end, next);
        joint::split(request, answered)
    }

    /// Waits for a request for at most `op_timeout`. Only for requests whose answer leaves nothing to undo.
    pub(crate) async fn in_time<T>(&self, request: BoxFuture<Result<T>>, verb: &'static str) -> Result<T>
    where
        T: Send + 'static,
    {
        self.by(Moment::NEVER, request, verb).await
    }

    /// As [`in_time`](Self::in_time), but no longer than until `end`.
    pub(crate) async fn by<T>(&self, end: Moment, request: BoxFuture<Result<T>>, verb: &'static str) -> Result<T>
    where
        T: Send + 'static,
    {
        let patience = self.op_timeout.min(end.since(self.clock.now()));
        let request = FinishOnDrop::new(&self.runtime, request);
        tokio::time::timeout(patience, request).await.unwrap_or_else(|_| Err(self.late(patience).during(verb)))
    }

    /// No answer came for as long as was waited for one, and what decided that.
    pub(crate) fn late(&self, patience: Duration) -> Error {
        let why = if patience == self.op_timeout { " (op_timeout)" } else { "" };
        Error::unreachable(format!("no answer within {}{why}", text::span(patience))).on(self.info.scheme)
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "this client was shut down").on(self.info.scheme));
        }
        if self.pulse.is_finished() {
            let message = "the tokio runtime that renews the locks of this client has ended";
            return Err(Error::new(ErrorKind::Closed, message).on(self.info.scheme));
        }
        Ok(())
    }

    /// Checks that the store can keep a claim by its lease alone.
    pub(crate) fn check_lifetime(&self, lifetime: Lifetime, resource: &ResourceName) -> Result<()> {
        if lifetime == Lifetime::Process || self.info.capabilities.outlives_process {
            return Ok(());
        }
        let message =
            "this store releases a lock when its process ends, so the lock cannot be handed to another process";
        Err(Error::new(ErrorKind::Unsupported, message).on(self.info.scheme).about(resource))
    }

    /// Checks that the store keeps memos, and that this one is not too long.
    pub(crate) fn check_memo(&self, memo: &[u8], resource: &ResourceName) -> Result<()> {
        if !self.info.capabilities.memo {
            let message = "this store cannot keep a memo after the release";
            return Err(Error::new(ErrorKind::Unsupported, message).on(self.info.scheme).about(resource));
        }
        if memo.len() > MAX_MEMO_BYTES {
            let message = format!("a memo has at most {MAX_MEMO_BYTES} bytes, this one has {}", memo.len());
            return Err(Error::new(ErrorKind::InvalidClaim, message).about(resource));
        }
        Ok(())
    }

    /// A number that distinguishes this client's store from others in this process.
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
