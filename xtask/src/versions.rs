//! The part `versions`: the conformance suite on the servers that are installed and on older and newer ones, and the
//! table of it in `docs/compatibility.md`; and ZooKeeper with TLS.
//!
//! A server is chosen by the search path of programs alone, so that the tests know nothing of versions.

mod built;
mod servers;
mod table;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Context as _;

use self::servers::{Other, SUITES, Suite, VALKEY, ZOOKEEPER};
use self::table::{Row, Tally};
use crate::programs::{self, Built};
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
        let Some(program) = built.iter().find(|built| built.name == suite.program) else {
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
    if suites.iter().any(|suite| suite.name == ZOOKEEPER) {
        // The other tests are built without this feature, which brings a second cryptography library.
        let mut encrypted = workspace.cargo(["test", "--locked", "-p", "oarlock-zookeeper", "--features", "tls"]);
        encrypted.args(["--lib", "--test", "tls", "--test", "conformance"]).env("OARLOCK_ZOOKEEPER", "tls");
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

fn build(workspace: &Workspace, suites: &[&Suite]) -> Result<Vec<Built>, Failure> {
    let mut command = workspace.cargo(["test", "--workspace", "--locked", "--no-run"]);
    let mut targets: Vec<_> = suites.iter().filter_map(|suite| suite.program.rsplit(' ').next()).collect();
    targets.sort_unstable();
    targets.dedup();
    for target in targets {
        command.args(["--test", target]);
    }
    command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let line = shown(&command);
    println!("$ {line}");
    let output = command.output().with_context(|| format!("cannot start `{line}`"))?;
    crate::workspace::succeeded(output.status, &line)?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(programs::built).collect())
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
    let output = Command::new(&program.executable)
        .current_dir(&program.package)
        .env("CARGO_MANIFEST_DIR", &program.package)
        .env("PATH", &path)
        .env_remove("OARLOCK_URL")
        .env_remove("OARLOCK_LONG")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", program.name))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let tally = Tally::read(&text);
    if !output.status.success() {
        println!("{text}");
    }
    println!("{} passed, {} failed, {:.1} s", tally.passed, tally.failed, start.elapsed().as_secs_f64());
    Ok(Row::new(name, version, suite, tally, output.status.success()))
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
