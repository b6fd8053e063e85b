//! One run: calm, the canonical scenes, a storm, then heal and drain, then a look at what is left.

pub mod clean;
mod hook;
mod scenes;
mod so_far;
mod storm;

use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::{Error, ErrorKind, Locks, Result};
use rustix::process::Signal;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::judge::Ruling;
use crate::proxy::Held;
use crate::record::{Event, FaultKind, Header, What, line};
use crate::worker::{Order, name_in_store};
pub use crate::workers::Server;
use crate::workers::{BY_ITSELF, Counted, Recorder, Shared, Terms, Workers};

use hook::Hook;
use so_far::Seen;

/// How long the first grant of every worker may take.
const START_WITHIN: Duration = Duration::from_secs(30);

/// The storm is at least this part of a run.
const LEAST_STORM: u32 = 5;

/// Why a worker was not drained: its process ended with a panic.
pub(crate) const PANICKED: &str = "its process panicked";

/// Why a worker was not drained: it hangs, although every wait has a bound.
pub(crate) const SILENT: &str = "it did not answer";

/// What a run needs.
pub struct Setup {
    /// What is run, as it is written at the top of the history.
    pub header: Header,
    /// The servers that workers reach through proxies; none where only processes can be hurt.
    pub servers: Vec<Server>,
    /// Starts one worker: a process that calls [`work`](crate::worker::work).
    pub command: Box<dyn Fn() -> Command + Send + Sync>,
    /// A program that takes locks of another library: every worker uses it, or every second one where the header says
    /// that it takes part beside Oarlock. See `interop/README.md`.
    pub with: Option<String>,
    /// A command of the user that hurts the servers.
    pub fault_cmd: Option<String>,
    /// A direct connection to the store, to see what is left.
    pub locks: Locks,
    /// Judge the run also while it goes on, for [`Progress::found`].
    pub live: bool,
}

/// How far a run is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The phase.
    pub phase: &'static str,
    /// How long it runs.
    pub elapsed: Duration,
    /// How long faults will still be injected, at least; `None` when they are over.
    pub left: Option<Duration>,
    /// Holds so far.
    pub holds: u64,
    /// Losses that were told to holders.
    pub losses: u64,
    /// Faults so far.
    pub faults: u64,
    /// What is broken now, in words.
    pub active: Vec<String>,
    /// Writes to the counters so far.
    pub writes: u64,
    /// Stale writes that the fenced counters refused.
    pub refused: u64,
    /// Updates that were lost where no fence was checked.
    pub lost_without_fence: u64,
    /// What was found so far; `None` before the first look, or if [`Setup::live`] does not ask for it.
    pub found: Option<SoFar>,
}

/// What is judged of a run that goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SoFar {
    /// [`Ruling::Ok`] if nothing broke.
    pub ruling: Ruling,
    /// The names of what was found, each once.
    pub names: Vec<&'static str>,
    /// Later events are judged at the end of the run only: there are too many of them.
    pub is_final: bool,
}

