//! One contending process: it takes locks, changes the counters, and reports what it believes, a JSON line for each
//! step. Reports go to standard output and orders come from standard input; the process ends with its orders.

mod hold;
mod peer;

use std::io::{self, BufRead, Write as _};
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::clock::{BootClock, Clock, Moment};
use oarlock_core::{DynDriver, ErrorKind, Locks, Result};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::record::{Event, LockKind, LockSpec, What, line};
use crate::repeat::Repeating;

use hold::{Hold, Refused, Source};
use peer::Peer;

/// The first line that a worker reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Assignment {
    /// Its number.
    pub w: u32,
    /// The seed of what it does.
    pub seed: u64,
    /// The run: stands before the names of locks.
    pub run: String,
    /// The lease to ask for.
    pub ttl_ms: u64,
    /// The pause between two acquisitions, on average.
    pub pause_ms: u64,
    /// The locks.
    pub locks: Vec<LockSpec>,
    /// Where to connect instead of to a server: its name and port, and those of the proxy.
    pub routes: Vec<((String, u16), (String, u16))>,
    /// A program that takes locks of another library instead.
    pub with: Option<String>,
}

impl Assignment {
    /// The lease to ask for.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }
}

/// Every other line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Take this lock alone next, and stay.
    Stay { lock: String, ms: u64 },
    /// Ask for this lock next, and give the call up after this time.
    Cancel { lock: String, ms: u64 },
    /// Ask for nothing until another of these orders comes.
    Rest,
    /// The answer to a read.
    Counters { op: u64, fenced: Option<u64>, plain: u64 },
    /// The answer to a write.
    Written { op: u64 },
    /// Take every lock once, report that, and end.
    Drain { within_ms: u64 },
}

/// The name of a lock in the store.
#[must_use]
pub fn name_in_store(run: &str, lock: &str) -> String {
    format!("{PREFIX}{run}/{lock}")
}

/// What the names of all locks of all runs begin with.
pub const PREFIX: &str = "oarlock-torture/";

/// How long a worker tries to connect.
const CONNECT_WITHIN: Duration = Duration::from_secs(60);

/// Works until the orders end: `open` connects, by the routes of the assignment. `launch` starts what its arguments say, as
/// a process that is killed with this one: for the program of another library.
///
/// # Errors
/// Those of `open`; [`ErrorKind::Os`] without an assignment.
pub async fn work(
    open: impl AsyncFn(&Assignment) -> Result<Arc<dyn DynDriver>>,
    launch: impl Fn() -> std::process::Command,
) -> Result<()> {
    let mut lines = orders();
    let missing = || oarlock_core::Error::new(ErrorKind::Os, "a torture worker needs an assignment");
    let first = lines.recv().await.ok_or_else(missing)?;
    let mine: Assignment = serde_json::from_str(&first).map_err(|error| missing().because(error))?;
    let opening = async {
        Ok(match &mine.with {
            Some(command) => Source::Peer(Box::new(peer(command, launch, &mine).await?)),
            None => Source::Oarlock(locks(connect(open, &mine).await?, &mine)?),
        })
    };
    // A worker that was started a moment ago may be ordered to drain before it has connected.
    let mut drain = None;
    let opened = tokio::select! {
        opened = opening => opened,
        () = until_too_late(&mut lines, &mut drain) => {
            Err(oarlock_core::Error::unreachable("no connection before the end of the run"))
        }
    };
    let source = match opened {
        Ok(source) => source,
        Err(error) => {
            report(&What::Drained { w: mine.w, failed: Some(format!("Unreachable: {error}")) });
            return Err(error);
        }
    };
    let mut worker = Worker {
        random: fastrand::Rng::with_seed(mine.seed),
        source,
        mine,
        orders: lines,
        next: None,
        drain: drain.map(|end| end.since(now())),
        resting: false,
        op: 0,
    };
    worker.contend().await;
    worker.source.close().await
}

