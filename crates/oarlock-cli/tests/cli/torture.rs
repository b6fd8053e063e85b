//! `oarlock torture`: runs on real stores, verdicts and exit codes, histories, and nothing left behind.

use std::time::Duration;

use oarlock_testbed::{Etcd, MariaDb, Postgres, Redis, RedisCluster, RedisTls, ZooKeeper};
use rustix::process::Signal;
use serde_json::Value;

use oarlock_torture::broken::Flaw;
use oarlock_torture::record::EVENTS_OF_A_CLAIM;

use super::job::Terminal;
use super::support::{Done, Running, TestContext, await_death, await_true, children, finish, is_alive};

/// A run with a short lease takes a quarter of a minute, and several times that on a busy machine.
const BOUND: Duration = Duration::from_secs(240);

struct Run {
    done: Done,
    history: String,
}

impl Run {
    /// Runs on the store behind `url`, with a lease of `ttl`.
    fn new(context: &TestContext, url: &str, ttl: &str, flags: &[&str]) -> Self {
        let history = context.path("history.jsonl");
        let words = ["torture", "-u", url, "--duration", "3s", "--ttl", ttl, "--seed", "7", "-o", "json", "--history"];
        let mut command = context.bare(words);
        command.arg(&history).args(flags);
        Self { done: Running::start(command).finish_within(BOUND), history }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.done.out).unwrap_or_else(|error| panic!("{error}: {:?}", self.done))
    }

    /// It is OK, and for a reason.
    fn is_ok(&self) -> Value {
        let found = self.json();
        assert_eq!((self.done.code, &found["verdict"]), (Some(0), &"OK".into()), "{found:#}");
        let figures = &found["figures"];
        assert!(number(&figures["holds"]) > 20 && number(&figures["takeovers"]) > 0, "{found:#}");
        assert!(figures["latest_told_ms"].is_number(), "no holder was told of a loss: {found:#}");
        assert!(number(&found["stale_writes_refused"]) > 0 && number(&found["lost_without_fence"]) > 0, "{found:#}");
        found
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn names(context: &TestContext, url: &str) -> String {
    finish(context.bare(["ls", "-o", "name", "-u", url])).out
}

#[test]
fn the_embedded_store_is_ok_and_its_history_can_be_read_again() {
    let context = TestContext::new();
    let url = context.url();
    let run = Run::new(&context, &url, "1s", &[]);
    let found = run.is_ok();
    for kind in ["pause", "kill", "kill_waiter", "repeat", "cancel"] {
        assert!(number(&found["figures"]["faults"][kind]) > 0, "{kind}: {found:#}");
    }
    assert!(found["figures"]["faults"]["cut"].is_null(), "there is no connection to cut: {found:#}");
    assert_eq!(names(&context, &url), "");
    // The longest run that is allowed can be read: each claim has no more events than that counts on.
    let text = text_of(&run.history);
    let (events, asked) = (text.lines().count(), text.matches("\"ev\":\"asked\"").count());
    assert!(events < asked * EVENTS_OF_A_CLAIM, "{events} events of {asked} claims");

    let check = finish(context.bare(["torture", "check", &run.history, "-o", "json"]));
    let again: Value = serde_json::from_str(&check.out).unwrap();
    assert_eq!((check.code, &again["verdict"], &again["figures"]), (Some(0), &found["verdict"], &found["figures"]));
    let text = finish(context.bare(["torture", "check", &run.history])).out;
    assert!(text.contains("stale ones refused") && text.contains("OK: Every promise held"), "{text}");
    let page = finish(context.bare(["torture", "render", &run.history]));
    assert!(page.code == Some(0) && page.out.contains("<svg") && page.out.contains("holder stopped"), "{page:?}");

    // The same schedule once more.
    let (out, shown) = (context.path("again.jsonl"), ["-o", "json", "-u", &url]);
    let mut replay = context.bare(["torture", "replay", &run.history, "--history", &out]);
    replay.args(shown);
    let replay = Running::start(replay).finish_within(BOUND);
    let replayed: Value = serde_json::from_str(&replay.out).unwrap_or_else(|error| panic!("{error}: {replay:?}"));
    assert_eq!((&replayed["seed"], &replayed["ttl_ms"]), (&7.into(), &1000.into()), "{replayed:#}");

    // No program is taken from a file, and none is left out in silence.
    let (header, events) = (text_of(&run.history), context.path("other.jsonl"));
    for (field, value, flag, word) in [
        ("lock", "python3 other.py".into(), "--with", "python3 other.py"),
        ("also", "oarlock 0.0.1".into(), "--also", "oarlock 0.0.1"),
        ("faults", serde_json::json!(["pause", "command"]), "--fault-cmd", "broke the servers"),
    ] {
        let (first, rest) = header.split_once('\n').unwrap();
        let mut first: Value = serde_json::from_str(first).unwrap();
        first[field] = value;
        std::fs::write(&events, format!("{first}\n{rest}")).unwrap();
        let done = finish(context.bare(["torture", "replay", &events, "-u", &url]));
        assert_eq!((done.code, done.out.as_str()), (Some(64), ""), "{done:?}");
        assert!(done.err.contains(flag) && done.err.contains(word), "{done:?}");
    }
    let done = finish(context.bare(["torture", "replay", &run.history, "-u", &url, "--fault-cmd", "true"]));
    assert_eq!((done.code, done.out.as_str()), (Some(64), ""), "{done:?}");
    assert!(done.err.contains("no fault command"), "{done:?}");

    // An edge is broken: the grants of one worker happened a little earlier.
    let text = std::fs::read_to_string(&run.history).unwrap();
    let broken = context.path("broken.jsonl");
    std::fs::write(&broken, overlapping(&text)).unwrap();
    let done = finish(context.bare(["torture", "check", &broken]));
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.out.contains("VIOLATION Overlap"), "{done:?}");
    // And the end is missing.
    std::fs::write(&broken, &text[..text.len() / 2]).unwrap();
    for command in ["check", "render", "replay"] {
        let done = finish(context.bare(["torture", command, &broken]));
        assert_eq!((done.code, done.out.as_str()), (Some(78), ""), "{done:?}");
        assert!(done.err.contains("cut off"), "{done:?}");
    }
}

