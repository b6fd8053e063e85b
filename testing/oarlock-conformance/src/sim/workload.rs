//! The tasks that contend in a simulated world, and the judgement over what they did.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt::{self, Write};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use oarlock_core::clock::{Clock, Moment, TokioClock};
use oarlock_core::{ClaimId, DynDriver, ErrorKind, Guard, Limit, LockEvent, Locks, Result, Step, Weight};
use tokio::task::JoinSet;

use super::connection::{Connection, Hub};
use super::plan::{Load, Plan, Style};
use super::queue::{Queue, QueueDriver};
use super::rows::{Rows, RowsDriver};
use crate::history::{History, Hold, Rules, Verdict};

/// Counts what happened, to recognize a run that exercised nothing.
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
    count_panics();
    let before = PANICS.get();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let mut outcome = runtime.expect("a runtime").block_on(async { World::new(plan).run().await });
    if PANICS.get() > before {
        outcome.complaints.push("something panicked".to_owned());
    }
    outcome
}

thread_local! {
    static PANICS: Cell<u64> = const { Cell::new(0) };
}

/// A panic in a background task fails no test by itself, so all panics are counted.
fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.set(PANICS.get() + 1);
            report(panic);
        }));
    });
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
    /// The claims of the trace, in the order in which they came.
    claims: HashMap<ClaimId, usize>,
}

/// One simulated process.
#[derive(Clone)]
struct Process {
    client: Locks,
    control: Arc<dyn Control>,
}

/// Power over a process's way to the store.
trait Control: Send + Sync {
    fn cut(&self, span: Duration);
    fn kill(&self);
    fn faults(&self) -> u64;
}

impl<S: Send> Control for Connection<S> {
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
    /// Must be called on the paused runtime, whose clock it takes.
    fn new(plan: &Plan) -> Self {
        let clock = TokioClock::new();
        let hub = Hub::new(plan, clock);
        let store = match plan.style {
            Style::Rows => Store::Rows(Arc::new(Mutex::new(Rows::new(hub)))),
            Style::Queue | Style::Session => Store::Queue(Arc::new(Mutex::new(Queue::new(hub)))),
        };
        Self { plan: plan.clone(), clock, store, log: Arc::default() }
    }

    /// A process whose way to the store is as bad as `plan` says.
    fn process(&self, number: u64, plan: &Plan) -> Result<Process> {
        let mut rng = fastrand::Rng::with_seed(self.plan.seed ^ number);
        let rate = 1.0 + self.plan.drift * (rng.f64() * 2.0 - 1.0);
        let clock: Arc<dyn Clock> = Arc::new(DriftClock { inner: self.clock, origin: self.clock.now(), rate });
        let (driver, control): (Arc<dyn DynDriver>, Arc<dyn Control>) = match &self.store {
            Store::Rows(store) => {
                let connection = Arc::new(Connection::new(store.clone(), plan, self.clock, number));
                (Arc::new(RowsDriver { connection: connection.clone(), session: number.into() }), connection)
            }
            Store::Queue(store) => {
                let connection = Arc::new(Connection::new(store.clone(), plan, self.clock, number));
                let session_ttl = (plan.style == Style::Session).then_some(plan.ttl);
                (Arc::new(QueueDriver::new(connection.clone(), clock.clone(), session_ttl, number)), connection)
            }
        };
        let (log, now) = (self.log.clone(), self.clock);
        let client = Locks::builder_over(driver)
            .clock(clock)
            .seed(self.plan.seed.wrapping_mul(31).wrapping_add(number))
            .ttl(self.plan.ttl)
            .op_timeout((self.plan.ttl / 2).max(Duration::from_millis(100)))
            .observer(move |event: &LockEvent| lock(&log).observe(number, now.now(), event))
            .build()?;
        Ok(Process { client, control })
    }

    async fn run(self) -> Outcome {
        let processes: Result<Vec<_>> =
            (1..=self.plan.clients).map(|number| self.process(number, &self.plan)).collect();
        match processes {
            Ok(processes) => {
                self.contend(&processes).await;
                self.judge(&processes).await;
            }
            Err(error) => self.complain(format!("no client: {error}")),
        }
        let log = std::mem::take(&mut *lock(&self.log));
        let verdict = log.history.check(&Rules::default());
        Outcome { tally: log.tally, verdict, complaints: log.complaints, trace: log.trace }
    }

    fn complain(&self, complaint: String) {
        lock(&self.log).complaints.push(complaint);
    }

