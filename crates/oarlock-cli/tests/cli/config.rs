//! Where a store is named, and where its password must never be seen.

use std::time::{Duration, Instant};

use oarlock_testbed::Redis;
use rustix::process::Signal;

use super::support::{Done, Running, TestContext, finish};

/// No message, report or variable may contain it.
const CANARY: &str = "kanarienvogel";

fn configured(context: &TestContext, content: &str) {
    let dir = context.dir.path().join(".config/oarlock");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("config.toml"), content).unwrap();
}

fn run(context: &TestContext, args: &[&str], variables: &[(&str, &str)]) -> Done {
    let mut command = context.bare(args);
    command.envs(variables.iter().copied());
    finish(command)
}

#[test]
fn flags_come_before_the_environment_and_that_before_the_file() {
    let context = TestContext::new();
    let store = |name: &str| format!("local:{}", context.path(name));
    let content = format!(
        "profile = \"one\"\n[profiles.one]\nurl = \"{}\"\n[profiles.two]\nurl_file = \"{}\"\n",
        store("one"),
        context.path("two.url")
    );
    configured(&context, &content);
    std::fs::write(context.path("two.url"), store("two") + "\n").unwrap();
    let used = |args: &[&str], variables: &[(&str, &str)]| {
        let done = run(&context, &[args, &["url", "explain", "-o", "name"][..]].concat(), variables);
        done.out.trim().rsplit('/').next().unwrap_or_default().to_owned()
    };
    assert_eq!(used(&[], &[]), "one", "the file says so");
    assert_eq!(used(&[], &[("OARLOCK_PROFILE", "two")]), "two");
    let url = store("three");
    assert_eq!(used(&[], &[("OARLOCK_PROFILE", "two"), ("OARLOCK_URL", &url)]), "three");
    assert_eq!(used(&["-p", "two"], &[("OARLOCK_URL", &url)]), "two", "a flag wins");
    for args in [&["-p", "two", "ls"][..], &["ls", "--profile", "two"], &["ls", "-u", &store("two")]] {
        let done = run(&context, args, &[("OARLOCK_URL", &url)]);
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{args:?}: {done:?}");
    }
    assert!(context.dir.path().join("two").is_dir() && !context.dir.path().join("three").exists());
}

#[test]
fn a_file_that_makes_no_sense_is_named_with_its_line() {
    let context = TestContext::new();
    let cases = [
        (format!("[profiles.x]\nurl = \"redis://:{CANARY}@h\"\nurls = 1\n"), "line 3"),
        (format!("[profiles]\nx = \"redis://:{CANARY}@h\"\n"), "line 2"),
        (format!("[profiles.x]\n\"redis://:{CANARY}@h\" = 1\n"), "line 2"),
        (format!("profile = [\"redis://:{CANARY}@h\"]\n"), "line 1"),
        (format!("[profiles.x]\nurl = \"redis://:{CANARY}@h\n"), "line 2"),
        ("[profiles.y]\nurl = \"mem:\"\n".to_owned(), "there is no profile \"x\""),
        ("[profiles.x]\n".to_owned(), "needs url or url_file"),
        (format!("[profiles.x]\nurl = \"rediss://:{CANARY}@h:port\"\n"), "port"),
    ];
    for (content, said) in cases {
        configured(&context, &content);
        let done = run(&context, &["-p", "x", "ls"], &[]);
        assert_eq!(done.code, Some(78), "{content}: {done:?}");
        assert!(done.err.contains(said) && !done.err.contains(CANARY), "{content}: {done:?}");
    }
}

/// "Token only by flag, visible in ps" (consul 1078).
#[test]
fn a_password_comes_from_a_file_and_is_shown_nowhere() {
    let context = TestContext::new();
    let Some(server) = Redis::start_with_or_skip(&[("requirepass", CANARY)]).unwrap() else { return };
    let (addr, file, report) = (server.addr(), context.path("a pass&word"), context.path("report"));
    std::fs::write(&file, format!("{CANARY}\n")).unwrap();
    let plain = format!("redis://{addr}?prefix=x:");
    let done = run(&context, &["run", "-u", &plain, "--password-file", &file, "x", "--", "echo", "in"], &[]);
    assert_eq!((done.code, done.out.as_str()), (Some(0), "in\n"), "{done:?}");
    assert!(!done.err.contains("warning"), "{done:?}");
    let content = format!("[profiles.prod]\nurl = \"{plain}\"\npassword_file = \"{file}\"\n");
    configured(&context, &content);
    assert_eq!(run(&context, &["-p", "prod", "ls"], &[]).code, Some(0));

    let in_url = format!("redis://:{CANARY}@{addr}");
    let done = run(&context, &["ls", "-u", &in_url], &[]);
    assert!(done.code == Some(0) && done.err.contains("--url-file") && done.err.contains("warning"), "{done:?}");
    assert_eq!(run(&context, &["ls", "-q", "-u", &in_url], &[]).err, "");
    assert!(!run(&context, &["ls"], &[("OARLOCK_URL", &in_url)]).err.contains("warning"));

    // Everything that the program prints, in all its forms, where all goes well and where it does not.
    let wrong = format!("redis://stranger:{CANARY}@{addr}");
    let away = format!("redis://:{CANARY}@127.0.0.1:1");
    let broken = format!("redis://:{CANARY}@[::1?x=1");
    let unknown = format!("redis://:{CANARY}@{addr}?layuot=plain");
    let quorum = format!("redlock://:{CANARY}@{addr},127.0.0.1:1,127.0.0.1:2");
    let others = ["postgres", "mysql", "etcd", "zk"].map(|scheme| format!("{scheme}://u:{CANARY}@127.0.0.1:1/x"));
    let urls = [&in_url, &wrong, &away, &broken, &unknown, &quorum].into_iter().chain(&others);
    // What we add to the environment of the command; what it inherits passes unchanged.
    let added = "env | grep ^OARLOCK_ | grep -v ^OARLOCK_URL=; echo";
    for url in urls {
        let command = ["run", "-v", "-w", "200ms", "--report", &report, "x", "-c", added];
        let once = ["once", "-v", "--slot", "1h", "--report", &report, "x", "-c", added];
        let json = ["run", "-v", "-n", "-o", "json", "--report", &report, "x", "-c", added];
        let cases = [
            &command[..],
            &once,
            &json,
            &["ls", "-v"],
            &["url", "explain"],
            &["url", "explain", "-o", "json"],
            &["init"],
        ];
        for args in cases {
            let _ = std::fs::remove_file(&report);
            let done = run(&context, args, &[("OARLOCK_URL", url)]);
            let said = format!("{}{}{}", done.out, done.err, std::fs::read_to_string(&report).unwrap_or_default());
            let scheme = url.split(':').next().unwrap();
            assert!(!said.contains(CANARY), "{args:?} on {scheme}: {said}");
        }
    }
}

