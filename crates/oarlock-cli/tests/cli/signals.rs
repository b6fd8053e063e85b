//! Signals before, while and after.

use rustix::process::Signal;

use super::support::{Running, TestContext};

/// "TERM is not passed on" (consul 797, 3754, 4643); "HUP and QUIT orphan the child" (consul 2489, 1210).
#[test]
fn signals_are_passed_on_to_the_group() {
    let context = TestContext::new();
    let names = [
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::TERM, "TERM"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
    ];
    let traps: Vec<String> = names.iter().map(|(_, name)| format!("trap 'echo {name}' {name}")).collect();
    let script = format!("{}; trap 'exit 9' ALRM; echo $$; while :; do sleep 0.02; done", traps.join("; "));
    let mut running = Running::start(context.oarlock(["run", "x", "-c", &script]));
    let pid = running.line();
    for (signal, name) in names {
        running.signal(signal);
        assert_eq!(running.line(), name);
    }
    let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::ALARM).unwrap();
    assert_eq!(running.finish().code, Some(9));
}

#[test]
fn a_command_that_dies_of_the_signal_says_so() {
    let context = TestContext::new();
    let mut running = Running::start(context.oarlock(["run", "x", "-c", "echo up; exec sleep 100"]));
    running.line();
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code, Some(128 + 15));
    assert_eq!(context.show("x")["holders"].as_array().unwrap().len(), 0);
}

/// "Ctrl-C is ignored while waiting" (consul 4439).
#[test]
fn a_stop_while_waiting_leaves_nothing_behind() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129), (Signal::QUIT, 131)] {
        let context = TestContext::new();
        let holder = context.hold(&["x"]);
        let marker = context.path("ran");
        let waiter = Running::start(context.oarlock(["run", "x", "--", "touch", &marker]));
        context.await_waiters("x", 1);
        waiter.signal(signal);
        assert_eq!(waiter.finish().code, Some(code));
        assert_eq!(context.show("x")["waiting"], 0, "gone when it has ended, not later");
        assert_eq!(holder.finish().code, Some(0));
        assert_eq!(context.code(&["run", "-n", "x", "--", "true"]), 0);
        assert!(!std::fs::exists(marker).unwrap());
    }
}

#[test]
fn other_signals_do_not_end_a_wait() {
    let context = TestContext::new();
    let holder = context.hold(&["x"]);
    let waiter = Running::start(context.oarlock(["run", "x", "--", "true"]));
    context.await_waiters("x", 1);
    for signal in [Signal::USR1, Signal::USR2, Signal::WINCH] {
        waiter.signal(signal);
    }
    assert_eq!(holder.finish().code, Some(0));
    assert_eq!(waiter.finish().code, Some(0));
}

/// "The child is started after the shutdown was asked for" (consul 1155, 800).
#[test]
fn no_command_is_started_after_a_stop_was_asked_for() {
    let context = TestContext::new();
    let marker = context.path("ran");
    for _ in 0..5 {
        let holder = context.hold(&["x"]);
        let waiter = Running::start(context.oarlock(["run", "x", "--", "touch", &marker]));
        context.await_waiters("x", 1);
        // Both happen while it cannot look: the stop must win.
        waiter.signal(Signal::STOP);
        waiter.signal(Signal::TERM);
        assert_eq!(holder.finish().code, Some(0));
        waiter.signal(Signal::CONT);
        assert_eq!(waiter.finish().code, Some(143));
        assert!(!std::fs::exists(&marker).unwrap());
        assert_eq!(context.show("x")["holders"].as_array().unwrap().len(), 0);
    }
}

#[test]
fn hold_ends_with_a_signal_or_its_input() {
    let context = TestContext::new();
    let holder = context.hold(&["x"]);
    holder.signal(Signal::TERM);
    assert_eq!(holder.finish().code, Some(0));
    let mut holder = context.hold(&["x"]);
    holder.end_input();
    let done = holder.finish();
    assert_eq!(done.code, Some(0));
    assert!(done.err.contains("holding \"x\", fence "), "{done:?}");
    assert_eq!(context.code(&["run", "-n", "x", "--", "true"]), 0);
    // The end of /dev/null means nothing.
    let mut holder = Running::start(context.oarlock(["hold", "x", "-o", "name"]));
    assert_eq!(holder.line(), "x");
    assert_eq!(context.code(&["run", "-n", "x", "--", "true"]), 75);
    assert!(holder.is_running());
    holder.signal(Signal::INT);
    assert_eq!(holder.finish().code, Some(0));
}
