//! One run: a process of `oarlock torture`, which asks for its server faults over a socket.

use std::fs::File;
use std::io::{BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};
use oarlock_torture::judge::LEFT_OUT;
use oarlock_torture::record::Record;
use serde_json::Value;

use crate::args::{BREAK, Options};
use crate::cases::{Case, Fault};
use crate::cuts;
use crate::deployments::{Deployment, ServerFault, init_with};
use crate::raised::{self, Answer};
use crate::report::injected;
use crate::runs::{DIRTY, Done, folder};

/// The flag of `oarlock torture` for clients that connect to the servers themselves.
pub(crate) const NO_PROXIES: &str = "--no-network";

/// What the servers answer to a fault that was injected.
const BROKEN: u8 = b'+';

/// Runs a case.
pub(crate) fn run(case: &Case, servers: &mut dyn Deployment, seed: u64, options: &Options) -> anyhow::Result<Done> {
    let seconds = options.seconds;
    if let Some(done) = servers.run(case, seed, seconds)? {
        return Ok(Done { version: servers.version(), commit: commit().to_owned(), ..done });
    }
    let dir = tempfile::tempdir()?;
    let [history, output, errors, socket] = ["history", "output", "errors", "socket"].map(|name| dir.path().join(name));
    let ttl = case.topology.lease_of(case.fault);
    let url = servers.url_for(ttl);
    // The older build runs, since only it can connect before the format is raised.
    let older = match case.fault {
        Fault::Server(ServerFault::RaiseFormat) => Some(options.older.as_deref().context("this case needs --older")?),
        _ => None,
    };
    let (first, second) = match (older, case.fault) {
        (Some(older), _) => (older.to_owned(), Some(program()?)),
        (None, Fault::TwoBuilds) => (program()?, options.also.clone()),
        (None, _) => (program()?, None),
    };
    if let Some(older) = older {
        init_with(older, &url)?;
        ensure!(list(&url).is_err(), "the tables of the other build are not those of an older format");
    }
    // It ends with this process, however that ends.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(first).args([
        "torture",
        "-u",
        &url,
        "-o",
        "json",
        "--rate",
        "200",
        "--duration",
        &format!("{seconds}s"),
    ]);
    command.args(["--ttl", &format!("{}ms", ttl.as_millis()), "--seed", &seed.to_string()]);
    command.arg("--history").arg(&history).args(servers.flags());
    if let Some(kinds) = case.kinds() {
        command.args(["--faults", kinds]);
    }
    if let Some(second) = second {
        command.arg("--also").arg(second);
    }
    let listener = UnixListener::bind(&socket)?;
    listener.set_nonblocking(true)?;
    if let Fault::Server(fault) = case.fault {
        let here = std::env::current_exe()?;
        command.arg("--fault-cmd").arg(format!("exec '{}' {BREAK} '{}'", here.display(), socket.display()));
        if fault == ServerFault::LyingDisk {
            command.arg("--fault-loses-data");
        }
        servers.prepare(fault)?;
    }
    command
        .env_remove("OARLOCK_URL")
        .stdin(Stdio::null())
        .stdout(File::create(&output)?)
        .stderr(File::create(&errors)?);
    let mut child = KillOnDrop(command.spawn().context("cannot start oarlock")?);
    let bound = Instant::now() + Duration::from_secs(seconds * 4 + 180);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut failure = None;
    let status = loop {
        if let Some(status) = child.0.try_wait()? {
            break status;
        }
        ensure!(Instant::now() < bound, "the run did not end in time");
        match (listener.accept(), case.fault) {
            (Ok((asked, _)), Fault::Server(fault)) => {
                let broken = servers.inject(fault, ttl, &mut random);
                answer(asked, broken.is_ok());
                failure = failure.or(broken.err());
            }
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    if let Some(failure) = failure {
        return Err(failure.context("a server fault failed"));
    }
    servers.check().context("a server fault was without effect")?;
    let mut found = std::fs::read_to_string(&output)?;
    if older.is_some() {
        // By the judge of this build.
        let again = Command::new(program()?).args(["torture", "check", "-o", "json"]).arg(&history).output()?;
        found = String::from_utf8(again.stdout)?;
    }
    let Ok(found) = serde_json::from_str::<Value>(&found) else {
        bail!("oarlock torture ended with {status}: {}", std::fs::read_to_string(&errors)?.trim());
    };
    let mut judged = judged(case, seed, seconds, &found).context("the answer of oarlock torture")?;
    if servers.flags().iter().any(|flag| flag == NO_PROXIES) {
        // Where the network itself is broken, clients need none.
        judged.untried.retain(|text| !text.contains(NO_PROXIES));
    }
    let read = || Record::read(BufReader::new(File::open(&history)?)).map_err(|error| anyhow!("{error}"));
    if matches!(case.fault, Fault::Server(fault) if fault.costs_locks()) {
        cuts::judge(&read()?, &mut judged);
    }
    if let Some(older) = older {
        let record = read()?;
        // Every lease could have ended.
        std::thread::sleep(ttl * 2);
        raised::judge(&record, &Answer::of(older, &url)?, &list(&url)?, &mut judged);
    }
    let done = Done { version: servers.version(), commit: commit().to_owned(), ..judged };
    if !done.violations.is_empty() {
        let name = format!("{}-{}-{}-{seed}.jsonl", done.store, done.topology, done.fault).replace([' ', ','], "-");
        std::fs::copy(&history, folder()?.join(name))?;
    }
    Ok(done)
}

/// The locks that a store has, for this build.
fn list(url: &str) -> anyhow::Result<String> {
    let done = Command::new(program()?).args(["ls", "-o", "name", "-u", url]).env_remove("OARLOCK_URL").output()?;
    ensure!(done.status.success(), "oarlock ls: {}", String::from_utf8_lossy(&done.stderr));
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// The commit that is tested, as it was when the program began: the last one that changed code. `dirty` if that was
/// changed since.
pub(crate) fn commit() -> &'static str {
    static COMMIT: LazyLock<String> =
        LazyLock::new(|| tested(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap_or_default());
    &COMMIT
}

/// What is tested. A commit of pages or of results changes none of it.
const CODE: [&str; 6] = ["crates", "stores", "testing", "interop", "Cargo.toml", "Cargo.lock"];

/// The last commit that changed the code of this tree; nothing without one.
fn tested(root: &Path) -> Option<String> {
    let git = |words: &[&str]| Command::new("git").arg("-C").arg(root).args(words).arg("--").args(CODE).output();
    let said = git(&["log", "-1", "--format=%h", "--abbrev=12"]).ok()?;
    let commit = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    if commit.is_empty() {
        return None;
    }
    let is_clean = git(&["diff", "--quiet", "HEAD"]).is_ok_and(|done| done.status.success());
    Some(if is_clean { commit } else { format!("{commit}{DIRTY}") })
}

/// What it says. A field that is missing is no zero.
fn judged(case: &Case, seed: u64, seconds: u64, found: &Value) -> anyhow::Result<Done> {
    let number = |value: &Value| value.as_u64().context("a number is missing");
    let figures = &found["figures"];
    let verdict = found["verdict"].as_str().context("there is no verdict")?;
    let findings = found["findings"].as_array().context("there are no findings")?;
    let counts = figures["faults"].as_object().context("no faults are counted")?;
    let mut done = Done {
        faults: counts.iter().map(|(kind, count)| Ok((kind.clone(), number(count)?))).collect::<anyhow::Result<_>>()?,
        grants: number(&figures["holds"])?,
        losses: number(&figures["losses"])?,
        least_margin_ms: figures["least_margin_ms"].as_f64(),
        stale_refused: number(&found["stale_writes_refused"])?,
        lost_without_fence: number(&found["lost_without_fence"])?,
        ..Done::of(case, seed, seconds)
    };
    for finding in findings {
        let name = finding["name"].as_str().context("a finding without a name")?;
        let text = format!("{name}: {}", finding["what"].as_str().context("a finding without words")?);
        match finding["ruling"].as_str().context("a finding without a ruling")? {
            "VIOLATION" => done.violations.push(text),
            "RISK SEEN" => done.risks.push(text),
            // A run of one fault leaves the others out.
            _ if name == LEFT_OUT => {}
            _ if name == "Stuck" || name == "Unseen" => done.stuck.push(text),
            _ => done.untried.push(text),
        }
    }
    if injected(case, &done) == 0 {
        done.untried.push("Untried: the fault was never injected".to_owned());
    }
    let seen = (verdict == "VIOLATION", verdict == "RISK SEEN");
    let told = (!done.violations.is_empty(), done.violations.is_empty() && !done.risks.is_empty());
    ensure!(seen == told, "the verdict {verdict} does not fit its findings");
    Ok(done)
}

/// A process that is killed when it is dropped.
pub(crate) struct KillOnDrop(pub(crate) Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn answer(mut asked: UnixStream, done: bool) {
    // The process that asked may have been killed meanwhile; the run notices that by itself.
    let _ = asked.write_all(&[if done { BROKEN } else { b'-' }]);
}

/// The fault command: asks the run to break its servers, and waits until it has.
pub(crate) fn ask(socket: &Path) -> anyhow::Result<()> {
    let mut answer = [0];
    UnixStream::connect(socket)?.read_exact(&mut answer)?;
    ensure!(answer == [BROKEN], "the servers could not be broken");
    Ok(())
}

/// `oarlock`, beside this program.
pub(crate) fn program() -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name("oarlock");
    ensure!(path.is_file(), "there is no {}: cargo build -p oarlock-cli", path.display());
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> anyhow::Result<Done> {
        let case = Case::named("redis", "one server", "delay").expect("a case");
        judged(&case, 1, 15, &serde_json::from_str(text).expect("JSON"))
    }

    fn answer(verdict: &str, findings: &str) -> String {
        format!(
            r#"{{"verdict":"{verdict}","findings":[{findings}],"stale_writes_refused":0,"lost_without_fence":0,
            "figures":{{"faults":{{"delay":3}},"holds":30,"losses":0,"least_margin_ms":null}}}}"#
        )
    }

    #[test]
    fn what_is_missing_is_not_taken_for_nothing() {
        let good = answer("OK", "");
        let done = of(&good).expect("a judgement");
        assert_eq!((done.grants, done.complaint()), (30, None));
        assert!(of("{}").is_err());
        for key in ["verdict", "findings", "holds", "losses", "faults"] {
            assert!(of(&good.replace(key, "renamed")).is_err(), "{key}");
        }
        assert!(of(&answer("VIOLATION", "")).is_err() && of(&answer("RISK SEEN", "")).is_err());
    }

    /// Results are committed, and their next run goes on where they end.
    #[test]
    fn only_a_commit_that_changes_code_is_another_build() {
        let folder = tempfile::tempdir().expect("a folder");
        let git = |words: &[&str]| {
            let author = ["-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false"];
            let done = Command::new("git").arg("-C").arg(folder.path()).args(author).args(words).output();
            assert!(done.as_ref().is_ok_and(|done| done.status.success()), "{words:?}: {done:?}");
        };
        let write = |file: &str, text: &str| {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        let commit = |file: &str, text: &str| {
            write(file, text);
            git(&["add", "."]);
            git(&["commit", "-q", "-m", "a change"]);
            tested(folder.path())
        };
        git(&["init", "-q"]);
        assert_eq!(commit("docs/page.md", "1"), None, "there is no code");
        let code = commit("crates/lock.rs", "1");
        assert!(code.as_ref().is_some_and(|commit| commit.len() == 12), "{code:?}");
        assert_eq!(commit("docs/measurements/fault-runs.jsonl", "{}"), code);
        let next = commit("Cargo.lock", "2");
        assert!(next.is_some() && next != code, "{next:?}");
        let peer = commit("interop/python/peer.py", "1");
        assert!(peer.is_some() && peer != next, "the programs that drive other libraries are code: {peer:?}");
        write("crates/lock.rs", "2");
        assert_eq!(tested(folder.path()), peer.map(|commit| commit + DIRTY));
    }

    #[test]
    fn a_fault_that_was_not_injected_or_went_past_is_untried() {
        assert!(!of(&answer("OK", "").replace("delay", "cut")).expect("a judgement").untried.is_empty());
        let unused = r#"{"name":"Unused","ruling":"INCONCLUSIVE","what":"no request"}"#;
        assert!(!of(&answer("INCONCLUSIVE", unused)).expect("a judgement").untried.is_empty());
        let left_out = r#"{"name":"LeftOut","ruling":"INCONCLUSIVE","what":"another fault"}"#;
        assert!(of(&answer("INCONCLUSIVE", left_out)).expect("a judgement").untried.is_empty());
    }
}
