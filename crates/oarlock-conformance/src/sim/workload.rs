//! The tasks that contend in a simulated world, and the judgement over what they did.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use oarlock_core::clock::{Clock, Moment, TokioClock};
use oarlock_core::{Client, DynDriver, ErrorKind, Guard, Limit, LockEvent, Result, Step, Weight};
use tokio::task::JoinSet;

use super::line::{Hub, Line};
use super::plan::{Load, Plan, Style};
use super::queue::{Queue, QueueDriver};
use super::rows::{Rows, RowsDriver};
use crate::history::{History, Hold, Rules, Verdict};

/// How often what happened, so that a run which exercised nothing can be told from a good one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// Locks granted.
    pub granted: u64,
    /// Waits that ended, and tries refused.
    pub busy: u64,
    /// Acquisitions dropped at some await.
    pub cancelled: u64,
    /// Acquisitions that failed because the store did not answer.
    pub failed: u64,
    /// Locks lost.
    pub lost: u64,
    /// Holds that were in doubt.
    pub suspect: u64,
    /// Holds that were in doubt and recovered.
    pub recovered: u64,
    /// Waiters that lost their place and took a new one.
    pub requeued: u64,
    /// Lost requests and replies.
    pub faults: u64,
    /// Clients cut off for a while.
    pub outages: u64,
    /// Clients killed.
    pub kills: u64,
}

impl Tally {
    /// Adds another run's counts.
    pub fn add(&mut self, other: &Self) {
        self.granted += other.granted;
        self.busy += other.busy;
        self.cancelled += other.cancelled;
        self.failed += other.failed;
        self.lost += other.lost;
        self.suspect += other.suspect;
        self.recovered += other.recovered;
        self.requeued += other.requeued;
        self.faults += other.faults;
        self.outages += other.outages;
        self.kills += other.kills;
    }
}

/// What became of one seed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// What happened.
    pub tally: Tally,
    /// What the checker says of the beliefs.
    pub verdict: Verdict,
    /// What else is wrong: something left behind, a false alarm, a store that does not work any more.
    pub complaints: Vec<String>,
    /// Everything that happened, in order, for comparing replays.
    pub trace: String,
}

impl Outcome {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.verdict.is_ok() && self.complaints.is_empty()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}", self.tally)?;
        if !self.verdict.is_ok() {
            writeln!(f, "{}", self.verdict)?;
        }
        self.complaints.iter().try_for_each(|complaint| writeln!(f, "{complaint}"))
    }
}

/// Runs the world of `plan` from beginning to end, in virtual time.
///
/// # Panics
/// If no runtime can be made.
#[must_use]
#[expect(clippy::expect_used, reason = "a test tool without a runtime has nothing left to say")]
pub fn run(plan: &Plan) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(World::new(plan).run())
}

/// A store of either kind, and what can be done to the ways to it.
enum Store {
    Rows(Arc<Mutex<Rows>>),
    Queue(Arc<Mutex<Queue>>),
}

struct World {
    plan: Plan,
    clock: TokioClock,
    store: Store,
    log: Arc<Mutex<Log>>,
}

/// What is written down while the tasks run.
#[derive(Default)]
struct Log {
    history: History,
    tally: Tally,
    complaints: Vec<String>,
    trace: String,
}

/// One simulated process.
#[derive(Clone)]
struct Process {
    client: Client,
    control: Arc<dyn Control>,
}

/// Power over a process's way to the store.
trait Control: Send + Sync {
    fn cut(&self, span: Duration);
    fn kill(&self);
    fn faults(&self) -> u64;
}

impl<S: Send> Control for Line<S> {
    fn cut(&self, span: Duration) {
        Self::cut(self, span);
    }

    fn kill(&self) {
        Self::kill(self);
    }

    fn faults(&self) -> u64 {
        self.faults.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// A client's clock, which does not run at quite the rate of the store's.
#[derive(Debug)]
struct DriftClock {
    inner: TokioClock,
    origin: Moment,
    rate: f64,
}

impl Clock for DriftClock {
    fn now(&self) -> Moment {
        self.origin + self.inner.now().since(self.origin).mul_f64(self.rate)
    }

    fn wall_micros(&self) -> u64 {
        self.inner.wall_micros()
    }
}

impl World {
    fn new(plan: &Plan) -> Self {
        // The clock needs the runtime, which polls `run`; until then this is only a plan.
        let clock = {
            let runtime = tokio::runtime::Handle::try_current();
            drop(runtime);
            TokioClock::new()
        };
        let hub = Hub::new(plan, clock);
        let store = match plan.style {
            Style::Rows => Store::Rows(Arc::new(Mutex::new(Rows { hub, resources: Default::default() }))),
            Style::Queue | Style::Session => Store::Queue(Arc::new(Mutex::new(Queue::new(hub)))),
        };
        Self { plan: plan.clone(), clock, store, log: Arc::default() }
    }
}
