//! A simulated world: its store, its processes, what befalls them, and whether all is well afterwards.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use oarlock_core::clock::{Clock, TokioClock};
use oarlock_core::{DynDriver, LockEvent, Locks, Result, Runtime};
use tokio::task::JoinSet;

use super::clocks::{ClientClock, StoreClock};
use super::connection::{Arrivals, Connection, Hub, lock};
use super::contender::Contender;
use super::coverage::{Coverage, FAULT, Faults};
use super::log::{Log, Upset};
use super::plan::{Plan, Style};
use super::queue::{Queue, QueueDriver};
use super::rows::{Rows, RowsDriver, holds_of};
use super::stops::Stops;
use crate::history::Verdict;

/// How long a store that falls back does not answer at least. A fence is forgotten with the state, and its successor is
/// larger because the clock has gone on.
const LEAST_FAILOVER: Duration = Duration::from_millis(50);

/// A world that lasts longer in its own time hangs: it has a few acquisitions of at most four leases each.
const HANGS_AFTER: Duration = Duration::from_secs(3600);

/// What became of one world.
#[derive(Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// What happened.
    pub coverage: Coverage,
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

    /// What is wrong, in a word: a smaller world must fail in the same way.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        // Without what differs from run to run: numbers, and ids in hexadecimal.
        let is_word = |word: &&str| !word.chars().any(|c| c.is_ascii_digit());
        let words = |text: &String| text.split(' ').filter(is_word).collect::<Vec<_>>().join(" ");
        let complaint = self.complaints.first().map(words);
        self.verdict.names().first().map(|name| (*name).to_owned()).or(complaint)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.coverage)?;
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

/// A store of either kind.
enum Store {
    Rows(Arc<Mutex<Rows>>),
    Queue(Arc<Mutex<Queue>>),
}

struct World {
    plan: Plan,
    clock: TokioClock,
    store_clock: Arc<StoreClock>,
    store: Store,
    down_until: Arc<AtomicU64>,
    faults: Arc<Faults>,
    log: Arc<Mutex<Log>>,
    arrivals: Arc<Arrivals>,
}

/// One simulated process.
#[derive(Clone)]
pub(super) struct Process {
    pub(super) client: Locks,
    pub(super) control: Arc<dyn Control>,
    pub(super) stops: Arc<Stops>,
    clock: Arc<ClientClock>,
}

/// Power over a process's way to the store.
pub(super) trait Control: Send + Sync {
    fn cut(&self, span: Duration);
    fn kill(&self);
}

impl<S: Send + 'static> Control for Connection<S> {
    fn cut(&self, span: Duration) {
        Self::cut(self, span);
    }

    fn kill(&self) {
        Self::kill(self);
    }
}

impl World {
    /// Must be called on the paused runtime, whose clock it takes.
    fn new(plan: &Plan) -> Self {
        let clock = TokioClock::new();
        let store_clock = Arc::new(StoreClock::new(clock));
        let faults = Arc::new(Faults::new(plan.most_faults));
        let arrivals = Arc::<Arrivals>::default();
        let hub = Hub::new(plan, store_clock.clone(), faults.clone(), arrivals.clone());
        let store = match plan.style {
            Style::Rows => Store::Rows(Arc::new(Mutex::new(Rows::new(hub, plan.handed)))),
            Style::Queue | Style::Session => Store::Queue(Arc::new(Mutex::new(Queue::new(hub)))),
        };
        let (plan, down_until, log) = (plan.clone(), Arc::default(), Arc::default());
        Self { plan, clock, store_clock, store, down_until, faults, log, arrivals }
    }

