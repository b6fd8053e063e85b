//! Every subcommand on every store, as an operator would type it; and a client that is cut off from its store: its
//! command is dead before the lock can be granted to another.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use oarlock_testbed::{Etcd, MariaDb, MySql, Postgres, Proxy, Redis, ZooKeeper};
use rustix::process::Signal;
use serde_json::Value;

use super::job::Terminal;
use super::support::{Done, PATIENCE, Running, TestContext, finish, is_alive, subcommands};

/// A store, and what it cannot do.
struct StoreUnderTest<'a> {
    context: &'a TestContext,
    url: String,
    /// Whether a lock can outlive its process.
    tickets: bool,
    /// The subcommands that were used.
    used: RefCell<BTreeSet<String>>,
}

/// The names of the subcommands that the help lists.
fn names(context: &TestContext) -> BTreeSet<String> {
    subcommands(&finish(context.bare(["--help"])).out).into_iter().map(|(name, _)| name).collect()
}

impl<'a> StoreUnderTest<'a> {
    fn new(context: &'a TestContext, url: String, tickets: bool) -> Self {
        Self { context, url, tickets, used: RefCell::default() }
    }

    fn start(&self, args: &[&str]) -> Running {
        self.used.borrow_mut().insert(args[0].to_owned());
        let mut command = self.context.bare(args);
        command.env("OARLOCK_URL", &self.url).env("TMPDIR", self.context.dir.path()).stdin(Stdio::piped());
        Running::start(command)
    }

    fn run(&self, args: &[&str]) -> Done {
        self.start(args).finish()
    }

    fn expect(&self, args: &[&str], code: i32, out: &str) -> Done {
        let done = self.run(args);
        assert_eq!(done.code, Some(code), "{args:?} on {}: {done:?}", self.url);
        assert!(done.out.contains(out), "{args:?} on {}: {done:?}", self.url);
        done
    }

    /// What an operator does in a day, subcommand by subcommand.
    fn every_subcommand(&self) {
        self.expect(&["init"], 0, "");
        self.expect(&["url", "explain"], 0, "scheme");

        // run: the command's code is ours, and the lock is free after it.
        self.expect(&["run", "day/run", "-c", "echo $OARLOCK_NAME; exit 7"], 7, "day/run");
        self.expect(&["run", "-n", "day/run", "day/other", "--", "true"], 0, "");

        // once: a slot runs once, on whichever machine.
        self.expect(&["once", "day/once", "--slot", "2026-11-17", "--", "echo", "ran"], 0, "ran");
        let again = self.expect(&["once", "day/once", "--slot", "2026-11-17", "--", "echo", "ran"], 0, "");
        assert!(again.out.is_empty() && again.err.contains("done"), "{again:?}");
        self.expect(&["once", "day/once", "--show"], 0, "2026-11-17");
        self.expect(&["once", "day/once", "--forget", "2026-11-17", "--yes"], 0, "");
        self.expect(&["once", "day/once", "--slot", "2026-11-17", "--", "echo", "ran"], 0, "ran");

        // elect: the leader runs the command, and resigns with it.
        self.expect(&["elect", "day/elect", "--value", "me", "--", "echo", "leads"], 0, "leads");

        self.hand_over();

        // hold, ls, show, wait, break: who has it, and how to end that.
        // Every store tells the holder of a break within a third of its lease.
        let mut holder = self.start(&["hold", "day/held", "-t", "6s", "--reason", "lunch"]);
        let line = holder.line();
        let fence = line.split('\t').nth(1).expect("a fence").to_owned();
        self.expect(&["run", "-n", "day/held", "--", "true"], 75, "");
        self.expect(&["ls", "day/*"], 0, "day/held");
        let shown = self.expect(&["show", "day/held", "-o", "json"], 0, "lunch");
        let shown: Value = serde_json::from_str(&shown.out).unwrap();
        assert_eq!(shown["holders"][0]["fence"], fence.as_str(), "{shown}");
        self.expect(&["wait", "--held", "-w", "0", "day/held"], 0, "");
        self.expect(&["wait", "--free", "-w", "0", "day/held"], 75, "");
        self.top("day/held");
        let mut watch = self.start(&["watch", "day/held"]);
        assert!(watch.line().contains("present"), "{}", self.url);
        self.expect(&["break", "day/held", "--fence", &fence, "--yes", "--reason", "dinner"], 0, "");
        let ended = holder.finish();
        assert!(ended.code == Some(76) && ended.err.contains("dinner"), "who and why: {ended:?}");
        while !watch.line().contains("released") {}
        watch.signal(Signal::TERM);
        assert_eq!(watch.finish().code, Some(143));
        self.expect(&["wait", "--free", "-w", "5", "day/held"], 0, "");

        // acquire, renew, release: a lock that one process takes and another gives back.
        if self.tickets {
            let ticket = self.expect(&["acquire", "day/ticket", "-t", "1m"], 0, "").out;
            self.expect(&["renew", ticket.trim()], 0, "");
            self.expect(&["run", "-n", "day/ticket", "--", "true"], 75, "");
            self.expect(&["release", ticket.trim()], 0, "");
            self.expect(&["release", ticket.trim()], 76, "");
        } else {
            self.expect(&["acquire", "day/ticket", "-t", "1m"], 78, "");
            self.expect(&["renew", "no ticket"], 64, "");
            self.expect(&["release", "no ticket"], 64, "");
        }

        // doctor: the servers of tests do not wait for their disks, and are alone.
        let found = self.run(&["doctor"]);
        assert!(matches!(found.code, Some(0..=2)), "{found:?}");
        let verdict = ["is safe for locks", "has warnings", "is NOT safe for locks"][found.code.unwrap() as usize];
        assert!(found.out.contains(verdict), "{found:?}");

        // bench and demo: how fast, and why.
        self.expect(&["bench", "--only", "pair", "--duration", "100ms"], 0, "ACQUIRE + RELEASE");
        self.expect(&["demo", "oversell"], 0, "mutex");

        // serve: the same locks in a browser, and for programs.
        #[cfg(feature = "serve")]
        {
            let mut server = self.start(&["serve", "-o", "name", "--listen", "127.0.0.1:0"]);
            let page = server.line();
            let address = page.trim_start_matches("http://").trim_end_matches('/');
            let (status, locks) = super::serve::send(address, "GET", "/v1/locks", "");
            assert!(status == 200 && locks["locks"].is_array(), "{status} {locks}");
            server.signal(Signal::TERM);
            assert_eq!(server.wait().code(), Some(143));
        }

        // torture: nothing of an earlier run is left. A run takes its time: see the tests of torture.
        #[cfg(feature = "torture")]
        self.expect(&["torture", "clean"], 0, "");

        // completions, which ask the store for the names of locks, and man.
        self.expect(&["completions", "bash"], 0, "oarlock");
        self.expect(&["man", "run"], 0, ".TH");

        let missing: Vec<_> = names(self.context).difference(&self.used.borrow()).cloned().collect();
        assert!(missing.is_empty(), "not tried on {}: {missing:?}", self.url);
    }

