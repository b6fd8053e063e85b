//! The part `versions`: the conformance suite on the servers that are installed and on older and newer ones, and the
//! table of it in `docs/compatibility.md`; and ZooKeeper with TLS.
//!
//! A server is chosen by the search path of programs alone, so that the tests know nothing of versions.

mod built;
mod servers;
mod table;

use std::ffi::OsString;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use self::servers::{ENCRYPTED, Other, SUITES, Suite, VALKEY};
use self::table::{Row, Tally};
use crate::programs::Built;
use crate::workspace::{Failure, Workspace, shown, stream};

/// Where the table goes.
const PAGE: &str = "docs/compatibility.md";

/// Whether there is a server of this name.
///
/// # Errors
/// A sentence that names all of them.
pub(crate) fn check(server: &str) -> Result<(), String> {
    let mut known: Vec<_> = SUITES.iter().map(|suite| suite.name.to_owned()).collect();
    known.extend(SUITES.iter().flat_map(|suite| suite.others).map(Other::key).filter(|key| key == VALKEY));
    if known.iter().any(|name| name == server) {
        return Ok(());
    }
    Err(format!("there is no server `{server}`; the servers are {}", known.join(", ")))
}

/// Runs the suites of these servers, or every suite, and writes the table. The rows of the others stay in it.
///
/// # Errors
/// With the names of all that failed. A server that cannot be had is a row of the table, and no failure.
pub(crate) fn run(workspace: &Workspace, only: &[String]) -> Result<(), Failure> {
    let is_asked = |name: &str| only.is_empty() || only.iter().any(|asked| asked == name);
    let is_whole = |suite: &Suite| is_asked(suite.name);
    let suites: Vec<_> = SUITES
        .iter()
        .filter(|suite| is_whole(suite) || suite.others.iter().any(|other| is_asked(&other.key())))
        .collect();
    let built = build(workspace, &suites)?;
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for suite in &suites {
        let built = built.iter().find(|(feature, built)| *feature == feature_of(suite) && built.name == suite.program);
        let Some((_, program)) = built else {
            return Err(Failure::new(format!("there is no test {}", suite.program)));
        };
        if is_whole(suite) {
            rows.push(on(workspace, suite, program, None)?);
        }
        for other in suite.others.iter().filter(|other| is_whole(suite) || is_asked(&other.key())) {
            rows.push(match other.get(workspace) {
                Ok(folders) => on(workspace, suite, program, Some((other.name(), folders)))?,
                Err(error) => {
                    println!("{}: cannot be had: {error:#}", other.name());
                    Row::missing(other.name(), other.version(), suite, &error)
                }
            });
        }
    }
    if suites.iter().any(|suite| suite.name == ENCRYPTED) {
        let mut encrypted = workspace.cargo(["test", "--locked", "-p", "oarlock-zookeeper", "--features", "tls"]);
        encrypted.args(["--lib", "--test", "tls"]);
        failures.extend(stream(encrypted.env("OARLOCK_LONG", "1")).err().map(|failure| failure.why));
    }
    failures.extend(rows.iter().filter(|row| row.failed()).map(Row::title));
    let date = Command::new("date").args(["-u", "+%F"]).output().context("cannot start date")?;
    let file = workspace.root().join(PAGE);
    let before = std::fs::read_to_string(&file).unwrap_or_default();
    let page = table::page(&rows, String::from_utf8_lossy(&date.stdout).trim(), &before);
    std::fs::write(file, page).with_context(|| format!("cannot write {PAGE}"))?;
    println!("{PAGE}: written");
    if failures.is_empty() { Ok(()) } else { Err(Failure::new(format!("failed: {}", failures.join(", ")))) }
}

fn feature_of(suite: &Suite) -> Option<&'static str> {
    suite.feature.map(|(feature, _)| feature)
}

/// Builds the programs of these suites, each with its feature.
fn build(workspace: &Workspace, suites: &[&Suite]) -> Result<Vec<(Option<&'static str>, Built)>, Failure> {
    let mut features: Vec<_> = suites.iter().map(|suite| feature_of(suite)).collect();
    features.sort_unstable();
    features.dedup();
    let mut all = Vec::new();
    for feature in features {
        let mut command = workspace.cargo(["test", "--locked", "--no-run"]);
        let programs: Vec<_> =
            suites.iter().filter(|suite| feature_of(suite) == feature).map(|suite| suite.program).collect();
        match feature {
            None => _ = command.arg("--workspace"),
            Some(feature) => {
                let crates = programs.iter().filter_map(|program| program.split(' ').next());
                command.args(["--features", feature]).args(crates.flat_map(|name| ["-p", name]));
            }
        }
        let mut targets: Vec<_> = programs.iter().filter_map(|program| program.rsplit(' ').next()).collect();
        targets.sort_unstable();
        targets.dedup();
        command.args(targets.into_iter().flat_map(|target| ["--test", target]));
        command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
        let line = shown(&command);
        println!("$ {line}");
        let output = command.output().with_context(|| format!("cannot start `{line}`"))?;
        crate::workspace::succeeded(output.status, &line)?;
        let built =
            String::from_utf8_lossy(&output.stdout).lines().filter_map(crate::programs::built).collect::<Vec<_>>();
        all.extend(built.into_iter().map(|built| (feature, built)));
    }
    Ok(all)
}

