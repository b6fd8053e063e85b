//! Power cuts of the embedded store: its clients die with their machine, and the next ones find what was synced.
//!
//! Processes take locks and run work once per slot, and say what they were granted. Then the disk is gone, and they are
//! killed. The processes after that must be granted larger fences than any that was named before, and must not run a slot
//! again that was written down. The disk that lies is the control: there, slots must run again.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use oarlock::{Locks, Slot};
use oarlock_testbed::server::{ChangedSyncs, Disk, Syncs};

use crate::args::POWER_WORKER;
use crate::cases::Case;
use crate::run::KillOnDrop;
use crate::runs::Done;

const PROCESSES: usize = 4;

/// The locks for which all processes contend.
const NAMES: u64 = 3;

/// The work of a slot ran again.
pub(crate) const RAN_TWICE: &str = "RanTwice";

/// At least so many cuts, however short the run is.
const LEAST_CUTS: u64 = 3;

/// A lock is free or belongs to a process that goes on: no wait is longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a process does until it is killed.
const CONTEND: &str = "contend";
/// What a process does once: it tries the last slot of each name again.
const AGAIN: &str = "again";

/// What processes have said so far.
#[derive(Default)]
struct Said {
    grants: u64,
    /// The largest fence of each lock.
    fences: BTreeMap<String, u64>,
    /// The last slot of each name.
    slots: BTreeMap<String, String>,
    violations: Vec<String>,
    risks: Vec<String>,
}

impl Said {
    /// Takes what the processes of one power-up said. Fences are compared with those from before it.
    fn add(&mut self, lines: &[String], lies: bool) -> anyhow::Result<()> {
        let before = self.fences.clone();
        for line in lines {
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["fence", name, fence] => {
                    let fence: u64 = fence.parse()?;
                    self.grants += 1;
                    if let Some(old) = before.get(name).filter(|old| **old >= fence) {
                        self.violations.push(format!("FenceOrder: {name} had {old}, and {fence} after a power cut"));
                    }
                    let largest = self.fences.entry(name.to_owned()).or_default();
                    *largest = fence.max(*largest);
                }
                ["slot", name, slot] => {
                    self.grants += 1;
                    self.slots.insert(name.to_owned(), slot.to_owned());
                }
                ["again", name, slot] => {
                    let what = format!("{RAN_TWICE}: {name} had run {slot}, and ran it again after a power cut");
                    if lies { self.risks.push(what) } else { self.violations.push(what) }
                }
                _ => bail!("a process said: {line}"),
            }
        }
        Ok(())
    }
}

/// A process, and the thread that reads what it says.
struct Worker {
    child: KillOnDrop,
    input: ChildStdin,
    lines: JoinHandle<Vec<String>>,
}

impl Worker {
    /// Starts one, and waits until it is connected.
    fn start(words: &[&str]) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(POWER_WORKER).args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = KillOnDrop(command.spawn().context("cannot start a process")?);
        let input = child.0.stdin.take().context("no input")?;
        let mut output = BufReader::new(child.0.stdout.take().context("no output")?);
        let mut ready = String::new();
        output.read_line(&mut ready)?;
        ensure!(ready == "ready\n", "a process said {ready:?}, and is not connected");
        Ok(Self { child, input, lines: std::thread::spawn(move || read(output)) })
    }

    fn begin(&mut self) -> anyhow::Result<()> {
        Ok(self.input.write_all(b"go\n")?)
    }

    /// # Errors
    /// When it has ended: it was to go on until the power is cut.
    fn runs(&mut self) -> anyhow::Result<()> {
        let ended = self.child.0.try_wait()?;
        ended.map_or(Ok(()), |status| bail!("a process ended with {status} before the power was cut"))
    }

    /// Everything that it said. A line that was cut off counts as not said.
    fn end(mut self, kill: bool) -> anyhow::Result<Vec<String>> {
        if kill {
            self.child.0.kill()?;
        }
        let status = self.child.0.wait()?;
        ensure!(kill || status.success(), "a process ended with {status}");
        self.lines.join().map_err(|_| anyhow::anyhow!("reading panicked"))
    }
}

fn read(mut output: BufReader<ChildStdout>) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    while output.read_line(&mut line).is_ok_and(|count| count > 0) {
        lines.extend(line.strip_suffix('\n').map(str::to_owned));
        line.clear();
    }
    lines
}

