//! `once`: one run per slot, whichever machine is first, and a memory of it.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use oarlock_testbed::proxy::Direction;
use oarlock_testbed::{Proxy, Redis, RedisClock};
use rustix::process::Signal;
use serde_json::Value;

use super::support::{Done, PATIENCE, Running, TestContext, finish};

fn once(context: &TestContext, args: &[&str]) -> Done {
    let mut command = context.oarlock(["once"]);
    command.args(args);
    finish(command)
}

fn shown(context: &TestContext, name: &str) -> Value {
    let done = once(context, &[name, "--show", "-o", "json"]);
    serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}"))
}

/// "A 1 s job on three servers ran twice about 30 % of the time": one at a time is not once (schedule-bundle 93,
/// gocron 841, laravel 22129, consul 2864). A command for it was asked for by name (consul 2983).
#[test]
fn a_slot_runs_once() {
    let context = TestContext::new();
    let first = once(&context, &["nightly", "--slot", "2026-11-17", "--", "sh", "-c", "echo $OARLOCK_SLOT"]);
    assert_eq!((first.code, first.out.as_str()), (Some(0), "2026-11-17\n"), "{first:?}");
    let again = once(&context, &["nightly", "--slot", "2026-11-17", "--", "echo", "again"]);
    assert_eq!((again.code, again.out.as_str()), (Some(0), ""), "{again:?}");
    assert!(
        again.err.contains("done: the slot 2026-11-17 of \"nightly\" ran on ") && again.err.contains("exit code 0")
    );
    assert_eq!(
        once(&context, &["nightly", "--slot", "2026-11-17", "-q", "--", "true"]).err,
        "",
        "quiet for cron mails"
    );
    let late = once(&context, &["nightly", "--slot", "2026-11-16", "-E", "done=9", "--", "echo", "late"]);
    assert_eq!((late.code, late.out.as_str()), (Some(9), ""), "{late:?}");
    assert!(late.err.contains("counts as done, because the later slot 2026-11-17 ran"), "{late:?}");
    let shorter = once(&context, &["nightly", "--slot", "1", "-q", "--", "echo", "never"]);
    assert!(shorter.out.is_empty() && shorter.err.contains("another form"), "also with -q: {shorter:?}");
    assert_eq!(once(&context, &["nightly", "--slot", "2026-11-18", "--", "sh", "-c", "exit 3"]).code, Some(3));
}

/// "Run it once a minute, wherever it is started" (consulate 57, node-cron 549).
#[test]
fn hundred_starts_of_a_second_run_each_slot_once() {
    let context = TestContext::new();
    let script = "for i in 1 2 3 4 5 6 7 8; do \
        oarlock once tick --slot 2s --on-busy skip -q -- sh -c 'echo $OARLOCK_SLOT'; sleep 0.2; done";
    let script = script.replace("oarlock", env!("CARGO_BIN_EXE_oarlock"));
    let machines: Vec<_> = (0..4).map(|_| Running::start(context.shell(&script))).collect();
    let mut slots: Vec<String> = Vec::new();
    for machine in machines {
        slots.extend(machine.finish().out.lines().map(str::to_owned));
    }
    let ran = slots.len();
    slots.sort_unstable();
    slots.dedup();
    assert!(ran >= 1 && slots.len() == ran, "{ran} runs of {slots:?}");
}

/// Work that fails has used its slot up, unless that is asked for; `--show` says what became of it.
#[test]
fn a_failed_slot_is_run_again_if_asked_for() {
    let context = TestContext::new();
    assert_eq!(shown(&context, "job")["slot"], Value::Null);
    assert_eq!(once(&context, &["job", "--slot", "7", "--", "sh", "-c", "exit 3"]).code, Some(3));
    let seen = shown(&context, "job");
    assert_eq!((&seen["slot"], &seen["exit_code"], &seen["running"]), (&"7".into(), &3.into(), &false.into()));
    assert_eq!(seen["clock"], "store");
    let skipped = once(&context, &["job", "--slot", "7", "--", "echo", "again"]);
    assert!(skipped.code == Some(0) && skipped.out.is_empty() && skipped.err.contains("exit code 3"), "{skipped:?}");
    let failed = once(&context, &["job", "--slot", "7", "--at-least-once", "--", "sh", "-c", "echo again; exit 4"]);
    assert_eq!((failed.code, failed.out.as_str()), (Some(4), "again\n"), "{failed:?}");
    let failed = once(&context, &["job", "--slot", "8", "--at-least-once", "--", "sh", "-c", "exit 5"]);
    assert_eq!(failed.code, Some(5));
    let repeated = once(&context, &["job", "--slot", "8", "--at-least-once", "--", "echo", "once more"]);
    assert_eq!((repeated.code, repeated.out.as_str()), (Some(0), "once more\n"), "{repeated:?}");
    let done = once(&context, &["job", "--slot", "8", "--at-least-once", "--", "echo", "too much"]);
    assert_eq!((done.code, done.out.as_str()), (Some(0), ""), "{done:?}");
    let text = once(&context, &["job", "--show"]);
    assert!(text.out.contains("last slot  8") && text.out.contains("exit code 0"), "{text:?}");
}