    fn connection<S: Send + 'static>(&self, store: &Arc<Mutex<S>>, plan: &Plan, number: u64) -> Arc<Connection<S>> {
        let (down, faults) = (self.down_until.clone(), self.faults.clone());
        Arc::new(Connection::new(store.clone(), plan, self.clock, number, down, faults))
    }

    /// A process whose way to the store is as bad as `plan` says.
    fn process(&self, number: u64, plan: &Plan) -> Result<Process> {
        let mut rng = fastrand::Rng::with_seed(self.plan.seed ^ number);
        let rate = 1.0 + plan.chances.drift * (rng.f64() * 2.0 - 1.0);
        if plan.chances.drift > 0.0 {
            self.faults.note(FAULT, "drift");
        }
        let clock = Arc::new(ClientClock::new(self.clock, rate));
        let (driver, control): (Arc<dyn DynDriver>, Arc<dyn Control>) = match &self.store {
            Store::Rows(store) => {
                let connection = self.connection(store, plan, number);
                let (clock, session) = (clock.clone(), number.into());
                (Arc::new(RowsDriver { connection: connection.clone(), clock, session }), connection)
            }
            Store::Queue(store) => {
                let connection = self.connection(store, plan, number);
                let session_ttl = (plan.style == Style::Session).then_some(plan.ttl);
                (Arc::new(QueueDriver::new(connection.clone(), clock.clone(), session_ttl, number)), connection)
            }
        };
        let (log, faults, now) = (self.log.clone(), self.faults.clone(), self.clock);
        let stops = Arc::new(Stops::new(self.clock));
        let client = Locks::builder_over(driver)
            .clock(clock.clone())
            .seed(self.plan.seed.wrapping_mul(31).wrapping_add(number))
            .ttl(self.plan.ttl)
            .runtime(Runtime::here()?.stoppable(stops.switch.clone()))
            .op_timeout((self.plan.ttl / 2).max(Duration::from_millis(100)))
            .observer(move |event: &LockEvent| lock(&log).observe(number, now.now(), event, &faults))
            .build()?;
        Ok(Process { client, control, stops, clock })
    }

    async fn run(self) -> Outcome {
        let processes: Result<Vec<_>> =
            (1..=self.plan.clients).map(|number| self.process(number, &self.plan)).collect();
        match processes {
            Ok(processes) => {
                let contending = async {
                    tokio::select! {
                        biased;
                        () = self.contend(&processes) => {}
                        () = self.trouble(&processes) => {}
                        () = self.stop_some(&processes) => {}
                    }
                };
                if tokio::time::timeout(HANGS_AFTER, contending).await.is_err() {
                    self.complain("a task hangs".to_owned());
                }
                processes.iter().for_each(|process| process.stops.go_on());
                if tokio::time::timeout(HANGS_AFTER, self.judge()).await.is_err() {
                    self.complain("the store hangs afterwards".to_owned());
                }
            }
            Err(error) => self.complain(format!("no client: {error}")),
        }
        let mut log = std::mem::take(&mut *lock(&self.log));
        log.check_slots();
        let verdict = log.verdict(&self.plan);
        Outcome { coverage: self.faults.coverage(), verdict, complaints: log.complaints, trace: log.trace }
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
        for at in 0..processes.len() {
            for task in 0..self.plan.tasks {
                let number = at as u64 * self.plan.tasks + task;
                let contender = Contender {
                    plan: self.plan.clone(),
                    processes: processes.to_vec(),
                    at,
                    clock: self.clock,
                    log: self.log.clone(),
                    faults: self.faults.clone(),
                    arrivals: self.arrivals.clone(),
                    number,
                    rng: fastrand::Rng::with_seed(self.plan.seed.rotate_left(32) ^ number),
                };
                tasks.spawn(processes[at].stops.switch.around(contender.work()));
            }
        }
        while let Some(ended) = tasks.join_next().await {
            if let Err(panicked) = ended {
                self.complain(format!("a task ended badly: {panicked}"));
            }
        }
    }

    /// What befalls the store and the clocks, now and then.
    async fn trouble(&self, processes: &[Process]) {
        let mut rng = fastrand::Rng::with_seed(self.plan.seed.rotate_left(48) ^ 0x7452_6f55);
        let (chances, ttl) = (&self.plan.chances, self.plan.ttl);
        let mut snapshot = None;
        loop {
            tokio::time::sleep(ttl.mul_f64(rng.f64())).await;
            let span = ttl.mul_f64(rng.f64() * 3.0);
            if rng.f64() < chances.suspend && self.faults.may("clients suspended") {
                let now = self.clock.now();
                lock(&self.log).suspends.push((now, now + span));
                tokio::time::advance(span).await;
            }
            if rng.f64() < chances.client_jump && self.faults.may("client clock ahead") {
                processes[rng.usize(..processes.len())].clock.jump(span);
            }
            if rng.f64() < chances.lease_jump && self.faults.may("lease clock ahead") {
                self.store_clock.jump(span);
                let now = self.clock.now();
                lock(&self.log).upsets.push(Upset::of_all(now, now));
            }
            if rng.f64() < chances.wall_jump {
                let micros = i64::try_from(span.as_micros()).unwrap_or(0) * 100;
                let (fault, micros) =
                    if rng.bool() { ("wall clock ahead", micros) } else { ("wall clock back", -micros) };
                if self.faults.may(fault) {
                    self.store_clock.set_wall(micros);
                }
            }
            let Store::Rows(store) = &self.store else { continue };
            if rng.f64() < chances.fall_back {
                match snapshot.take() {
                    None => snapshot = Some(lock(store).snapshot()),
                    Some(earlier) if self.faults.may("store fell back") => {
                        let (now, restored) = (self.clock.now(), holds_of(&earlier));
                        let until = now + LEAST_FAILOVER + span.mul_f64(0.3);
                        lock(store).fall_back(earlier);
                        self.down_until.store(until.as_nanos(), Ordering::Relaxed);
                        let upset = Upset { forgets: true, restored, ..Upset::of_all(now, until) };
                        lock(&self.log).upsets.push(upset);
                    }
                    Some(_) => {}
                }
            }
        }
    }

    /// One process alone is stopped, now and then, for up to three leases.
    async fn stop_some(&self, processes: &[Process]) {
        let mut rng = fastrand::Rng::with_seed(self.plan.seed.rotate_left(40) ^ 0x7374_6f70);
        let (chance, ttl) = (self.plan.chances.stop, self.plan.ttl);
        loop {
            tokio::time::sleep(ttl.mul_f64(rng.f64())).await;
            let (span, one) = (ttl.mul_f64(rng.f64() * 3.0), rng.usize(..processes.len()));
            if rng.f64() < chance && self.faults.may("one process stopped") {
                processes[one].stops.stop();
                tokio::time::sleep(span).await;
                processes[one].stops.go_on();
            }
        }
    }

    /// After the storm: nothing is left, and the store still works.
    async fn judge(&self) {
        if self.plan.is_calm() {
            // Nothing was lost, so releases need only their own few trips, and no lease has to run out.
            tokio::time::sleep(self.plan.delay * 12 + Duration::from_millis(20)).await;
            self.check_for_leftovers("in a calm world");
        }
        // A request delivered late can leave something behind for at most one lease, and a turn lasts two seconds.
        tokio::time::sleep(self.plan.ttl * 8 + Duration::from_secs(5)).await;
        self.check_for_leftovers("although every lease has run out");
        // On a slow way the few trips of one attempt would take longer than a request may.
        let calm = Plan { delay: Duration::ZERO, ..self.plan.calmed() };
        let Ok(visitor) = self.process(9999, &calm) else { return };
        for name in 0..self.plan.names {
            match visitor.client.mutex(format!("r{name}")).try_lock().await {
                Ok(Some(guard)) => drop(guard),
                Ok(None) => self.complain(format!("r{name} is still taken")),
                Err(error) => self.complain(format!("r{name} does not work any more: {error}")),
            }
        }
        let (losses, suspects) = {
            let log = lock(&self.log);
            (log.losses, if self.plan.is_slow_for_turns() { 0 } else { log.suspects })
        };
        if self.plan.is_calm() && losses + suspects > 0 {
            self.complain(format!("a false alarm: {losses} lost and {suspects} suspect while nothing was wrong"));
        }
    }
}