fn locks(driver: Arc<dyn DynDriver>, mine: &Assignment) -> Result<Locks> {
    let w = mine.w;
    let told = move |verb: &str| report(&What::Repeated { w, verb: verb.to_owned() });
    let driver = Arc::new(Repeating::new(driver, mine.seed, 25, told));
    let op_timeout = (mine.ttl() / 2).max(Duration::from_millis(250));
    // Renewals on a thread of their own, as the command line has them.
    Locks::builder_over(driver).ttl(mine.ttl()).op_timeout(op_timeout).own_thread().build()
}

/// A peer that is started in a storm finds its way cut, and ends.
async fn peer(command: &str, launch: impl Fn() -> std::process::Command, mine: &Assignment) -> Result<Peer> {
    let hosts: Vec<_> = mine.routes.iter().map(|(_, (name, port))| format!("{name}:{port}")).collect();
    let give_up = now() + CONNECT_WITHIN;
    loop {
        match Peer::start(launch(), command, &hosts.join(","), mine.ttl()).await {
            Err(_) if now() < give_up => tokio::time::sleep(Duration::from_millis(200)).await,
            started => return started,
        }
    }
}

/// Ends when the orders end, or when the time to drain is over, which is `drain` once that was ordered.
async fn until_too_late(lines: &mut mpsc::UnboundedReceiver<String>, drain: &mut Option<Moment>) {
    while let Some(line) = lines.recv().await {
        if let Ok(Order::Drain { within_ms }) = serde_json::from_str(&line) {
            let within = Duration::from_millis(within_ms);
            *drain = Some(now() + within);
            tokio::time::sleep(within).await;
            return;
        }
    }
}

/// A worker that is started in a storm finds its way cut, or a server that starts.
async fn connect(
    open: impl AsyncFn(&Assignment) -> Result<Arc<dyn DynDriver>>,
    mine: &Assignment,
) -> Result<Arc<dyn DynDriver>> {
    let give_up = now() + CONNECT_WITHIN;
    loop {
        match open(mine).await {
            Err(_) if now() < give_up => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            opened => return opened,
        }
    }
}

