//! The `oarlock` command: the flock of clusters.

mod args;
mod bench;
mod child;
mod cmd;
#[cfg(feature = "demo")]
mod demo;
mod exit;
mod front;
mod multi;
mod nest;
mod observe;
mod output;
mod progress;
mod report;
mod settings;
mod signals;
mod store;
mod words;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use crate::args::{Args, Command};
use crate::exit::{Code, Exit, Failure};
use crate::words::Words;

fn main() -> ExitCode {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    match words.get(1).and_then(|word| word.to_str()) {
        Some(child::shim::WORD) => child::shim::main(words.get(2..).unwrap_or_default()).into(),
        Some(front::WORD) => match front::Job::of_keeper(words.get(2)) {
            Ok(job) => {
                words.drain(1..3);
                run(words, Some(&job)).into()
            }
            Err(failure) => tell(&failure).into(),
        },
        Some(bench::worker::WORD) => match bench::worker::number(words.get(2), words.get(3)) {
            Ok(number) => {
                words.drain(1..4);
                work(words, number).into()
            }
            Err(failure) => tell(&failure).into(),
        },
        _ => run(words, None).into(),
    }
}

fn run(words: Vec<OsString>, job: Option<&front::Job>) -> Exit {
    let args = match Args::try_parse_from(words) {
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
    if let Command::Run(_) = &args.command
        && job.is_none()
        && front::is_wanted()
    {
        return front::run().unwrap_or_else(|failure| tell(&failure));
    }
    dispatch(args, job).unwrap_or_else(|failure| tell(&failure))
}

/// One of the processes of a contended load.
fn work(words: Vec<OsString>, number: u32) -> Exit {
    match Args::try_parse_from(words).map(|args| args.command) {
        Ok(Command::Bench(bench)) => cmd::bench::main(&bench, Some(number)).unwrap_or_else(|failure| tell(&failure)),
        Ok(_) | Err(_) => Code::Usage.into(),
    }
}

fn dispatch(args: Args, job: Option<&front::Job>) -> Result<Exit, Failure> {
    match args.command {
        Command::Run(run) => cmd::run::main(run, job),
        Command::Hold(hold) => cmd::hold::main(hold),
        Command::Ls(ls) => cmd::ls::main(&ls),
        Command::Show(show) => cmd::show::main(&show),
        Command::Wait(wait) => cmd::wait::main(&wait),
        Command::Break(breaking) => cmd::break_::main(&breaking),
        Command::Init(init) => cmd::init::main(&init),
        Command::Bench(bench) => cmd::bench::main(&bench, None),
        #[cfg(feature = "demo")]
        Command::Demo(demo) => cmd::demo::main(&demo),
        Command::Url(url) => cmd::url::main(&url),
        Command::Completions(completions) => cmd::completions::main(&completions),
        Command::Man(man) => cmd::man::main(&man),
    }
}

fn tell(failure: &Failure) -> Exit {
    if let Some(message) = failure.message() {
        Words::default().error(message);
    }
    failure.exit()
}