fn text_of(path: &str) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn another_build_must_be_another_and_a_build_of_oarlock() {
    let context = TestContext::new();
    for (program, code, why) in
        [(env!("CARGO_BIN_EXE_oarlock"), 64, "this very program"), ("/bin/true", 64, "no build of oarlock")]
    {
        let done = finish(context.bare(["torture", "-u", &context.url(), "--also", program]));
        assert_eq!((done.code, done.out.as_str()), (Some(code), ""), "{done:?}");
        assert!(done.err.contains(why), "{done:?}");
    }
    assert_eq!(names(&context, &context.url()), "");
}

/// The history with one hold that ends only after the next hold of the same lock has begun.
fn overlapping(history: &str) -> String {
    let mut lines: Vec<Value> = history.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let asked = |lines: &[Value], w: &Value, op: &Value| {
        let is = |line: &&Value| line["ev"] == "asked" && line["w"] == *w && line["op"] == *op;
        lines.iter().find(is).map(|line| (line["lock"].clone(), line["units"].is_null()))
    };
    let grants: Vec<(u64, Value, Value)> = lines
        .iter()
        .filter(|line| line["ev"] == "granted")
        .filter(|line| asked(&lines, &line["w"], &line["op"]) == Some(("a".into(), true)))
        .map(|line| (number(&line["at"]), line["w"].clone(), line["op"].clone()))
        .collect();
    let next = grants.windows(2).find(|pair| pair[0].1 != pair[1].1).expect("two holders");
    let (_, w, op) = &next[0];
    let ended = lines.iter_mut().find(|line| line["ev"] == "ended" && line["w"] == *w && line["op"] == *op);
    ended.expect("its end")["at"] = (next[1].0 + 1).into();
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[test]
fn redis_is_ok_with_every_fault_of_its_connections() {
    let Some(server) = Redis::start_or_skip().unwrap() else { return };
    let context = TestContext::new();
    let found = Run::new(&context, &server.url(), "1s", &[]).is_ok();
    for kind in ["cut", "cut_requests", "cut_replies", "lost_reply", "delay", "refuse", "strand", "reconnect"] {
        assert!(number(&found["figures"]["faults"][kind]) > 0, "{kind}: {found:#}");
    }
    assert!(number(&found["figures"]["replies_lost"]) > 0, "{found:#}");
    assert_eq!(names(&context, &server.url()), "");
}

/// PostgreSQL may grant a lock when all connections of its holder were reset; see the page of the store. Nothing else
/// may go wrong.
#[test]
fn postgres_is_ok_but_for_resets() {
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    let context = TestContext::new();
    assert_eq!(finish(context.bare(["init", "-u", &server.url()])).code, Some(0));
    let run = Run::new(&context, &server.url(), "1s", &[]);
    if run.done.code != Some(0) {
        let found = run.json();
        assert_eq!((run.done.code, &found["verdict"]), (Some(2), &"RISK SEEN".into()), "{found:#}");
        for finding in found["findings"].as_array().unwrap() {
            assert!(finding["excuse"].as_str().unwrap_or_default().contains("a reset in between"), "{found:#}");
        }
    }
    assert_eq!(names(&context, &server.url()), "");
}

/// A server that forgets its locks while one is held: the run must see it, and the fences must not fall. The holder is
/// stopped meanwhile, so that it cannot renew and notice, and no other worker asks before.
#[test]
fn a_server_that_forgets_is_found() {
    let Some(server) = Redis::start_or_skip().unwrap() else { return };
    let context = TestContext::new();
    let flush = format!("redis-cli -p {} flushall", server.addr().port());
    let flags = ["--no-network", "--faults", "command", "--fault-cmd", &flush];
    let run = Run::new(&context, &server.url(), "5s", &flags);
    let found = run.json();
    assert_eq!((run.done.code, &found["verdict"]), (Some(2), &"RISK SEEN".into()), "{found:#}");
    let findings = found["findings"].as_array().unwrap();
    let overlap = findings.iter().find(|finding| finding["name"] == "Overlap").unwrap_or_else(|| panic!("{found:#}"));
    assert!(overlap["excuse"].as_str().unwrap().contains("forget"), "{overlap:#}");
    assert!(findings.iter().all(|finding| finding["name"] != "FenceOrder"), "{found:#}");
}

/// The command is told for what it is called.
#[test]
fn a_fault_command_learns_the_phase_and_what_the_holder_does() {
    let context = TestContext::new();
    let calls = context.path("calls");
    let command = format!("echo $OARLOCK_TORTURE_FAULT $OARLOCK_TORTURE_PHASE $OARLOCK_TORTURE_HOLDER >> {calls}");
    Run::new(&context, &context.url(), "500ms", &["--faults", "command", "--fault-cmd", &command]);
    let calls = text_of(&calls);
    let mut calls = calls.lines();
    assert_eq!((calls.next(), calls.next()), (Some("1 scenes stopped"), Some("2 scenes runs")));
    assert_eq!(calls.next(), Some("3 storm any"));
}

/// People who look at a terminal follow the run; a pipe gets nothing.
#[test]
fn a_terminal_shows_what_is_broken_and_what_was_found_while_it_runs() {
    let context = TestContext::new();
    let (url, history) = (context.url(), context.path("history.jsonl"));
    let oarlock = env!("CARGO_BIN_EXE_oarlock");
    let words = ["torture", "-u", &url, "--ttl", "1s", "--duration", "3s", "--faults", "pause", "--history", &history];
    let mut terminal = Terminal::with(&context, &[&[oarlock], &words[..]].concat());
    for text in [
        "calm: 0 s, about ",
        " of faults left",
        "not looked at yet",
        "scenes: ",
        "holder stopped (SIGSTOP) of worker ",
        " grants, ",
        " losses told to holders",
        "no promise was broken",
        "faults are over",
        // It is gone before the verdict comes.
        "oarlock on local:",
        "INCONCLUSIVE: ",
    ] {
        terminal.expect(text);
    }
    let done = Running::start(context.bare(words)).finish_within(BOUND);
    assert_eq!((done.code, done.err.as_str()), (Some(3), ""), "{done:?}");
}

#[test]
fn a_run_that_left_the_network_alone_is_not_ok() {
    let Some(server) = Redis::start_or_skip().unwrap() else { return };
    let context = TestContext::new();
    let run = Run::new(&context, &server.url(), "300ms", &["--no-network", "--workers", "2"]);
    assert_eq!((run.done.code, &run.json()["verdict"]), (Some(3), &"INCONCLUSIVE".into()), "{:?}", run.done);
}

/// Workers reach their server past the proxies: the cuts cost no holder its lock, and the run is not OK.
#[test]
fn cuts_that_reach_no_holder_were_not_tried() {
    let Some(servers) = RedisCluster::start_or_skip().unwrap() else { return };
    let context = TestContext::new();
    // A replica says where the masters are, and has no lock itself.
    let url = format!("redis+cluster://{}", servers.replicas[0].addr());
    let run = Run::new(&context, &url, "500ms", &["--server", "127.0.0.1:9"]);
    let found = run.json();
    assert_eq!((run.done.code, &found["verdict"]), (Some(3), &"INCONCLUSIVE".into()), "{found:#}");
}

/// A few names do not need every node of a cluster: the run can be OK all the same.
#[test]
fn a_cluster_is_ok_if_all_of_its_nodes_are_named() {
    let Some(servers) = RedisCluster::start_or_skip().unwrap() else { return };
    let (context, url) = (TestContext::new(), servers.url());
    let (first, others) = url.split_once(',').unwrap();
    let others = others.split(['/', '?']).next().unwrap();
    let flags: Vec<&str> = others.split(',').flat_map(|host| ["--server", host]).collect();
    Run::new(&context, first, "1s", &flags).is_ok();
}

/// A server that does not come back is no fault of the lock.
#[test]
fn a_server_that_stays_away_is_inconclusive() {
    let Some(server) = Redis::start_or_skip().unwrap() else { return };
    let context = TestContext::new();
    let stop = format!("redis-cli -p {} shutdown nosave || true", server.addr().port());
    let run = Run::new(&context, &server.url(), "300ms", &["--fault-cmd", &stop]);
    let found = run.json();
    assert_eq!((run.done.code, &found["verdict"]), (Some(3), &"INCONCLUSIVE".into()), "{found:#}");
}

/// etcd and ZooKeeper have no leases below two seconds, and a run takes 25 of them: in the long tier alone.
#[test]
fn every_other_store_is_ok() {
    if std::env::var_os("OARLOCK_LONG").is_none() {
        println!("only in the long tier (OARLOCK_LONG=1)");
        return;
    }
    let context = TestContext::new();
    if let Some(server) = Etcd::start_or_skip().unwrap() {
        Run::new(&context, &server.url(), "2s", &[]).is_ok();
    }
    if let Some(server) = MariaDb::start_or_skip().unwrap() {
        assert_eq!(finish(context.bare(["init", "-u", &server.url()])).code, Some(0));
        Run::new(&context, &server.url(), "1s", &[]).is_ok();
    }
    if let Some(server) = ZooKeeper::start_or_skip().unwrap() {
        Run::new(&context, &format!("{}?ttl=2s", server.url()), "2s", &[]).is_ok();
    }
}

#[test]
fn what_cannot_be_tried_is_refused_with_a_reason() {
    let context = TestContext::new();
    let torture = |args: &[&str]| {
        let mut command = context.bare(["torture", "--history", "/dev/null"]);
        command.args(args);
        finish(command)
    };
    let done = torture(&["-u", "mem:"]);
    assert_eq!(done.code, Some(78), "{done:?}");
    assert!(done.err.contains("one process only"), "{done:?}");
    let url = context.url();
    for args in [["--duration", "0s"], ["--duration", "2h"], ["--ttl", "1ms"], ["--workers", "1"], ["--faults", "fire"]]
    {
        assert_eq!(torture(&[&["-u", &url], &args[..]].concat()).code, Some(64), "{args:?}");
    }
    // Their histories would be too long to be read.
    for args in [["--rate", "5000", "--duration", "1h"], ["--rate", "5000", "--ttl", "1h"]] {
        let done = torture(&[&["-u", &url], &args[..]].concat());
        assert_eq!(done.code, Some(64), "{done:?}");
        assert!(done.err.contains("--rate"), "{done:?}");
    }
    assert_eq!(torture(&["-u", "redis://127.0.0.1:1"]).code, Some(69));
    assert_eq!(finish(context.bare(["__torture", "1", "torture"])).code, Some(64));
    assert_eq!(finish(context.bare(["torture", "check", &context.path("none")])).code, Some(71));
}

/// Redis goes through proxies with its certificates checked.
#[test]
fn an_encrypted_store_is_tried_through_proxies_too() {
    let Some(server) = RedisTls::start_or_skip().unwrap() else { return };
    let context = TestContext::new();
    let url = format!("{}?ca={}", server.url(), server.ca().display());
    let run = Run::new(&context, &url, "1s", &[]);
    let found = run.json();
    assert!(number(&found["figures"]["faults"]["cut"]) > 0, "{found:#}");
    assert_eq!(found["verdict"], "OK", "{found:#}");
}

#[test]
fn every_lock_of_the_zoo_is_caught() {
    let zoo = TestContext::new().bare(["torture", "zoo", "-o", "json"]);
    let done = Running::start(zoo).finish_within(BOUND);
    let found: Value = serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}"));
    assert_eq!((done.code, &found["all_right"]), (Some(0), &true.into()), "{found:#}");
    let locks = found["locks"].as_array().unwrap();
    assert_eq!(locks.len(), Flaw::ALL.len(), "{found:#}");
    let page = include_str!("../../../../docs/torture.md");
    let flaws = Flaw::ALL.len() - 1;
    assert!(page.contains(&format!("runs {flaws} locks that are broken on purpose")), "there are {flaws}");
    for lock in locks {
        let healthy = lock["lock"] == "None";
        assert_eq!(lock["found"].as_array().unwrap().is_empty(), healthy, "{lock:#}");
        assert_eq!(lock["verdict"], if healthy { "OK" } else { "VIOLATION" }, "{lock:#}");
    }
}