    fn check_for_leftovers(&self, when: &str) {
        let left = match &self.store {
            Store::Rows(store) => lock(store).leftovers(),
            Store::Queue(store) => lock(store).leftovers(),
        };
        if left > 0 {
            self.complain(format!("{left} claims were left behind {when}"));
        }
    }

    async fn contend(&self, processes: &[Process]) {
        let mut tasks = JoinSet::new();
        for (process, number) in processes.iter().zip(0..) {
            for task in 0..self.plan.tasks {
                let contender = Contender {
                    plan: self.plan.clone(),
                    process: process.clone(),
                    clock: self.clock,
                    log: self.log.clone(),
                    number: number * 100 + task,
                    rng: fastrand::Rng::with_seed(self.plan.seed.rotate_left(7) ^ (number * 100 + task)),
                };
                tasks.spawn(contender.work());
            }
        }
        // Every wait in it is bounded, so a run that does not end is a hang.
        let all = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(Duration::from_secs(3600), all).await.is_err() {
            self.complain("a task hung".to_owned());
        }
    }

    /// After the storm: nothing is left, and the store still works.
    async fn judge(&self, processes: &[Process]) {
        for process in processes {
            lock(&self.log).tally.faults += process.control.faults();
        }
        if self.plan.is_calm() {
            // Nothing was lost, so releases need only their own few trips, and no lease has to run out.
            tokio::time::sleep(self.plan.delay * 12 + Duration::from_millis(20)).await;
            self.check_for_leftovers("in a calm world");
        }
        // A request delivered late can leave something behind for at most one lease.
        tokio::time::sleep(self.plan.ttl * 6).await;
        self.check_for_leftovers("although every lease has run out");
        let calm = Plan { lost_request: 0.0, lost_reply: 0.0, late: 0.0, lost_hint: 0.0, ..self.plan.clone() };
        let Ok(visitor) = self.process(9999, &calm) else { return };
        for name in 0..self.plan.names {
            let locked = visitor.client.mutex(format!("r{name}")).try_lock().await;
            match locked {
                Ok(Some(guard)) => drop(guard),
                Ok(None) => self.complain(format!("r{name} is still taken")),
                Err(error) => self.complain(format!("r{name} does not work any more: {error}")),
            }
        }
        let log = lock(&self.log);
        let (lost, suspect) = (log.tally.lost, log.tally.suspect);
        drop(log);
        if self.plan.is_calm() && lost + suspect > 0 {
            self.complain(format!("a false alarm: {lost} lost and {suspect} suspect while nothing was wrong"));
        }
    }
}

impl Log {
    fn observe(&mut self, process: u64, now: Moment, event: &LockEvent) {
        let LockEvent { resource, claim, step, .. } = event;
        let millis = now.as_nanos() / 1_000_000;
        // A number of its own: ids are never the same twice, also of one seed.
        let numbered = self.claims.len();
        let claim = *self.claims.entry(*claim).or_insert(numbered);
        // Writing to a string does not fail.
        let _ = writeln!(self.trace, "{millis} ms, process {process}: {resource} claim {claim} {step:?}");
        match event.step {
            Step::Lost { .. } => self.tally.lost += 1,
            Step::Suspect { .. } => self.tally.suspect += 1,
            Step::Recovered => self.tally.recovered += 1,
            Step::Requeued => self.tally.requeued += 1,
            _ => {}
        }
    }
}

/// One task of one process.
struct Contender {
    plan: Plan,
    process: Process,
    clock: TokioClock,
    log: Arc<Mutex<Log>>,
    number: u64,
    rng: fastrand::Rng,
}

/// What one acquisition came to.
enum End {
    Granted(Guard),
    Nothing,
    /// Its process is dead.
    Dead,
}

impl Contender {
    async fn work(mut self) {
        for _ in 0..self.plan.rounds {
            let pause = self.span(0.5);
            tokio::time::sleep(pause).await;
            self.disturb();
            let name = format!("r{}", self.rng.u64(..self.plan.names));
            let weight = self.weight();
            let asked = self.clock.now();
            match self.acquire(&name, weight).await {
                End::Granted(guard) => {
                    lock(&self.log).tally.granted += 1;
                    self.hold(name, weight, asked, guard).await;
                }
                End::Nothing => {}
                End::Dead => return,
            }
        }
    }

