//! Looking: `ls`, `show`, `wait`.

use oarlock_testbed::{MariaDb, Postgres, Redis};
use rustix::process::Signal;

use super::job::Terminal;
use super::support::{Done, Running, TestContext, finish};

/// "List active locks from the command line" (node-redlock 56).
#[test]
fn ls_lists_what_is_held() {
    let context = TestContext::new();
    let empty = context.run(&["ls"]);
    assert_eq!(empty.code, Some(0), "{empty:?}");
    assert_eq!(empty.out, "NAME  KIND  HOLDER  SINCE  LEASE LEFT  FENCE  WAITERS\n");
    let holder = context.hold(&["deploy/prod"]);
    let _other = context.hold(&["deploy/test", "-j", "2"]);
    let _waiter = Running::start(context.oarlock(["run", "deploy/prod", "--", "true"]));
    context.await_waiters("deploy/prod", 1);

    let table = context.run(&["ls"]).out;
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    let fields: Vec<_> = lines[1].split_whitespace().collect();
    assert_eq!((fields[0], fields[1]), ("deploy/prod", "mutex"));
    assert!(fields.contains(&holder.fence.to_string().as_str()), "{table}");
    assert_eq!(fields.last(), Some(&"1"), "{table}");
    assert!(lines[2].starts_with("deploy/test  semaphore"), "{table}");

    assert_eq!(context.run(&["ls", "-o", "name"]).out, "deploy/prod\ndeploy/test\n");
    assert_eq!(context.run(&["ls", "*/t?st", "-o", "name"]).out, "deploy/test\n");
    assert_eq!(context.run(&["ls", "nothing*", "-o", "name"]).out, "");
    let all: serde_json::Value = serde_json::from_str(&context.run(&["ls", "-o", "json"]).out).unwrap();
    assert_eq!(all[0]["holders"][0]["fence"], holder.fence.to_string(), "a string: not every reader keeps 53 bits");
    let jsonl = context.run(&["ls", "-o", "jsonl"]).out;
    let rows: Vec<serde_json::Value> = jsonl.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((rows.len(), &rows[0]["waiting"]), (2, &1.into()));
}

#[test]
fn show_has_the_queue_in_order() {
    let context = TestContext::new();
    let free = context.run(&["show", "x"]);
    assert_eq!(free.code, Some(0));
    assert!(free.out.contains("free"), "{free:?}");
    let _holder = context.hold(&["x", "--reason", "the holder", "-m", "k=v"]);
    let mut waiters = Vec::new();
    for number in 1..=3 {
        let reason = format!("waiter {number}");
        waiters.push(Running::start(context.oarlock(["run", "--reason", &reason, "x", "--", "true"])));
        context.await_waiters("x", number);
    }
    let text = context.run(&["show", "x"]).out;
    let places: Vec<_> = ["the holder", "k=v", "waiter 1", "waiter 2", "waiter 3"]
        .iter()
        .map(|word| text.find(word).expect(word))
        .collect();
    assert!(places.is_sorted(), "{text}");
    assert!(text.contains("kind      mutex\n"), "{text}");
    let state = context.show("x");
    for number in 1..=3 {
        assert_eq!(state["waiters"][number - 1]["label"]["reason"], format!("waiter {number}"));
    }
}

#[test]
fn show_has_the_value_of_a_leader() {
    let context = TestContext::new();
    let locks = oarlock::blocking::connect(context.url()).unwrap();
    let leadership = locks.election("scheduler").campaign("10.0.0.7:9000").unwrap();
    let text = context.run(&["show", "scheduler"]).out;
    assert!(text.contains("value \"10.0.0.7:9000\"\n"), "{text}");
    leadership.resign().unwrap();
}