/// A lock of another library that grants whatever it is asked for: no lock at all.
#[test]
fn another_lock_that_excludes_no_one_is_a_violation() {
    let context = TestContext::new();
    let program = context.path("peer.sh");
    let script = "echo ready nothing 1\nwhile read verb handle rest; do case $verb in lock) echo \"held $handle 0 -\";; \
                  held) echo \"yes $handle\";; *) echo \"freed $handle 0\";; esac; done\n";
    std::fs::write(&program, script).unwrap();
    let run = Run::new(&context, &context.url(), "300ms", &["--with", &format!("sh {program}")]);
    let found = run.json();
    assert_eq!((run.done.code, &found["verdict"]), (Some(1), &"VIOLATION".into()), "{found:#}");
    let findings = found["findings"].as_array().unwrap();
    assert!(findings.iter().any(|finding| finding["name"] == "Overlap"), "{found:#}");
    assert!(number(&found["lost_without_fence"]) > 0, "{found:#}");
}

/// A lock as many programs write it: `SET NX PX` with a token of one's own, renewed whenever it is asked whether it holds.
/// `$SET` says how it takes a key that no program like it has.
const PLAIN_PEER: &str = r#"
host=${OARLOCK_TORTURE_HOSTS%%:*} port=${OARLOCK_TORTURE_HOSTS##*:}
ask() { timeout 2 redis-cli -h "$host" -p "$port" "$@" < /dev/null; }
mine="redis.call('get', KEYS[1]) == ARGV[1]"
echo ready plain 1
while read -r verb handle kind lock lease wait; do
  case $verb in
    lock)
      name=$lock px=${lease#renew:} token=plain-$$-$handle end=$(($(date +%s%3N) + wait))
      while :; do
        case $(ask get "$name") in
          plain-*) ;;
          *) [ "$(ask set "$name" "$token" $SET px "$px")" = OK ] && { echo "held $handle 0 -"; break; } ;;
        esac
        [ "$(date +%s%3N)" -ge "$end" ] && { echo "busy $handle"; break; }
        sleep 0.03
      done ;;
    held)
      renewed=$(ask eval "return $mine and redis.call('pexpire', KEYS[1], ARGV[2]) or 0" 1 "$name" "$token" "$px")
      [ "$renewed" = 1 ] && echo "yes $handle" || echo "no $handle" ;;
    *)
      ask eval "return $mine and redis.call('del', KEYS[1]) or 0" 1 "$name" "$token" > /dev/null
      echo "freed $handle 0" ;;
  esac
