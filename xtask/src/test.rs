//! `cargo xtask test`: make the machine ready, run the parts, say what became of each.

use std::time::{Duration, Instant};

use crate::args::TestOptions;
use crate::parts::Part;
use crate::programs;
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
    if is_ready {
        // Only the tests need the servers that are unpacked: that happens while other parts are compiled.
        std::thread::scope(|scope| {
            let unpacking = scope.spawn(|| setup::servers(workspace, &asked));
            run_parts(workspace, options, &mut report, || {
                unpacking.join().map_err(|_| Failure::new("unpacking a server ended in a panic"))
            });
        });
    } else {
        for part in Part::ALL {
            let outcome = if asked.contains(part) { Outcome::NotReached } else { Outcome::NotAsked };
            report.add(part.name(), Duration::ZERO, outcome);
        }
    }
    println!("\n{}", report.table());
    report.verdict()
}

fn run_parts(
    workspace: &Workspace,
    options: &TestOptions,
    report: &mut Report,
    unpacked: impl FnOnce() -> Result<(), Failure>,
) {
    let (mut unpacked, mut beside) = (Some(unpacked), Vec::<programs::Done>::new());
    for part in Part::ALL {
        if !options.selects(*part) {
            report.add(part.name(), Duration::ZERO, Outcome::NotAsked);
            continue;
        }
        if let Some(at) = beside.iter().position(|(done, ..)| done == part) {
            let (_, took, result) = beside.swap_remove(at);
            report.add_beside(part.name(), took, told(part.name(), took, result));
            continue;
        }
        let (took, outcome) = timed(part.name(), || {
            if part.needs_packages()
                && let Some(unpacked) = unpacked.take()
            {
                unpacked()?;
            }
            if *part != Part::Tests {
                return part.run(workspace, options);
            }
            let others: Vec<_> = Part::ALL.iter().copied().filter(|part| options.selects(*part)).collect();
            let (result, done) = programs::run(workspace, options.long, &others);
            beside = done;
            result
        });
        report.add(part.name(), took, outcome);
    }
}

fn timed(name: &str, work: impl FnOnce() -> Result<(), Failure>) -> (Duration, Outcome) {
    println!("\n== {name}");
    let start = Instant::now();
    let result = work();
    let took = start.elapsed();
    (took, told(name, took, result))
}

/// Prints how a part ended.
fn told(name: &str, took: Duration, result: Result<(), Failure>) -> Outcome {
    let seconds = took.as_secs_f64();
    match result {
        Ok(()) => {
            println!("== {name}: ok, {seconds:.1} s");
            Outcome::Passed
        }
        Err(failure) => {
            println!("== {name}: FAILED, {seconds:.1} s: {}", failure.why);
            Outcome::Failed(failure)
        }
    }
}
