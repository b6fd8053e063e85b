//! `cargo xtask faults`: `oarlock torture` on every store that can be started here, one fault at a time, also faults of
//! the servers themselves. What came of it is a table in `docs/reliability.md`.
//!
//! - [`deployments`]: the stores and their topologies, and how their servers are broken.
//! - [`cases`]: which fault is tried on which of them, and what must come of it.
//! - [`run`]: one run, as a process of `oarlock torture` that asks for server faults over a socket.
//! - [`raised`]: what must come of a run in which the format of the tables is raised.
//! - [`runs`]: the file of what was run, so that no run is repeated.
//! - [`power`]: power cuts of the embedded store, whose clients die with it.
//! - [`cuts`]: what a cut of the network of the one server must do.
//! - [`apart`]: disks and networks are gone however this ends.
//! - [`load`]: many claims and many locks, instead of faults.
//! - [`report`]: the tables.

mod apart;
mod args;
mod cases;
mod cuts;
mod deployments;
mod load;
mod power;
mod raised;
mod report;
mod run;
mod runs;

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, bail};
use oarlock_testbed::server::Network;

use crate::args::{Command, Options};
use crate::cases::Case;
use crate::deployments::{Deployment, Topology};
use crate::runs::{Done, Runs};

fn main() -> ExitCode {
    let command = match args::parse(std::env::args().skip(1)) {
        Ok(command) => command,
        Err(why) => {
            eprintln!("faults: {why}\n\n{}", args::HELP);
            return ExitCode::from(64);
        }
    };
    let done = match command {
        Command::Help => {
            print!("{}", args::HELP);
            Ok(())
        }
        Command::Break(socket) => run::ask(&socket),
        Command::Load(options) => load::all(&options),
        Command::LoadWorker(words) => load::work(&words),
        Command::PowerWorker(words) => power::work(&words),
        Command::Run(options) => {
            apart::enter();
            all(&options)
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("faults: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs what is not done yet, several deployments at a time, and writes the table.
fn all(options: &Options) -> anyhow::Result<()> {
    // Before any server is started.
    run::program()?;
    let runs = Mutex::new(if options.is_dry() { Runs::in_memory() } else { Runs::open()? });
    let wanted: VecDeque<&'static Topology> =
        deployments::ALL.iter().filter(|topology| options.selects(topology)).collect();
    if wanted.is_empty() {
        bail!("--only names no store: they are {}", deployments::names());
    }
    let began = Instant::now();
    let (left, wrong) = (Mutex::new(wanted), Mutex::new(Vec::<String>::new()));
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                loop {
                    // A statement of its own, so that the list is not locked meanwhile.
                    let next = locked(&left).pop_front();
                    let Some(topology) = next else { return };
                    if let Err(error) = on(topology, options, began, &runs) {
                        locked(&wrong).push(format!("{}: {error:#}", topology.title()));
                    }
                }
            });
        }
    });
    let runs = runs.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !options.is_dry() {
        report::write(runs.all())?;
    }
    let mut wrong = wrong.into_inner().unwrap_or_else(PoisonError::into_inner);
    wrong.extend(runs.all().iter().filter(|done| options.covers(done)).filter_map(Done::complaint));
    if !wrong.is_empty() {
        bail!("{} runs are not as they must be:\n  {}", wrong.len(), wrong.join("\n  "));
    }
    Ok(())
}

/// Every case of one topology, one after the other.
fn on(topology: &'static Topology, options: &Options, began: Instant, runs: &Mutex<Runs>) -> anyhow::Result<()> {
    if let Some(why) = topology.newer.and_then(|newer| newer.missing()) {
        println!("{}: skipped: {why}", topology.title());
        return Ok(());
    }
    if topology.network
        && let Err(why) = Network::check()
    {
        println!("{}: skipped: {why:#}", topology.title());
        return Ok(());
    }
    let mut deployment: Option<Box<dyn Deployment>> = None;
    let is_late = || began.elapsed().as_secs() >= options.within;
    // Each case once before any of them a second time: a table that is cut short has all its rows.
    for seed in 1..=options.runs {
        for case in Case::of(topology) {
            if is_late() {
                return Ok(());
            }
            if !options.selects_case(&case) || locked(runs).is_done(&case, seed, options, run::commit()) {
                continue;
            }
            if deployment.is_none() || topology.fresh || case.is_fresh() {
                // The old servers end first.
                drop(deployment.take());
                deployment = Some((topology.start)().with_context(|| topology.title())?);
            }
            let Some(servers) = deployment.as_mut() else { continue };
            match run::run(&case, servers.as_mut(), seed, options) {
                Ok(done) => {
                    println!("{}", done.line());
                    locked(runs).add(done)?;
                }
                Err(error) => {
                    // The servers may be in any state.
                    deployment = None;
                    let what = format!("{} / {} seed {seed}: {error:#}", topology.title(), case.name());
                    println!("{what}");
                    locked(runs).add(Done::failed(&case, seed, options.seconds, what))?;
                }
            }
        }
    }
    Ok(())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