    /// A random time, at most so many leases; none where all is brisk.
    fn span(&mut self, most: f64) -> Duration {
        let span = self.plan.ttl.mul_f64(self.rng.f64() * most);
        if self.plan.brisk { Duration::ZERO } else { span }
    }

    /// Something may happen to the process.
    fn disturb(&mut self) {
        if self.rng.f64() < self.plan.outage {
            lock(&self.log).tally.outages += 1;
            self.process.control.cut(self.plan.ttl.mul_f64(self.rng.f64() * 4.0));
        }
        if self.rng.f64() < self.plan.kill {
            lock(&self.log).tally.kills += 1;
            self.process.control.kill();
        }
    }

    fn weight(&mut self) -> Weight {
        match self.plan.load {
            Load::Mutex { .. } | Load::Spin => Weight::All,
            Load::ReadWrite if self.rng.bool() => Weight::All,
            Load::ReadWrite => Weight::ONE,
            Load::Semaphore(permits) => units(self.rng.u32(1..=permits)),
        }
    }

    fn capacity(&self) -> Option<Limit> {
        match self.plan.load {
            Load::Mutex { .. } | Load::Spin => None,
            Load::ReadWrite => Some(Limit::Unlimited),
            Load::Semaphore(permits) => match units(permits) {
                Weight::Units(units) => Some(Limit::Units(units)),
                Weight::All => None,
            },
        }
    }

    async fn acquire(&mut self, name: &str, weight: Weight) -> End {
        let wait = self.plan.ttl.mul_f64(self.rng.f64() * 4.0);
        let acquiring = ask(self.process.client.clone(), self.plan.load, name.to_owned(), weight, wait);
        let acquired = if self.rng.f64() < self.plan.cancel {
            DropAt { future: Box::pin(acquiring), polls_left: self.rng.u32(..12) }.await
        } else {
            Some(acquiring.await)
        };
        let mut log = lock(&self.log);
        match acquired {
            None => log.tally.cancelled += 1,
            Some(Ok(guard)) => return End::Granted(guard),
            Some(Err(error)) => match error.kind() {
                ErrorKind::Busy => log.tally.busy += 1,
                ErrorKind::Unreachable => log.tally.failed += 1,
                ErrorKind::Closed => return End::Dead,
                _ => log.complaints.push(format!("an error that should not be: {error}")),
            },
        }
        End::Nothing
    }

    async fn hold(&mut self, resource: String, weight: Weight, asked: Moment, guard: Guard) {
        let granted = self.clock.now();
        let fence = guard.fence();
        let stay = self.span(2.0);
        tokio::select! {
            biased;
            _ = guard.lost() => {}
            () = tokio::time::sleep(stay) => {}
        }
        let ended = self.clock.now();
        let capacity = self.capacity();
        let owner = self.number;
        let hold = Hold { resource, owner, weight, capacity, fence, asked, granted, ended, queued: None };
        lock(&self.log).history.hold(hold);
        if self.rng.bool() {
            drop(guard);
        } else {
            // Its answer may be lost like any other; the check for leftovers comes at the end.
            let _ = guard.release().await;
        }
    }
}

async fn ask(client: Locks, load: Load, name: String, weight: Weight, wait: Duration) -> Result<Guard> {
    match load {
        Load::Mutex { fair: false } => client.mutex(name).wait(wait).lock().await,
        Load::Mutex { fair: true } => client.mutex(name).fair().wait(wait).lock().await,
        Load::Spin => client.mutex(name).spin().wait(wait).lock().await,
        Load::ReadWrite if weight == Weight::All => {
            client.rwlock(name).wait(wait).write().await.map(oarlock_core::WriteGuard::into_guard)
        }
        Load::ReadWrite => client.rwlock(name).wait(wait).read().await,
        Load::Semaphore(permits) => {
            let taken = if let Weight::Units(units) = weight { units.get() } else { permits };
            client.semaphore(name, permits).wait(wait).acquire(taken).await
        }
    }
}

fn units(units: u32) -> Weight {
    std::num::NonZeroU32::new(units).map_or(Weight::All, Weight::Units)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drops a future when it has been pending so many times: a cancellation at any await.
struct DropAt<F> {
    future: Pin<Box<F>>,
    polls_left: u32,
}

impl<F: Future> Future for DropAt<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<F::Output>> {
        if let Poll::Ready(done) = self.future.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        if self.polls_left == 0 {
            return Poll::Ready(None);
        }
        self.polls_left -= 1;
        Poll::Pending
    }
}
