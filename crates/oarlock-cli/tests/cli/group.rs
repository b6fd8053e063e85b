//! The command's process group.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::support::{Running, TestContext, await_death, await_true, is_alive};

#[test]
fn the_command_leads_a_group_of_its_own() {
    let context = TestContext::new();
    let done = context.run(&["run", "x", "-c", "ps -o pgid= -p $$; echo $$; ps -o pgid= -p $PPID"]);
    let lines: Vec<_> = done.out.lines().map(str::trim).collect();
    assert_eq!(lines[0], lines[1], "{done:?}");
    assert_ne!(lines[0], lines[2], "{done:?}");
}

/// "A lock taken through docker exec is renewed for ever after Ctrl-C" (etcd 10117).
#[test]
fn killing_us_kills_the_command() {
    let context = TestContext::new();
    let mut running = Running::start(context.oarlock(["run", "x", "-c", "echo $$; exec sleep 100"]));
    let pid = running.line();
    running.signal(Signal::KILL);
    await_death(&pid);
    assert_eq!(context.code(&["run", "-w", "20", "x", "--", "true"]), 0, "and the lock is free");
}

/// The same when the terminal is closed, as when an ssh connection ends or its window is closed (etcd 10117). `script`
/// owns the terminal, which is closed when it dies.
#[test]
fn closing_the_terminal_ends_the_command_and_releases_the_lock() {
    let context = TestContext::new();
    let report = context.path("report");
    let run = format!(
        "exec {} run x -t 1h --report {report} -c 'echo pid $$; exec sleep 100'",
        env!("CARGO_BIN_EXE_oarlock")
    );
    let mut command = context.session("script");
    command.args(["-qfc", &run, "/dev/null"]).env("OARLOCK_URL", context.url()).stdin(Stdio::piped());
    let mut terminal = Running::start(command);
    let line = terminal.line();
    let pid = line.trim().strip_prefix("pid ").unwrap_or_else(|| panic!("{line}")).to_owned();
    assert_eq!(context.code(&["run", "-n", "x", "--", "true"]), 75);
    terminal.signal(Signal::KILL);
    await_death(&pid);
    assert_eq!(context.code(&["run", "-w", "20", "x", "--", "true"]), 0, "long before its lease of an hour");
    // Released by us, not by the death of a process: the report is written after that.
    let mut written = String::new();
    await_true("the report", || {
        written = std::fs::read_to_string(&report).unwrap_or_default();
        !written.is_empty()
    });
    let report: Value = serde_json::from_str(&written).unwrap();
    assert_eq!(report["child_status"]["signal"], 1, "{report:#}");
}

/// "Running under a shell leaks grandchildren" (consul 2090).
#[test]
fn what_is_left_of_the_group_is_ended_before_the_lock() {
    let context = TestContext::new();
    let mut running = Running::start(context.oarlock(["run", "x", "-c", "sleep 100 & echo $!; exit 4"]));
    let pid = running.line();
    assert_eq!(running.wait().code(), Some(4), "the command's code stands");
    assert!(!is_alive(&pid));
}

#[test]
fn orphans_of_the_command_do_not_stay_as_zombies() {
    let context = TestContext::new();
    let script = "for i in $(seq 20); do (sleep 0.05 &); done; sleep 0.5; ps --ppid $PPID -o stat= | grep -c Z; exit 3";
    let done = context.run(&["run", "z", "--", "bash", "-c", script]);
    assert_eq!((done.code, done.out.as_str()), (Some(3), "0\n"), "{done:?}");
}

/// "The grace is fixed at 5 s" (consul 984).
#[test]
fn what_does_not_heed_term_is_killed() {
    let context = TestContext::new();
    let script = "sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.1; done' & wait $! & sleep 0.3; exit 0";
    let started = Instant::now();
    let mut running = Running::start(context.oarlock(["run", "-k", "700ms", "x", "-c", script]));
    let pid = running.line();
    assert_eq!(running.wait().code(), Some(0));
    assert!(!is_alive(&pid));
    assert!(started.elapsed() >= Duration::from_millis(700), "it had its time");
}

#[test]
fn signals_ignored_by_our_parent_stay_ignored() {
    let context = TestContext::new();
    let this = env!("CARGO_BIN_EXE_oarlock");
    let script = format!("trap '' HUP; exec {this} run x -- sh -c 'echo up; cat >/dev/null'");
    let mut command = context.shell(&script);
    command.stdin(std::process::Stdio::piped());
    let mut running = Running::start(command);
    assert_eq!(running.line(), "up");
    running.signal(Signal::HUP);
    running.end_input();
    assert_eq!(running.finish().code, Some(0));
}
