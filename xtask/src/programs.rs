//! The part `tests`: builds every test program once, then runs a few of them at a time.
//!
//! Nearly all of a test's time is spent waiting: for a lease to end, for a server to come back. Cargo starts the next
//! program only when the last one has ended, and so would leave both cores of a small machine idle.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::Value;

use crate::workspace::{Failure, Workspace, shown, stream, succeeded};

/// How many programs run at once. With two of them the cores of a small machine idle for half of the time; more than three would let
/// tests of timing fail for want of a core.
const LANES: usize = 3;

/// Programs that take a minute and more. They start first, so that none of them runs alone at the end.
const LONG_ONES: &[&str] = &[
    "conformance",
    "failures",
    "redlock",
    "cli",
    "cluster",
    "mariadb_conformance",
    "mysql_conformance",
    "mysql_failures",
    "mysql_wire",
    "postgres_conformance",
    "postgres_failures",
    "postgres_pooled",
];

/// Set for the tests of the long tier.
const LONG: &str = "OARLOCK_LONG";

/// One program of tests, as cargo built it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Program {
    /// What is run.
    executable: PathBuf,
    /// The folder of its package, where cargo would run it.
    package: PathBuf,
    /// The package and the target, for people.
    name: String,
}

impl Program {
    fn is_long(&self) -> bool {
        self.name.rsplit(' ').next().is_some_and(|target| LONG_ONES.contains(&target))
    }
}

/// Runs every test of every crate, also after a failure, and the examples of the documentation.
///
/// # Errors
/// When something does not build, or with the names of all programs that failed.
pub(crate) fn run(workspace: &Workspace, long: bool) -> Result<(), Failure> {
    let programs = build(workspace)?;
    let mut failures = run_all(&programs, long)?;
    if let Err(failure) = stream(tier(&mut workspace.cargo(["test", "--workspace", "--locked", "--doc"]), long)) {
        failures.push(failure);
    }
    match failures.first() {
        None => Ok(()),
        Some(first) => {
            let why: Vec<_> = failures.iter().map(|failure| failure.why.as_str()).collect();
            Err(Failure { code: first.code, why: why.join("\n") })
        }
    }
}

/// The tests choose their stores themselves, and the flag alone chooses the tier.
fn tier(command: &mut Command, long: bool) -> &mut Command {
    command.env_remove("OARLOCK_URL").env_remove(LONG);
    if long {
        command.env(LONG, "1");
    }
    command
}

fn build(workspace: &Workspace) -> Result<Vec<Program>, Failure> {
    let mut command = workspace.cargo(["test", "--workspace", "--locked", "--no-run"]);
    command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let line = shown(&command);
    println!("$ {line}");
    let output = command.output().with_context(|| format!("cannot start `{line}`"))?;
    succeeded(output.status, &line)?;
    let mut programs: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().filter_map(program).collect();
    programs.sort_by_key(|program| !program.is_long());
    if programs.is_empty() {
        return Err(Failure::new(format!("`{line}` built no test")));
    }
    Ok(programs)
}

/// The test program that a message of cargo names, if any.
fn program(message: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(message).ok()?;
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let executable = message["executable"].as_str().filter(|_| is_test)?;
    let package = Path::new(message["manifest_path"].as_str()?).parent()?;
    let (target, kind) = (message["target"]["name"].as_str()?, message["target"]["kind"][0].as_str()?);
    let folder = package.file_name()?.to_string_lossy();
    Some(Program {
        executable: executable.into(),
        package: package.to_owned(),
        name: format!("{folder} {kind} {target}"),
    })
}

/// Runs them all, a few at a time, and prints the output of each when it has ended.
fn run_all(programs: &[Program], long: bool) -> Result<Vec<Failure>, Failure> {
    let (left, failures) = (Mutex::new(programs.iter()), Mutex::new(Vec::new()));
    // A function, so that the list is not locked while a program runs.
    let next = || taken(&left).next();
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES)
            .map(|_| {
                scope.spawn(|| {
                    while let Some(program) = next() {
                        if let Err(failure) = run_one(program, long) {
                            taken(&failures).push(failure);
                        }
                    }
                })
            })
            .collect();
        for lane in lanes {
            lane.join().map_err(|_| Failure::new("a lane of tests ended in a panic"))?;
        }
        Ok::<_, Failure>(())
    })?;
    Ok(failures.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
}

fn taken<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn run_one(program: &Program, long: bool) -> Result<(), Failure> {
    let mut output = tempfile::tempfile().context("a file for the output of a test")?;
    let mut command = Command::new(&program.executable);
    command
        .current_dir(&program.package)
        .env("CARGO_MANIFEST_DIR", &program.package)
        .stdin(Stdio::null())
        .stdout(output.try_clone().context("the output of a test")?)
        .stderr(output.try_clone().context("the output of a test")?);
    let start = Instant::now();
    let status = tier(&mut command, long).status().with_context(|| format!("cannot start {}", program.name))?;
    let text = print(program, start.elapsed(), &mut output)?;
    succeeded(status, &program.name)
        .map_err(|failure| Failure { why: format!("{}{}", failure.why, complaints(&text)), ..failure })
}

/// Prints all at once, so that the output of two programs is not mixed.
fn print(program: &Program, took: Duration, output: &mut File) -> anyhow::Result<String> {
    let mut text = Vec::new();
    output.rewind()?;
    output.read_to_end(&mut text)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n-- {}, {:.1} s", program.name, took.as_secs_f64())?;
    out.write_all(&text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The failure messages of a program: repeated at the end, where people look first, and where a log that was cut
/// still has it.
fn complaints(text: &str) -> String {
    const EACH: usize = 5;
    const IN_ALL: usize = 40;
    let lines: Vec<_> = text.lines().collect();
    let mut until = 0;
    let mut found = String::new();
    for (at, line) in lines.iter().enumerate() {
        let begins = line.starts_with("---- ") || (line.starts_with("thread '") && line.contains("panicked at"));
        if begins {
            until = at + EACH;
        }
        if at < until && found.lines().count() < IN_ALL {
            found.push_str("\n    ");
            found.push_str(line);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_says_what_went_wrong() {
        let panic = "thread 'deploy' (7) panicked at tests/it.rs:3:4:\nwaited in vain\n";
        let server = "a line of a server\n".repeat(100);
        let found = complaints(&format!("test a ... ok\n{panic}{server}"));
        assert!(found.contains("it.rs:3:4") && found.contains("waited in vain"), "{found}");
        assert!(!found.contains("test a") && found.lines().count() < 10, "{found}");
        assert!(complaints(&panic.repeat(100)).lines().count() < 50);
        assert_eq!(complaints("test a ... ok\n"), "");
    }

    #[test]
    fn only_programs_of_tests_are_run() {
        let message = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/r/crates/oarlock-core/Cargo.toml",
                "target":{{"name":"engine","kind":["test"]}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let engine = program(&message(true, r#""/r/target/debug/deps/engine-1""#)).unwrap();
        assert_eq!(engine.name, "oarlock-core test engine");
        assert_eq!(engine.package, Path::new("/r/crates/oarlock-core"));
        assert_eq!(program(&message(false, r#""/r/target/debug/examples/many""#)), None);
        assert_eq!(program(&message(true, "null")), None);
        assert_eq!(program(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(program("a word of the compiler"), None);
    }
}
