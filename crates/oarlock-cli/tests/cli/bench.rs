//! `oarlock bench`: figures that add up, processes that contend, and nothing left behind.

use oarlock_testbed::Redis;
use rustix::process::Signal;
use serde_json::Value;

use super::support::{Done, Running, TestContext, await_death, await_true, children, finish, is_alive};

/// Few of everything.
const SMALL: [&str; 10] =
    ["bench", "--duration", "400ms", "--tasks", "4", "--contenders", "3", "--processes", "2", "-q"];

fn json(done: &Done) -> Value {
    assert_eq!(done.code, Some(0), "{done:?}");
    serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}"))
}

fn bench_json(context: &TestContext, flags: &[&str]) -> Value {
    json(&context.run(&[&SMALL[..], &["-o", "json"], flags].concat()))
}

fn load<'a>(found: &'a Value, name: &str) -> &'a Value {
    let loads = found["loads"].as_array().unwrap();
    loads.iter().find(|load| load["load"] == name).unwrap_or_else(|| panic!("no {name}: {found:#}"))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Rates, percentiles in order, and a ratio that is that of the medians.
fn check_pairs(load: &Value) {
    for side in ["oarlock", "driver", "baseline"] {
        let side = &load[side];
        assert!(number(&side["pairs"]) > 0.0 && number(&side["per_second"]) > 0.0, "{load:#}");
        let spans = ["p50_us", "p99_us", "p999_us", "max_us"].map(|part| number(&side[part]));
        assert!(spans.is_sorted() && spans[0] > 0.0, "{load:#}");
    }
    let medians = number(&load["oarlock"]["p50_us"]) / number(&load["baseline"]["p50_us"]);
    // Both are rounded to a thousandth.
    assert!((number(&load["ratio"]["p50"]) / medians - 1.0).abs() < 0.02, "{medians}: {load:#}");
}

