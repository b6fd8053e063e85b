//! `oarlock torture`: break what can break around the locks of a store, and judge what their holders believed.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

use oarlock_torture::record::FaultKind;
use oarlock_torture::run::clean;

use crate::args::{StoreArgs, span};
use crate::cmd::Examples;
use crate::exit::{Exit, Failure};
use crate::output::Format;
use crate::store::{Store, block_on};
use crate::torture::{files, start, worker, zoo};

/// Break processes and connections around the locks of your own store, and judge what their holders believed
///
/// Worker processes contend for a few locks with names of their own, each through proxies on this machine. They are
/// stopped and killed; their connections are cut, delayed and reset. Nothing is done to the servers, except by
/// --fault-cmd. The exit code is 0 for OK alone: 1 VIOLATION, 2 RISK SEEN, 3 INCONCLUSIVE.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct TortureArgs {
    #[command(subcommand)]
    pub(crate) command: Option<TortureCommand>,
    #[command(flatten)]
    pub(crate) run: TortureRunArgs,
}

/// A run.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TortureRunArgs {
    /// How long the run takes; 1s to 1h, and no less than the scenes need, about 25 leases
    #[arg(long, value_name = "DUR", default_value = "60s", value_parser = span)]
    pub(crate) duration: Duration,
    /// The seed of the schedule of faults; by default a random one
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// How many processes contend
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64))]
    pub(crate) workers: u32,
    /// The lease; stores may grant a longer one
    #[arg(short, long, value_name = "DUR", default_value = "2s", value_parser = span)]
    pub(crate) ttl: Duration,
    /// How often all workers together ask for a lock in a second, at most; by default 100, and 50 on other machines
    #[arg(hide_short_help = true, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=5000))]
    pub(crate) rate: Option<u32>,
    /// Run CMD with sh -c to break the servers, while a lock is held and again in the storm
    #[arg(long, value_name = "CMD")]
    pub(crate) fault_cmd: Option<String>,
    /// The command makes servers lose data that they had synced: what comes of that is a risk on every store
    #[arg(hide_short_help = true, long, requires = "fault_cmd")]
    pub(crate) fault_loses_data: bool,
    /// Only these faults, such as pause,kill,command; the verdict is then INCONCLUSIVE at best
    #[arg(hide_short_help = true, long, value_name = "KIND", value_delimiter = ',', value_parser = fault)]
    pub(crate) faults: Vec<FaultKind>,
    /// Try another lock library instead: a program that takes its locks on command, see interop/README.md
    #[arg(hide_short_help = true, long, value_name = "CMD")]
    pub(crate) with: Option<String>,
    /// With --with: every second worker is that library and the others are Oarlock, in a layout of the URL that both have
    #[arg(hide_short_help = true, long, requires = "with")]
    pub(crate) beside: bool,
    /// Every second worker is this program: another build of oarlock, as during a rolling upgrade
    #[arg(hide_short_help = true, long, value_name = "PROGRAM", conflicts_with = "with")]
    pub(crate) also: Option<PathBuf>,
    /// Another server that clients reach by the address that a Sentinel or a node announces; may be repeated
    #[arg(hide_short_help = true, long, value_name = "HOST:PORT", value_parser = server)]
    pub(crate) server: Vec<(String, u16)>,
    /// You restart or fail over servers by hand meanwhile: what they may forget then is a risk and no violation
    #[arg(hide_short_help = true, long)]
    pub(crate) by_hand: bool,
    /// Break processes only, and leave the connections alone
    #[arg(hide_short_help = true, long)]
    pub(crate) no_network: bool,
    /// Write the history to FILE; by default oarlock-torture-RUN.jsonl in this directory
    #[arg(long, value_name = "FILE")]
    pub(crate) history: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TortureCommand {
    /// Judge a history again
    Check {
        /// The history
        file: PathBuf,
        /// Output format
        #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
        output: Format,
    },
    /// Print a history as an HTML page with a timeline
    Render {
        /// The history
        file: PathBuf,
    },
    /// Run the schedule of a history again, on the store of -u
    Replay(Box<ReplayArgs>),
    /// Run broken locks, each of which must be caught
    Zoo {
        /// Output format
        #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
        output: Format,
    },
    /// List what runs hold or have left in the store, and end it with --run or --all
    Clean {
        /// End the claims of this run, as its history names it; without this they are only listed
        #[arg(long, value_name = "ID")]
        run: Option<String>,
        /// End the claims of all runs, also of those that go on
        #[arg(long, conflicts_with = "run")]
        all: bool,
        #[command(flatten)]
        store: Box<StoreArgs>,
    },
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// The history whose seed, lease, workers and duration are used
    pub(crate) file: PathBuf,
    /// As for a run
    #[arg(long, value_name = "CMD")]
    pub(crate) fault_cmd: Option<String>,
    /// As for a run
    #[arg(long, value_name = "CMD")]
    pub(crate) with: Option<String>,
    /// As for a run
    #[arg(long, value_name = "PROGRAM", conflicts_with = "with")]
    pub(crate) also: Option<PathBuf>,
    /// As for a run
    #[arg(long, value_name = "HOST:PORT", value_parser = server)]
    pub(crate) server: Vec<(String, u16)>,
    /// Write the new history to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) history: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

pub(crate) const EXAMPLES: Examples = &[
    ("oarlock torture -u redis://localhost", "Try the locks of a store for a minute."),
    (
        "oarlock torture -u redis://localhost --fault-cmd 'docker restart redis'",
        "The same, and restart the server while a lock is held.",
    ),
    ("oarlock torture render oarlock-torture-RUN.jsonl > torture.html", "Look at a run."),
];

/// Runs it. As a worker it is one of the processes of a run.
pub(crate) fn main(args: TortureArgs, is_worker: bool) -> Result<Exit, Failure> {
    match args.command {
        None if is_worker => worker::main(&args.run.store),
        Some(TortureCommand::Replay(replay)) if is_worker => worker::main(&replay.store),
        _ if is_worker => Err(Failure::usage("only runs have workers")),
        None => start::main(&args.run),
        Some(TortureCommand::Replay(replay)) => start::main(&files::replayed(&replay)?),
        Some(TortureCommand::Check { file, output }) => files::check(&file, output),
        Some(TortureCommand::Render { file }) => files::render(&file),
        Some(TortureCommand::Zoo { output }) => zoo::main(output),
        Some(TortureCommand::Clean { run, all, store }) => clean(run.as_deref(), all, &store),
    }
}

fn clean(run: Option<&str>, all: bool, args: &StoreArgs) -> Result<Exit, Failure> {
    let store = Store::new(args)?;
    block_on(async {
        let locks = store.connect().await?;
        let names = async || -> oarlock::Result<Vec<String>> {
            if all || run.is_some() {
                return clean::clean(&locks, run).await;
            }
            Ok(clean::left(&locks, None).await?.iter().map(|state| state.name.to_string()).collect())
        };
        let found = names().await;
        let closed = locks.shutdown(Duration::from_secs(2)).await;
        start::say_cleaned(&found?, all || run.is_some(), store.messages)?;
        closed?;
        Ok(crate::exit::Code::Success.into())
    })
}

fn fault(text: &str) -> Result<FaultKind, String> {
    FaultKind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
        let known: Vec<_> = FaultKind::ALL.iter().map(|kind| kind.name()).collect();
        format!("the faults are {}", known.join(", "))
    })
}

fn server(text: &str) -> Result<(String, u16), String> {
    let (name, port) = text.rsplit_once(':').ok_or("write HOST:PORT")?;
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let port = port.parse().map_err(|_| "the port is not a number")?;
    if name.is_empty() { Err("a host is missing".to_owned()) } else { Ok((name.to_owned(), port)) }
}