done
"#;

/// Runs that program beside Oarlock.
fn beside(set: &str, faults: &str) -> Option<Value> {
    let server = Redis::start_or_skip().unwrap()?;
    let context = TestContext::new();
    let program = context.path("peer.sh");
    std::fs::write(&program, format!("SET={set}{PLAIN_PEER}")).unwrap();
    let (url, with) = (format!("{}?layout=plain", server.url()), format!("sh {program}"));
    let run = Run::new(&context, &url, "1s", &["--beside", "--with", &with, "--faults", faults]);
    let mut found = run.json();
    assert_eq!(found["beside"], true, "{found:#}");
    // The grants of each slot: the other library has the odd ones.
    let events: Vec<Value> = text_of(&run.history).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |name: &'static str| events.iter().filter(move |event| event["ev"] == name);
    let slots: std::collections::BTreeMap<u64, u64> =
        of("started").map(|event| (number(&event["w"]), number(&event["slot"]))).collect();
    let odd = of("granted").filter(|event| slots[&number(&event["w"])] % 2 == 1).count();
    let even = of("granted").count() - odd;
    assert!(odd > 10 && even > 10, "{odd} grants of the other library, {even} of Oarlock: {found:#}");
    assert!(of("phase").any(|event| event["name"] == "leaks"), "{found:#}");
    found["code"] = run.done.code.into();
    Some(found)
}

