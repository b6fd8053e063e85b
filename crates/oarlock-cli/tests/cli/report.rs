//! `--report`.

use serde_json::Value;

use super::support::{Bench, Running};

fn report(bench: &Bench, args: &[&str]) -> Value {
    let file = bench.path("report");
    let all: Vec<&str> = ["run", "--report", &file].iter().chain(args).copied().collect();
    let done = bench.run(&all);
    let text = std::fs::read_to_string(file).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text} {done:?}"))
}

#[test]
fn a_report_says_what_happened() {
    let bench = Bench::new();
    let ran = report(&bench, &["-t", "3s", "x", "-c", "sleep 1.2; exit 3"]);
    assert_eq!(
        (&ran["outcome"], &ran["child_status"]["code"], &ran["exit_code"]),
        (&"ran".into(), &3.into(), &3.into())
    );
    assert!(ran["fence"].as_str().unwrap().parse::<u64>().unwrap() > 0);
    assert!(ran["held_ms"].as_u64().unwrap() >= 1200 && ran["waited_ms"].as_u64().is_some());
    assert!(ran["renewals"].as_u64().unwrap() >= 1, "{ran}");
    let at = ran["acquired_at"].as_str().unwrap();
    assert!(at.ends_with('Z') && at.contains('T') && at.len() == "2026-01-02T03:04:05.678Z".len(), "{at}");

    let killed = report(&bench, &["x", "-c", "kill -KILL $$"]);
    assert_eq!((&killed["outcome"], &killed["child_status"]["signal"]), (&"ran".into(), &9.into()));
    let lost = report(&bench, &["--no-renew", "-t", "300ms", "x", "--", "sleep", "100"]);
    assert_eq!((&lost["outcome"], &lost["exit_code"]), (&"lost".into(), &76.into()));

    let _holder = bench.hold(&["x"]);
    let busy = report(&bench, &["-w", "100ms", "x", "--", "true"]);
    assert_eq!((&busy["outcome"], &busy["child_status"], &busy["fence"]), (&"busy".into(), &Value::Null, &Value::Null));
    assert!(busy["waited_ms"].as_u64().unwrap() >= 100);
    let skipped = report(&bench, &["--on-busy", "skip", "x", "--", "true"]);
    assert_eq!((&skipped["outcome"], &skipped["exit_code"]), (&"skipped".into(), &0.into()));
}

#[test]
fn a_report_tells_our_75_from_the_commands() {
    let bench = Bench::new();
    let ran = report(&bench, &["x", "-c", "exit 75"]);
    assert_eq!((&ran["outcome"], &ran["exit_code"]), (&"ran".into(), &75.into()));
}

#[test]
fn a_stop_while_waiting_is_reported() {
    let bench = Bench::new();
    let _holder = bench.hold(&["x"]);
    let file = bench.path("report");
    let waiter = Running::start(bench.oarlock(["run", "--report", &file, "x", "--", "true"]));
    bench.await_waiters("x", 1);
    waiter.signal(rustix::process::Signal::TERM);
    assert_eq!(waiter.finish().code, Some(143));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(report["outcome"], "stopped");
}