fn orders() -> mpsc::UnboundedReceiver<String> {
    let (send, lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(io::Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Prints one whole line at once: this process may be stopped or killed after any of them.
fn report(what: &What) {
    report_at(now(), what);
}

fn report_at(at: Moment, what: &What) {
    let mut text = Vec::new();
    let mut out = io::stdout().lock();
    // When the process that reads this has ended, the orders end too.
    let _ = line(&mut text, &Event { at: at.as_nanos(), what: what.clone() })
        .and_then(|()| out.write_all(&text))
        .and_then(|()| out.flush());
}

fn now() -> Moment {
    BootClock.now()
}

/// Why a caller that dropped its call did not get the lock.
pub(crate) const CANCELLED: &str = "cancelled";

/// Why a lock was lost whose lease is over, if the engine has not said so yet.
pub(crate) const EXPIRED: &str = "expired";

/// The orders have ended.
struct Over;

struct Worker {
    mine: Assignment,
    source: Source,
    orders: mpsc::UnboundedReceiver<String>,
    random: fastrand::Rng,
    /// Ordered for the next acquisition.
    next: Option<(String, Duration, Option<Duration>)>,
    drain: Option<Duration>,
    /// It asks for nothing until it is ordered to.
    resting: bool,
    op: u64,
}

/// One acquisition.
struct Job {
    lock: LockSpec,
    units: Option<u32>,
    wait: Duration,
    /// The caller gives up after this time.
    cancel: Option<Duration>,
    stay: Duration,
}

impl Worker {
    async fn contend(&mut self) {
        loop {
            let pause = self.pause();
            if self.drain.is_none() && self.heed(pause).await.is_err() {
                return;
            }
            if let Some(bound) = self.drain {
                let failed = self.drained(bound).await.err();
                report(&What::Drained { w: self.mine.w, failed });
                return;
            }
            let job = self.job();
            if self.take(job).await.is_err() {
                return;
            }
        }
    }

    /// Pauses, and hears what is ordered meanwhile.
    async fn heed(&mut self, pause: Duration) -> std::result::Result<(), Over> {
        let mut pause = std::pin::pin!(tokio::time::sleep(pause));
        loop {
            tokio::select! {
                order = self.orders.recv() => {
                    // An answer that comes now was not waited for.
                    let _ = self.note(&order.ok_or(Over)?);
                }
                () = &mut pause, if !self.resting => return Ok(()),
            }
            // An order is obeyed at once.
            if self.next.is_some() || self.drain.is_some() {
                return Ok(());
            }
        }
    }

    fn note(&mut self, line: &str) -> Option<Order> {
        let order = serde_json::from_str(line).ok()?;
        if !matches!(order, Order::Counters { .. } | Order::Written { .. }) {
            self.resting = order == Order::Rest;
        }
        match order {
            Order::Rest => self.next = None,
            Order::Stay { lock, ms } => self.next = Some((lock, Duration::from_millis(ms), None)),
            Order::Cancel { lock, ms } => {
                self.next = Some((lock, Duration::ZERO, Some(Duration::from_millis(ms))));
            }
            Order::Drain { within_ms } => self.drain = Some(Duration::from_millis(within_ms)),
            answer => return Some(answer),
        }
        None
    }

    fn pause(&mut self) -> Duration {
        let average = self.mine.pause_ms.max(1);
        Duration::from_millis(self.random.u64(0..=average * 2))
    }

    fn job(&mut self) -> Job {
        let ttl = self.mine.ttl();
        let patience = ttl * 3;
        if let Some((name, stay, cancel)) = self.next.take()
            && let Some(lock) = self.mine.locks.iter().find(|lock| lock.name == name)
        {
            return Job { lock: lock.clone(), units: None, wait: patience, cancel, stay };
        }
        let lock = self.mine.locks[self.random.usize(0..self.mine.locks.len())].clone();
        let units = match lock.kind {
            LockKind::Mutex => None,
            LockKind::ReadWrite => (self.random.u32(0..3) > 0).then_some(1),
            LockKind::Semaphore(permits) => Some(self.random.u32(1..=permits.max(1))),
        };
        let wait = match self.random.u32(0..10) {
            0 => Duration::ZERO,
            1 => ttl / 20,
            _ => patience,
        };
        let cancel = match self.random.u32(0..16) {
            // Another library cannot be told to forget a call.
            _ if matches!(self.source, Source::Peer(_)) => None,
            // After its first step, whatever that was.
            0 => Some(Duration::ZERO),
            1 => Some(Duration::from_millis(self.random.u64(0..20))),
            _ => None,
        };
        let stay = match self.random.u32(0..40) {
            0 => ttl.mul_f64(1.2),
            1..=2 => ttl.mul_f64(self.random.f64() * 0.3),
            _ => Duration::from_millis(self.random.u64(0..8)),
        };
        Job { lock, units, wait, cancel, stay }
    }

    /// Takes one lock and gives it back.
    async fn take(&mut self, job: Job) -> std::result::Result<(), Over> {
        self.op += 1;
        let (w, op) = (self.mine.w, self.op);
        report(&What::Asked { w, op, lock: job.lock.name.clone(), units: job.units });
        let (run, ttl) = (self.mine.run.clone(), self.mine.ttl());
        let taking = self.source.take(&run, ttl, &job);
        let taken = match job.cancel {
            Some(after) => tokio::time::timeout(after, taking).await.ok(),
            None => Some(taking.await),
        };
        let mut hold = match taken {
            None => {
                report(&What::GaveUp { w, op, why: CANCELLED.to_owned() });
                return Ok(());
            }
            Some(Ok(hold)) => hold,
            Some(Err(Refused { why, busy })) => {
                report(&What::GaveUp { w, op, why });
                if !busy {
                    // A store that refuses at once is not asked all the time.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                return Ok(());
            }
        };
        let mut until = hold.ends_at();
        // The first moment at which the caller could act: belief begins here.
        report(&What::Granted { w, op, fence: hold.fence(), until: until.as_nanos() });
        let alone = job.lock.kind == LockKind::Mutex;
        if alone {
            self.change(&job.lock.name, op, &mut hold).await?;
        }
        self.stay(op, &mut hold, job.stay, &mut until).await;
        if alone && job.stay > self.mine.ttl() / 2 {
            self.change(&job.lock.name, op, &mut hold).await?;
        }
        self.give_back(op, hold).await;
        Ok(())
    }

    /// Reports the end of a belief, and releases the lock.
    async fn give_back(&mut self, op: u64, mut hold: Hold) {
        // Another library has believed until now only if it says so now.
        self.source.look(&mut hold).await;
        let (ended, is_held) = (hold.believed_until(), hold.is_held());
        let (told, lost) = if is_held { (None, None) } else { (hold.told().await, hold.loss()) };
        let (told, perhaps) = (told.map(Moment::as_nanos), hold.perhaps().map(Moment::as_nanos));
        report_at(ended, &What::Ended { w: self.mine.w, op, lost, told, perhaps });
        self.source.release(hold).await;
    }

    /// Reads both counters and writes them one larger, as a program does that checks its lock before it begins, and not
    /// again between its read and its write.
    async fn change(&mut self, lock: &str, op: u64, hold: &mut Hold) -> std::result::Result<(), Over> {
        self.source.look(hold).await;
        if !hold.is_held() {
            return Ok(());
        }
        let (w, lock, fence) = (self.mine.w, lock.to_owned(), hold.fence());
        report(&What::Read { w, op, lock: lock.clone(), fence, fenced: None, plain: 0 });
        let Order::Counters { fenced, plain, .. } = self.answer().await? else { return Ok(()) };
        tokio::time::sleep(Duration::from_millis(self.random.u64(0..4))).await;
        let (fenced, plain) = (fenced.map(|value| value + 1), plain + 1);
        report(&What::Wrote { w, op, lock, fence, fenced, plain, accepted: false });
        self.answer().await.map(drop)
    }

    async fn answer(&mut self) -> std::result::Result<Order, Over> {
        loop {
            let line = self.orders.recv().await.ok_or(Over)?;
            if let Some(answer) = self.note(&line) {
                return Ok(answer);
            }
        }
    }

    /// Holds for `span`, or until the lock is lost, and reports each renewal.
    async fn stay(&mut self, op: u64, hold: &mut Hold, span: Duration, until: &mut Moment) {
        let end = now() + span;
        let step = (self.mine.ttl() / 8).max(Duration::from_millis(5));
        while now() < end && hold.is_held() {
            hold.stay(end.since(now()).min(step)).await;
            self.source.look(hold).await;
            if hold.is_held() && hold.ends_at() != *until {
                *until = hold.ends_at();
                report(&What::Until { w: self.mine.w, op, until: until.as_nanos() });
            }
        }
    }

    /// After all faults: every lock once, each within `bound`.
    async fn drained(&mut self, bound: Duration) -> std::result::Result<(), String> {
        let end = now() + bound;
        for lock in self.mine.locks.clone() {
            loop {
                self.op += 1;
                let (w, op, name) = (self.mine.w, self.op, lock.name.clone());
                let job =
                    Job { wait: end.since(now()), lock: lock.clone(), units: None, cancel: None, stay: Duration::ZERO };
                report(&What::Asked { w, op, lock: name.clone(), units: None });
                let (run, ttl) = (self.mine.run.clone(), self.mine.ttl());
                match self.source.take(&run, ttl, &job).await {
                    Ok(hold) => {
                        let until = hold.ends_at().as_nanos();
                        report(&What::Granted { w, op, fence: hold.fence(), until });
                        self.give_back(op, hold).await;
                        break;
                    }
                    Err(Refused { why, .. }) => {
                        report(&What::GaveUp { w, op, why: why.clone() });
                        if now() >= end {
                            return Err(why);
                        }
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker that is started just before the end still has its time to connect.
    #[tokio::test(start_paused = true)]
    async fn an_order_to_drain_does_not_end_a_connection_that_is_being_opened() {
        let (send, mut lines) = mpsc::unbounded_channel();
        let order = serde_json::to_string(&Order::Drain { within_ms: 3000 }).unwrap();
        send.send(order).unwrap();
        let (start, mut drain) = (tokio::time::Instant::now(), None);
        until_too_late(&mut lines, &mut drain).await;
        assert_eq!((drain.is_some(), start.elapsed()), (true, Duration::from_secs(3)));
        // Without orders there is nothing to wait for.
        drop(send);
        let mut drain = None;
        until_too_late(&mut lines, &mut drain).await;
        assert_eq!(drain, None);
    }
}
