//! What is said, where, and in which words.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use oarlock_testbed::Redis;
use oarlock_testbed::server::redis_command;

use super::support::{Running, TestContext, finish};

#[test]
fn busy_says_who_since_when_and_what_next() {
    let context = TestContext::new();
    let holder = context.hold(&["deploy/prod", "--reason", "release 2.3"]);
    let _waiters: Vec<Running> =
        (0..2).map(|_| Running::start(context.oarlock(["run", "deploy/prod", "--", "true"]))).collect();
    context.await_waiters("deploy/prod", 2);
    let done = context.run(&["run", "-n", "deploy/prod", "--", "true"]);
    let (pid, fence) = (holder.pid(), holder.fence);
    let start = "busy: \"deploy/prod\" is held by ";
    assert!(done.err.starts_with(start), "{done:?}");
    let rest = format!("(pid {}, \"release 2.3\") for ", pid.as_raw_nonzero());
    assert!(done.err.contains(&rest), "{done:?}");
    let end = format!(
        ", fence {fence}; 2 wait before you. Wait longer with -w, see the holder with \"oarlock show deploy/prod\".\n"
    );
    assert!(done.err.ends_with(&end), "{done:?}");
    assert!(done.out.is_empty());
}

#[test]
fn a_long_wait_says_for_whom_once() {
    let context = TestContext::new();
    let _holder = context.hold(&["x", "--reason", "lunch"]);
    let done = context.run(&["run", "-w", "1500ms", "x", "--", "true"]);
    let waiting: Vec<_> = done.err.lines().filter(|line| line.starts_with("waiting: ")).collect();
    assert_eq!(waiting.len(), 1, "{done:?}");
    assert!(waiting[0].contains("\"x\" is held by ") && waiting[0].contains("\"lunch\""), "{done:?}");
    assert!(!waiting[0].contains("before you"), "we do not wait for ourselves: {done:?}");
    assert!(!done.err.contains('\x1b'), "nothing moves where there is no terminal: {done:?}");
    let short = context.run(&["run", "-w", "200ms", "x", "--", "true"]);
    assert!(!short.err.contains("waiting:"), "{short:?}");
}

#[test]
fn the_embedded_store_is_announced_unless_named() {
    let context = TestContext::new();
    let implied = finish(context.bare(["run", "x", "--", "true"]));
    assert_eq!(implied.code, Some(0), "{implied:?}");
    assert_eq!(implied.err.lines().count(), 1, "{implied:?}");
    assert!(implied.err.contains("embedded store of this machine and user"), "{implied:?}");
    assert!(implied.err.contains(&context.path(".local/state/oarlock")), "it says where: {implied:?}");
    for args in [&["run", "-q", "x", "--", "true"][..], &["run", "-u", "local:", "x", "--", "true"]] {
        assert_eq!(finish(context.bare(args)).err, "", "{args:?}");
    }
    let mut named = context.bare(["run", "x", "--", "true"]);
    named.env("OARLOCK_URL", "local:");
    assert_eq!(finish(named).err, "");
}

#[test]
fn a_store_that_cannot_be_used_is_not_announced() {
    let context = TestContext::new();
    for args in [&["run", "x", "--", "true"][..], &["hold", "x"], &["ls"], &["wait", "x"]] {
        let mut homeless = context.bare(args);
        homeless.env_remove("HOME");
        let done = finish(homeless);
        assert_eq!((done.code, done.err.lines().count()), (Some(78), 1), "{done:?}");
        assert!(done.err.contains("no home directory"), "{done:?}");
    }
}

#[test]
fn a_question_ends_with_its_mark() {
    let context = TestContext::new();
    let done = context.run(&["ls", "-u", "men:"]);
    assert_eq!(done.code, Some(78), "{done:?}");
    assert!(done.err.contains("did you mean mem? Check"), "{done:?}");
}

#[test]
fn a_user_without_variables_has_the_name_of_the_account() {
    let context = TestContext::new();
    let mut nameless = context.oarlock(["run", "x", "-c", "echo up; exec sleep 100"]);
    nameless.env_remove("USER").env_remove("LOGNAME");
    let mut nameless = Running::start(nameless);
    nameless.line();
    let account = std::process::Command::new("id").arg("-un").output().unwrap();
    let user = match account.status.success() {
        true => String::from_utf8(account.stdout).unwrap().trim().to_owned(),
        false => format!("uid {}", rustix::process::getuid().as_raw()),
    };
    assert_eq!(context.show("x")["holders"][0]["label"]["user"], user);
    nameless.signal(rustix::process::Signal::TERM);
    assert_eq!(nameless.finish().code, Some(143));
}

