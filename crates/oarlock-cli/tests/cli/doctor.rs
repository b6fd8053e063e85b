//! Deployments that are unsafe in one way each, made on purpose, and what `doctor` finds.

mod coordinators;
mod databases;
mod provoked;
mod redis;

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use super::support::{TestContext, finish};

/// The page that findings link to.
const GUARANTEES: &str = include_str!("../../../../docs/guarantees.md");

/// What `doctor` found on one store.
#[derive(Debug)]
struct Found {
    /// Apart from the rest: any server may be slow where tests keep the machine busy.
    is_slow: bool,
    code: i32,
    ids: BTreeSet<String>,
    report: Value,
}

/// Examines the store behind `url`. Whatever is found has a reason, a fix, and links to what it voids and to the
/// runbook.
fn doctor(url: &str) -> Found {
    doctor_with(url, &[])
}

fn doctor_with(url: &str, args: &[&str]) -> Found {
    let context = TestContext::new();
    let mut command = context.bare(["doctor", "-o", "json"]);
    command.args(args).env("OARLOCK_URL", url);
    let done = finish(command);
    let report: Value = serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}"));
    let mut ids = BTreeSet::new();
    let (mut worst, mut code) = (0, 0);
    for finding in report["findings"].as_array().unwrap() {
        let text = |field: &str| finding[field].as_str().unwrap_or_else(|| panic!("no {field}: {finding}"));
        assert!(!text("reason").is_empty() && !text("fix").is_empty(), "{finding}");
        assert!(text("guarantee").contains("docs/guarantees.md#"), "{finding}");
        if let Some(link) = finding["store_guarantee"].as_str() {
            let (_, cell) = link.split_once("docs/guarantees.md#").unwrap_or_else(|| panic!("{finding}"));
            assert!(GUARANTEES.contains(&format!("<a id=\"{cell}\"></a>")), "no cell {cell}: {finding}");
        }
        assert!(text("runbook").ends_with(&format!("docs/runbook.md#{}", text("id"))), "{finding}");
        let severity = match text("severity") {
            "note" => 0,
            "void" => 2,
            _ => 1,
        };
        worst = worst.max(severity);
        if text("id") != "slow-server" {
            code = code.max(severity);
            ids.insert(text("id").to_owned());
        }
    }
    assert_eq!(done.code, Some(worst), "{done:?}");
    let is_slow = report["findings"].as_array().unwrap().iter().any(|finding| finding["id"] == "slow-server");
    Found { is_slow, code, ids, report }
}

/// A store as it is before something is broken.
struct Healthy {
    url: String,
    before: BTreeSet<String>,
}

impl Healthy {
    /// Whatever is found here is no news later.
    fn at(url: &str, expected: &[&str]) -> Self {
        let found = doctor(url);
        assert_eq!(found.ids, words(expected), "{:#}", found.report);
        Self { url: url.to_owned(), before: found.ids }
    }

    /// Something was broken: that is found, and nothing else.
    #[track_caller]
    fn breaks(&self, id: &str, code: i32) -> Value {
        let found = doctor(&self.url);
        let mut expected = self.before.clone();
        expected.insert(id.to_owned());
        assert_eq!(found.ids, expected, "{:#}", found.report);
        assert_eq!(found.code, code, "{:#}", found.report);
        let mut findings = found.report["findings"].as_array().unwrap().iter();
        findings.find(|finding| finding["id"] == id).unwrap().clone()
    }
}

fn words(words: &[&str]) -> BTreeSet<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// Each layout and mode has its row in the tables of guarantees.
#[test]
fn every_layout_and_mode_has_its_row() {
    for (url, row) in [
        ("local:", "local"),
        ("redis://h", "redis"),
        ("redis+cluster://h", "redis"),
        ("redis+sentinel://h/m", "redis"),
        ("redis://h?layout=native", "redis"),
        ("redis://h?layout=plain", "redis-plain"),
        ("redis://h?layout=redisson", "redis-redisson"),
        ("redlock://a,b,c", "redlock"),
        ("etcd://h", "etcd"),
        ("etcd://h?layout=go", "etcd-go"),
        ("zk://h", "zk"),
        ("zk://h?layout=curator", "zk-compat"),
        ("zk://h?layout=kazoo", "zk-compat"),
        ("postgres://u@h/d", "postgres"),
        ("postgres://u@h/d?mode=session", "postgres-session"),
        ("mysql://u@h/d", "mysql"),
        ("mysql://u@h/d?mode=session", "mysql-session"),
    ] {
        let found = oarlock::doctor::guarantees_of(url).unwrap().map(|found| found.anchor);
        assert_eq!(found, Some(row), "{url}");
    }
}

