//! Many claims in one queue, many held locks, and churn: what they cost, and what they leave behind.

mod servers;
mod worker;

use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Lines, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::args::{LOAD_WORKER, LoadOptions};
use crate::report;
use crate::run::{KillOnDrop, commit, program};

pub(crate) use servers::STORES;
use servers::{Kept, Loaded, field, sockets};
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

/// The loads, by the names of `--only load/NAME`.
pub(crate) const LOADS: [&str; 3] = ["queue", "held", "churn"];

/// One row of the table. Of those of one load on one store the last one stays.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Row {
    store: String,
    load: String,
    version: String,
    commit: String,
    name: String,
    seen: String,
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/measurements/loads.jsonl")
}

/// Runs the chosen loads on servers of their own, and writes the table of all that were ever run.
pub(crate) fn all(options: &LoadOptions) -> anyhow::Result<()> {
    // Before the first load, which takes minutes.
    if !options.dry {
        rows(&file())?;
    }
    for store in &options.stores {
        for load in LOADS.iter().filter(|load| options.loads.is_empty() || options.loads.iter().any(|one| one == *load))
        {
            // New servers for each: what one left does not count for the next.
            let server = Loaded::start(store)?;
            let (name, seen) = match *load {
                "queue" => queue(&server)?,
                "held" => held(&server)?,
                _ => churn(&server, options.churn_seconds)?,
            };
            println!("{store}: {name}: {seen}");
            let version = crate::deployments::version(&server.url())?;
            let (store, load) = (store.clone(), (*load).to_owned());
            write(Row { store, load, version, commit: commit().to_owned(), name, seen }, options.dry)?;
        }
    }
    Ok(())
}

/// The rows of every load so far; none where there is no file. One that cannot be read must not be written again.
fn rows(file: &Path) -> anyhow::Result<Vec<Row>> {
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        text => text.with_context(|| file.display().to_string())?,
    };
    let row = |(number, line): (usize, &str)| {
        serde_json::from_str(line).with_context(|| format!("line {} of {}", number + 1, file.display()))
    };
    text.lines().enumerate().map(row).collect()
}

fn write(row: Row, dry: bool) -> anyhow::Result<()> {
    if dry {
        return Ok(());
    }
    let mut rows = rows(&file())?;
    rows.retain(|old| (&old.store, &old.load) != (&row.store, &row.load));
    rows.push(row);
    rows.sort_by_key(|row| {
        let place = |name: &str, all: &[&str]| all.iter().position(|one| *one == name);
        (place(&row.load, &LOADS), place(&row.store, &STORES))
    });
    let lines: Vec<_> = rows.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    fs::write(file(), lines.join("\n") + "\n")?;
    report::write_loads(&table(&rows))
}

fn table(rows: &[Row]) -> String {
    let head = "One server on the same machine as all processes, two cores, a debug build.\n\n\
                | load | store | seen |\n|---|---|---|\n";
    let line = |row: &Row| format!("| {} | {} {} | {} |", row.name, row.store, row.version, row.seen);
    head.to_owned() + &rows.iter().map(line).collect::<Vec<_>>().join("\n")
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

    /// An answer of two numbers.
    fn pair(&mut self) -> anyhow::Result<(u64, u64)> {
        let answer = self.answer()?;
        let (first, second) = answer.split_once(' ').context("an answer of two numbers")?;
        Ok((first.parse()?, second.parse()?))
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
    sockets: u64,
    /// Tasks of their runtimes, where they say so.
    tasks: Option<u64>,
}

impl Cost {
    fn of(pid: u32) -> anyhow::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).context("a process of the load is gone")?;
        // A process that has ended has no memory.
        let of = |name: &str| field(&status, name).with_context(|| format!("{name} is missing: the process has ended"));
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))?.count() as u64;
        let (memory_kb, threads) = (of("VmRSS:")?, of("Threads:")?);
        Ok(Self { memory_kb, threads, descriptors, sockets: sockets(pid)?, tasks: None })
    }

    fn plus(self, other: Self) -> Self {
        Self {
            memory_kb: self.memory_kb + other.memory_kb,
            threads: self.threads + other.threads,
            descriptors: self.descriptors + other.descriptors,
            sockets: self.sockets + other.sockets,
            tasks: self.tasks,
        }
    }
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let memory = self.memory_kb as f64 / 1024.0;
        write!(f, "{memory:.0} MiB, {} threads, {} descriptors", self.threads, self.descriptors)?;
        write!(f, " ({} sockets)", self.sockets)?;
        self.tasks.map_or(Ok(()), |tasks| write!(f, ", {tasks} tasks"))
    }
}

