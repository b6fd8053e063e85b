//! The command line as it is written. One definition feeds the help, the manual pages and the completions.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

use crate::bench::plan::Load;
use crate::output::Format;

/// One process at a time, across processes and machines.
#[derive(Debug, Parser)]
#[command(name = "oarlock", version, max_term_width = 100, propagate_version = true)]
#[command(
    after_help = "The store is given by -u, else by OARLOCK_URL; without either it is the embedded one of this machine and user."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunArgs),
    Hold(HoldArgs),
    Ls(LsArgs),
    Show(ShowArgs),
    Wait(WaitArgs),
    Break(BreakArgs),
    Init(InitArgs),
    Bench(BenchArgs),
    #[cfg(feature = "demo")]
    Demo(crate::demo::args::DemoArgs),
    Url(UrlArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// Which store, and how much to say.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// The store, as url explain reads it
    #[arg(short, long, value_name = "URL", conflicts_with = "url_file")]
    pub(crate) url: Option<String>,
    /// Read the URL from FILE, so that no process list shows its password
    #[arg(long, value_name = "FILE")]
    pub(crate) url_file: Option<PathBuf>,
    /// The form of what we say
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    pub(crate) output: Format,
    /// Say only what went wrong; nothing when busy
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Say every step
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// How a lock is asked for.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LockArgs {
    /// Do not wait
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Wait at most DUR (seconds, or 500ms, 5m, 1h); 0 does not wait; without this, wait for ever
    #[arg(short, long, value_name = "DUR", value_parser = span)]
    pub(crate) wait: Option<Duration>,
    /// Share the lock with others that ask for it shared
    #[arg(short, long, conflicts_with_all = ["exclusive", "permits", "spin"])]
    pub(crate) shared: bool,
    /// Hold the lock alone; the default
    #[arg(short = 'x', long, conflicts_with = "permits")]
    pub(crate) exclusive: bool,
    /// Let N hold the lock at once: a semaphore
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: Option<u32>,
    /// Take K of the permits
    #[arg(long, value_name = "K", requires = "permits", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) take: Option<u32>,
    /// The lease: how long the lock lives without renewal; 30s, or what the URL says. Renewed at a third
    #[arg(short, long, value_name = "DUR", value_parser = span)]
    pub(crate) ttl: Option<Duration>,
    /// Do not renew: the lock ends after its lease
    #[arg(long)]
    pub(crate) no_renew: bool,
    /// Hold the lock for DUR at most
    #[arg(long, value_name = "DUR", value_parser = span)]
    pub(crate) max_hold: Option<Duration>,
    /// Fail if the store does not grant in order of arrival; ordered stores do so without this flag
    #[arg(long, conflicts_with = "spin")]
    pub(crate) fair: bool,
    /// Wait by timer only, in short pauses
    #[arg(long, conflicts_with = "permits")]
    pub(crate) spin: bool,
    /// The exit code when busy
    #[arg(short = 'E', long, value_name = "N", default_value_t = 75)]
    pub(crate) conflict_exit_code: u8,
    /// What to do when busy: wait (the default), fail, or skip with exit code 0
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) on_busy: Option<OnBusy>,
    /// The exit code when the lock was lost
    #[arg(long, value_name = "N", default_value_t = 76)]
    pub(crate) lost_exit_code: u8,
    /// Something for others to see; may be given again
    #[arg(short = 'm', long = "meta", value_name = "KEY=VALUE", value_parser = pair)]
    pub(crate) meta: Vec<(String, String)>,
    /// Why, for others to see
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnBusy {
    /// Wait as long as -w says, else for ever
    Wait,
    /// Fail with the exit code of -E
    Fail,
    /// Exit with 0
    Skip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// TERM, then KILL, before the lease can end
    Term,
    /// KILL before the lease can end
    Kill,
    /// Only say so
    Warn,
}

