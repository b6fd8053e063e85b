//! `top` on a real terminal, with ten thousand locks.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use oarlock_testbed::{Redis, plain};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use super::support::{PATIENCE, TestContext};

/// What a terminal shows: text at positions. Colours are not kept, only counted.
struct Screen {
    master: File,
    /// Open, so that its settings can be read after the end.
    slave: File,
    child: Child,
    output: Receiver<Vec<u8>>,
    raw: Vec<u8>,
    lines: Vec<Vec<char>>,
    row: usize,
    column: usize,
    colours: usize,
}

impl Screen {
    fn start(mut command: Command, (columns, rows): (u16, u16)) -> Self {
        let master: OwnedFd = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        rustix::pty::grantpt(&master).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        tcsetwinsize(&master, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let name = rustix::pty::ptsname(&master, Vec::new()).unwrap();
        let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let end = || slave.try_clone().unwrap();
        let child = command.env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let master = File::from(master);
        let mut reader = master.try_clone().unwrap();
        let (bytes, output) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 65536];
            while let Ok(count) = reader.read(&mut buffer) {
                if count == 0 || bytes.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        let lines = vec![Vec::new(); 200];
        Self { master, slave, child, output, raw: Vec::new(), lines, row: 0, column: 0, colours: 0 }
    }

    fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.master, size).unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn line(&self, row: usize) -> String {
        self.lines[row].iter().collect::<String>().trim_end().to_owned()
    }

    /// Waits until the screen is as wanted; how long that took.
    #[track_caller]
    fn until(&mut self, what: &str, wanted: impl Fn(&Self) -> bool) -> Duration {
        let begun = Instant::now();
        while !wanted(self) {
            let left = PATIENCE.saturating_sub(begun.elapsed());
            match self.output.recv_timeout(left) {
                Ok(bytes) => self.show(&bytes),
                Err(_) => {
                    let shown: Vec<_> = (0..24).map(|row| self.line(row)).collect();
                    panic!("{what}: {shown:#?}");
                }
            }
        }
        begun.elapsed()
    }

    /// Obeys the few sequences that are used: the cursor is moved, the screen is cleared.
    fn show(&mut self, bytes: &[u8]) {
        self.raw.extend_from_slice(bytes);
        let raw = std::mem::take(&mut self.raw);
        // A character or a sequence may be cut in two: what is left is read again with what follows.
        let text = match std::str::from_utf8(&raw) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&raw[..error.valid_up_to()]).unwrap(),
        };
        let mut rest = text;
        while let Some(next) = rest.chars().next() {
            if next != '\x1b' {
                self.put(next);
                rest = &rest[next.len_utf8()..];
                continue;
            }
            let Some(end) = rest[1..].find(|c: char| c.is_ascii_alphabetic()) else { break };
            self.obey(&rest[1..end + 2]);
            rest = &rest[end + 2..];
        }
        let read = text.len() - rest.len();
        self.raw = raw[read..].to_vec();
    }

    fn obey(&mut self, sequence: &str) {
        let numbers = sequence.trim_start_matches(['[', '?']).trim_end_matches(|c: char| c.is_ascii_alphabetic());
        match sequence.chars().last() {
            Some('H') => {
                let mut numbers = numbers.split(';').map(|number| number.parse().unwrap_or(1_usize));
                (self.row, self.column) = (numbers.next().unwrap_or(1) - 1, numbers.next().unwrap_or(1) - 1);
            }
            Some('J') => self.lines.iter_mut().for_each(Vec::clear),
            Some('m') if numbers.split(';').any(|n| matches!(n.parse(), Ok(30..=37 | 38 | 90..=97))) => {
                self.colours += 1;
            }
            _ => {}
        }
    }

    fn put(&mut self, letter: char) {
        let line = &mut self.lines[self.row.min(199)];
        if line.len() <= self.column {
            line.resize(self.column + 1, ' ');
        }
        line[self.column] = letter;
        self.column += 1;
    }

    /// Waits for its end: the exit code. The terminal is as it was.
    fn end(&mut self) -> i32 {
        let give_up = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < give_up, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        let modes = tcgetattr(&self.slave).unwrap().local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO), "the terminal is still raw");
        status.code().unwrap_or(-1)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `top` in a session of its own, whose terminal is the one that it is given.
fn top(url: &str) -> Command {
    let mut command = plain("setsid");
    // It becomes `top` without a fork: it leads no process group.
    command.args(["--ctty", env!("CARGO_BIN_EXE_oarlock"), "top", "--grace", "0"]).env("OARLOCK_URL", url);
    command.env_remove("NO_COLOR");
    command
}

const LOCKS: usize = 10_000;