#[test]
fn another_lock_that_takes_part_shares_the_lock_with_oarlock() {
    let Some(found) = beside("nx", "pause,kill,kill-waiter") else { return };
    // Some faults were left out; and this lock cannot know that its lease ended while it was stopped.
    assert!(found["code"] == 3 || found["code"] == 2, "{found:#}");
    for finding in found["findings"].as_array().unwrap() {
        assert_ne!(finding["ruling"], "VIOLATION", "{found:#}");
    }
    assert!(number(&found["stale_writes_refused"]) > 0, "{found:#}");
    let locks = found["figures"]["locks"].as_object().unwrap();
    assert!(locks.values().all(|lock| number(&lock["unfenced"]) > 0), "{found:#}");
}

#[test]
fn another_lock_that_breaks_in_is_found() {
    let Some(found) = beside("", "pause") else { return };
    assert_eq!((&found["code"], &found["verdict"]), (&1.into(), &"VIOLATION".into()), "{found:#}");
    let findings = found["findings"].as_array().unwrap();
    let is = |finding: &Value| {
        let what = finding["what"].as_str().unwrap_or_default();
        finding["name"] == "Overlap" && what.contains("is Oarlock,") && what.contains("is the other library")
    };
    assert!(findings.iter().any(is), "{found:#}");
}