/// The same for every other subcommand that talks to a store, and for the file that `torture` writes.
#[test]
fn no_subcommand_shows_a_password() {
    let context = TestContext::new();
    let Some(server) = Redis::start_with_or_skip(&[("requirepass", CANARY)]).unwrap() else { return };
    let addr = server.addr();
    let right = format!("redis://:{CANARY}@{addr}");
    let wrong = format!("redis://stranger:{CANARY}@{addr}");
    let away = format!("redis://:{CANARY}@127.0.0.1:1");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("redis://:{CANARY}@{}", silent.local_addr().unwrap());
    let ticket = run(&context, &["acquire", "held", "-t", "1h"], &[("OARLOCK_URL", &right)]).out;
    assert!(!ticket.is_empty() && !ticket.contains(CANARY), "{ticket}");
    let cases: &[&[&str]] = &[
        &["elect", "-v", "x", "--value", "me", "--on-elected", "true", "--", "true"],
        &["elect", "-v", "x", "--observe"],
        &["hold", "-v", "x"],
        &["hold", "-v", "held", "-w", "1s"],
        &["acquire", "-v", "x", "-t", "1s", "-w", "1s"],
        &["renew", ticket.trim()],
        &["show", "-v", "held"],
        &["show", "-v", "held", "-o", "json"],
        &["wait", "-v", "held", "-w", "1s"],
        &["watch", "-v"],
        &["once", "x", "--show"],
        &["once", "x", "--forget", "7", "--yes"],
        &["break", "held", "--fence", "1", "--yes"],
        &["bench", "-v", "--only", "pair", "--duration", "100ms"],
        &["demo", "oversell"],
        &["doctor", "-v"],
        &["doctor", "-v", "-o", "json"],
        &["completions", "bash"],
        &["init", "--print"],
        #[cfg(feature = "serve")]
        &["serve", "-v", "--listen", "127.0.0.1:0"],
        #[cfg(feature = "torture")]
        &["torture", "-v", "--duration", "1s"],
        #[cfg(feature = "torture")]
        &["torture", "clean", "--all"],
    ];
    // Most of the time is spent waiting for stores that do not answer.
    std::thread::scope(|scope| {
        for (store, url) in [("right", &right), ("wrong", &wrong), ("away", &away), ("silent", &silent)] {
            scope.spawn(|| cases.iter().for_each(|args| shows_no_password(&context, store, url, args)));
        }
    });
}

/// What this subcommand prints, and what it writes to `--history`, does not contain the password.
fn shows_no_password(context: &TestContext, store: &str, url: &str, args: &[&str]) {
    let (history, is_torture) =
        (context.path(&format!("{store}.history")), args == ["torture", "-v", "--duration", "1s"]);
    let mut command = context.bare(args);
    if is_torture {
        command.args(["--history", &history]);
    }
    command.env("OARLOCK_URL", url).env("RUST_BACKTRACE", "1");
    let mut running = Running::start(command);
    // Some of them go on until they are told to end.
    let told = Instant::now() + Duration::from_secs(if is_torture { 30 } else { 2 });
    while running.is_running() && Instant::now() < told {
        std::thread::sleep(Duration::from_millis(10));
    }
    if running.is_running() {
        running.signal(Signal::TERM);
    }
    let done = running.finish();
    let written = std::fs::read_to_string(&history).unwrap_or_default();
    if is_torture && store == "right" {
        assert!(written.contains("redis"), "the history names its store: {done:?}");
    }
    for said in [&done.out, &done.err, &written] {
        assert!(!said.contains(CANARY), "{args:?} on {store}: {said}");
    }
}