#[test]
fn a_store_that_was_never_used_is_left_alone() {
    let context = TestContext::new();
    let done = context.run(&["doctor"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.out.contains("is safe for locks"), "{done:?}");
    assert!(!context.dir.path().join("store").exists(), "it was created");
}

#[test]
fn a_directory_that_others_can_write_to_is_unsafe() {
    use std::os::unix::fs::PermissionsExt as _;
    let context = TestContext::new();
    assert_eq!(context.code(&["run", "x", "--", "true"]), 0);
    let healthy = Healthy::at(&context.url(), &[]);
    let dir = context.dir.path().join("store");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    healthy.breaks("local-open", 2);
}

/// The file system of processes has no space at all.
#[test]
fn a_full_file_system_is_found() {
    let found = doctor("local:/proc/oarlock");
    assert!(found.ids.contains("local-disk"), "{:#}", found.report);
}

/// Every file below a directory. For a directory, when a file was last created or removed there; files are written by
/// the holder, too.
fn files(dir: &Path) -> BTreeMap<PathBuf, Option<SystemTime>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let is_dir = entry.path().is_dir();
        found.insert(entry.path(), is_dir.then(|| entry.metadata().unwrap().modified().unwrap()));
        if is_dir {
            found.extend(files(&entry.path()));
        }
    }
    found
}

#[test]
fn nothing_in_the_directory_changes() {
    let context = TestContext::new();
    let _holder = context.hold(&["deploy/prod"]);
    // What a process that was killed left behind stays, too.
    let dir = context.dir.path().join("store");
    std::fs::write(dir.join("session/left-behind"), "").unwrap();
    let before = files(&dir);
    let found = doctor_with(&context.url(), &["--max-hold", "1ms"]);
    assert_eq!(found.ids, words(&["old-hold"]), "it saw the lock: {:#}", found.report);
    assert_eq!(files(&dir), before);
}

/// A server that accepts connections and never answers ends no examination late.
#[test]
fn silent_servers_are_given_up() {
    let silent: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let [a, b, c] = [0, 1, 2].map(|at: usize| silent[at].local_addr().unwrap());
    let urls = [
        format!("redis://{a}"),
        format!("redis+sentinel://{a}/main"),
        format!("redis+cluster://{a}"),
        format!("redlock://{a},{b},{c}"),
        format!("etcd://{a}"),
        format!("zk://{a}"),
        format!("postgres://ada@{a}/locks"),
        format!("mysql://ada@{a}/locks"),
    ];
    let asked = urls.map(|url| {
        std::thread::spawn(move || {
            let begun = Instant::now();
            let found = doctor(&format!("{url}?connect_timeout=500ms&op_timeout=500ms"));
            assert!(found.ids.contains("unreachable"), "{url}: {:#}", found.report);
            (url, begun.elapsed())
        })
    });
    for (url, took) in asked.map(|thread| thread.join().unwrap()) {
        assert!(took < Duration::from_secs(20), "{url} took {took:?}");
    }
}

#[test]
fn two_stores_of_one_user_are_found() {
    let context = TestContext::new();
    let home = context.dir.path();
    for state in ["a/.local/state/oarlock/state", "b/oarlock/state"] {
        std::fs::create_dir_all(home.join(state)).unwrap();
    }
    let mut command = context.bare(["doctor", "-o", "name", "-u", "local:"]);
    command.env("HOME", home.join("a")).env("XDG_STATE_HOME", home.join("b"));
    let done = finish(command);
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.out.contains("local-two-stores"), "{done:?}");
}

#[test]
fn crowded_names_and_old_holds_are_found() {
    let context = TestContext::new();
    let holder = context.hold(&["deploy/prod"]);
    let mut waiter = context.oarlock(["run", "deploy/prod", "--", "true"]);
    let mut waiter = waiter.stdout(Stdio::null()).spawn().unwrap();
    context.await_waiters("deploy/prod", 1);
    assert_eq!(doctor(&context.url()).ids, words(&[]));
    let found = doctor_with(&context.url(), &["--max-waiters", "0", "--max-hold", "1ms"]);
    assert_eq!((found.code, found.ids), (1, words(&["many-waiters", "old-hold"])), "{:#}", found.report);
    let reasons = found.report["findings"].to_string();
    assert!(reasons.contains("deploy/prod") && reasons.contains("1 wait"), "{reasons}");
    drop(holder);
    waiter.wait().unwrap();
}

#[test]
fn the_text_names_the_promise_and_the_fix_and_no_password() {
    let context = TestContext::new();
    let mut command = context.bare(["doctor"]);
    command.env("OARLOCK_URL", "redis://ada:swordfish@127.0.0.1:1?connect_timeout=1s");
    let done = finish(command);
    assert_eq!(done.code, Some(1), "{done:?}");
    for words in ["WARNING  unreachable  127.0.0.1:1", "promise  Waiting is bounded", "fix  ", "has warnings"] {
        assert!(done.out.contains(words), "{words:?} in {done:?}");
    }
    assert!(!format!("{done:?}").contains("swordfish"), "{done:?}");
}