/// Holds them all, and returns what keeps them.
fn hold(runtime: &tokio::runtime::Runtime, url: &str) -> oarlock::Locks {
    runtime.block_on(async {
        let locks = oarlock::builder(url).ttl(Duration::from_secs(120)).connect().await.unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for worker in 0..50 {
            let locks = locks.clone();
            tasks.spawn(async move {
                for number in (worker..LOCKS).step_by(50) {
                    let guard = locks.mutex(format!("lock-{number:05}")).lock().await.unwrap();
                    std::mem::forget(guard);
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        locks
    })
}

#[test]
fn ten_thousand_locks_on_a_terminal() {
    let Some(server) = Redis::start_or_skip().unwrap() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let locks = hold(&runtime, &server.url());
    let mut screen = Screen::start(top(&server.url()), (80, 24));
    let first = screen.until("all locks", |screen| screen.line(0).starts_with("10000 locks, 0 waited for"));
    screen.until("the first page", |screen| screen.line(2).starts_with("lock-00000 "));
    assert!(screen.colours > 0, "it has colours");
    assert!(screen.line(2).contains('█'), "{}", screen.line(2));
    let mut slowest = Duration::ZERO;
    for (key, row, name) in
        [("G", 22, "lock-09999"), ("g", 2, "lock-00000"), ("\x1b[6~", 22, "lock-0003"), ("G", 22, "lock-09999")]
    {
        screen.press(key);
        slowest = slowest.max(screen.until(name, |screen| screen.line(row).starts_with(name)));
    }
    println!("first page after {first:?}, slowest key {slowest:?}");
    // Far more than it takes on a machine that does other things: a frame that looked at every lock, or a key that
    // waited for the store, would be slower than a person's patience, not than this by a little.
    assert!(slowest < Duration::from_secs(5), "a key was obeyed after {slowest:?}");
    // The picture in docs/cli.md.
    (0..24).for_each(|row| println!("{}", screen.line(row)));

    screen.press("/lock-04242\r");
    screen.until("the filter", |screen| {
        screen.line(0).starts_with("1 locks") && screen.line(2).starts_with("lock-04242")
    });
    screen.resize(300, 80);
    screen.until("the larger screen", |screen| screen.line(79).starts_with("q quit"));
    screen.until("the wider bar", |screen| screen.line(2).contains(&"█".repeat(15)));

    screen.press("b");
    screen.until("the question", |screen| screen.line(79).starts_with("end the hold of \"lock-04242\""));
    screen.press("y");
    screen.until("the end", |screen| screen.line(0).starts_with("0 locks"));
    let state = runtime.block_on(locks.inspect("lock-04242")).unwrap();
    assert!(state.holders.is_empty(), "it is still held: {state:?}");
    screen.press("q");
    assert_eq!(screen.end(), 0);
}

/// A stopped process finds both when it goes on.
#[test]
fn a_key_that_comes_with_a_new_size_is_obeyed() {
    let context = TestContext::new();
    let _holder = context.hold(&["deploy/prod"]);
    let mut screen = Screen::start(top(&context.url()), (80, 24));
    screen.until("the lock", |screen| screen.line(2).starts_with("deploy/prod"));
    for round in 0..10 {
        screen.signal(Signal::STOP);
        let rows = 30 + round % 2;
        screen.resize(100, rows);
        screen.press("?");
        screen.signal(Signal::CONT);
        screen.until("the help", |screen| {
            screen.lines.iter().any(|line| line.iter().collect::<String>().contains("reverse the order"))
        });
        screen.press("q");
        screen.until("the list", |screen| screen.line(2).starts_with("deploy/prod"));
    }
    screen.press("q");
    assert_eq!(screen.end(), 0);
}

#[test]
fn a_signal_gives_the_terminal_back_and_no_color_is_obeyed() {
    let context = TestContext::new();
    let _holder = context.hold(&["deploy/prod"]);
    let mut command = top(&context.url());
    command.env("NO_COLOR", "1");
    let mut screen = Screen::start(command, (80, 24));
    screen.until("the lock", |screen| screen.line(2).starts_with("deploy/prod"));
    screen.press("\r");
    screen.until("the open lock", |screen| screen.line(2).contains("holds  "));
    screen.until("its head", |screen| screen.line(1).starts_with("deploy/prod: 1 hold, 0 wait"));
    assert_eq!(screen.colours, 0, "it has colours");
    screen.signal(Signal::TERM);
    assert_eq!(screen.end(), 143);
}

#[test]
fn without_a_terminal_it_says_what_to_use() {
    let context = TestContext::new();
    let done = context.run(&["top"]);
    assert_eq!(done.code, Some(64), "{done:?}");
    assert!(done.err.contains("use ls or watch"), "{done:?}");
}
