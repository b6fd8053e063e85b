//! What is to be measured, for how long, and under which names.

use std::sync::Arc;
use std::time::Duration;

use oarlock::driver::clock::{BootClock, Clock};
use oarlock_bench::Targets;

use crate::cmd::bench::BenchArgs;
use crate::exit::Failure;
use crate::output::Format;
use crate::store::Store;

/// Shorter ones measure the start, longer ones fill the memory with grants.
const DURATIONS: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Load {
    /// One task, one name
    Pair,
    /// Many tasks, each with a name of its own
    Names,
    /// Many tasks, one name
    Tasks,
    /// Many processes, one name
    Processes,
}

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) store: Store,
    pub(crate) loads: Vec<Load>,
    /// Of each load, all of its turns together.
    pub(crate) duration: Duration,
    pub(crate) tasks: u32,
    pub(crate) contenders: u32,
    pub(crate) processes: u32,
    /// Contenders in each of them.
    pub(crate) per_process: u32,
    pub(crate) fair: bool,
    /// Pairs over HTTP, too.
    #[cfg(feature = "serve")]
    pub(crate) http: bool,
    /// What all names of this run begin with.
    run: String,
}

impl Plan {
    pub(crate) fn new(args: &BenchArgs) -> Result<Self, Failure> {
        let store = Store::new(&args.store)?;
        if store.messages.format == Format::Name {
            return Err(Failure::usage("-o name has nothing to name here"));
        }
        if !DURATIONS.contains(&args.duration) {
            return Err(Failure::usage("--duration is between 100ms and 5m"));
        }
        if args.processes == 1 {
            return Err(Failure::usage("--processes 1 has no other process to contend with; 0 leaves this load out"));
        }
        let mut loads = vec![Load::Pair, Load::Names, Load::Tasks, Load::Processes];
        if !args.only.is_empty() {
            loads.retain(|load| args.only.contains(load));
        }
        // The memory of one process is no store for others.
        if args.processes == 0 || store.url.driver() == "mem" {
            loads.retain(|load| *load != Load::Processes);
        }
        if loads.is_empty() {
            return Err(Failure::usage("there is nothing to measure: this store has no such load"));
        }
        #[cfg(feature = "serve")]
        if args.http && !loads.iter().any(|load| [Load::Pair, Load::Names].contains(load)) {
            return Err(Failure::usage("--http measures the loads pair and names"));
        }
        let run = format!("oarlock-bench/{}-{:x}", std::process::id(), BootClock.now().as_nanos());
        let BenchArgs { duration, tasks, contenders, processes, per_process, fair, .. } = *args;
        Ok(Self {
            store,
            loads,
            duration,
            tasks,
            contenders,
            processes,
            per_process,
            fair,
            run,
            #[cfg(feature = "serve")]
            http: args.http,
        })
    }

    /// Connects locks, and nothing to compare them with.
    pub(crate) async fn connect(&self) -> Result<Targets, Failure> {
        Ok(Targets::connect(self.store.url.clone(), self.duration, self.fair).await?)
    }

    /// A name that no other run uses.
    pub(crate) fn name(&self, what: &str) -> Arc<str> {
        format!("{}/{what}", self.run).into()
    }
}