/// `--at-least-once`: a run that failed uses no slot up, and `--show` tells of it beside the last slot that is.
fn a_failed_run_is_shown(context: &TestContext, url: &str) {
    let on = |args: &[&str]| {
        let mut command = context.bare(["once", "job"]);
        command.args(args).env("OARLOCK_URL", url);
        finish(command)
    };
    let run = |slot: &str, script: &str| on(&["--slot", slot, "--at-least-once", "-c", script]);
    let show = || -> Value { serde_json::from_str(&on(&["--show", "-o", "json"]).out).unwrap() };
    let failed = |shown: &Value| (shown["slot"].clone(), shown["failed"]["slot"].clone());
    // No slot is used up yet.
    assert_eq!(run("6", "exit 5").code, Some(5));
    let shown = show();
    assert_eq!(failed(&shown), (Value::Null, "6".into()), "{shown}");
    assert_eq!((&shown["failed"]["exit_code"], &shown["exit_code"]), (&5.into(), &Value::Null), "{shown}");
    assert!(shown["failed"]["by"].is_string() && shown["failed"]["ended"].is_string(), "{shown}");
    assert_eq!(on(&["--show", "-o", "name"]).out, "\n", "no slot is used up");
    assert_eq!(on(&["--forget", "", "--yes"]).code, Some(75), "nor is there one to forget");
    // It runs again, also at most once, and what failed is told no more.
    let again = run("6", "echo again");
    assert_eq!((again.code, again.out.as_str()), (Some(0), "again\n"), "{again:?}");
    assert_eq!(failed(&show()), ("6".into(), Value::Null));
    // The slot before it stays used up, with its record.
    assert_eq!(run("7", "exit 9").code, Some(9));
    assert_eq!(run("8", "kill -TERM $$").code, Some(143));
    let shown = show();
    assert_eq!(failed(&shown), ("6".into(), "8".into()), "{shown}");
    assert_eq!((&shown["exit_code"], &shown["failed"]["exit_code"]), (&0.into(), &143.into()), "{shown}");
    let text = on(&["--show"]).out;
    assert!(text.contains("last slot  6\n") && text.contains("failed     8 on "), "{text}");
    assert!(text.contains("exit code 143; it is not used up"), "{text}");
    let done = run("6", "echo done");
    assert_eq!((done.code, done.out.as_str()), (Some(0), ""), "{done:?}");
    assert_eq!(failed(&show()), ("6".into(), "8".into()), "to ask for a slot that is done changes nothing");
    let missing = on(&["--slot", "8", "--at-least-once", "--", "/no/such/program"]);
    assert_eq!((missing.code, &show()["failed"]["exit_code"]), (Some(127), &127.into()), "{missing:?}");
    let seven = on(&["--slot", "7", "--", "echo", "ran"]);
    assert_eq!((seven.code, seven.out.as_str()), (Some(0), "ran\n"), "{seven:?}");
    assert_eq!(failed(&show()), ("7".into(), Value::Null));
}

#[test]
fn a_failed_run_is_shown_beside_the_slot_that_is_used_up() {
    let context = TestContext::new();
    a_failed_run_is_shown(&context, &context.url());
}

#[test]
fn a_failed_run_is_shown_beside_the_slot_that_is_used_up_on_redis() {
    let Some(server) = Redis::start_or_skip().unwrap() else { return };
    a_failed_run_is_shown(&TestContext::new(), &server.url());
}