    /// A leader that resigns is followed at once, long before its lease ends, and an observer sees both.
    fn hand_over(&self) {
        let lead = ["--", "sh", "-c", "echo leads; exec sleep 100"];
        let elect = |value: &str| self.start(&[&["elect", "day/boss", "--value", value], &lead[..]].concat());
        let mut first = elect("one");
        assert_eq!(first.line(), "leads", "{}", self.url);
        let mut observer = self.start(&["elect", "day/boss", "--observe", "-o", "json"]);
        let mut seen = || {
            let line = observer.line();
            let change: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
            change["leader"]["value"].clone()
        };
        assert_eq!(seen(), "one", "{}", self.url);
        let mut second = elect("two");
        let give_up = Instant::now() + PATIENCE;
        while !self.run(&["show", "day/boss"]).out.contains("waiters   1") {
            assert!(Instant::now() < give_up, "no candidate waits on {}", self.url);
        }
        let asked = Instant::now();
        first.signal(Signal::TERM);
        assert_eq!(second.line(), "leads", "{}", self.url);
        let took = asked.elapsed();
        println!("| hand-over | {} | {} ms |", self.url.split(':').next().unwrap_or_default(), took.as_millis());
        assert!(took < Duration::from_secs(10), "the lease is 30 s: {took:?} on {}", self.url);
        assert_eq!(first.finish().code, Some(143));
        // Between the two there may have been no leader for a moment.
        let next = seen();
        assert_eq!(if next.is_null() { seen() } else { next }, "two", "{}", self.url);
        second.signal(Signal::TERM);
        assert_eq!(second.finish().code, Some(143));
        assert!(seen().is_null(), "it resigned on {}", self.url);
        observer.signal(Signal::TERM);
        assert_eq!(observer.finish().code, Some(143));
    }

    /// What `top` shows on a terminal.
    fn top(&self, name: &str) {
        self.used.borrow_mut().insert("top".to_owned());
        let store = format!("OARLOCK_URL={}", self.url);
        let mut terminal = Terminal::with(self.context, &["env", &store, env!("CARGO_BIN_EXE_oarlock"), "top"]);
        terminal.expect(name);
        terminal.press("q");
    }

