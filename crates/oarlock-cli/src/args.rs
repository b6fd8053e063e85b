//! The options that subcommands share. The options of one subcommand are in its own file. One definition feeds the
//! help, the manual pages and the completions.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, ValueEnum};

use crate::cmd::Command;
use crate::output::Format;

/// Ensure that only one process at a time runs a piece of work, across processes and machines.
#[derive(Debug, Parser)]
#[command(name = "oarlock", version, max_term_width = 100, propagate_version = true, disable_help_flag = true)]
#[command(
    after_help = "The store is given by -u, else by -p, OARLOCK_URL, OARLOCK_PROFILE or the profile of the configuration \
file; without any of them it is the embedded one of this machine and user."
)]
pub(crate) struct Args {
    /// Use the store that the configuration file calls NAME
    #[arg(short, long, value_name = "NAME", global = true)]
    pub(crate) profile: Option<String>,
    /// Print the common flags; "oarlock help SUBCOMMAND" prints all
    #[arg(short, long, action = ArgAction::HelpShort, global = true)]
    help: Option<bool>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The store, and how much to print.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StoreArgs {
    #[arg(from_global)]
    pub(crate) profile: Option<String>,
    /// URL of the store; see url explain
    #[arg(short, long, value_name = "URL", conflicts_with_all = ["url_file", "profile"])]
    pub(crate) url: Option<String>,
    /// Read the URL from FILE, so that no process list shows its password
    #[arg(hide_short_help = true, long, value_name = "FILE", conflicts_with = "profile")]
    pub(crate) url_file: Option<PathBuf>,
    /// Read the password from the only line of FILE
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    pub(crate) output: Format,
    /// Print errors only; print nothing when busy
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Print every step
    #[arg(hide_short_help = true, short, long)]
    pub(crate) verbose: bool,
}

/// Options of a lock request.
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
    #[arg(hide_short_help = true, short = 'x', long, conflicts_with = "permits")]
    pub(crate) exclusive: bool,
    /// Let N hold the lock at once: a semaphore
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: Option<u32>,
    /// Take K of the permits
    #[arg(hide_short_help = true, long, value_name = "K", requires = "permits", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) take: Option<u32>,
    /// The lease: how long the lock lives without renewal; 30s, or what the URL says. Renewed at a third
    #[arg(short, long, value_name = "DUR", value_parser = span)]
    pub(crate) ttl: Option<Duration>,
    /// Do not renew: the lock ends after its lease
    #[arg(hide_short_help = true, long)]
    pub(crate) no_renew: bool,
    /// Hold the lock for DUR at most
    #[arg(hide_short_help = true, long, value_name = "DUR", value_parser = span)]
    pub(crate) max_hold: Option<Duration>,
    /// Fail if the store does not grant in order of arrival; ordered stores do so without this flag
    #[arg(hide_short_help = true, long, conflicts_with = "spin")]
    pub(crate) fair: bool,
    /// Wait by timer only, in short pauses
    #[arg(hide_short_help = true, long, conflicts_with = "permits")]
    pub(crate) spin: bool,
    /// The exit code when busy
    #[arg(hide_short_help = true, short = 'E', long, value_name = "N", default_value_t = 75)]
    pub(crate) conflict_exit_code: u8,
    /// What to do when busy: wait (the default), fail, or skip with exit code 0
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) on_busy: Option<OnBusy>,
    /// The exit code when the lock was lost
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 76)]
    pub(crate) lost_exit_code: u8,
    #[command(flatten)]
    pub(crate) label: LabelArgs,
}

/// What others see of a claim.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct LabelArgs {
    /// A label that others see in ls and show; may be repeated
    #[arg(hide_short_help = true, short = 'm', long = "meta", value_name = "KEY=VALUE", value_parser = pair)]
    pub(crate) meta: Vec<(String, String)>,
    /// Why the lock is wanted; others see it in ls and show
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

/// How a command is ended when its lock is about to be lost.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct LossArgs {
    /// What to do to the command when the lock is about to be lost
    #[arg(hide_short_help = true, long, value_enum, default_value = "term", value_name = "WHAT")]
    pub(crate) on_lost: OnLost,
    /// How long after TERM to send KILL; 5s or a quarter of the lease or of --max-hold, at most half of it
    #[arg(hide_short_help = true, short, long, value_name = "DUR", value_parser = span)]
    pub(crate) kill_after: Option<Duration>,
}

/// What runs under the lock, if it is not `-- CMD`, and the report of it.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct WorkArgs {
    /// Run STRING with sh -c
    #[arg(short, long = "command", value_name = "STRING", conflicts_with = "argv")]
    pub(crate) command: Option<OsString>,
    /// Write what happened to FILE, as JSON
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

impl WorkArgs {
    /// The command to run: that of these flags, or `argv`.
    pub(crate) fn command_or(&self, argv: Vec<OsString>) -> Vec<OsString> {
        self.command.clone().map_or(argv, |script| vec!["sh".into(), "-c".into(), script])
    }
}

impl LockArgs {
    /// An exclusive lock, with all defaults.
    pub(crate) fn waiting() -> Self {
        Self {
            no_wait: false,
            wait: None,
            shared: false,
            exclusive: false,
            permits: None,
            take: None,
            ttl: None,
            no_renew: false,
            max_hold: None,
            fair: false,
            spin: false,
            conflict_exit_code: 75,
            on_busy: None,
            lost_exit_code: 76,
            label: LabelArgs::default(),
        }
    }
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
    /// Print a warning only
    Warn,
}

pub(crate) fn span(text: &str) -> Result<Duration, String> {
    oarlock_core::span::parse(text).map_err(|error| error.to_string())
}

pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}