#[test]
fn one_that_runs_elsewhere_is_busy() {
    let context = TestContext::new();
    let args = ["once", "job", "--slot", "7", "--reason", "the first", "--", "sh", "-c", "echo up; exec sleep 100"];
    let mut first = Running::start(context.oarlock(args));
    assert_eq!(first.line(), "up");
    let busy = once(&context, &["job", "--slot", "7", "--", "echo", "two"]);
    assert_eq!((busy.code, busy.out.as_str()), (Some(75), ""), "{busy:?}");
    assert!(busy.err.contains("the first"), "it says for whom: {busy:?}");
    assert_eq!(once(&context, &["job", "--slot", "7", "--on-busy", "skip", "--", "echo", "two"]).code, Some(0));
    assert_eq!(once(&context, &["job", "--slot", "7", "-E", "5", "--", "echo", "two"]).code, Some(5));
    assert_eq!(shown(&context, "job")["running"], true);
    let mut command = context.oarlock(["once", "job", "--slot", "7", "-w", "30", "--", "echo", "two"]);
    command.env("LANG", "C");
    let waits = Running::start(command);
    context.await_waiters("job", 1);
    first.signal(Signal::TERM);
    assert_eq!(first.finish().code, Some(143));
    let waited = waits.finish();
    assert_eq!((waited.code, waited.out.as_str()), (Some(0), ""), "it is done by then: {waited:?}");
    assert!(waited.err.contains("exit code 143"), "{waited:?}");
}

/// "A lock of one day blocks a job that crashed for a day" (cronlock 11, django-icekit 135): the lock of a process that
/// is killed ends with it. It has used its slot up; the record says that it did not finish.
#[test]
fn a_killed_run_is_told_apart_from_a_finished_one() {
    let context = TestContext::new();
    let args = ["once", "job", "--slot", "7", "--", "sh", "-c", "echo up; exec sleep 100"];
    let mut first = Running::start(context.oarlock(args));
    assert_eq!(first.line(), "up");
    first.signal(Signal::KILL);
    first.finish();
    context.await_state("job", |state| state["holders"].as_array().is_some_and(Vec::is_empty));
    let again = once(&context, &["job", "--slot", "7", "--", "echo", "again"]);
    assert!(again.code == Some(0) && again.out.is_empty() && again.err.contains("did not finish"), "{again:?}");
    let repeated = once(&context, &["job", "--slot", "7", "--at-least-once", "--", "echo", "again"]);
    assert_eq!(repeated.out, "again\n", "{repeated:?}");
}

/// "Keep the lock for a while, because clocks differ" (cronlock 11, the `lockAtLeastFor` of ShedLock): here the lock is
/// renewed, and held longer only if asked for.
#[test]
fn min_hold_covers_clocks_that_differ() {
    let context = TestContext::new();
    let started = Instant::now();
    let args = ["once", "job", "--slot", "7", "--min-hold", "2s", "--", "echo", "done"];
    let mut quick = Running::start(context.oarlock(args));
    assert_eq!(quick.line(), "done");
    assert_eq!(once(&context, &["job", "--slot", "8", "--", "echo", "too soon"]).code, Some(75));
    assert_eq!(quick.finish().code, Some(0));
    assert!(started.elapsed() >= Duration::from_secs(2));
    assert_eq!(once(&context, &["job", "--slot", "8", "--", "echo", "next"]).out, "next\n");
}

#[test]
fn what_is_no_slot_is_refused() {
    let context = TestContext::new();
    for bad in ["500ms", "61 * * * *", "0 2 * * * Nowhere/Land", ""] {
        assert_eq!(once(&context, &["job", "--slot", bad, "--", "true"]).code, Some(64), "{bad}");
    }
    // Also on a name that has a slot, where an empty one would come before every other.
    assert_eq!(once(&context, &["used", "--slot", "7", "--", "true"]).code, Some(0));
    for bad in ["", &"x".repeat(257)] {
        let refused = once(&context, &["used", "--slot", bad, "--at-least-once", "--", "echo", "ran"]);
        assert_eq!((refused.code, refused.out.as_str()), (Some(64), ""), "{refused:?}");
    }
    let longest = once(&context, &["longest", "--slot", &"x".repeat(256), "--", "true"]);
    assert_eq!((longest.code, longest.err.as_str()), (Some(0), ""), "{longest:?}");
    assert_eq!(once(&context, &["job", "--", "true"]).code, Some(64));
    assert_eq!(once(&context, &["job", "--slot", "7"]).code, Some(64));
    assert_eq!(once(&context, &["job", "--slot", "7", "-E", "300", "--", "true"]).code, Some(64));
    let report = context.path("report");
    let args = ["job", "--slot", "0 2 * * * Europe/Berlin", "--report", &report, "--", "true"];
    assert_eq!(once(&context, &args).code, Some(0));
    assert_eq!(once(&context, &args).code, Some(0));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&report).unwrap()).unwrap();
    assert_eq!(report["outcome"], "done");
    assert!(report["slot"].as_str().is_some_and(|slot| slot.ends_with(":00:00Z")), "{report}");
}

