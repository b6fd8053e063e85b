//! Tasks of this repository, run as `cargo xtask <command>`.
//!
//! It depends on next to nothing, so that it builds in seconds on a machine that has nothing but Rust yet.

mod args;
mod audit;
mod bench;
mod dist;
mod examples;
mod faults;
mod features;
mod fuzz;
mod interop;
mod limiter;
mod mutants;
mod package;
mod packages;
mod parts;
mod programs;
mod python;
mod readme;
mod release;
mod report;
mod scratch;
mod setup;
mod simulate;
mod test;
mod tools;
mod versions;
mod workspace;

use std::process::ExitCode;

use crate::args::Invocation;
use crate::parts::Part;
use crate::workspace::{Failure, Workspace};

/// Exit code for an invalid command line, the same as that of `oarlock`.
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
        Invocation::Bench(flags) => bench::run(&Workspace::find()?, "stores", flags),
        Invocation::Goals(rounds) => bench::run(&Workspace::find()?, "goals", rounds),
        Invocation::Faults(flags) => faults::run(&Workspace::find()?, flags),
        Invocation::Interop(options) => interop::run(&Workspace::find()?, options),
        Invocation::Peers(options) => {
            let workspace = Workspace::find()?;
            setup::run(&workspace, &[Part::Interop])?;
            interop::run(&workspace, options)
        }
        Invocation::Setup => {
            let workspace = Workspace::find()?;
            // What only the long tier needs is installed by its parts.
            let parts: Vec<_> = Part::ALL.iter().copied().filter(|part| !part.needs_long_packages()).collect();
            setup::run(&workspace, &parts)?;
            setup::servers(&workspace, Part::ALL);
            Ok(())
        }
        Invocation::Package => package::run(&Workspace::find()?),
        Invocation::Dist => dist::run(&Workspace::find()?).map(drop),
        Invocation::Release => release::run(&Workspace::find()?),
        Invocation::Simulate(options) => simulate::run(&Workspace::find()?, options),
        Invocation::Fuzz(options) => fuzz::run(&Workspace::find()?, options),
        Invocation::Mutants(only) => mutants::run(&Workspace::find()?, only),
        Invocation::Test(options) => test::run(&Workspace::find()?, options),
    }
}