/// A process is stopped in the middle of every step: nothing can be granted, and nothing is said that is not so.
#[test]
fn a_store_that_stalls_does_not_hold_us_up_twice() {
    let context = TestContext::new();
    assert_eq!(context.code(&["run", "x", "--", "true"]), 0);
    let shards = context.dir.path().join("store/shard");
    let stalled: Vec<std::fs::File> = (0..=255)
        .map(|shard| {
            let file = std::fs::File::create(shards.join(format!("{shard:02x}"))).unwrap();
            file.lock().unwrap();
            file
        })
        .collect();
    let url = format!("{}?op_timeout=2s", context.url());
    let started = std::time::Instant::now();
    let done = context.run(&["run", "-n", "-u", &url, "x", "--", "true"]);
    let took = started.elapsed();
    assert!(matches!(done.code, Some(69 | 75)), "{done:?}");
    assert!(!done.err.contains("is free"), "{done:?}");
    assert!(took < std::time::Duration::from_millis(4500), "{took:?} {done:?}");
    drop(stalled);
    assert_eq!(context.code(&["run", "-w", "20", "x", "--", "true"]), 0);
}

#[test]
fn quiet_is_quiet_and_verbose_is_not() {
    let context = TestContext::new();
    let told = context.run(&["run", "-v", "x", "--", "true"]);
    for word in ["asked for", "granted after", "released after"] {
        assert!(told.err.contains(word), "{told:?}");
    }
    let _holder = context.hold(&["x"]);
    let quiet = context.run(&["run", "-q", "-w", "1200ms", "x", "--", "true"]);
    assert_eq!((quiet.code, quiet.err.as_str()), (Some(75), ""));
}

#[test]
fn words_can_be_json() {
    let context = TestContext::new();
    let _holder = context.hold(&["x"]);
    for form in ["json", "jsonl"] {
        let done = context.run(&["run", "-n", "-o", form, "x", "--", "true"]);
        let said: serde_json::Value = serde_json::from_str(&done.err).unwrap();
        assert!(said["message"].as_str().unwrap().starts_with("busy: "), "{done:?}");
    }
}

#[test]
fn hostile_names_and_reasons_do_not_reach_the_terminal() {
    let context = TestContext::new();
    let name = "evil\x1b[2J\nname\u{202e}";
    let _holder = context.hold(&[name, "--reason", "\x1b]0;owned\x07", "-m", "k=\x1b[31m"]);
    let outputs = [
        context.run(&["run", "-n", name, "--", "true"]),
        context.run(&["ls"]),
        context.run(&["show", name]),
        context.run(&["ls", "-o", "name"]),
    ];
    for done in outputs {
        for text in [&done.out, &done.err] {
            assert!(!text.contains(['\x1b', '\x07', '\u{202e}']), "{done:?}");
        }
        assert!(format!("{}{}", done.out, done.err).contains("evil"), "{done:?}");
    }
    assert_eq!(context.show(name)["name"], name, "programs see it as it is");
}

/// A login shell sets `XDG_STATE_HOME`, cron does not: two stores, and each command takes its lock.
#[test]
fn two_stores_of_one_user_are_told() {
    let context = TestContext::new();
    let run = |state: Option<String>| {
        let mut command = context.bare(["run", "x", "--", "true"]);
        command.envs(state.map(|dir| ("XDG_STATE_HOME", dir)));
        finish(command)
    };
    let alone = run(Some(context.path("state")));
    assert!(alone.code == Some(0) && !alone.err.contains("warning"), "{alone:?}");
    assert!(!run(None).err.contains("warning"), "cron cannot know");
    let both = run(Some(context.path("state")));
    assert!(both.err.contains("warning") && both.err.contains("XDG_STATE_HOME"), "{both:?}");
    assert!(both.err.contains(&context.path(".local/state/oarlock")), "{both:?}");
}

/// A store that accepts connections and is silent, and one that falls silent after that: the message names what bounds
/// the wait.
#[test]
fn a_silent_store_bounds_a_wait_as_it_says() {
    let context = TestContext::new();
    let on = |url: &str, args: &[&str]| {
        let mut command = context.bare(["run"]);
        command.args(args).args(["x", "--", "echo", "ran"]).env("OARLOCK_URL", url);
        let (begun, done) = (Instant::now(), finish(command));
        assert_eq!((done.code, done.out.as_str()), (Some(69), ""), "{args:?} {url}: {done:?}");
        // Far less than the defaults of a lock, of which none ends here.
        assert!(begun.elapsed() < Duration::from_secs(20), "{args:?} {url} took {:?}", begun.elapsed());
        done.err
    };
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}?connect_timeout=700ms", silent.local_addr().unwrap());
    let said = on(&url, &["-n"]);
    assert!(said.contains("within 700 ms (connect_timeout)"), "{said}");
    let said = on(&url, &["-w", "2"]);
    assert!(said.contains("gave up after 2 s: "), "{said}");

    // Clients are greeted, and wait for the answer to every request that may write.
    let Some(server) = Redis::start_or_skip().unwrap() else { return };
    redis_command(server.addr(), &["CLIENT", "PAUSE", "60000", "WRITE"]).unwrap();
    let said = on(&format!("{}?op_timeout=700ms", server.url()), &["-n"]);
    assert!(said.contains("no answer within 700 ms (op_timeout)"), "{said}");
    let said = on(&server.url(), &["-w", "1"]);
    assert!(said.contains("no answer within "), "{said}");
}