/// A monthly slot must not run twice because the store forgot it after a day.
#[test]
fn a_slot_is_remembered_to_its_end() {
    let context = TestContext::new();
    let Some(server) = Redis::start_or_skip().unwrap() else { return };
    let on = |args: &[&str]| {
        let mut command = context.bare(["once", "job", "--slot"]);
        command.args(args).args(["--", "true"]).env("OARLOCK_URL", server.url());
        finish(command)
    };
    let left = || {
        let script =
            "return redis.call('PTTL', redis.call('KEYS', 'oarlock:{*job*')[1] or redis.call('KEYS', '*:job')[1])";
        let left = oarlock_testbed::server::redis_command(server.addr(), &["EVAL", script, "0"]).unwrap();
        left.trim().parse::<i64>().unwrap_or_else(|_| panic!("{left}")) / 86_400_000
    };
    let month = 30 * 86_400;
    let now = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap();
    let to_its_end = (month - now % month) / 86_400;
    assert_eq!(on(&["30d"]).code, Some(0));
    assert!((to_its_end..=to_its_end + 2).contains(&left()), "{} days of {to_its_end} and one", left());
    let before = left();
    assert_eq!(on(&["0 0 1 1 * UTC", "--keep", "30d"]).code, Some(0));
    assert!(left() <= before, "an earlier slot is done, and changes nothing");
    assert_eq!(on(&["2998-12-01T00:00:00Z+", "--keep", "60d"]).code, Some(0));
    assert_eq!(left(), 59);
    let done = on(&["2998-12-01T00:00:00Z+"]);
    assert!(done.code == Some(0) && done.err.contains("done"), "{done:?}");
    assert_eq!(left(), 399, "a text that is asked for again is remembered anew");
    assert_eq!(on(&["2999-12-01T00:00:00Z+"]).code, Some(0));
    assert_eq!(left(), 399, "a text: longer than a year");
    assert_eq!(on(&["3000-12-01T00:00:00Z+", "--keep", "500d"]).code, Some(0));
    assert_eq!(left(), 499);
}

/// An operator lets a slot run again. The slot is the proof of having looked, as the fence of `break` is.
#[test]
fn a_slot_that_is_forgotten_runs_again() {
    let context = TestContext::new();
    let run = |slot: &str| once(&context, &["job", "--slot", slot, "--", "echo", "ran"]).out;
    assert_eq!(run("7"), "ran\n");
    let unasked = once(&context, &["job", "--forget", "7"]);
    assert!(unasked.code == Some(64) && unasked.err.contains("--yes"), "{unasked:?}");
    let other = once(&context, &["job", "--forget", "6", "--yes"]);
    assert!(other.code == Some(75) && other.err.contains("not the last slot"), "{other:?}");
    assert_eq!(run("7"), "", "nothing was forgotten");
    let forgotten = once(&context, &["job", "--forget", "7", "--yes"]);
    assert_eq!(forgotten.code, Some(0), "{forgotten:?}");
    assert_eq!(shown(&context, "job")["slot"], Value::Null);
    assert_eq!((run("6").as_str(), run("7").as_str(), run("7").as_str()), ("ran\n", "ran\n", ""));
    // One that runs is not forgotten.
    let args = ["once", "job", "--slot", "8", "--", "sh", "-c", "echo up; exec sleep 100"];
    let mut running = Running::start(context.oarlock(args));
    assert_eq!(running.line(), "up");
    let busy = once(&context, &["job", "--forget", "8", "--yes"]);
    assert!(busy.code == Some(75) && busy.err.contains("not forgotten"), "{busy:?}");
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code, Some(143));
    assert_eq!(run("8"), "", "it is still done");
}

