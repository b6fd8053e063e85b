//! The `oarlock` command: the flock of clusters.

mod args;
mod bar;
mod bench;
mod child;
mod cmd;
mod config;
#[cfg(feature = "demo")]
mod demo;
mod exit;
mod front;
#[cfg(test)]
mod fuzz;
mod messages;
mod multi;
mod nest;
mod observe;
#[cfg(feature = "otel")]
mod otel;
mod output;
mod pace;
mod progress;
mod report;
mod settings;
mod signals;
mod slot;
mod store;
mod ticket;
mod top;
#[cfg(feature = "torture")]
mod torture;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use crate::args::Args;
use crate::cmd::Command;
use crate::exit::{Code, Exit, Failure};
use crate::messages::Messages;

fn main() -> ExitCode {
    let mut argv: Vec<OsString> = std::env::args_os().collect();
    match argv.get(1).and_then(|word| word.to_str()) {
        Some(child::shim::SUBCOMMAND) => child::shim::main(argv.get(2..).unwrap_or_default()).into(),
        Some(front::SUBCOMMAND) => match front::Job::of_keeper(argv.get(2)) {
            Ok(job) => {
                argv.drain(1..3);
                run(argv, Some(&job)).into()
            }
            Err(failure) => tell(&failure).into(),
        },
        Some(cmd::completions::NAMES) => cmd::completions::names(argv.get(2..).unwrap_or_default()).into(),
        Some(bench::worker::SUBCOMMAND) => match bench::worker::Role::read(argv.get(2), argv.get(3)) {
            Ok(role) => {
                argv.drain(1..4);
                work(argv, role).into()
            }
            Err(failure) => tell(&failure).into(),
        },
        #[cfg(feature = "torture")]
        Some(torture::worker::SUBCOMMAND) => match torture::worker::has_parent(argv.get(2)) {
            Ok(()) => {
                argv.drain(1..3);
                be_tortured(argv).into()
            }
            Err(failure) => tell(&failure).into(),
        },
        _ => run(argv, None).into(),
    }
}

fn run(argv: Vec<OsString>, job: Option<&front::Job>) -> Exit {
    let args = match Args::try_parse_from(argv) {
        Ok(args) => args,
        Err(refusal) => {
            // Nothing is left to be told if standard error is closed.
            let _ = refusal.print();
            return match refusal.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Code::Success.into(),
                _ => Code::Usage.into(),
            };
        }
    };
    if args.command.supervises() && job.is_none() && front::is_wanted() {
        return front::run().unwrap_or_else(|failure| tell(&failure));
    }
    #[cfg(feature = "otel")]
    let _export = otel::Export::start();
    args.command.main(job).unwrap_or_else(|failure| tell(&failure))
}

/// One of the processes of a contended load.
fn work(argv: Vec<OsString>, role: bench::worker::Role) -> Exit {
    match Args::try_parse_from(argv).map(|args| args.command) {
        Ok(Command::Bench(bench)) => cmd::bench::main(&bench, Some(role)).unwrap_or_else(|failure| tell(&failure)),
        Ok(_) | Err(_) => Code::Usage.into(),
    }
}

/// One of the processes of a torture run.
#[cfg(feature = "torture")]
fn be_tortured(argv: Vec<OsString>) -> Exit {
    match Args::try_parse_from(argv).map(|args| args.command) {
        Ok(Command::Torture(args)) => cmd::torture::main(*args, true).unwrap_or_else(|failure| tell(&failure)),
        Ok(_) | Err(_) => Code::Usage.into(),
    }
}

fn tell(failure: &Failure) -> Exit {
    if let Some(message) = failure.message() {
        Messages::default().error(message);
    }
    failure.exit()
}