    /// "In a partition the old holder's child lived 90 s longer than the lock, so two ran at once" (consul 9788, 1843).
    fn cut_off(&self, server: SocketAddr) {
        let proxy = Proxy::start(server).unwrap();
        let behind = StoreUnderTest::new(self.context, proxy.url(&self.url, server), self.tickets);
        let script = "trap '' TERM; echo $$; while :; do sleep 0.02; done";
        let cases: [(&str, &[&str]); 3] = [
            ("run", &["run", "cut/run", "-t", "4s", "-k", "500ms", "-c", script]),
            ("once", &["once", "cut/once", "--slot", "7", "-t", "4s", "-k", "500ms", "-c", script]),
            ("elect", &["elect", "cut/elect", "-t", "4s", "-k", "500ms", "--", "sh", "-c", script]),
        ];
        let mut cut: Vec<_> = cases.iter().map(|(verb, args)| (*verb, behind.start(args))).collect();
        let pids: Vec<_> = cut.iter_mut().map(|(_, holder)| holder.line()).collect();
        // The witness is granted the lock as soon as the store allows that.
        let witness = |(verb, pid): (&str, &String)| {
            let look = format!("kill -0 {pid} 2>&- && echo alive; date +%s%3N");
            self.start(&["run", &format!("cut/{verb}"), "-c", &look])
        };
        let mut rivals: Vec<_> = cut.iter().map(|(verb, _)| *verb).zip(&pids).map(witness).collect();
        let give_up = Instant::now() + PATIENCE;
        while !cut.iter().all(|(verb, _)| self.run(&["show", &format!("cut/{verb}")]).out.contains("waiters   1")) {
            assert!(Instant::now() < give_up, "no rival waits on {}", self.url);
        }
        proxy.cut();
        let silent = millis();
        let deaths: Vec<_> = pids.into_iter().map(|pid| std::thread::spawn(move || death_of(&pid))).collect();
        for (((verb, holder), rival), death) in cut.into_iter().zip(&mut rivals).zip(deaths) {
            let (seen, death) = (rival.line(), death.join().unwrap());
            let granted: u64 = seen.parse().unwrap_or_else(|_| panic!("{verb} on {}: {seen}", self.url));
            let (url, lived, margin) = (&self.url, death - silent, granted.saturating_sub(death));
            // A row of the table in docs/measurements/cli.md.
            let store = url.split(':').next().unwrap_or_default();
            println!("| `{verb}` | {store} | {lived} | {margin} |");
            assert!(margin > 0, "{verb} on {url}: died at {death}, granted to another at {granted}");
            if verb != "elect" {
                let done = holder.finish();
                assert_eq!(done.code, Some(76), "{verb} on {url}: {done:?}");
                assert!(done.err.contains("lost: \"cut/"), "{verb} on {url}: {done:?}");
            }
        }
    }
}

fn millis() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

fn death_of(pid: &str) -> u64 {
    let give_up = Instant::now() + PATIENCE;
    while is_alive(pid) {
        assert!(Instant::now() < give_up, "{pid} is still alive");
        std::thread::sleep(Duration::from_millis(1));
    }
    millis()
}

/// A command that is ended with its lock has `--kill-after`. Each of them is cut off above.
#[test]
fn every_subcommand_that_runs_a_command_is_cut_off() {
    let context = TestContext::new();
    let ends_a_command = |name: &String| finish(context.bare(["help", name])).out.contains("--kill-after");
    let found: Vec<_> = names(&context).into_iter().filter(ends_a_command).collect();
    assert_eq!(found, ["elect", "once", "run"]);
}

/// The embedded store has no network that could be cut: its own tests stop the process instead.
#[test]
fn local() {
    let context = TestContext::new();
    StoreUnderTest::new(&context, context.url(), true).every_subcommand();
}

macro_rules! on {
    ($($name:ident: $server:ident, tickets $tickets:literal;)+) => {$(
        #[test]
        fn $name() {
            let context = TestContext::new();
            let Some(server) = $server::start_or_skip().unwrap() else { return };
            let store = StoreUnderTest::new(&context, server.url(), $tickets);
            store.every_subcommand();
            store.cut_off(server.addr());
        }
    )+};
}

on! {
    redis: Redis, tickets true;
    etcd: Etcd, tickets true;
    zookeeper: ZooKeeper, tickets false;
    postgres: Postgres, tickets true;
    mariadb: MariaDb, tickets true;
    mysql: MySql, tickets true;
}