#[test]
fn wait_waits_without_taking() {
    let context = TestContext::new();
    assert_eq!(context.code(&["wait", "x"]), 0, "free at once");
    for _ in 0..10 {
        assert_eq!(context.code(&["wait", "x", "--free", "-w", "0"]), 0, "it looks before it gives up");
    }
    for wait in ["0", "100ms"] {
        let free = context.run(&["wait", "x", "--held", "-w", wait]);
        assert_eq!((free.code, free.err.as_str()), (Some(75), "gave up waiting: \"x\" is still free.\n"));
    }
    let until_held = Running::start(context.oarlock(["wait", "x", "--held"]));
    let holder = context.hold(&["x"]);
    assert_eq!(until_held.finish().code, Some(0));
    assert_eq!(context.code(&["wait", "x", "--held"]), 0);
    assert_eq!(context.code(&["wait", "x", "--held", "-w", "0"]), 0);
    assert_eq!(context.code(&["wait", "x", "--free", "-w", "0"]), 75);
    let late = context.run(&["wait", "x", "-w", "100ms"]);
    assert_eq!(late.code, Some(75));
    assert!(late.err.starts_with("busy: \"x\" is held by "), "{late:?}");
    let mut until_free = Running::start(context.oarlock(["wait", "x", "--free"]));
    assert!(until_free.is_running());
    assert_eq!(holder.finish().code, Some(0));
    assert_eq!(until_free.finish().code, Some(0));
    let stopped = Running::start(context.oarlock(["wait", "y", "--held", "-v"]));
    stopped.await_handler(Signal::INT);
    stopped.signal(Signal::INT);
    assert_eq!(stopped.finish().code, Some(130));
}

fn at(context: &TestContext, url: &str, args: &[&str]) -> Done {
    let mut command = context.bare(args);
    command.env("OARLOCK_URL", url);
    finish(command)
}

fn top(context: &TestContext, url: &str) -> Terminal {
    let store = format!("OARLOCK_URL={url}");
    Terminal::with(context, &["env", &store, env!("CARGO_BIN_EXE_oarlock"), "top"])
}

/// Layouts of other programs have no index of their locks: every key is read instead.
#[test]
fn a_layout_without_an_index_is_scanned() {
    let context = TestContext::new();
    let Some(server) = Redis::start_or_skip().unwrap() else { return };
    for layout in ["plain", "redisson"] {
        let url = format!("{}?layout={layout}&prefix={layout}:", server.url());
        let mut hold = context.bare(["hold", "job/7"]);
        hold.env("OARLOCK_URL", &url).stdin(std::process::Stdio::piped());
        let mut holder = Running::start(hold);
        assert!(holder.line().starts_with("job/7"), "{layout}");
        let listed = at(&context, &url, &["ls", "-o", "name"]);
        assert_eq!((listed.code, listed.out.as_str()), (Some(0), "job/7\n"), "{layout}: {listed:?}");
        assert!(listed.err.contains("no index"), "{layout}: {listed:?}");
        let mut watch = context.bare(["watch", "job/*", "-i", "50ms"]);
        watch.env("OARLOCK_URL", &url);
        let mut watch = Running::start(watch);
        assert!(watch.line().contains("\"present\""), "{layout}");
        let mut screen = top(&context, &url);
        screen.expect("job/7");
        screen.press("q");
        assert_eq!(holder.finish().code, Some(0));
        assert!(watch.line().contains("\"released\""), "{layout}");
        watch.signal(Signal::TERM);
        let watched = watch.finish();
        assert!(watched.code == Some(143) && watched.err.contains("no index"), "{layout}: {watched:?}");
    }
}

/// Where the server keeps no names, one line says what to do instead. It is a failure, because an empty list is not the
/// answer.
#[test]
fn a_store_that_knows_no_names_says_what_to_do() {
    let context = TestContext::new();
    let (postgres, mariadb) = (Postgres::start_or_skip().unwrap(), MariaDb::start_or_skip().unwrap());
    for url in [postgres.as_ref().map(Postgres::url), mariadb.as_ref().map(MariaDb::url)].into_iter().flatten() {
        let url = format!("{url}{}mode=session", if url.contains('?') { '&' } else { '?' });
        for (args, instead) in [(&["ls"][..], "oarlock show NAME"), (&["watch"], "oarlock watch NAME")] {
            let refused = at(&context, &url, args);
            assert_eq!((refused.code, refused.out.as_str()), (Some(78), ""), "{url} {args:?}: {refused:?}");
            assert!(refused.err.contains(instead) && refused.err.lines().count() == 1, "{url}: {refused:?}");
            assert!(!refused.err.contains("another store"), "{url}: {refused:?}");
        }
        top(&context, &url).expect("oarlock watch NAME");
        assert_eq!(at(&context, &url, &["show", "x"]).code, Some(0), "{url}");
    }
}