/// Runs the case.
pub(crate) fn run(case: &Case, disk: &Disk, url: &str, lies: bool, seed: u64, seconds: u64) -> anyhow::Result<Done> {
    let mut random = fastrand::Rng::with_seed(seed);
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut said, mut cuts) = (Said::default(), 0);
    // Slots of a run before this one are earlier ones.
    let run = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
    while Instant::now() < end || cuts < LEAST_CUTS {
        let generation = format!("{run}-{cuts:04}");
        let mut workers = (0..PROCESSES)
            .map(|number| Worker::start(&[CONTEND, url, &number.to_string(), &generation, &seed.to_string()]))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let pids: Vec<_> = workers.iter().map(|worker| worker.child.0.id()).collect();
        let changed = if lies { Some(ChangedSyncs::of(&pids, Syncs::Lie)?) } else { None };
        if lies {
            disk.sync()?;
        }
        workers.iter_mut().try_for_each(Worker::begin)?;
        std::thread::sleep(Duration::from_millis(random.u64(200..1500)));
        // After the cut its calls fail, and it may end by itself.
        workers.iter_mut().try_for_each(Worker::runs)?;
        disk.cut_power()?;
        cuts += 1;
        let mut lines = Vec::new();
        for worker in workers {
            lines.extend(worker.end(true)?);
        }
        drop(changed);
        disk.power_up()?;
        said.add(&lines, lies)?;
        let slots: Vec<_> = said.slots.iter().flat_map(|(name, slot)| [name.as_str(), slot.as_str()]).collect();
        let mut again = Worker::start(&[&[AGAIN, url], &slots[..]].concat())?;
        again.begin()?;
        let lines = again.end(false)?;
        said.add(&lines, lies)?;
    }
    let mut done = Done {
        faults: BTreeMap::from([("command".to_owned(), cuts)]),
        grants: said.grants,
        violations: said.violations,
        risks: said.risks,
        ..Done::of(case, seed, seconds)
    };
    if said.grants < 20 || said.slots.len() < PROCESSES {
        done.untried.push(format!("Vacuous: {} grants, slots of {} processes", said.grants, said.slots.len()));
    }
    Ok(done)
}

/// One process.
pub(crate) fn work(words: &[String]) -> anyhow::Result<()> {
    let [what, url, rest @ ..] = words else { bail!("a process of power cuts has more words") };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let locks = oarlock::builder(url).ttl(Duration::from_secs(2)).connect().await?;
        say("ready")?;
        tokio::task::spawn_blocking(|| std::io::stdin().lock().read_line(&mut String::new())).await??;
        match (what.as_str(), rest) {
            (CONTEND, [number, generation, seed]) => contend(&locks, number.parse()?, generation, seed.parse()?).await,
            (AGAIN, slots) => again(&locks, slots).await,
            _ => bail!("no process is called {what}"),
        }
    })
}

fn say(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

async fn contend(locks: &Locks, number: u64, generation: &str, seed: u64) -> anyhow::Result<()> {
    let mut random = fastrand::Rng::with_seed(seed ^ number << 32);
    for round in 0_u64.. {
        let name = format!("power/{}", random.u64(0..NAMES));
        let guard = locks.mutex(&name).wait(PATIENCE).lock().await?;
        say(&format!("fence {name} {}", guard.fence().get()))?;
        guard.release().await?;
        let (name, slot) = (format!("power/once-{number}"), format!("{generation}-{round:08}"));
        let ran = locks.once(&name).run(&slot, |_| async { Ok::<_, oarlock::Error>(()) }).await?;
        ensure!(ran == Slot::Ran(()), "{slot} is new, and has run already");
        say(&format!("slot {name} {slot}"))?;
    }
    Ok(())
}

/// Tries slots that were written down, and says which ran all the same.
async fn again(locks: &Locks, slots: &[String]) -> anyhow::Result<()> {
    for pair in slots.chunks(2) {
        let [name, slot] = pair else { bail!("a slot without its name") };
        let ran = locks.once(name).run(slot, |_| async { Ok::<_, oarlock::Error>(()) }).await?;
        if ran == Slot::Ran(()) {
            say(&format!("again {name} {slot}"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_process_that_fails_before_the_power_cut_is_noticed() {
        let start = |script: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = KillOnDrop(shell.spawn().expect("a shell"));
            let input = child.0.stdin.take().expect("its input");
            let output = BufReader::new(child.0.stdout.take().expect("its output"));
            Worker { child, input, lines: std::thread::spawn(move || read(output)) }
        };
        let mut fails = start("echo fence a 5; exit 1");
        while !fails.lines.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        fails.child.0.wait().expect("its end");
        let why = fails.runs().expect_err("it has ended").to_string();
        assert!(why.contains("exit status: 1"), "{why}");
        let mut goes_on = start("read -r line");
        goes_on.runs().expect("it waits for a line");
        assert!(goes_on.end(true).expect("what it said").is_empty());
    }

    #[test]
    fn a_fence_that_falls_and_a_slot_that_runs_again_are_found() {
        let mut said = Said::default();
        said.add(&lines("fence a 5\nfence a 4\nslot n 1\nfence b 9"), false).expect("lines");
        assert!(said.violations.is_empty(), "processes of one power-up speak in any order: {:?}", said.violations);
        said.add(&lines("fence a 6\nslot n 2"), false).expect("lines");
        assert!(said.violations.is_empty());
        said.add(&lines("fence a 6\nagain n 2"), false).expect("lines");
        assert_eq!(said.violations.len(), 2, "{:?}", said.violations);
        said.add(&lines("again n 2"), true).expect("lines");
        assert_eq!((said.violations.len(), said.risks.len(), said.grants), (2, 1, 7));
        assert!(said.add(&lines("help"), false).is_err());
    }
}
