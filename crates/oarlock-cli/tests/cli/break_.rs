//! Ending the hold of another process.

use super::support::{Running, TestContext};

/// "Add an unlock command" (tarmak 509, etcd 2855).
#[test]
fn the_holder_is_asked_first() {
    let context = TestContext::new();
    let script = "trap 'echo asked; exit 0' TERM; echo $OARLOCK_FENCE; while :; do sleep 0.02; done";
    let report = context.path("report");
    let mut holder = Running::start(context.oarlock(["run", "--report", &report, "x", "-c", script]));
    let fence = holder.line();
    let done = context.run(&["break", "x", "--fence", &fence, "--grace", "20s", "--reason", "urgent", "--yes"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.err.contains("released \"x\"") && !done.err.contains("made to"), "{done:?}");
    assert_eq!(holder.line(), "asked");
    let holder = holder.finish();
    assert_eq!(holder.code, Some(76), "{holder:?}");
    let lost = holder.err.lines().find(|line| line.starts_with("lost:")).unwrap_or_else(|| panic!("{holder:?}"));
    assert!(lost.contains("asked for its end: \"urgent\""), "who asked, and why: {lost}");
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap();
    assert_eq!((&report["lost_because"]["cause"], &report["lost_because"]["why"]), (&"asked".into(), &"urgent".into()));
    assert!(report["lost_because"]["by"].as_str().is_some_and(|by| by.contains("(pid ")), "{report}");
}

#[test]
fn a_holder_that_does_not_answer_is_made_to() {
    let context = TestContext::new();
    let holder = context.hold(&["x"]);
    holder.signal(rustix::process::Signal::STOP);
    let done = context.run(&["break", "x", "--fence", &holder.fence.to_string(), "--grace", "300ms", "--yes"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.err.contains("was made to release \"x\""), "{done:?}");
    assert_eq!(context.code(&["run", "-n", "x", "--", "true"]), 0);
    holder.signal(rustix::process::Signal::CONT);
    let holder = holder.finish();
    assert_eq!(holder.code, Some(76), "{holder:?}");
}

#[test]
fn no_grace_ends_it_at_once() {
    let context = TestContext::new();
    let holder = context.hold(&["x"]);
    let done = context.run(&["break", "x", "--fence", &holder.fence.to_string(), "--grace", "0", "--yes"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.err.contains("took \"x\" from "), "{done:?}");
    let holder = holder.finish();
    assert_eq!(holder.code, Some(76), "{holder:?}");
}

#[test]
fn the_fence_is_the_proof_of_having_looked() {
    let context = TestContext::new();
    let holder = context.hold(&["x"]);
    let wrong = context.run(&["break", "x", "--fence", &(holder.fence - 1).to_string(), "--yes"]);
    assert_eq!(wrong.code, Some(75), "{wrong:?}");
    assert!(wrong.err.contains(&format!("it is held with fence {} now", holder.fence)), "{wrong:?}");
    let free = context.run(&["break", "y", "--fence", "1", "--yes"]);
    assert_eq!(free.code, Some(75));
    assert!(free.err.contains("it is free now"), "{free:?}");
    assert_eq!(context.code(&["run", "-n", "x", "--", "true"]), 75, "nothing happened");
}

#[test]
fn without_a_terminal_it_must_be_said() {
    let context = TestContext::new();
    let holder = context.hold(&["x"]);
    let done = context.run(&["break", "x", "--fence", &holder.fence.to_string()]);
    assert_eq!(done.code, Some(64), "{done:?}");
    assert!(done.err.contains("--yes"), "{done:?}");
}
