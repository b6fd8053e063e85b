//! `cargo xtask test`: make the machine ready, run the parts, say what became of each.

use std::time::{Duration, Instant};

use crate::args::TestOptions;
use crate::parts::Part;
use crate::report::{Outcome, Report};
use crate::setup;
use crate::workspace::{Failure, Workspace};

/// Runs every part that was asked for, also after a failure, so that one run shows all there is to mend.
///
/// # Errors
/// When a part failed: all of them by name, with the exit code of the first.
pub(crate) fn run(workspace: &Workspace, options: &TestOptions) -> Result<(), Failure> {
    let asked: Vec<_> = Part::ALL.iter().copied().filter(|part| options.selects(*part)).collect();
    let mut report = Report::default();
    let (took, outcome) = timed("setup", || setup::run(workspace, &asked));
    let is_ready = matches!(outcome, Outcome::Passed);
    report.add("setup", took, outcome);
    for part in Part::ALL {
        let (took, outcome) = if !asked.contains(part) {
            (Duration::ZERO, Outcome::NotAsked)
        } else if !is_ready {
            (Duration::ZERO, Outcome::NotReached)
        } else {
            timed(part.name(), || part.run(workspace, options))
        };
        report.add(part.name(), took, outcome);
    }
    println!("\n{}", report.table());
    report.verdict()
}

fn timed(name: &str, work: impl FnOnce() -> Result<(), Failure>) -> (Duration, Outcome) {
    println!("\n== {name}");
    let start = Instant::now();
    let result = work();
    let took = start.elapsed();
    let seconds = took.as_secs_f64();
    match result {
        Ok(()) => {
            println!("== {name}: ok, {seconds:.1} s");
            (took, Outcome::Passed)
        }
        Err(failure) => {
            println!("== {name}: FAILED, {seconds:.1} s: {}", failure.why);
            (took, Outcome::Failed(failure))
        }
    }
}