#[test]
fn another_lock_takes_part_only_where_both_lock_the_same_keys() {
    let context = TestContext::new();
    let (local, redis) = (context.url(), "redis://127.0.0.1:1");
    let plain = format!("{redis}?layout=plain");
    for (url, flags, code, why) in [
        (local.as_str(), vec!["--with", "true"], 78, "no other library"),
        (redis, vec!["--with", "true"], 78, "layout=plain"),
        (&plain, vec!["--with", "true", "--workers", "3"], 64, "at least 4 workers"),
        (&plain, vec![], 64, "--with"),
        // It is the server that is missing.
        (&plain, vec!["--with", "true"], 69, "redis"),
        ("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", vec!["--with", "true"], 69, "redlock"),
    ] {
        let mut command = context.bare(["torture", "--history", "/dev/null", "--beside", "-u", url]);
        command.args(flags);
        let done = finish(command);
        assert_eq!((done.code, done.out.as_str()), (Some(code), ""), "{done:?}");
        assert!(done.err.contains(why), "{done:?}");
    }
}

/// A program of another library that does not notice the end of its input is killed with the run, however that ends.
#[test]
fn another_lock_does_not_outlive_its_run() {
    let context = TestContext::new();
    let (program, pids) = (context.path("peer.sh"), context.path("pids"));
    let script = format!("trap '' HUP TERM INT\necho $$ >> {pids}\necho ready nothing 1\nwhile :; do sleep 1; done\n");
    std::fs::write(&program, script).unwrap();
    for signal in [Signal::INT, Signal::KILL] {
        let with = format!("sh {program}");
        let words = ["torture", "--ttl", "60s", "--history", "/dev/null", "-q", "--with", &with];
        let running = Running::start(context.oarlock(words));
        let started = || std::fs::read_to_string(&pids).unwrap_or_default();
        await_true("four programs", || started().lines().count() == 4);
        running.signal(signal);
        drop(running.finish());
        started().lines().for_each(await_death);
        std::fs::remove_file(&pids).unwrap();
    }
}

