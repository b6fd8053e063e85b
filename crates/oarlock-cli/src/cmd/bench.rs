//! `oarlock bench`: how fast locks are on this store, beside what the store itself can do.

use std::time::Duration;

use oarlock_bench::Targets;

use crate::args::{StoreArgs, span};
use crate::bar::Bar;
use crate::bench::measure::{self, Findings, Progress};
use crate::bench::plan::{Load, Plan};
#[cfg(feature = "serve")]
use crate::bench::server;
use crate::bench::worker::Role;
use crate::bench::workers::Workers;
use crate::bench::{show, worker};
use crate::cmd::Examples;
use crate::exit::{Code, Exit, Failure};
use crate::output::{self, Format};
use crate::progress;
use crate::signals::{self, FORWARDED, Signals};

/// Measure how fast locks are on this store, next to a baseline of the fewest requests that it needs
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// How long each load runs, in turns with what it is compared with; 100ms to 5m
    #[arg(long, value_name = "DUR", default_value = "5s", value_parser = span)]
    pub(crate) duration: Duration,
    /// How many tasks lock names of their own
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=4096))]
    pub(crate) tasks: u32,
    /// How many tasks contend for one name
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=1024))]
    pub(crate) contenders: u32,
    /// How many processes contend for one name; 0 for no such load
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(0..=128))]
    pub(crate) processes: u32,
    /// How many tasks of each of those processes contend
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) per_process: u32,
    /// Give every task its own position in the store's queue
    #[arg(long)]
    pub(crate) fair: bool,
    /// Measure over HTTP too, through an oarlock serve that is started for that: in the loads pair and names
    #[cfg(feature = "serve")]
    #[arg(long)]
    pub(crate) http: bool,
    /// Run this load only; may be repeated
    #[arg(long, value_enum, value_name = "LOAD")]
    pub(crate) only: Vec<Load>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

pub(crate) const EXAMPLES: Examples = &[("oarlock bench -u redis://localhost", "Measure locks on your store.")];

/// With a role it is one of the processes that a run starts.
pub(crate) fn main(args: &BenchArgs, role: Option<Role>) -> Result<Exit, Failure> {
    let plan = Plan::new(args)?;
    match role {
        None => on_all_cores(run(&plan)),
        Some(Role::Contends(number)) => on_all_cores(worker::work(&plan, number)),
        #[cfg(feature = "serve")]
        Some(Role::Serves) => server::serve(&plan),
    }
}

/// As a program that locks from many tasks would run.
fn on_all_cores<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().on_thread_start(signals::block_all).build();
    let runtime = runtime.map_err(|error| Failure::os("cannot start", error))?;
    let result = runtime.block_on(work);
    runtime.shutdown_background();
    result
}

async fn run(plan: &Plan) -> Result<Exit, Failure> {
    let mut signals = Signals::new(FORWARDED.iter().copied())?;
    let targets = tokio::select! {
        biased;
        signal = signals.stop() => return Ok(Exit::signal(signal.as_raw())),
        targets = connect(plan) => targets?,
    };
    let steps = measure::steps(plan, &targets).into();
    let bar = Bar::new(plan.store.messages, steps, "{wide_bar} {msg} {elapsed}, {eta} left");
    let mut workers = Workers::default();
    let measured = tokio::select! {
        biased;
        signal = signals.stop() => Err(Failure::quiet(Exit::signal(signal.as_raw()))),
        findings = measure::all(plan, &targets, &mut workers, &bar) => findings,
    };
    drop(bar);
    let said = measured.and_then(|findings| {
        match plan.store.messages.format {
            Format::Table | Format::Name => output::print(&show::text(plan, &targets, &findings))?,
            Format::Json => output::print_json(&show::json(plan, &targets, &findings))?,
            Format::Jsonl => output::print_line(&show::json(plan, &targets, &findings).to_string())?,
        }
        verdict(&findings)
    });
    let (ended, closed) = (workers.end().await, targets.close().await);
    let exit = said?;
    ended.and(closed.map_err(Failure::from)).map(|()| exit)
}

/// Locks, and what they are compared with.
async fn connect(plan: &Plan) -> Result<Targets, Failure> {
    let messages = plan.store.messages;
    let what = format!("connecting to {}", plan.store.url);
    progress::during(messages, &what, async {
        let mut targets = plan.connect().await?;
        targets.compare(|error| messages.warning(&format!("nothing to compare with: {error}"))).await;
        #[cfg(feature = "serve")]
        if plan.http {
            targets.http = Some(crate::bench::http::start().await?);
        }
        Ok(targets)
    })
    .await
}

/// A lock that did not exclude is an error, however fast it was.
fn verdict(findings: &Findings) -> Result<Exit, Failure> {
    if findings.violations.is_empty() {
        return Ok(Code::Success.into());
    }
    Err(Failure::new(Code::Internal, "two held one lock at once, or a fence was not larger than the one before it"))
}

impl Progress for Bar {
    fn load(&self, load: Load) {
        self.message(match load {
            Load::Pair => "one task",
            Load::Names => "own names",
            Load::Tasks => "one name, tasks",
            Load::Processes => "one name, processes",
        });
    }

    fn step(&self) {
        Bar::step(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oarlock_bench::grants::Grant;

    #[test]
    fn a_broken_lock_is_an_error() {
        let mut findings = Findings::default();
        let first = Grant { contender: 0, fence: 1, asked: 0, granted: 1, ended: 5 };
        findings.check(&[first, Grant { contender: 1, fence: 2, asked: 0, granted: 5, ended: 9 }]);
        assert_eq!(verdict(&findings).unwrap(), Exit(0));
        findings.check(&[first, Grant { contender: 1, fence: 2, asked: 0, granted: 4, ended: 9 }]);
        assert_eq!(verdict(&findings).unwrap_err().exit(), Exit(70));
        assert_eq!((findings.checked, findings.violations.len()), (4, 1));
    }
}