/// Run a command while holding the lock, or several locks
#[derive(Debug, clap::Args)]
#[command(after_help = "The exit code is the command's, or 75 busy, 76 lost, 69 store unreachable, 77 denied, \
78 bad URL, 64 bad usage, 126 not executable, 127 not found, 128+N ended by signal N.")]
pub(crate) struct RunArgs {
    /// The lock; several are taken all or none
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    /// Keep the lock for at least DUR, even if the command ends sooner
    #[arg(long, value_name = "DUR", value_parser = span)]
    pub(crate) min_hold: Option<Duration>,
    /// What to do to the command when the lock is about to be lost
    #[arg(long, value_enum, default_value = "term", value_name = "WHAT")]
    pub(crate) on_lost: OnLost,
    /// How long after TERM to send KILL; 5s or a quarter of the lease or of --max-hold, at most half of it
    #[arg(short, long, value_name = "DUR", value_parser = span)]
    pub(crate) kill_after: Option<Duration>,
    /// Run STRING with sh -c
    #[arg(short, long = "command", value_name = "STRING", conflicts_with = "argv")]
    pub(crate) command: Option<OsString>,
    /// Write what happened to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD", required_unless_present = "command")]
    pub(crate) argv: Vec<OsString>,
}

/// Hold a lock until a signal, or until standard input ends where that is a pipe or a terminal
#[derive(Debug, clap::Args)]
pub(crate) struct HoldArgs {
    /// The lock
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// List the locks that are held or waited for
#[derive(Debug, clap::Args)]
pub(crate) struct LsArgs {
    /// Only names that match, with * and ?
    pub(crate) pattern: Option<String>,
    /// Look at everything in the store: slow, and finds the locks of other programs too
    #[arg(long)]
    pub(crate) scan: bool,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Show everything about a lock: holders, the queue in order, labels
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// The lock
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Wait until a lock is free, or held; without taking it
#[derive(Debug, clap::Args)]
pub(crate) struct WaitArgs {
    /// The lock
    pub(crate) name: String,
    /// Until nobody holds it; the default
    #[arg(long, conflicts_with = "held")]
    pub(crate) free: bool,
    /// Until somebody holds it
    #[arg(long)]
    pub(crate) held: bool,
    /// Give up after DUR, with exit code 75
    #[arg(short, long, value_name = "DUR", value_parser = span)]
    pub(crate) wait: Option<Duration>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// End somebody else's hold: ask the holder first, take it when the grace is over
#[derive(Debug, clap::Args)]
pub(crate) struct BreakArgs {
    /// The lock
    pub(crate) name: String,
    /// The fence of the hold to end, as ls and show print it: proof that you have looked
    #[arg(long, value_name = "N")]
    pub(crate) fence: u64,
    /// How long the holder may take to finish; 0 ends the hold at once
    #[arg(long, value_name = "DUR", default_value = "5s", value_parser = span)]
    pub(crate) grace: Duration,
    /// Why, for the holder to see
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) reason: String,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Measure how fast locks are on this store, beside the fewest requests that it needs
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
    /// Let every task stand in the store's queue, not one for each process
    #[arg(long)]
    pub(crate) fair: bool,
    /// Run this load only; may be given again
    #[arg(long, value_enum, value_name = "LOAD")]
    pub(crate) only: Vec<Load>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Create what the store needs: the tables and procedures of a database
#[derive(Debug, clap::Args)]
pub(crate) struct InitArgs {
    /// Print what would be done, and do nothing
    #[arg(long)]
    pub(crate) print: bool,
    /// Also give USER the rights that locks need, and no more
    #[arg(long, value_name = "USER")]
    pub(crate) grant: Option<String>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// About the URLs of stores
#[derive(Debug, clap::Args)]
pub(crate) struct UrlArgs {
    #[command(subcommand)]
    pub(crate) command: UrlCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum UrlCommand {
    /// Say what a URL means, without its password
    #[command(
        after_help = "Every URL takes the keys prefix, ttl, connect_timeout, op_timeout and max_waiters; some stores have more."
    )]
    Explain {
        /// The URL; without it, the one that would be used
        url: Option<String>,
        /// The form of the answer
        #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
        output: Format,
    },
}

/// Print the completions for a shell
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

/// Print a manual page
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// The subcommand; without it, the page of oarlock itself
    pub(crate) subcommand: Option<String>,
}

pub(crate) fn span(text: &str) -> Result<Duration, String> {
    oarlock::span::parse(text).map_err(|error| error.to_string())
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}
