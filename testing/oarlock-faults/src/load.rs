//! Many claims in one queue, many held locks, and churn: what they cost, and what they leave behind.

mod worker;

use std::fs;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use oarlock_testbed::Redis;
use oarlock_testbed::server::redis_command;

use serde_json::Value;

use crate::args::LOAD_WORKER;
use crate::report;
use crate::run::{KillOnDrop, program};

pub(crate) use worker::work;

/// 10,000 claims.
const QUEUE_PROCESSES: usize = 50;
const CLAIMS_EACH: usize = 200;

/// 100,000 locks.
const HOLDING_PROCESSES: usize = 4;
const LOCKS_EACH: usize = 25_000;

const CHURN_PROCESSES: usize = 4;

/// Connections and threads may come and go a little.
const SLACK: u64 = 16;

/// Runs them on a Redis of their own, and writes the table.
pub(crate) fn all(churn_seconds: u64) -> anyhow::Result<()> {
    let server = Redis::start()?;
    let version = crate::deployments::version(&server.url())?;
    let mut rows = Vec::new();
    for load in [queue(&server)?, held(&server)?, churn(&server, churn_seconds)?] {
        println!("{}: {}", load.0, load.1);
        rows.push(format!("| {} | {} |", load.0, load.1));
    }
    let head = format!("On Redis {version}, one server on the same machine.\n\n| load | seen |\n|---|---|\n");
    report::write_loads(&(head + &rows.join("\n")))
}

/// A process that takes locks.
struct Worker {
    child: KillOnDrop,
    input: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(words: &[String]) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(LOAD_WORKER).args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = KillOnDrop(command.spawn().context("cannot start a process of the load")?);
        let (input, output) = (child.0.stdin.take().context("no input")?, child.0.stdout.take().context("no output")?);
        Ok(Self { child, input, answers: BufReader::new(output).lines() })
    }

    fn answer(&mut self) -> anyhow::Result<String> {
        Ok(self.answers.next().context("a process of the load ended early")??)
    }

    fn order(&mut self) -> anyhow::Result<()> {
        Ok(self.input.write_all(b"go\n")?)
    }

    fn cost(&self) -> anyhow::Result<Cost> {
        Cost::of(self.child.0.id())
    }
}

/// What processes use.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    memory_kb: u64,
    threads: u64,
    descriptors: u64,
}

impl Cost {
    fn of(pid: u32) -> anyhow::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).context("a process of the load is gone")?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let value = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
            // A process that has ended has no memory.
            value.with_context(|| format!("{name} is missing: the process has ended"))
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))?.count() as u64;
        Ok(Self { memory_kb: field("VmRSS:")?, threads: field("Threads:")?, descriptors })
    }

    fn plus(self, other: Self) -> Self {
        Self {
            memory_kb: self.memory_kb + other.memory_kb,
            threads: self.threads + other.threads,
            descriptors: self.descriptors + other.descriptors,
        }
    }
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let memory = self.memory_kb as f64 / 1024.0;
        write!(f, "{memory:.0} MiB, {} threads, {} descriptors", self.threads, self.descriptors)
    }
}

fn cost(workers: &[Worker]) -> anyhow::Result<Cost> {
    workers.iter().try_fold(Cost::default(), |sum, worker| Ok(sum.plus(worker.cost()?)))
}

/// Keys, connections and memory of the server.
fn of_server(server: &Redis) -> anyhow::Result<(u64, u64, f64)> {
    let keys = redis_command(server.addr(), &["DBSIZE"])?.trim().parse()?;
    let info = redis_command(server.addr(), &["INFO"])?;
    let field = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)).and_then(|value| value.trim().parse::<u64>().ok())
    };
    let clients = field("connected_clients:").context("connected_clients")?;
    let memory = field("used_memory:").context("used_memory")?;
    Ok((keys, clients, memory as f64 / 1024.0 / 1024.0))
}

fn shown((keys, clients, memory): (u64, u64, f64)) -> String {
    format!("{keys} keys, {clients} connections, {memory:.1} MiB")
}

/// How many claims wait for a lock.
fn waiters(url: &str, name: &str) -> anyhow::Result<usize> {
    let shown = Command::new(program()?).args(["show", name, "-o", "json", "-u", url]).output()?;
    let shown: Value = serde_json::from_slice(&shown.stdout)?;
    Ok(match &shown["waiters"] {
        Value::Array(waiters) => waiters.len(),
        other => usize::try_from(other.as_u64().unwrap_or(0))?,
    })
}

