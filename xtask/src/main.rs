//! Tasks of this repository, run as `cargo xtask <command>`.
//!
//! It depends on next to nothing, so that it builds in seconds on a machine that has nothing but Rust yet.

mod args;
mod bench;
mod features;
mod interop;
mod lanes;
mod mutants;
mod packages;
mod parts;
mod programs;
mod readme;
mod report;
mod setup;
mod test;
mod versions;
mod workspace;

use std::process::ExitCode;

use crate::args::Invocation;
use crate::parts::Part;
use crate::workspace::{Failure, Workspace};

/// Exit code for a command line that makes no sense, the one `oarlock` itself uses.
const BAD_USAGE: u8 = 64;

fn main() -> ExitCode {
    let invocation = match args::parse(std::env::args().skip(1)) {
        Ok(invocation) => invocation,
        Err(why) => {
            eprintln!("xtask: {why}\n\n{}", args::help());
            return ExitCode::from(BAD_USAGE);
        }
    };
    match run(&invocation) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {}", failure.why);
            ExitCode::from(failure.code)
        }
    }
}

fn run(invocation: &Invocation) -> Result<(), Failure> {
    match invocation {
        Invocation::Help => {
            print!("{}", args::help());
            Ok(())
        }
        Invocation::Bench(flags) => bench::run(&Workspace::find()?, flags),
        Invocation::Interop(options) => interop::run(&Workspace::find()?, options),
        Invocation::Peers(options) => {
            let workspace = Workspace::find()?;
            setup::run(&workspace, &[Part::Interop])?;
            interop::run(&workspace, options)
        }
        Invocation::Setup => {
            let workspace = Workspace::find()?;
            setup::run(&workspace, Part::ALL)?;
            setup::servers(&workspace, Part::ALL);
            Ok(())
        }
        Invocation::Mutants(only) => mutants::run(&Workspace::find()?, only),
        Invocation::Test(options) => test::run(&Workspace::find()?, options),
    }
}
