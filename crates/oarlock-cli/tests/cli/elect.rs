//! `elect`: one leader, whose command ends before its leadership.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::support::{Running, TestContext, await_death};

#[test]
fn the_next_candidate_leads_as_soon_as_the_leader_resigns() {
    let context = TestContext::new();
    let lead = "echo $OARLOCK_KIND $OARLOCK_FENCE; exec sleep 100";
    let elect = |value: &str| context.oarlock(["elect", "boss", "--value", value, "--", "sh", "-c", lead]);
    let mut first = Running::start(elect("one"));
    let elected = first.line();
    let fence = |line: &str| line.strip_prefix("election ").and_then(|fence| fence.parse::<u64>().ok());
    assert!(fence(&elected).is_some(), "{elected}");
    let mut second = Running::start(elect("two"));
    context.await_waiters("boss", 1);
    assert_eq!(context.show("boss")["holders"][0]["value"], "one");
    let asked = Instant::now();
    first.signal(Signal::TERM);
    let next = second.line();
    assert!(asked.elapsed() < Duration::from_secs(10), "long before the lease of 30 s");
    assert!(fence(&next) > fence(&elected), "{next} after {elected}");
    assert_eq!(first.finish().code, Some(143), "the code of the command");
    assert_eq!(context.show("boss")["holders"][0]["value"], "two");
    second.signal(Signal::TERM);
    second.finish();
}

#[test]
fn the_leader_exits_with_the_code_of_its_command() {
    let context = TestContext::new();
    let done = context.run(&["elect", "boss", "--", "sh", "-c", "exit 7"]);
    assert_eq!(done.code, Some(7), "{done:?}");
    assert!(done.err.contains("elected: leading \"boss\"") && done.err.contains("demoted"), "{done:?}");
    assert_eq!(context.show("boss")["holders"].as_array().map(Vec::len), Some(0), "it resigned");
}

/// "Scripts to promote and demote" (consul 3616).
#[test]
fn hooks_run_around_the_command() {
    let context = TestContext::new();
    let script =
        ["elect", "boss", "--on-elected", "echo up $OARLOCK_FENCE", "--on-demoted", "echo down $OARLOCK_FENCE"];
    let done = finish(&context, &script, "echo work $OARLOCK_FENCE");
    let words: Vec<_> = done.out.lines().filter_map(|line| line.split_once(' ')).collect();
    assert_eq!(words.iter().map(|(word, _)| *word).collect::<Vec<_>>(), ["up", "work", "down"], "{done:?}");
    assert!(words.iter().all(|(_, fence)| *fence == words[0].1), "one leadership: {done:?}");
    // A stop during a hook starts no command.
    let stopped = ["elect", "boss", "--on-elected", "trap 'exit 0' TERM; echo up; while :; do sleep 0.02; done"];
    let mut command = context.oarlock(stopped);
    command.args(["--", "echo", "work"]);
    let mut hooked = Running::start(command);
    assert_eq!(hooked.line(), "up");
    hooked.signal(Signal::TERM);
    let done = hooked.finish();
    assert_eq!((done.code, done.out.as_str()), (Some(143), ""), "{done:?}");
}

fn finish(context: &TestContext, args: &[&str], command: &str) -> super::support::Done {
    let mut elect = context.oarlock(args);
    elect.args(["--", "sh", "-c", command]);
    super::support::finish(elect)
}

/// A leader whose hold is broken stops its command, and stands again. "Can anything be run when the lock is lost?" (etcd
/// 7983): the hook.
#[test]
fn a_demoted_leader_stands_again() {
    let context = TestContext::new();
    let lead = "echo $$ $OARLOCK_FENCE; exec sleep 100";
    let args = ["elect", "boss", "--on-demoted", "echo down", "-t", "3s", "--", "sh", "-c", lead];
    let mut leader = Running::start(context.oarlock(args));
    let first = leader.line();
    let (pid, fence) = first.split_once(' ').unwrap();
    let broken = context.run(&["break", "boss", "--fence", fence, "--yes", "--grace", "2s", "--reason", "drill"]);
    assert_eq!(broken.code, Some(0), "{broken:?}");
    await_death(pid);
    assert_eq!(leader.line(), "down");
    let second = leader.line();
    let again = second.split_once(' ').unwrap().1;
    assert!(again.parse::<u64>().unwrap() > fence.parse().unwrap(), "{second} after {first}");
    leader.signal(Signal::TERM);
    let done = leader.finish();
    assert_eq!(done.code, Some(143), "{done:?}");
    assert!(done.err.contains("drill"), "it says why: {done:?}");
}

#[test]
fn an_observer_sees_each_leader() {
    let context = TestContext::new();
    let mut observer = Running::start(context.oarlock(["elect", "boss", "--observe", "-o", "json"]));
    let seen = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["leader"]["value"].clone();
    assert!(seen(&observer.line()).is_null(), "no leader yet");
    assert_eq!(context.run(&["elect", "boss", "--value", "one", "--", "sleep", "1.5"]).code, Some(0));
    assert_eq!(seen(&observer.line()), "one");
    assert!(seen(&observer.line()).is_null(), "it resigned");
    observer.signal(Signal::TERM);
    assert_eq!(observer.finish().code, Some(143));
}

/// A leader that is asked to end during `--on-elected` starts no command.
#[test]
fn a_break_during_the_hook_starts_no_command() {
    let context = TestContext::new();
    let hook = "echo up $OARLOCK_FENCE; trap 'exit 0' TERM; while :; do sleep 0.02; done";
    let args = ["elect", "boss", "-t", "6s", "--on-elected", hook, "--on-demoted", "echo down", "--", "echo", "work"];
    let mut leader = Running::start(context.oarlock(args));
    let up = leader.line();
    let fence = up.strip_prefix("up ").unwrap();
    let broken = context.run(&["break", "boss", "--fence", fence, "--yes", "--grace", "3s"]);
    assert_eq!(broken.code, Some(0), "{broken:?}");
    assert_eq!(leader.line(), "down", "and no work");
    assert!(leader.line().starts_with("up "), "it stands again");
    leader.signal(Signal::TERM);
    assert_eq!(leader.finish().code, Some(143));
    assert_eq!(context.code(&["elect", "boss", "--on-lost", "warn", "--", "true"]), 64);
}
