//! `watch`: events as lines.

use std::time::Duration;

use oarlock_testbed::proxy::Direction;
use oarlock_testbed::server::redis_command;
use oarlock_testbed::{Proxy, Redis};
use rustix::process::Signal;
use serde_json::Value;

use super::support::{Running, TestContext};

fn next(watch: &mut Running) -> (String, Value) {
    let line = watch.line();
    let event: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
    assert!(event["at"].as_str().is_some_and(|at| at.ends_with('Z')), "{line}");
    (event["event"].as_str().unwrap().to_owned(), event)
}

#[test]
fn each_step_of_a_lock_is_a_line() {
    let context = TestContext::new();
    let mut holder = context.hold(&["jobs/a", "--reason", "first"]);
    let fence = holder.fence.to_string();
    let mut watch = Running::start(context.oarlock(["watch", "jobs/*", "-i", "50ms"]));
    let (what, event) = next(&mut watch);
    assert_eq!((what.as_str(), &event["fence"]), ("present", &Value::from(fence)));
    assert_eq!((&event["name"], &event["label"]["reason"]), (&"jobs/a".into(), &"first".into()));
    let elsewhere = context.hold(&["other"]);
    let mut second = context.oarlock(["hold", "jobs/a"]);
    second.stdin(std::process::Stdio::piped());
    let second = Running::start(second);
    let (what, event) = next(&mut watch);
    assert_eq!((what.as_str(), &event["role"]), ("waiting", &"waiter".into()), "and nothing of other names");
    holder.end_input();
    assert_eq!(holder.finish().code, Some(0));
    let steps = [next(&mut watch), next(&mut watch)];
    assert_eq!(steps.each_ref().map(|(what, _)| what.as_str()), ["released", "granted"]);
    assert_eq!(second.finish().code, Some(0));
    assert_eq!(next(&mut watch).0, "released");
    drop(elsewhere);
    watch.signal(Signal::TERM);
    assert_eq!(watch.finish().code, Some(143));
}

/// Where Redis keeps the names of locks.
const INDEXES: u32 = 256;

/// A store that is slow is not asked again as soon as it has answered.
#[test]
fn a_slow_store_is_given_a_rest() {
    let context = TestContext::new();
    let Some(server) = Redis::start_or_skip().unwrap() else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let mut watch = context.bare(["watch", "-i", "50ms"]);
    watch.env("OARLOCK_URL", proxy.url(&server.url(), server.addr()));
    let mut watch = Running::start(watch);
    let mut holder = context.bare(["hold", "x"]);
    holder.env("OARLOCK_URL", server.url()).stdin(std::process::Stdio::piped());
    let holder = Running::start(holder);
    assert!(["granted", "present"].contains(&next(&mut watch).0.as_str()), "it looks");
    assert_eq!(holder.finish().code, Some(0));
    assert_eq!(next(&mut watch).0, "released");
    // Names are listed by the indexes of the store, of which a look reads all.
    let looks = || {
        let stats = redis_command(server.addr(), &["INFO", "commandstats"]).unwrap();
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_zrange:calls=")?.split(',').next());
        calls.unwrap_or_else(|| panic!("{stats}")).parse::<u32>().unwrap() / INDEXES
    };
    // A look is 16 requests one after the other, and takes more than 320 ms: with its rest, more than 1280 ms.
    proxy.delay(Direction::ToClient, Duration::from_millis(20));
    let before = looks();
    std::thread::sleep(Duration::from_secs(6));
    let looked = looks() - before;
    assert!((1..=7).contains(&looked), "{looked} looks in 6 s");
    watch.signal(Signal::TERM);
    assert_eq!(watch.finish().code, Some(143));
}

/// A store that goes away leaves a gap, which is told, and what is there afterwards is told anew.
#[test]
fn a_gap_is_told() {
    let context = TestContext::new();
    let Some(server) = Redis::start_or_skip().unwrap() else { return };
    let mut watch = context.bare(["watch", "-i", "50ms"]);
    watch.env("OARLOCK_URL", format!("{}?op_timeout=1s", server.url()));
    let mut watch = Running::start(watch);
    let held = || {
        let mut hold = context.bare(["hold", "x"]);
        hold.env("OARLOCK_URL", server.url()).stdin(std::process::Stdio::piped());
        Running::start(hold)
    };
    let holder = held();
    // Whichever was first, the watch or the holder.
    assert!(["granted", "present"].contains(&next(&mut watch).0.as_str()));
    server.pause().unwrap();
    let (what, event) = next(&mut watch);
    assert_eq!(what, "gap");
    assert!(event["since"].is_string() && event["error"].is_string(), "{event}");
    server.resume().unwrap();
    assert_eq!(next(&mut watch).0, "resumed");
    assert_eq!(next(&mut watch).0, "present");
    drop(holder);
}

#[test]
fn bad_intervals_are_bad_usage() {
    let context = TestContext::new();
    for interval in ["0", "1ms", "2h", "soon"] {
        assert_eq!(context.code(&["watch", "-i", interval]), 64, "{interval}");
    }
}