/// Runs, and writes the history to `out`.
///
/// # Cancel safety
/// If the future is dropped, the workers are killed and the history has no end. Their leases end what they held;
/// [`clean::clean`] ends it at once.
///
/// # Errors
/// [`ErrorKind::Os`] if processes or proxies cannot be started or the history cannot be written;
/// [`ErrorKind::Unreachable`] if the workers get no lock to begin with.
pub async fn run<W: Write + Send + 'static>(setup: Setup, out: W, progress: impl Fn(Progress)) -> Result<W> {
    let Setup { header, servers, command, with, fault_cmd, locks, live } = setup;
    let (events, queue) = mpsc::unbounded_channel();
    let shared = Arc::new(Shared::new(events));
    let seen = live.then(|| Arc::new(Seen::new(header.clone())));
    let writer = tokio::spawn(write(out, header.clone(), queue, seen.clone()));
    let (reports, inbox) = mpsc::unbounded_channel();
    let recorder = tokio::spawn(Recorder::new(Arc::clone(&shared)).work(inbox));
    let terms = Terms {
        pause: Duration::from_secs(header.workers.into()) / header.rate.max(1),
        header: header.clone(),
        servers,
        with,
        command,
    };
    let workers = Workers::new(terms, Arc::clone(&shared), reports);
    let random = fastrand::Rng::with_seed(header.seed);
    let hook = fault_cmd.map(|command| Hook::new(command, &header));
    let mut runner = Runner { header, workers, shared: Arc::clone(&shared), random, hook, faults: 0 };
    let span = Duration::from_millis(runner.header.duration_ms);
    let show = async {
        loop {
            progress(progress_of(&shared, span));
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let look = async {
        match &seen {
            Some(seen) => so_far::look(seen, &shared).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        done = runner.phases(&locks) => done?,
        () = show => {}
        () = look => {}
    }
    progress(progress_of(&shared, span));
    drop(runner);
    end(recorder).await?;
    shared.record(What::Done);
    drop(shared);
    end(writer).await?.map_err(|error| Error::new(ErrorKind::Os, "the history cannot be written").because(error))
}

fn progress_of(shared: &Shared, span: Duration) -> Progress {
    let elapsed = Duration::from_nanos(shared.now());
    shared.look(|status| {
        let left = match (status.phase, status.storm_ends) {
            ("drain" | "leaks", _) => None,
            (_, Some(end)) => Some(Duration::from_nanos(end).saturating_sub(elapsed)),
            // A storm takes at least this part of the run.
            (_, None) => Some(span.saturating_sub(elapsed).max(span / LEAST_STORM)),
        };
        let of_counters = |of: fn(&Counted) -> u64| status.counted.values().map(of).sum();
        Progress {
            phase: status.phase,
            elapsed,
            left,
            holds: status.holds,
            losses: status.losses,
            faults: status.faults,
            active: status.active.values().cloned().collect(),
            writes: of_counters(|counted| counted.writes),
            refused: of_counters(|counted| counted.refused),
            lost_without_fence: of_counters(|counted| counted.writes.saturating_sub(counted.plain)),
            found: status.found.clone(),
        }
    })
}

async fn end<T>(task: JoinHandle<T>) -> Result<T> {
    task.await.map_err(|error| Error::new(ErrorKind::Internal, "a part of the run panicked").because(error))
}

async fn write<W: Write>(
    mut out: W,
    header: Header,
    mut events: mpsc::UnboundedReceiver<Event>,
    seen: Option<Arc<Seen>>,
) -> std::io::Result<W> {
    line(&mut out, &header)?;
    while let Some(event) = events.recv().await {
        line(&mut out, &event)?;
        if let Some(seen) = &seen {
            seen.keep(event);
        }
    }
    out.flush()?;
    Ok(out)
}

/// Everything that scenes and the storm work with.
struct Runner {
    header: Header,
    workers: Workers,
    shared: Arc<Shared>,
    random: fastrand::Rng,
    hook: Option<Hook>,
    faults: u64,
}

impl Runner {
    async fn phases(&mut self, locks: &Locks) -> Result<()> {
        let failed = |error| Error::new(ErrorKind::Os, "a worker cannot be started").because(error);
        self.phase("calm");
        for _ in 0..self.header.workers {
            self.workers.add().await.map_err(failed)?;
        }
        self.calm().await?;
        self.phase("scenes");
        self.scenes().await.map_err(failed)?;
        self.phase("storm");
        self.storm().await.map_err(failed)?;
        self.phase("drain");
        self.drain().await;
        // Another library alone has keys of its own, which only it can list.
        if self.header.has_oarlock() {
            self.phase("leaks");
            self.leaks(locks).await;
        }
        Ok(())
    }

    fn phase(&self, name: &'static str) {
        self.shared.change(|status| status.phase = name);
        self.shared.record(What::Phase { name: name.to_owned() });
    }

    /// How long a request prolongs belief, as it was seen.
    fn lease(&self) -> Duration {
        let (seen, asked) = (self.shared.look(|status| status.lease), Duration::from_millis(self.header.ttl_ms));
        if seen.is_zero() { asked } else { seen.max(asked / 2) }
    }

    fn takeover(&self) -> Duration {
        // A store may grant longer leases than it was asked for.
        crate::judge::takeover_for(&self.header, self.shared.look(|status| status.lease))
    }

    /// Nothing is hurt, until there were as many holds as workers, and a little longer.
    async fn calm(&self) -> Result<()> {
        let enough = u64::from(self.header.workers) * 3;
        let begun = self.shared.until(START_WITHIN, |status| {
            (status.holds >= enough || !status.ended.is_empty()).then_some(status.ended.is_empty())
        });
        match begun.await {
            Some(true) => {}
            Some(false) => return Err(Error::new(ErrorKind::Unreachable, "a worker process ended at once")),
            None => {
                let late = format!("the workers got no locks within {} s of calm", START_WITHIN.as_secs());
                return Err(Error::unreachable(late));
            }
        }
        tokio::time::sleep(Duration::from_millis(self.header.duration_ms) / 20).await;
        Ok(())
    }

    /// Writes down that a fault begins.
    fn fault(&mut self, kind: FaultKind, w: Option<u32>, host: Option<usize>) -> u64 {
        self.faults += 1;
        self.shared.change(|status| status.faults += 1);
        let host = host.and_then(|host| self.workers.servers().get(host)).map(Server::name);
        let of = w.map_or_else(String::new, |w| format!(" of worker {w}"));
        let to = host.as_ref().map_or_else(String::new, |host| format!(" to {host}"));
        let (id, words) = (self.faults, format!("{}{of}{to}", kind.words()));
        self.shared.change(|status| {
            status.active.insert(id, words);
        });
        self.shared.record(What::Fault { id: self.faults, kind, w, host });
        self.faults
    }

    fn ended(&self, id: u64, effect: Option<i64>) {
        self.no_longer(id);
        self.shared.record(What::FaultEnded { id, effect, reset: false });
    }

    fn no_longer(&self, id: u64) {
        self.shared.change(|status| {
            status.active.remove(&id);
        });
    }

    /// Ends a fault between a worker and a server, or all servers. A reset is written down with a moment before it: what
    /// follows from it comes later.
    fn healed(
        &self,
        id: u64,
        effect: Option<i64>,
        (slot, host): (usize, Option<usize>),
        held: Held,
    ) -> std::io::Result<()> {
        let before = self.shared.now();
        self.heal(slot, host, held)?;
        self.no_longer(id);
        let (reset, at) = (held == Held::Reset, if held == Held::Reset { before } else { self.shared.now() });
        self.shared.record_at(at, What::FaultEnded { id, effect, reset });
        Ok(())
    }

    /// All faults end; then every worker gets every lock once more.
    async fn drain(&mut self) {
        for slot in 0..self.workers.size() {
            self.shared.signal(self.workers.worker(slot), Signal::CONT);
            for proxy in self.workers.proxies(slot) {
                // It fails where another program took its port; then its worker reports that it cannot drain.
                let _ = proxy.heal(Held::Deliver);
            }
        }
        let within = self.takeover() * 2;
        let workers: Vec<u32> = (0..self.workers.size()).map(|slot| self.workers.worker(slot)).collect();
        for w in &workers {
            self.shared.order(*w, Order::Drain { within_ms: crate::workers::millis(within) });
        }
        // A worker first ends what it does, which may be a wait of three leases.
        let bound = within + self.lease() * 4 + Duration::from_secs(5);
        let all = self.shared.until(bound, |status| {
            workers.iter().all(|w| status.drained.contains(w) || status.ended.contains(w)).then_some(())
        });
        all.await;
        for w in workers {
            let (drained, ended) = self.shared.look(|status| (status.drained.contains(&w), status.ended.contains(&w)));
            if !drained {
                let failed = match ended {
                    true if self.workers.has_panicked(w) => PANICKED,
                    true => BY_ITSELF,
                    false => SILENT,
                };
                self.shared.record(What::Drained { w, failed: Some(failed.to_owned()) });
            }
        }
        self.workers.end(Duration::from_secs(5)).await;
        for host in 0..self.workers.servers().len() {
            let carried = (0..self.workers.size()).filter_map(|slot| self.workers.proxies(slot).get(host));
            let bytes = carried.map(|proxy| proxy.seen().to_server).sum();
            self.shared.record(What::Carried { host: self.workers.servers()[host].name(), bytes });
        }
    }

    /// What is left in the store, once every lease could have ended.
    async fn leaks(&self, locks: &Locks) {
        let end = tokio::time::Instant::now() + self.takeover();
        for spec in &self.header.locks {
            let name = name_in_store(&self.header.run, &spec.name);
            let left = loop {
                let state = match locks.inspect(&name).await {
                    Ok(state) => state,
                    Err(_) if tokio::time::Instant::now() < end => {
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                    Err(_) => break None,
                };
                let (holders, waiters) = (state.holders.len() as u64, state.waiters.count().map(|count| count as u64));
                if (holders, waiters.unwrap_or(0)) == (0, 0) || tokio::time::Instant::now() >= end {
                    // What is found is written down first, and then not left there.
                    let _ = clean::end_claims(locks, &state).await;
                    break Some((holders, waiters));
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            };
            let (holders, waiters) = (left.map(|(holders, _)| holders), left.and_then(|(_, waiters)| waiters));
            self.shared.record(What::Left { lock: spec.name.clone(), holders, waiters });
        }
    }
}
