//! A store of its own for each test, and processes that cannot outlive it or hang it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use oarlock_testbed::plain;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use tempfile::TempDir;

/// Longer than anything here takes, even on a machine that does other things.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

pub(super) struct TestContext {
    pub(super) dir: TempDir,
}

/// What became of a process.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) code: Option<i32>,
    pub(super) out: String,
    pub(super) err: String,
}

impl TestContext {
    pub(super) fn new() -> Self {
        Self { dir: TempDir::new().unwrap() }
    }

    pub(super) fn url(&self) -> String {
        format!("local:{}/store", self.dir.path().display())
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// The program with these arguments on this test's store. In a session of its own: the terminal of the person that
    /// runs the tests would make two processes of it.
    pub(super) fn oarlock(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = self.bare(args);
        command.env("OARLOCK_URL", self.url());
        command
    }

    /// The same, without a store.
    pub(super) fn bare(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = self.session(env!("CARGO_BIN_EXE_oarlock"));
        command.args(args);
        command
    }

    /// Any program in a session of its own, without a store, as from a fresh shell.
    pub(super) fn session(&self, program: &str) -> Command {
        let mut command = plain("setsid");
        command.arg(program).stdin(Stdio::null());
        command.env_remove("OARLOCK_URL").env_remove("OARLOCK_LOCKS").env("HOME", self.dir.path());
        command.env_remove("XDG_STATE_HOME").env_remove("XDG_CONFIG_HOME").env_remove("OARLOCK_PROFILE");
        command
    }

    /// A shell that runs this script on this test's store, in a session of its own.
    pub(super) fn shell(&self, script: &str) -> Command {
        let mut command = self.session("sh");
        command.args(["-c", script]).env("OARLOCK_URL", self.url());
        command
    }

    /// Runs it to its end.
    pub(super) fn run(&self, args: &[&str]) -> Done {
        finish(self.oarlock(args))
    }

    pub(super) fn code(&self, args: &[&str]) -> i32 {
        let done = self.run(args);
        done.code.unwrap_or_else(|| panic!("{args:?}: {done:?}"))
    }

    /// A holder of `name`, with its fence.
    pub(super) fn hold(&self, args: &[&str]) -> Running {
        let mut command = self.oarlock(["hold"]);
        command.args(args).stdin(Stdio::piped());
        let mut holder = Running::start(command);
        let line = holder.line();
        holder.fence = line.split('\t').nth(1).and_then(|fence| fence.parse().ok()).expect("a fence");
        holder
    }

    /// What the store shows of `name`.
    pub(super) fn show(&self, name: &str) -> Value {
        let done = self.run(&["show", name, "-o", "json"]);
        serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}"))
    }

    /// Waits until the store shows what is wanted of `name`.
    pub(super) fn await_state(&self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let state = self.show(name);
            if wanted(&state) {
                return state;
            }
            assert!(Instant::now() < give_up, "{state:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(super) fn await_waiters(&self, name: &str, count: u64) {
        self.await_state(name, |state| state["waiting"] == count);
    }
}

/// The subcommands that a help text lists, each with what it does, in its order.
pub(super) fn subcommands(help: &str) -> Vec<(String, String)> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let mut found: Vec<(String, String)> = Vec::new();
    for line in listed.map(|line| line.strip_prefix("  ").expect("each is indented")) {
        match (line.split_once(' ').filter(|(name, _)| !name.is_empty()), found.last_mut()) {
            (Some((name, about)), _) => found.push((name.to_owned(), about.trim().to_owned())),
            // A description that goes on in the next line is indented further.
            (None, Some((_, about))) => *about = format!("{about} {}", line.trim()),
            (None, None) => panic!("no name: {line}"),
        }
    }
    found.retain(|(name, _)| name != "help");
    found
}

pub(super) fn finish(command: Command) -> Done {
    Running::start(command).finish()
}

/// A process whose output can be awaited. It is killed when the test is over.
pub(super) struct Running {
    child: Child,
    pub(super) input: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: Option<std::thread::JoinHandle<String>>,
    pub(super) fence: u64,
}

impl Running {
    pub(super) fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let (line, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for text in out.lines().map_while(Result::ok) {
                if line.send(text).is_err() {
                    return;
                }
            }
        });
        let mut err = child.stderr.take().unwrap();
        let errors = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = err.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let input = child.stdin.take();
        Self { child, input, lines, errors: Some(errors), fence: 0 }
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed()).unwrap()
    }

    pub(super) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    /// Waits until it handles a signal: one that comes before would just end it.
    pub(super) fn await_handler(&self, signal: Signal) {
        let file = format!("/proc/{}/status", self.child.id());
        let give_up = Instant::now() + PATIENCE;
        loop {
            let status = std::fs::read_to_string(&file).unwrap();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("the signals it handles");
            if u64::from_str_radix(caught.trim(), 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1 {
                return;
            }
            assert!(Instant::now() < give_up, "it handles no {signal:?}: {status}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The next line of its standard output.
    pub(super) fn line(&mut self) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("no line in time"),
            Err(RecvTimeoutError::Disconnected) => panic!("no line: {}", self.errors.take().unwrap().join().unwrap()),
        }
    }

    pub(super) fn say(&mut self, text: &str) {
        self.input.as_mut().expect("it has an input").write_all(text.as_bytes()).unwrap();
    }

    pub(super) fn end_input(&mut self) {
        self.input = None;
    }

    pub(super) fn wait(&mut self) -> ExitStatus {
        self.wait_within(PATIENCE)
    }

    fn wait_within(&mut self, bound: Duration) -> ExitStatus {
        let give_up = Instant::now() + bound;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < give_up, "it did not end in time");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(super) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(super) fn finish(self) -> Done {
        self.finish_within(PATIENCE)
    }

    /// The same for what takes longer than everything else here.
    pub(super) fn finish_within(mut self, bound: Duration) -> Done {
        self.end_input();
        let status = self.wait_within(bound);
        let mut out = String::new();
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            out.push_str(&line);
            out.push('\n');
        }
        let err = self.errors.take().unwrap().join().unwrap();
        Done { code: status.code(), out, err }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a process is there and not a zombie.
pub(super) fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

pub(super) fn await_death(pid: &str) {
    let give_up = Instant::now() + PATIENCE;
    while is_alive(pid) {
        assert!(Instant::now() < give_up, "{pid} is still alive");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The processes that `pid` started.
pub(super) fn children(pid: &str) -> Vec<String> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    std::fs::read_to_string(path).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// Waits until `is` says so.
pub(super) fn await_true(what: &str, mut is: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < give_up, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
