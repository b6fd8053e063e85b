//! `--report`.

use serde_json::Value;

use super::support::{Running, TestContext};

fn report(context: &TestContext, args: &[&str]) -> Value {
    let file = context.path("report");
    let all: Vec<&str> = ["run", "--report", &file].iter().chain(args).copied().collect();
    let done = context.run(&all);
    let text = std::fs::read_to_string(file).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text} {done:?}"))
}

#[test]
fn a_report_says_what_happened() {
    let context = TestContext::new();
    let ran = report(&context, &["-t", "3s", "x", "-c", "sleep 1.2; exit 3"]);
    assert_eq!(
        (&ran["outcome"], &ran["child_status"]["code"], &ran["exit_code"]),
        (&"ran".into(), &3.into(), &3.into())
    );
    assert!(ran["fence"].as_str().unwrap().parse::<u64>().unwrap() > 0);
    assert!(ran["held_ms"].as_u64().unwrap() >= 1200 && ran["waited_ms"].as_u64().is_some());
    assert!(ran["renewals"].as_u64().unwrap() >= 1, "{ran}");
    let at = ran["acquired_at"].as_str().unwrap();
    assert!(at.ends_with('Z') && at.contains('T') && at.len() == "2026-01-02T03:04:05.678Z".len(), "{at}");

    let killed = report(&context, &["x", "-c", "kill -KILL $$"]);
    assert_eq!((&killed["outcome"], &killed["child_status"]["signal"]), (&"ran".into(), &9.into()));
    let lost = report(&context, &["--no-renew", "-t", "300ms", "x", "--", "sleep", "100"]);
    assert_eq!((&lost["outcome"], &lost["exit_code"]), (&"lost".into(), &76.into()));

    let _holder = context.hold(&["x"]);
    let busy = report(&context, &["-w", "100ms", "x", "--", "true"]);
    assert_eq!((&busy["outcome"], &busy["child_status"], &busy["fence"]), (&"busy".into(), &Value::Null, &Value::Null));
    assert!(busy["waited_ms"].as_u64().unwrap() >= 100);
    let skipped = report(&context, &["--on-busy", "skip", "x", "--", "true"]);
    assert_eq!((&skipped["outcome"], &skipped["exit_code"]), (&"skipped".into(), &0.into()));
}

#[test]
fn a_report_tells_our_75_from_the_commands() {
    let context = TestContext::new();
    let ran = report(&context, &["x", "-c", "exit 75"]);
    assert_eq!((&ran["outcome"], &ran["exit_code"]), (&"ran".into(), &75.into()));
}

#[test]
fn a_stop_while_waiting_is_reported() {
    let context = TestContext::new();
    let _holder = context.hold(&["x"]);
    let file = context.path("report");
    let waiter = Running::start(context.oarlock(["run", "--report", &file, "x", "--", "true"]));
    context.await_waiters("x", 1);
    waiter.signal(rustix::process::Signal::TERM);
    assert_eq!(waiter.finish().code, Some(143));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(report["outcome"], "stopped");
}
