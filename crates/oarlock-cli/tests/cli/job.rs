//! Job control, on a real terminal with a real shell.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use oarlock_testbed::plain;
use rustix::pty::OpenptFlags;

use super::support::{PATIENCE, TestContext};

/// A shell on a terminal of its own.
pub(super) struct Terminal {
    master: File,
    shell: Child,
    output: Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    fn open(context: &TestContext) -> Self {
        let mut terminal = Self::with(context, &["bash", "--norc", "--noprofile", "-i"]);
        terminal.expect("ready> ");
        terminal
    }

    /// A terminal whose session is led by this command.
    pub(super) fn with(context: &TestContext, command: &[&str]) -> Self {
        let master: OwnedFd = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        rustix::pty::grantpt(&master).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        let size = rustix::termios::Winsize { ws_row: 24, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&master, size).unwrap();
        let name = rustix::pty::ptsname(&master, Vec::new()).unwrap();
        let slave = || File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let shell = plain("setsid")
            .arg("--ctty")
            .args(command)
            .env("PS1", "ready> ")
            .env("OARLOCK_URL", context.url())
            .env("oarlock", env!("CARGO_BIN_EXE_oarlock"))
            .env("TERM", "xterm")
            .env_remove("PROMPT_COMMAND")
            .stdin(slave())
            .stdout(slave())
            .stderr(slave())
            .spawn()
            .unwrap();
        let master = File::from(master);
        let mut reader = master.try_clone().unwrap();
        let (bytes, output) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count) = reader.read(&mut buffer) {
                if count == 0 || bytes.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { master, shell, output, seen: String::new() }
    }

