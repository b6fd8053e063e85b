//! The part `tests`: builds every test program once, and runs several of them at a time. The longest ones are built
//! first, and run while the others are built. Other parts that mostly wait run beside them.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::Value;

use crate::limiter::{Limiter, Permit};
use crate::parts::{Part, nice};
use crate::scratch::Scratch;
use crate::workspace::{Failure, Workspace, shown, stream, succeeded};

/// Programs that take half a minute and more, the longest first. They start first, so that none of them runs alone at
/// the end, and all but [`CLI`] are built before the others.
const LONG_ONES: &[&str] = &[
    "conformance",
    "failures",
    "redlock",
    CLI,
    "mysql_failures",
    "postgres_failures",
    "mysql_conformance",
    "postgres_conformance",
    "mariadb_conformance",
    "postgres_pooled",
    "postgres_protocol",
    "mysql_protocol",
    "protocol",
    "cluster",
    "shorter",
    "mysql_session",
    "mariadb_session",
    "postgres_session",
];

/// Needs the command line, which is built last.
const CLI: &str = "cli";

/// Set for the tests of the long tier.
const LONG: &str = "OARLOCK_LONG";

/// One program, as cargo built it, or one part that runs beside the tests.
#[derive(Debug)]
struct Program {
    command: Command,
    /// The package and the target, or the part.
    name: String,
    /// The part that it is, if it is not a test.
    part: Option<Part>,
}

impl Program {
    /// Its position among the long ones. Parts come first: they are longer than any test.
    fn order(&self) -> usize {
        if self.part.is_some() {
            return 0;
        }
        let target = self.name.rsplit(' ').next().unwrap_or_default();
        LONG_ONES.iter().position(|long| *long == target).unwrap_or(LONG_ONES.len())
    }
}

/// The time and the result of a part.
pub(crate) type Done = (Part, Duration, Result<(), Failure>);

/// Runs every test of every crate, also after a failure, and the examples of the documentation. At the same time it
/// runs those of `others` that can.
///
/// # Errors
/// When something does not build, or with the names of all programs that failed. The parts beside have results of their
/// own.
pub(crate) fn run(workspace: &Workspace, long: bool, others: &[Part]) -> (Result<(), Failure>, Vec<Done>) {
    let first: Vec<_> = LONG_ONES.iter().filter(|name| **name != CLI).flat_map(|name| ["--test", name]).collect();
    let programs = match build(test(workspace, &first)).and_then(|messages| tests_of(&messages)) {
        // The other parts run by themselves then.
        Err(failure) => return (Err(failure), Vec::new()),
        Ok(programs) => programs,
    };
    let queue = Queue::default();
    let started: HashSet<_> = programs.iter().map(|program| program.command.get_program().to_owned()).collect();
    queue.add(programs);
    // Not the examples: the linter compiles them, and linking them takes as long as a tenth of the tests.
    let all_tests = nice(&test(workspace, &["--lib", "--bins", "--tests"]));
    let mut doc_tests = nice(&workspace.cargo(["test", "--workspace", "--locked", "--doc"]));
    tier(&mut doc_tests, long);
    let build_the_rest = || -> Result<(), Failure> {
        let messages = build(all_tests)?;
        let is_new = |program: &Program| !started.contains(program.command.get_program());
        let interop = messages.lines().find_map(built_interop);
        queue.add(tests_of(&messages)?.into_iter().filter(is_new));
        queue.add(others.iter().filter_map(|part| {
            let command = part.beside_tests(long, interop.as_deref())?;
            Some(Program { command, name: part.name().to_owned(), part: Some(*part) })
        }));
        Ok(())
    };
    let results = Results { long, scratch: Scratch::new(), ..Results::default() };
    if let Some(folder) = results.scratch.path() {
        println!("temporary files of the tests: in memory, below {}", folder.display());
    }
    let limiter = Limiter::default();
    let worker = || {
        while let Some((_permit, program)) = queue.next(&limiter) {
            results.run(program);
        }
    };
    std::thread::scope(|scope| {
        let mut running: Vec<_> = (0..Limiter::MOST).map(|_| scope.spawn(worker)).collect();
        // One after the other: they build in the same folder.
        running.push(scope.spawn(|| {
            // Closed in any case, so that no worker waits for ever.
            let built = std::panic::catch_unwind(std::panic::AssertUnwindSafe(build_the_rest));
            queue.close();
            results.add(built.unwrap_or_else(|_| Err(Failure::new("the build of the tests ended in a panic"))));
            results.add(stream(&mut doc_tests));
        }));
        for ended in running.into_iter().map(std::thread::ScopedJoinHandle::join) {
            if ended.is_err() {
                results.add(Err(Failure::new("a worker of the tests ended in a panic")));
            }
        }
    });
    (all(&into_inner(results.failures)), into_inner(results.done))
}

/// The programs that wait to run, the longest first. More may come until it is closed.
#[derive(Default)]
struct Queue {
    state: Mutex<(VecDeque<Program>, bool)>,
    changed: Condvar,
}

impl Queue {
    fn add(&self, programs: impl IntoIterator<Item = Program>) {
        let mut state = locked(&self.state);
        state.0.extend(programs);
        state.0.make_contiguous().sort_by_key(Program::order);
        self.changed.notify_all();
    }

    fn close(&self) {
        locked(&self.state).1 = true;
        self.changed.notify_all();
    }

