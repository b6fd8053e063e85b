//! `oarlock demo`: what should go wrong does, what should help does, and either failing is noticed.

use oarlock_testbed::{MariaDb, MySql, Postgres, Redis, RedisCluster};
use rustix::process::Signal;
use serde_json::Value;

use super::support::{Done, Running, TestContext, finish};

fn on(context: &TestContext, url: &str, args: &[&str]) -> Done {
    let mut command = context.bare(["demo"]);
    command.args(args).args(["-u", url, "-o", "json"]).env("TMPDIR", context.dir.path());
    finish(command)
}

fn json(done: &Done) -> Value {
    serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}"))
}

/// Each way, whether it should go wrong, and whether all was right.
fn ways(found: &Value) -> Vec<(&str, bool, bool)> {
    let ways = found["ways"].as_array().unwrap_or_else(|| panic!("no ways: {found:#}"));
    let flag = |value: &Value| value.as_bool().unwrap_or_else(|| panic!("{value} is no flag"));
    ways.iter().map(|way| (way["way"].as_str().unwrap(), flag(&way["disease"]), flag(&way["right"]))).collect()
}

/// All of it on one store.
fn all(context: &TestContext, url: &str, transactions: bool, sale: bool) {
    let done = on(context, url, &["oversell"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    let found = json(&done);
    let protections = ["mutex", "version", "for-update", "segments"].map(|protection| (protection, false, true));
    assert_eq!(ways(&found), [&[("none", true, false)][..], &protections].concat(), "{found:#}");
    for way in found["ways"].as_array().unwrap() {
        let (sold, left) = (way["sold"].as_u64().unwrap(), way["left"].as_u64().unwrap());
        assert_eq!(way["right"], (sold, left) == (3, 0), "{found:#}");
        assert!(sold >= 3, "{found:#}");
    }
    let done = on(context, url, &["oncall", "--nights", "20"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    let found = json(&done);
    let diseases: &[_] = if transactions { &["none", "transaction", "row-version"] } else { &["none", "row-version"] };
    let protections = ["mutex", "version", "for-update", "serializable"].map(|protection| (protection, false, true));
    let wanted: Vec<_> = diseases.iter().map(|disease| (*disease, true, false)).chain(protections).collect();
    assert_eq!(ways(&found), wanted, "{found:#}");
    if sale {
        let done = on(context, url, &["flash-sale", "--duration", "100ms", "--takers", "8", "--segments", "1,4"]);
        assert_eq!(done.code, Some(0), "{done:?}");
        let found = json(&done);
        let sales = found["sales"].as_array().unwrap();
        assert_eq!(sales.iter().map(|sale| sale["segments"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 4]);
        for sale in sales {
            assert!(sale["told"].as_u64().unwrap() > 0 && sale["told"] == sale["held"], "{found:#}");
        }
        assert_eq!((&found["last"]["held"], &found["last"]["available"]), (&200.into(), &0.into()), "{found:#}");
        let drawn = std::fs::read_to_string(found["chart"].as_str().unwrap()).unwrap();
        assert!(drawn.contains("4 segments") && drawn.trim_end().ends_with("</svg>"), "{drawn}");
        std::fs::remove_file(found["chart"].as_str().unwrap()).unwrap();
    }
    let left: Vec<_> =
        std::fs::read_dir(context.dir.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("demo")), "{left:?}");
}

#[test]
fn on_the_embedded_store() {
    let context = TestContext::new();
    all(&context, &context.url(), false, true);
}

#[test]
fn on_postgres() {
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    all(&TestContext::new(), &server.url(), true, true);
}

#[test]
fn on_mariadb() {
    let Some(server) = MariaDb::start_or_skip().unwrap() else { return };
    all(&TestContext::new(), &server.url(), true, true);
}

#[test]
fn on_mysql() {
    let Some(server) = MySql::start_or_skip().unwrap() else { return };
    all(&TestContext::new(), &server.url(), true, true);
}

#[test]
fn on_redis() {
    let Some(server) = Redis::start_or_skip().unwrap() else { return };
    all(&TestContext::new(), &server.url(), false, true);
}

#[test]
fn a_cluster_sells_and_nothing_is_left_on_it() {
    let Some(cluster) = RedisCluster::start_or_skip().unwrap() else { return };
    let context = TestContext::new();
    let done = on(&context, &cluster.url(), &["flash-sale", "--duration", "100ms", "--takers", "4", "--segments", "6"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(json(&done)["last"]["held"], 200);
    for master in &cluster.masters {
        let said = oarlock_testbed::server::redis_command(master.addr(), &["DBSIZE"]).unwrap();
        assert_eq!(said, "0", "{}", master.addr());
    }
}

#[test]
fn a_protection_that_is_left_out_is_missed() {
    let context = TestContext::new();
    for (demo, protection) in [
        ("oversell", "mutex"),
        ("oversell", "version"),
        ("oversell", "for-update"),
        ("oversell", "segments"),
        ("oncall", "mutex"),
        ("oncall", "version"),
        ("oncall", "for-update"),
        ("oncall", "serializable"),
    ] {
        let done = on(&context, &context.url(), &[demo, "--sabotage", protection]);
        assert_eq!(done.code, Some(70), "{demo} {protection}: {done:?}");
        assert!(done.err.contains("should have been right and was not"), "{demo} {protection}: {done:?}");
        let found = json(&done);
        assert_eq!(found["shown"], false);
        let broken: Vec<_> = ways(&found).into_iter().filter(|(_, disease, right)| !disease && !right).collect();
        assert_eq!(broken, [(protection, false, false)], "{demo}");
    }
    let flags = ["flash-sale", "--sabotage", "--duration", "100ms", "--takers", "4", "--segments", "2"];
    let done = on(&context, &context.url(), &flags);
    assert_eq!(done.code, Some(70), "{done:?}");
    assert!(done.err.contains("promised twice"), "{done:?}");
}

#[test]
fn what_did_not_go_wrong_shows_nothing() {
    let context = TestContext::new();
    for flags in [&["oversell", "--tills", "1", "--buyers", "10"][..], &["oncall", "--in-turn", "--nights", "2"]] {
        let done = on(&context, &context.url(), flags);
        assert_eq!(done.code, Some(70), "{done:?}");
        assert!(done.err.contains("should have gone wrong and did not"), "{done:?}");
        assert_eq!(json(&done)["shown"], false);
    }
}

#[test]
fn the_story_is_told_in_words() {
    let context = TestContext::new();
    let mut command = context.bare(["demo", "oversell"]);
    command.env("TMPDIR", context.dir.path()).env("XDG_STATE_HOME", context.dir.path());
    let done = finish(command);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.err.contains("embedded store"), "it says which store: {done:?}");
    assert!(done.out.contains("100 buyers want one of 3 items"), "{}", done.out);
    let row =
        |name: &str| done.out.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{}", done.out));
    assert!(row("no lock ").contains("OVERSOLD by "), "{}", done.out);
    for name in ["a mutex ", "a version, ", "SELECT … FOR UPDATE ", "stock in segments "] {
        assert!(row(name).contains("3     0     right"), "{}", done.out);
    }
    let page = context.path("sale.html");
    let done = context.run(&["demo", "flash-sale", "--duration", "50ms", "--takers", "2", "--chart", &page]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.out.contains("64 segments") && done.out.contains('█') && done.out.contains(&page), "{}", done.out);
    assert!(std::fs::read_to_string(page).unwrap().contains("<svg "));
}

#[test]
fn a_store_that_cannot_says_so() {
    let context = TestContext::new();
    for (url, demo, code) in [
        ("mem:", "flash-sale", 78),
        ("etcd://127.0.0.1:1", "flash-sale", 78),
        ("postgres://127.0.0.1:1/x?sslmode=require", "oversell", 78),
        ("postgres://missing@127.0.0.1:1/x", "flash-sale", 69),
        ("mysql://127.0.0.1:1/x", "oncall", 69),
        ("redis://127.0.0.1:1", "flash-sale", 69),
        ("etcd://127.0.0.1:1", "oversell", 69),
    ] {
        let done = on(&context, url, &[demo]);
        assert_eq!((done.code, done.out.as_str()), (Some(code), ""), "{url} {demo}: {done:?}");
        assert!(!done.err.is_empty(), "{url}");
    }
    for flags in
        [&["demo"][..], &["demo", "oversell", "--sabotage", "none"], &["demo", "flash-sale", "--duration", "0"]]
    {
        assert_eq!(context.run(flags).code, Some(64), "{flags:?}");
    }
    // Without rows of its own, a store may still have the lock.
    let done = on(&context, "mem:", &["oncall", "--nights", "20"]);
    assert_eq!((done.code, &json(&done)["store"]), (Some(0), &"mem".into()), "{done:?}");
}

#[test]
fn a_signal_ends_it_and_nothing_is_left() {
    let context = TestContext::new();
    let mut command = context.oarlock(["demo", "oncall", "--nights", "1000"]);
    command.env("TMPDIR", context.dir.path());
    let mut demo = Running::start(command);
    let is_there = || {
        let entries = std::fs::read_dir(context.dir.path()).unwrap().flatten();
        entries.map(|entry| entry.file_name()).any(|name| name.to_string_lossy().contains("demo"))
    };
    let give_up = std::time::Instant::now() + super::support::PATIENCE;
    while !is_there() {
        assert!(std::time::Instant::now() < give_up && demo.is_running(), "no rows");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    demo.signal(Signal::TERM);
    assert_eq!(demo.finish().code, Some(128 + 15));
    assert!(!is_there());
}

/// A doctor that waits for the other does not wait for one that is gone.
#[test]
fn a_doctor_whose_connection_ends_ends_it() {
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    let context = TestContext::new();
    let mut command = context.bare(["demo", "oncall", "--nights", "1000", "-u", &server.url()]);
    command.env("TMPDIR", context.dir.path());
    let mut demo = Running::start(command);
    let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
               where query = 'update doctors set on_call = 0 where id = 2'";
    let port = server.addr().port().to_string();
    let give_up = std::time::Instant::now() + super::support::PATIENCE;
    loop {
        let args = ["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-Atc", end, "postgres"];
        let told = match std::process::Command::new("psql").args(args).output() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                eprintln!("skipped: there is no psql");
                return;
            }
            told => String::from_utf8(told.unwrap().stdout).unwrap(),
        };
        if told.trim() == "1" {
            break;
        }
        assert!(std::time::Instant::now() < give_up && demo.is_running(), "no doctor goes: {told}");
    }
    let done = demo.finish();
    assert_eq!(done.code, Some(69), "{done:?}");
}