fn cost(workers: &[Worker]) -> anyhow::Result<Cost> {
    workers.iter().try_fold(Cost::default(), |sum, worker| Ok(sum.plus(worker.cost()?)))
}

/// The names that are held or waited for.
fn in_use(url: &str) -> anyhow::Result<usize> {
    let listed = Command::new(program()?).args(["ls", "-o", "name", "-u", url]).output()?;
    ensure!(listed.status.success(), "ls: {}", String::from_utf8_lossy(&listed.stderr).trim());
    Ok(String::from_utf8_lossy(&listed.stdout).lines().count())
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
fn queue(server: &Loaded) -> anyhow::Result<(String, String)> {
    let before = server.kept()?;
    let url = server.url();
    let mut holder = Worker::start(&worker::hold(&url, "load/queue", 1))?;
    holder.answer()?;
    let start = Instant::now();
    let words = worker::wait(&url, "load/queue", CLAIMS_EACH);
    let mut workers = (0..QUEUE_PROCESSES).map(|_| Worker::start(&words)).collect::<anyhow::Result<Vec<_>>>()?;
    let wanted = QUEUE_PROCESSES * CLAIMS_EACH;
    let give_up = start + Duration::from_secs(600);
    while waiters(&url, "load/queue")? < wanted {
        ensure!(Instant::now() < give_up, "not all claims joined the queue within 10 minutes");
        std::thread::sleep(Duration::from_millis(500));
    }
    let (queued, used) = (start.elapsed(), cost(&workers)?);
    let during = server.kept()?;
    let start = Instant::now();
    holder.order()?;
    let (mut grants, mut longest) = (0, 0);
    for worker in &mut workers {
        let (served, waited) = worker.pair()?;
        grants += usize::try_from(served)?;
        longest = longest.max(waited);
    }
    let served = start.elapsed();
    ensure!(grants == wanted, "{grants} of {wanted} claims were served");
    drop((workers, holder));
    let after = settled(server, before, 1)?;
    let name = format!("{wanted} claims in one queue, {QUEUE_PROCESSES} processes, `.fair()`");
    let seen = format!(
        "all waited after {:.1} s; all served, the last {:.1} s after the release, {:.0} grants a second, the longest wait \
         {:.1} s; all processes together: {used}; server before: {before}; full: {during}; after: {after}",
        queued.as_secs_f64(),
        served.as_secs_f64(),
        grants as f64 / served.as_secs_f64(),
        longest as f64 / 1000.0,
    );
    Ok((name, seen))
}

/// 100,000 locks, held over several leases.
fn held(server: &Loaded) -> anyhow::Result<(String, String)> {
    let before = server.kept()?;
    let start = Instant::now();
    let workers = (0..HOLDING_PROCESSES)
        .map(|number| Worker::start(&worker::hold(&server.url(), &format!("load/held-{number}"), LOCKS_EACH)));
    let mut workers = workers.collect::<anyhow::Result<Vec<_>>>()?;
    for worker in &mut workers {
        worker.answer()?;
    }
    let (taken, used, during) = (start.elapsed(), cost(&workers)?, server.kept()?);
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
    let after = settled(server, before, (HOLDING_PROCESSES * LOCKS_EACH) as u64)?;
    let name = format!("{} locks, {HOLDING_PROCESSES} processes", HOLDING_PROCESSES * LOCKS_EACH);
    let seen = format!(
        "held after {:.1} s; {lost} lost in {} s (leases of {} s); released in {:.1} s; all processes together: {used}; \
         after the release: {idle}; server before: {before}; full: {during}; after: {after}",
        taken.as_secs_f64(),
        (worker::TTL * 2).as_secs(),
        worker::TTL.as_secs(),
        released.as_secs_f64(),
    );
    ensure!(lost == 0, "{lost} locks were lost");
    Ok((name, seen))
}

/// Locks of many names, taken and released for a long time.
fn churn(server: &Loaded, seconds: u64) -> anyhow::Result<(String, String)> {
    let before = server.kept()?;
    let words = worker::churn(&server.url(), "load/churn", seconds);
    let mut workers = (0..CHURN_PROCESSES).map(|_| Worker::start(&words)).collect::<anyhow::Result<Vec<_>>>()?;
    // They say so after a tenth of the time, which is for warming up.
    let halt = |workers: &mut [Worker]| {
        let (mut pairs, mut tasks) = (0, 0);
        for worker in &mut *workers {
            let (some, running) = worker.pair()?;
            pairs += some;
            tasks += running;
        }
        anyhow::Ok((pairs, Cost { tasks: Some(tasks), ..cost(workers)? }))
    };
    let (_, early) = halt(&mut workers)?;
    let early_server = server.kept()?;
    workers.iter_mut().try_for_each(Worker::order)?;
    let (pairs, late) = halt(&mut workers)?;
    let late_server = server.kept()?;
    ensure!(late.descriptors <= early.descriptors + SLACK, "descriptors grew from {early} to {late}");
    ensure!(late.threads <= early.threads + SLACK, "threads grew from {early} to {late}");
    ensure!(late.tasks <= early.tasks.map(|tasks| tasks + SLACK), "tasks grew from {early} to {late}");
    ensure!(late.memory_kb <= early.memory_kb * 2, "memory grew from {early} to {late}");
    // What the store remembers of a name, for each of them.
    let most = early_server.records + 2 * u64::from(worker::NAMES);
    ensure!(late_server.records <= most, "what the server keeps grew from {early_server} to {late_server}");
    drop(workers);
    let after = settled(server, before, worker::NAMES.into())?;
    let name = format!("{seconds} s of churn, {CHURN_PROCESSES} processes, {} names", worker::NAMES);
    let seen = format!(
        "{pairs} locks taken and released; all processes together after a tenth of the time: {early}; at the end: {late}; \
         server: {early_server} and {late_server}; after: {after}",
    );
    Ok((name, seen))
}

/// The server once the connections of the load are gone. No claim is left, and no more than a store remembers of the
/// names that were used.
fn settled(server: &Loaded, before: Kept, names: u64) -> anyhow::Result<Kept> {
    let give_up = Instant::now() + Duration::from_secs(60);
    let after = loop {
        let now = server.kept()?;
        // Servers keep a few sockets and processes of their own.
        if now.sockets <= before.sockets + SLACK {
            break now;
        }
        ensure!(Instant::now() < give_up, "{} sockets are left, and there were {}", now.sockets, before.sockets);
        std::thread::sleep(Duration::from_millis(100));
    };
    let left = in_use(&server.url())?;
    ensure!(left == 0, "{left} names are still held or waited for");
    let most = before.records + 2 * names + SLACK;
    ensure!(after.records <= most, "the server keeps more than {names} names need: before {before}, after {after}");
    Ok(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_loads_that_cannot_be_read_is_an_error_and_a_missing_one_is_empty() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("loads.jsonl");
        assert!(rows(&file).expect("no file").is_empty());
        let row = r#"{"store":"redis","load":"held","version":"7","commit":"c","name":"n","seen":"s"}"#;
        fs::write(&file, format!("{row}\n")).expect("written");
        assert_eq!(rows(&file).expect("one row").len(), 1);
        fs::write(&file, format!("{row}\n{{\n")).expect("written");
        assert!(format!("{:#}", rows(&file).expect_err("no JSON")).contains("line 2"));
        fs::write(&file, [0xff, 0xfe]).expect("written");
        assert!(rows(&file).is_err(), "no text");
        assert!(rows(dir.path()).is_err(), "a folder");
    }
}