/// Shares that add up to the grants, and no more hand-offs than grants.
fn check_contention(side: &Value, contenders: usize) {
    let shares: Vec<u64> = side["shares"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
    assert_eq!(shares.len(), contenders, "{side:#}");
    assert_eq!(shares.iter().sum::<u64>(), side["grants"].as_u64().unwrap(), "{side:#}");
    let (hand_offs, grants) = (number(&side["hand_offs"]), number(&side["grants"]));
    assert!(hand_offs > 0.0 && hand_offs <= grants, "{side:#}");
    assert!(number(&side["p50_us"]) > 0.0 && number(&side["longest_wait_us"]) >= number(&side["p50_us"]), "{side:#}");
}

#[test]
fn the_figures_of_every_load_add_up() {
    let found = bench_json(&TestContext::new(), &[]);
    assert_eq!((&found["store"], &found["duration_ms"], &found["fair"]), (&"local".into(), &400.into(), &false.into()));
    assert!(found["baseline"].as_str().unwrap().contains("flock"), "{found:#}");
    check_pairs(load(&found, "pair"));
    check_pairs(load(&found, "names"));
    check_contention(&load(&found, "tasks")["oarlock"], 3);
    check_contention(&load(&found, "processes")["oarlock"], 2);
    check_contention(&load(&found, "tasks")["baseline"], 3);
    check_contention(&load(&found, "processes")["baseline"], 2);
    let grants = |name| number(&load(&found, name)["oarlock"]["grants"]);
    assert_eq!(found["exclusion"]["held"], true);
    assert!(number(&found["exclusion"]["grants_checked"]) >= grants("tasks") + grants("processes"), "{found:#}");
}

#[test]
fn in_order_of_arrival_processes_take_turns() {
    let found = bench_json(&TestContext::new(), &["--fair", "--only", "processes"]);
    assert_eq!(found["loads"].as_array().unwrap().len(), 1, "{found:#}");
    let ours = &load(&found, "processes")["oarlock"];
    check_contention(ours, 2);
    let shares: Vec<u64> = ours["shares"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
    assert!(shares.iter().all(|share| *share > 0), "no contender starves: {ours:#}");
    assert_eq!(found["exclusion"]["held"], true);
}

#[test]
fn memory_has_neither_baseline_nor_processes() {
    let found = bench_json(&TestContext::new(), &["-u", "mem:"]);
    let loads: Vec<_> = found["loads"].as_array().unwrap().iter().map(|load| load["load"].as_str().unwrap()).collect();
    assert_eq!(loads, ["pair", "names", "tasks"]);
    assert_eq!((&found["baseline"], &load(&found, "pair")["ratio"]), (&Value::Null, &Value::Null));
}

/// Beside the others in each turn, through a server that ends with the run and leaves nothing behind.
#[test]
fn pairs_over_http_are_beside_the_engine_and_the_baseline() {
    let context = TestContext::new();
    let found = bench_json(&context, &["--http", "--only", "pair", "--only", "names"]);
    assert!(found["http"].as_str().unwrap().contains("POST /v1/locks"), "{found:#}");
    for name in ["pair", "names"] {
        let load = load(&found, name);
        check_pairs(load);
        let [http, baseline] = ["http", "baseline"].map(|side| number(&load[side]["per_second"]));
        assert!(http > 0.0, "{load:#}");
        let ratio = number(&load["http_ratio"]["per_second"]);
        assert!((ratio - http / baseline).abs() <= 0.001, "{ratio}: {load:#}");
    }
    assert_eq!(finish(context.bare(["ls", "-o", "name", "-u", &context.url()])).out, "");
    let without = bench_json(&context, &["--only", "pair"]);
    assert_eq!((&load(&without, "pair")["http"], &without["http"]), (&Value::Null, &Value::Null));
    let table = context.run(&[&SMALL[..9], &["--http", "--only", "pair"]].concat());
    for part in ["http ", "http ratio", "http: POST"] {
        assert!(table.out.contains(part), "{part}: {table:?}");
    }
    let done = context.run(&["bench", "--http", "--only", "tasks"]);
    assert!(done.code == Some(64) && done.err.contains("--http"), "{done:?}");
}

#[test]
fn people_get_a_table_and_no_bar_without_a_terminal() {
    let context = TestContext::new();
    let done = context.run(&[&SMALL[..9], &["--only", "pair", "--only", "tasks"]].concat());
    assert_eq!(done.code, Some(0), "{done:?}");
    for part in ["1 task ", "PAIRS/S", "ratio", "3 tasks", "HAND-OFFS/S", "exclusion: held", "baseline: flock"] {
        assert!(done.out.contains(part), "{part}: {done:?}");
    }
    assert!(!done.out.contains("processes") && done.err.is_empty(), "{done:?}");
}

#[test]
fn flags_that_make_no_sense_are_bad_usage() {
    let context = TestContext::new();
    for flags in [
        &["--duration", "0"][..],
        &["--duration", "99ms"],
        &["--duration", "6m"],
        &["--tasks", "1"],
        &["--contenders", "1"],
        &["--processes", "1"],
        &["--processes", "-1"],
        &["--only", "nothing"],
        &["--only", "processes", "--processes", "0"],
        &["--only", "processes", "-u", "mem:"],
        &["-o", "name"],
    ] {
        let done = context.run(&[&["bench"], flags].concat());
        assert_eq!(done.code, Some(64), "{flags:?}: {done:?}");
        assert!(!done.err.is_empty() && done.out.is_empty(), "{flags:?}: {done:?}");
    }
    for words in [&["__bench"][..], &["__bench", "1", "0", "bench"], &["__bench", "1", "serves", "bench"]] {
        assert_eq!(context.code(words), 64, "{words:?}: only for ourselves");
    }
}

/// The processes that `pid` has started.
/// Interrupts a load while it has locks, and finds no lock and no process afterwards.
fn interrupt(context: &TestContext, url: &str, load: &str, more: &[&str], processes: usize) {
    let words = ["bench", "-u", url, "--duration", "60s", "--only", load, "--processes", "2"];
    let running = Running::start(context.bare([&words[..], more].concat()));
    let names = || finish(context.bare(["ls", "-o", "name", "-u", url])).out;
    await_true("a lock", || names().contains("oarlock-bench/"));
    let pid = running.pid().as_raw_nonzero().to_string();
    let workers = children(&pid);
    assert_eq!(workers.len(), processes, "{load}: {workers:?}");
    // As a terminal does: all of them at once.
    rustix::process::kill_process_group(running.pid(), Signal::INT).unwrap();
    let done = running.finish();
    assert_eq!((done.code, done.out.as_str()), (Some(130), ""), "{load}: {done:?}");
    assert_eq!(names(), "", "{load}: a lock was left");
    for pid in workers {
        assert!(!is_alive(&pid), "{load}: a process was left");
    }
}

#[test]
fn an_interrupt_leaves_no_lock_and_no_process() {
    let context = TestContext::new();
    for (load, more, processes) in
        [("names", &[][..], 0), ("names", &["--http"], 1), ("tasks", &[], 0), ("processes", &[], 2)]
    {
        interrupt(&context, &context.url(), load, more, processes);
    }
}

#[test]
fn processes_end_with_the_one_that_started_them() {
    let context = TestContext::new();
    for (load, count) in [(&["--only", "processes", "--processes", "3"][..], 3), (&["--only", "pair", "--http"], 1)] {
        let running = Running::start(context.oarlock([&["bench", "--duration", "60s"], load].concat()));
        let pid = running.pid().as_raw_nonzero().to_string();
        await_true("processes", || children(&pid).len() == count);
        let workers = children(&pid);
        running.signal(Signal::KILL);
        workers.iter().for_each(|pid| await_death(pid));
    }
}

#[test]
fn redis_has_a_baseline_for_every_load_and_is_left_clean() {
    let Some(server) = Redis::start_or_skip().unwrap() else { return };
    let (context, url) = (TestContext::new(), server.url());
    let found = bench_json(&context, &["-u", &url]);
    assert_eq!(found["store"], "redis");
    check_pairs(load(&found, "pair"));
    check_pairs(load(&found, "names"));
    for (name, contenders) in [("tasks", 3), ("processes", 2)] {
        check_contention(&load(&found, name)["oarlock"], contenders);
        check_contention(&load(&found, name)["baseline"], contenders);
        assert!(number(&load(&found, name)["ratio"]["per_second"]) > 0.0, "{found:#}");
    }
    assert_eq!(found["exclusion"]["held"], true);
    // Here only a release ends a hold before its lease does.
    for (load, processes) in [("names", 0), ("tasks", 0), ("processes", 2)] {
        interrupt(&context, &url, load, &[], processes);
    }
}