/// One lock, and 10,000 claims that wait for it at once, each with a place of its own.
fn queue(server: &Redis) -> anyhow::Result<(String, String)> {
    let before = of_server(server)?;
    let mut holder = Worker::start(&worker::hold(&server.url(), "load/queue", 1))?;
    holder.answer()?;
    let start = Instant::now();
    let words = worker::wait(&server.url(), "load/queue", CLAIMS_EACH);
    let mut workers = (0..QUEUE_PROCESSES).map(|_| Worker::start(&words)).collect::<anyhow::Result<Vec<_>>>()?;
    let wanted = QUEUE_PROCESSES * CLAIMS_EACH;
    let give_up = start + Duration::from_secs(600);
    while waiters(&server.url(), "load/queue")? < wanted {
        ensure!(Instant::now() < give_up, "not all claims joined the queue within 10 minutes");
        std::thread::sleep(Duration::from_millis(500));
    }
    let (queued, used) = (start.elapsed(), cost(&workers)?);
    let during = of_server(server)?;
    let start = Instant::now();
    holder.order()?;
    let (mut grants, mut longest) = (0, Duration::ZERO);
    for worker in &mut workers {
        let answer = worker.answer()?;
        let (served, waited) = answer.split_once(' ').context("an answer of two numbers")?;
        grants += served.parse::<usize>()?;
        longest = longest.max(Duration::from_millis(waited.parse()?));
    }
    let served = start.elapsed();
    ensure!(grants == wanted, "{grants} of {wanted} claims were served");
    drop((workers, holder));
    let after = settled(server, before)?;
    let name = format!("{wanted} claims in one queue, {QUEUE_PROCESSES} processes, `.fair()`");
    let seen = format!(
        "all waited after {:.1} s; all served, the last {:.1} s after the release, {:.0} grants a second; all processes \
         together: {used}; server before: {}; full: {}; after: {}",
        queued.as_secs_f64(),
        served.as_secs_f64(),
        grants as f64 / served.as_secs_f64(),
        shown(before),
        shown(during),
        shown(after)
    );
    Ok((name, seen))
}

/// 100,000 locks, held over several leases.
fn held(server: &Redis) -> anyhow::Result<(String, String)> {
    let before = of_server(server)?;
    let start = Instant::now();
    let workers = (0..HOLDING_PROCESSES)
        .map(|number| Worker::start(&worker::hold(&server.url(), &format!("load/held-{number}"), LOCKS_EACH)));
    let mut workers = workers.collect::<anyhow::Result<Vec<_>>>()?;
    for worker in &mut workers {
        worker.answer()?;
    }
    let (taken, used, during) = (start.elapsed(), cost(&workers)?, of_server(server)?);
    std::thread::sleep(worker::TTL * 2);
    let start = Instant::now();
    let mut lost = 0;
    for worker in &mut workers {
        worker.order()?;
    }
    for worker in &mut workers {
        lost += worker.answer()?.parse::<usize>()?;
    }
    let released = start.elapsed();
    let idle = cost(&workers)?;
    drop(workers);
    let after = settled(server, before)?;
    let name = format!("{} locks, {HOLDING_PROCESSES} processes", HOLDING_PROCESSES * LOCKS_EACH);
    let seen = format!(
        "held after {:.1} s; {lost} lost in {} s (leases of {} s); released in {:.1} s; all processes together: {used}; \
         after the release: {idle}; server before: {}; full: {}; after: {}",
        taken.as_secs_f64(),
        (worker::TTL * 2).as_secs(),
        worker::TTL.as_secs(),
        released.as_secs_f64(),
        shown(before),
        shown(during),
        shown(after)
    );
    ensure!(lost == 0, "{lost} locks were lost");
    Ok((name, seen))
}

/// Locks of many names, taken and released for a long time.
fn churn(server: &Redis, seconds: u64) -> anyhow::Result<(String, String)> {
    let before = of_server(server)?;
    let words = worker::churn(&server.url(), "load/churn", seconds);
    let mut workers = (0..CHURN_PROCESSES).map(|_| Worker::start(&words)).collect::<anyhow::Result<Vec<_>>>()?;
    // A tenth of the time to warm up.
    std::thread::sleep(Duration::from_secs(seconds / 10));
    let (early, early_server) = (cost(&workers)?, of_server(server)?);
    let mut pairs = 0;
    for worker in &mut workers {
        pairs += worker.answer()?.parse::<u64>()?;
    }
    let late = cost(&workers)?;
    let late_server = of_server(server)?;
    ensure!(late.descriptors <= early.descriptors + SLACK, "descriptors grew from {early} to {late}");
    ensure!(late.threads <= early.threads + SLACK, "threads grew from {early} to {late}");
    ensure!(late.memory_kb <= early.memory_kb * 2, "memory grew from {early} to {late}");
    // What the store remembers of a name, for each of them.
    ensure!(late_server.0 <= early_server.0 + u64::from(worker::NAMES), "keys grew to {}", late_server.0);
    drop(workers);
    let after = settled(server, before)?;
    let name = format!("{seconds} s of churn, {CHURN_PROCESSES} processes, 1000 names");
    let seen = format!(
        "{pairs} locks taken and released; all processes together after a tenth of the time: {early}; at the end: {late}; \
         server: {} and {}; after: {}",
        shown(early_server),
        shown(late_server),
        shown(after)
    );
    Ok((name, seen))
}

/// The server once the connections of the load are gone.
fn settled(server: &Redis, before: (u64, u64, f64)) -> anyhow::Result<(u64, u64, f64)> {
    let give_up = Instant::now() + Duration::from_secs(30);
    loop {
        let now = of_server(server)?;
        if now.1 <= before.1 {
            return Ok(now);
        }
        ensure!(Instant::now() < give_up, "{} connections are left, and there were {}", now.1, before.1);
        std::thread::sleep(Duration::from_millis(100));
    }
}