/// By Ctrl-C the run ends its own claims; after SIGKILL `clean` does, and the workers die with it.
#[test]
fn an_interrupted_run_leaves_no_process_and_its_locks_can_be_cleaned() {
    let Some(server) = Redis::start_or_skip().unwrap() else { return };
    let (context, url) = (TestContext::new(), server.url());
    for signal in [Signal::INT, Signal::KILL] {
        let words = ["torture", "-u", &url, "--ttl", "60s", "--history", "/dev/null", "-q"];
        let running = Running::start(context.bare(words));
        await_true("a lock", || names(&context, &url).contains("oarlock-torture/"));
        let workers = children(&running.pid().as_raw_nonzero().to_string());
        assert_eq!(workers.len(), 4, "{workers:?}");
        running.signal(signal);
        let done = running.finish();
        workers.iter().for_each(|pid| await_death(pid));
        assert!(workers.iter().all(|pid| !is_alive(pid)));
        if signal == Signal::INT {
            assert_eq!((done.code, done.out.as_str()), (Some(130), ""), "{done:?}");
        } else {
            let cleaned = finish(context.bare(["torture", "clean", "--all", "-u", &url, "-o", "json"]));
            assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
        }
        assert_eq!(names(&context, &url), "", "{signal:?}");
    }
    assert_eq!(finish(context.bare(["torture", "clean", "-u", &url])).out, "nothing was left\n");
}