/// Runs one suite on one server.
fn on(
    workspace: &Workspace,
    suite: &'static Suite,
    program: &Built,
    other: Option<(&'static str, Vec<PathBuf>)>,
) -> anyhow::Result<Row> {
    let (name, folders) = other.unwrap_or((suite.store, Vec::new()));
    let path = path(&folders)?;
    let version = (suite.version)(workspace, &path).unwrap_or_else(|| "not installed".to_owned());
    println!("-- {name} {version}");
    let start = Instant::now();
    let mut command = Command::new(&program.executable);
    command.current_dir(&program.package).env("CARGO_MANIFEST_DIR", &program.package).env("PATH", &path);
    command.env_remove("OARLOCK_URL").env_remove("OARLOCK_LONG");
    if let Some((_, (variable, part))) = suite.feature {
        command.env(variable, part).env("OARLOCK_LONG", "1");
    }
    let (ended, text) = run_within(&mut command, LONGEST).with_context(|| format!("cannot run {}", program.name))?;
    let (tally, passed) = (Tally::read(&text), ended == Some(true));
    if !passed {
        println!("{text}");
    }
    if ended.is_none() {
        println!("killed: it took longer than {} min", LONGEST.as_secs() / 60);
    }
    println!("{} passed, {} failed, {:.1} s", tally.passed, tally.failed, start.elapsed().as_secs_f64());
    Ok(Row::new(name, version, suite, tally, passed))
}

/// How long a suite may take on one server: the longest takes a few minutes.
const LONGEST: Duration = Duration::from_secs(30 * 60);

/// Whether a program succeeded, and what it said; `None` if it took too long and was killed, with its children.
fn run_within(command: &mut Command, limit: Duration) -> anyhow::Result<(Option<bool>, String)> {
    // A file, because a server that outlives the program would hold a pipe open.
    let mut said = tempfile::tempfile()?;
    command.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said.try_clone()?).process_group(0);
    let (mut child, end) = (command.spawn()?, Instant::now() + limit);
    let mut ended = None;
    while ended.is_none() && Instant::now() < end {
        ended = child.try_wait()?.map(|status| status.success());
        std::thread::sleep(Duration::from_millis(20));
    }
    if ended.is_none() {
        Command::new("kill").args(["-9", "--", &format!("-{}", child.id())]).status()?;
        child.wait()?;
    }
    let mut text = Vec::new();
    said.seek(SeekFrom::Start(0))?;
    said.read_to_end(&mut text)?;
    Ok((ended, String::from_utf8_lossy(&text).into_owned()))
}

/// The search path of programs, with these folders first.
fn path(folders: &[PathBuf]) -> anyhow::Result<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = folders.iter().cloned().chain(std::env::split_paths(&path));
    std::env::join_paths(all).context("a folder has a name that PATH cannot hold")
}

/// The first file of this name in a search path, as a shell would find it.
fn find(path: &std::ffi::OsStr, more: &[&str], file: &str) -> Option<PathBuf> {
    let folders = std::env::split_paths(path).chain(more.iter().map(PathBuf::from));
    folders.map(|folder| folder.join(file)).find(|file| file.is_file())
}

/// The version in what a program says of itself: the first word that begins with a number that has a dot.
fn version_in(text: &str) -> Option<String> {
    let words = text.split([' ', '\n', '=', ',']);
    let mut versions = words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'));
    versions.next().map(|word| word.split('-').next().unwrap_or(word).to_owned())
}

/// What `program --version` says.
fn version_of(program: &Path) -> Option<String> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
    version_in(&String::from_utf8_lossy(&output.stdout))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_that_hangs_is_killed_with_what_it_started() {
        let shell = |script: &str, limit| {
            run_within(Command::new("sh").args(["-c", script]), Duration::from_millis(limit)).expect("it starts")
        };
        assert_eq!(shell("echo one; echo two >&2", 60_000), (Some(true), "one\ntwo\n".to_owned()));
        assert_eq!(shell("echo one; exit 1", 60_000), (Some(false), "one\n".to_owned()));
        let (ended, said) = shell("sleep 1000 & echo $!; wait", 1000);
        assert_eq!(ended, None);
        let path = format!("/proc/{}/stat", said.trim());
        let is_alive = || std::fs::read_to_string(&path).is_ok_and(|stat| !stat.contains(") Z"));
        for _ in 0..1000 {
            if !is_alive() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{} lives on", said.trim());
    }

    #[test]
    fn a_version_is_found_in_what_servers_say() {
        for (said, version) in [
            ("Redis server v=8.0.6 sha=00000000:0 malloc=jemalloc-5.3.1 bits=64", "8.0.6"),
            ("etcd Version: 3.5.30\nGit SHA: 1", "3.5.30"),
            ("postgres (PostgreSQL) 18.6 (Debian 18.6-3)", "18.6"),
            ("/x/mariadbd  Ver 11.8.9-MariaDB-4 from Debian for debian-linux-gnu", "11.8.9"),
            ("PgBouncer 1.26.1\nlibevent 2.1.12-stable", "1.26.1"),
        ] {
            assert_eq!(version_in(said).as_deref(), Some(version), "{said}");
        }
        assert_eq!(version_in("no such thing"), None);
    }
}