    pub(super) fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for `text` on the screen, and forgets what stands before it.
    pub(super) fn expect(&mut self, text: &str) {
        let give_up = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.seen.find(text) {
                self.seen.drain(..at + text.len());
                return;
            }
            let left = give_up.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("{text:?} did not come; there is {:?}", self.seen),
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

#[test]
fn a_stopped_job_keeps_its_lock_and_goes_on() {
    keeps_its_lock_and_goes_on("run");
}

#[test]
fn a_stopped_leader_keeps_its_lock_and_goes_on() {
    keeps_its_lock_and_goes_on("elect");
}

fn keeps_its_lock_and_goes_on(subcommand: &str) {
    let context = TestContext::new();
    let mut terminal = Terminal::open(&context);
    terminal.press(&format!("$oarlock {subcommand} x -t 3s -- sh -c 'echo u''p; cat; echo b''ye'\n"));
    terminal.expect("up");
    // Not while the shell starts it: some shells hang when they are stopped right then.
    terminal.press("here\n");
    terminal.expect("here");
    terminal.expect("here");
    terminal.press("\x1a");
    terminal.expect("Stopped");
    terminal.expect("ready> ");
    assert_eq!(context.code(&["run", "-w", "5", "x", "--", "true"]), 75, "longer than its lease");
    terminal.press("fg\n");
    terminal.expect(&format!("oarlock {subcommand}"));
    // Once as typed, once by the command, which has the terminal again.
    terminal.press("hello\n");
    terminal.expect("hello");
    terminal.expect("hello");
    terminal.press("\x04");
    terminal.expect("bye");
    terminal.expect("ready> ");
    terminal.press("echo rc=$?.\n");
    terminal.expect("rc=0.");
    assert_eq!(context.code(&["run", "-n", "x", "--", "true"]), 0);
}

#[test]
fn interrupts_reach_the_command_and_the_terminal_comes_back() {
    let context = TestContext::new();
    let mut terminal = Terminal::open(&context);
    terminal.press("$oarlock run x -- sh -c 'echo u''p; exec sleep 100'; echo rc=$?.\n");
    terminal.expect("up");
    terminal.press("\x03");
    // The shell that ran us drops the rest of the line when its job dies of an interrupt; ours ended with a code.
    terminal.expect("rc=130.");
    terminal.expect("ready> ");
    // In a script the terminal must be the script's again.
    terminal.press("sh -c '$oarlock run x -- true; read a; echo got $a.'\n");
    terminal.press("this\n");
    terminal.expect("got this.");
}

#[test]
fn a_wait_can_be_interrupted_and_stopped() {
    let context = TestContext::new();
    let mut terminal = Terminal::open(&context);
    let holder = context.hold(&["x"]);
    terminal.press("$oarlock run x -- true; echo rc=$?.\n");
    context.await_waiters("x", 1);
    terminal.expect("waiting: \"x\" is held by ");
    terminal.press("\x03");
    terminal.expect("rc=130.");
    assert_eq!(context.show("x")["waiting"], 0);
    terminal.expect("ready> ");

    terminal.press("$oarlock run x -- sh -c 'echo u''p'\n");
    context.await_waiters("x", 1);
    terminal.press("\x1a");
    terminal.expect("Stopped");
    terminal.expect("ready> ");
    assert_eq!(context.show("x")["waiting"], 1, "it keeps its place");
    assert_eq!(holder.finish().code, Some(0));
    context.await_state("x", |state| state["holders"].as_array().unwrap().len() == 1);
    terminal.press("echo not y''et\n");
    terminal.expect("not yet");
    assert!(!terminal.seen.contains("up"), "no command is started while the job is stopped");
    terminal.press("fg\n");
    terminal.expect("up");
    terminal.expect("ready> ");
}

#[test]
fn killing_what_the_shell_sees_kills_the_command() {
    let context = TestContext::new();
    let mut terminal = Terminal::open(&context);
    terminal.press("$oarlock run x -- sh -c 'echo pi''d=$$.; exec sleep 100' &\n");
    terminal.expect("pid=");
    terminal.expect(".");
    terminal.press("kill -9 %1; wait %1\n");
    terminal.expect("Killed");
    assert_eq!(context.code(&["run", "-w", "20", "x", "--", "true"]), 0);
}

#[test]
fn a_job_without_a_shell_to_continue_it_is_not_stopped() {
    let context = TestContext::new();
    let script = "echo up; kill -STOP $$; echo on";
    let mut terminal = Terminal::with(&context, &[env!("CARGO_BIN_EXE_oarlock"), "run", "x", "-c", script]);
    terminal.expect("up");
    terminal.expect("on");
    assert_eq!(terminal.shell.wait().unwrap().code(), Some(0));
}

#[test]
fn break_asks_on_a_terminal() {
    let context = TestContext::new();
    let mut terminal = Terminal::open(&context);
    let holder = context.hold(&["x"]);
    let ask = format!("$oarlock break x --fence {}; echo rc=$?.\n", holder.fence);
    terminal.press(&ask);
    terminal.expect("End that? [y/N] ");
    terminal.press("n\n");
    terminal.expect("nothing was done");
    terminal.expect("rc=0.");
    assert_eq!(context.code(&["run", "-n", "x", "--", "true"]), 75);
    terminal.press(&ask);
    terminal.expect("End that? [y/N] ");
    terminal.press("y\n");
    terminal.expect("released \"");
    terminal.expect("rc=0.");
    assert_eq!(holder.finish().code, Some(76));
}

/// Whatever takes longer than a second says on a terminal what it does.
#[test]
fn long_work_says_what_it_does() {
    let context = TestContext::new();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = silent.local_addr().unwrap();
    let (redis, postgres) = (format!("redis://{addr}"), format!("postgres://ada@{addr}/locks"));
    let cases: [(&[&str], &str, &str); 4] = [
        (&["doctor"], &redis, "asking the servers of redis://"),
        (&["init"], &postgres, "creating what locks need in postgres://"),
        (&["bench", "--only", "pair"], &redis, "connecting to redis://"),
        (&["demo", "oversell"], &postgres, "making tables in postgres://"),
    ];
    for (args, url, words) in cases {
        let store = format!("OARLOCK_URL={url}");
        let command = [&["env", &store, env!("CARGO_BIN_EXE_oarlock")], args].concat();
        Terminal::with(&context, &command).expect(words);
    }
    // A bar that says how long it will take.
    let args = ["bench", "--only", "pair", "--duration", "2s"];
    Terminal::with(&context, &[&[env!("CARGO_BIN_EXE_oarlock")], &args[..]].concat()).expect(" left");
}