    /// The next program, and the permit to run it.
    fn next<'a>(&self, limiter: &'a Limiter) -> Option<(Permit<'a>, Program)> {
        loop {
            let mut state = locked(&self.state);
            while state.0.is_empty() {
                if state.1 {
                    return None;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            drop(state);
            let permit = limiter.enter();
            // Another worker may have been faster.
            if let Some(program) = locked(&self.state).0.pop_front() {
                return Some((permit, program));
            }
        }
    }
}

/// What became of the programs.
#[derive(Default)]
struct Results {
    long: bool,
    scratch: Scratch,
    failures: Mutex<Vec<Failure>>,
    done: Mutex<Vec<Done>>,
}

impl Results {
    fn run(&self, mut program: Program) {
        let (part, start) = (program.part, Instant::now());
        self.scratch.apply(&mut program.command);
        let result = run_one(program, self.long);
        match part {
            Some(part) => locked(&self.done).push((part, start.elapsed(), result)),
            None => self.add(result),
        }
    }

    fn add(&self, result: Result<(), Failure>) {
        locked(&self.failures).extend(result.err());
    }
}

/// One result for all of them.
fn all(failures: &[Failure]) -> Result<(), Failure> {
    let Some(first) = failures.first() else { return Ok(()) };
    let why: Vec<_> = failures.iter().map(|failure| failure.why.as_str()).collect();
    Err(Failure { code: first.code, why: why.join("\n") })
}

/// The tests choose their stores themselves, and the flag alone chooses the tier.
fn tier(command: &mut Command, long: bool) -> &mut Command {
    command.env_remove("OARLOCK_URL").env_remove(LONG);
    if long {
        command.env(LONG, "1");
    }
    command
}

/// The command that builds these tests of all crates. The features are those of the whole workspace, whichever tests
/// are built, so that nothing is built twice.
fn test(workspace: &Workspace, targets: &[&str]) -> Command {
    let mut command = workspace.cargo(["test", "--workspace", "--locked", "--no-run"]);
    command.args(targets).arg("--message-format=json-render-diagnostics");
    command
}

/// What cargo says of the programs that it built.
fn build(mut command: Command) -> Result<String, Failure> {
    let line = shown(&command);
    println!("$ {line}");
    let start = Instant::now();
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot start `{line}`"))?;
    succeeded(output.status, &line)?;
    println!("built in {:.1} s", start.elapsed().as_secs_f64());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The test programs that cargo built.
fn tests_of(messages: &str) -> Result<Vec<Program>, Failure> {
    let programs: Vec<_> = messages.lines().filter_map(built).map(Program::from).collect();
    if programs.is_empty() { Err(Failure::new("cargo built no test")) } else { Ok(programs) }
}

fn built_interop(message: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    let is_program = message["profile"]["test"] == false && message["target"]["name"] == "interop";
    message["executable"].as_str().filter(|_| is_program).map(PathBuf::from)
}

/// A test program that cargo built.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Built {
    pub(crate) executable: PathBuf,
    /// The folder of its package, where cargo would run it.
    pub(crate) package: PathBuf,
    /// The package, the kind and the target.
    pub(crate) name: String,
}

impl From<Built> for Program {
    fn from(built: Built) -> Self {
        let mut command = Command::new(&built.executable);
        command.current_dir(&built.package).env("CARGO_MANIFEST_DIR", &built.package);
        Self { command, name: built.name, part: None }
    }
}

/// The test program that a message of cargo names, if any.
pub(crate) fn built(message: &str) -> Option<Built> {
    let message: Value = serde_json::from_str(message).ok()?;
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let executable = message["executable"].as_str().filter(|_| is_test)?;
    let package = Path::new(message["manifest_path"].as_str()?).parent()?;
    let (target, kind) = (message["target"]["name"].as_str()?, message["target"]["kind"][0].as_str()?);
    let folder = package.file_name()?.to_string_lossy();
    Some(Built {
        executable: executable.into(),
        package: package.to_owned(),
        name: format!("{folder} {kind} {target}"),
    })
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn run_one(mut program: Program, long: bool) -> Result<(), Failure> {
    let mut output = tempfile::tempfile().context("a file for the output of a test")?;
    program
        .command
        .stdin(Stdio::null())
        .stdout(output.try_clone().context("the output of a test")?)
        .stderr(output.try_clone().context("the output of a test")?);
    let start = Instant::now();
    let status = tier(&mut program.command, long).status().with_context(|| format!("cannot start {}", program.name))?;
    let text = print(&program.name, start.elapsed(), &mut output)?;
    succeeded(status, &program.name)
        .map_err(|failure| Failure { why: format!("{}{}", failure.why, complaints(&text)), ..failure })
}

/// Prints all at once, so that the output of two programs is not mixed.
fn print(name: &str, took: Duration, output: &mut File) -> anyhow::Result<String> {
    let mut text = Vec::new();
    output.rewind()?;
    output.read_to_end(&mut text)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n-- {name}, {:.1} s", took.as_secs_f64())?;
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
        let engine = built(&message(true, r#""/r/target/debug/deps/engine-1""#)).unwrap();
        assert_eq!(engine.name, "oarlock-core test engine");
        assert_eq!(engine.package, Path::new("/r/crates/oarlock-core"));
        assert_eq!(built(&message(false, r#""/r/target/debug/examples/many""#)), None);
        assert_eq!(built(&message(true, "null")), None);
        assert_eq!(built(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(built("a word of the compiler"), None);
    }
}