/// A stop that comes while the slot is being written down starts no command (consul 1155, 800).
#[test]
fn no_command_is_started_after_a_stop() {
    let context = TestContext::new();
    let Some(server) = Redis::start_or_skip().unwrap() else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let on = |url: String, args: &[&str]| {
        let mut command = context.bare(["once", "job"]);
        command.args(args).env("OARLOCK_URL", url);
        command
    };
    // The store has written the slot down, and its answer is on its way.
    proxy.delay(Direction::ToClient, Duration::from_millis(1500));
    let url = proxy.url(&server.url(), server.addr());
    let report = context.path("report");
    let once = Running::start(on(url, &["--slot", "7", "-t", "30s", "--report", &report, "--", "echo", "started"]));
    let give_up = Instant::now() + PATIENCE;
    while !finish(on(server.url(), &["--show", "-o", "name"])).out.starts_with('7') {
        assert!(Instant::now() < give_up, "the slot is not written down");
        std::thread::sleep(Duration::from_millis(20));
    }
    once.signal(Signal::TERM);
    let done = once.finish();
    assert_eq!((done.code, done.out.as_str()), (Some(143), ""), "{done:?}");
    // A command that was started is ended by the same signal, and prints nothing either.
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&report).unwrap()).unwrap();
    assert_eq!((&report["outcome"], &report["child_status"]), (&"stopped".into(), &Value::Null), "{report}");
}

/// A Redis whose clock the test moves, and `once` on it with the options given.
fn clocked(context: &TestContext) -> Option<(RedisClock, impl Fn(&[&str]) -> Done)> {
    let server = RedisClock::start_or_skip().unwrap()?;
    let url = format!("redis://{}", server.addr());
    let on = move |args: &[&str]| {
        let mut command = context.bare(["once"]);
        command.args(args).env("OARLOCK_URL", &url);
        if !args.iter().any(|arg| ["--show", "--forget"].contains(arg)) {
            command.args(["--", "sh", "-c", "echo $OARLOCK_SLOT"]);
        }
        finish(command)
    };
    Some((server, on))
}

fn seconds_from_now(slot: &str) -> i64 {
    let slot: Timestamp = slot.trim().parse().unwrap_or_else(|error| panic!("{error}: {slot:?}"));
    slot.as_second() - Timestamp::now().as_second()
}

/// Machines whose clocks differ agree on the slot, because none of them decides.
#[test]
fn the_clock_of_the_store_decides() {
    let context = TestContext::new();
    let Some((server, on)) = clocked(&context) else { return };
    server.set_clock(-86_400_000_000).unwrap();
    let behind = on(&["behind", "--slot", "1h"]);
    let far = seconds_from_now(&behind.out);
    assert!((-90_100..=-86_300).contains(&far), "{far} s: {behind:?}");
    server.set_clock(240_000_000).unwrap();
    let ahead = on(&["ahead", "--slot", "10s"]);
    let far = seconds_from_now(&ahead.out);
    assert!((150..=240).contains(&far), "{far} s: {ahead:?}");
    assert_eq!((behind.err.as_str(), ahead.err.as_str()), ("", ""));
}

/// Fences never fall: after a grant by a clock that was ahead they are not the time for as long as it was ahead.
#[test]
fn a_clock_that_was_ahead_does_not_stop_a_job() {
    let context = TestContext::new();
    let Some((server, on)) = clocked(&context) else { return };
    server.set_clock(2 * 86_400_000_000).unwrap();
    let ahead = on(&["job", "--slot", "1s", "-q"]);
    assert!(seconds_from_now(&ahead.out) <= 0, "{ahead:?}");
    assert!(ahead.err.contains("ahead of this machine's clock") && ahead.err.contains("doctor"), "{ahead:?}");
    server.set_clock(0).unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    let later = on(&["job", "--slot", "1s", "-q"]);
    assert!(seconds_from_now(&later.out) <= 0 && later.out > ahead.out, "{ahead:?} {later:?}");
    assert!(later.err.contains("47 h 59 min ahead of this machine's clock"), "until the time has come: {later:?}");
    let text = on(&["job", "--slot", "3000-01-01T00:00:00Z", "-q"]);
    assert_eq!((text.out.as_str(), text.err.as_str()), ("3000-01-01T00:00:00Z\n", ""), "a text needs no clock");
    // A slot that a wrong clock named stops the job: also with -q it says so, and what to do.
    let stopped = on(&["job", "--slot", "1s", "-q"]);
    assert_eq!((stopped.code, stopped.out.as_str()), (Some(0), ""), "{stopped:?}");
    assert!(stopped.err.contains("is in the future") && stopped.err.contains("--forget"), "{stopped:?}");
    let forgotten = on(&["job", "--forget", "3000-01-01T00:00:00Z", "--yes"]);
    assert_eq!(forgotten.code, Some(0), "{forgotten:?}");
    assert!(!on(&["job", "--slot", "1s", "-q"]).out.is_empty());
}
