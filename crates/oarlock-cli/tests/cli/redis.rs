//! Redis, as the command line reaches it.

use std::io::Read as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use oarlock_testbed::Redis;

use super::job::Terminal;
use super::support::{Running, TestContext};

/// Runs it with this URL in the environment, as secrets should be: its exit code and what it said.
fn at(context: &TestContext, url: &str, args: &[&str]) -> (i32, String) {
    let done = context.bare(args).env("OARLOCK_URL", url).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    (done.status.code().unwrap_or(-1), said)
}

#[test]
fn a_unix_socket_is_an_address() {
    let context = TestContext::new();
    let socket = context.path("redis.sock");
    let Some(server) = Redis::start_with_or_skip(&[("unixsocket", &socket)]).unwrap() else { return };
    let (url, tcp) = (format!("redis+unix://{socket}?prefix=sock:"), format!("{}?prefix=sock:", server.url()));
    let nested = ["run", "-n", "x", "--", "sh", "-c", "exit 7"];
    assert_eq!(at(&context, &url, &nested).0, 7);
    let script = format!("OARLOCK_URL='{tcp}' {} ls -o name", env!("CARGO_BIN_EXE_oarlock"));
    let (code, said) = at(&context, &url, &["run", "-n", "x", "--", "sh", "-c", &script]);
    assert_eq!((code, said.trim()), (0, "x"), "held through the socket, seen through the port");
    drop(server);
    assert_eq!(at(&context, &url, &["run", "-n", "x", "--", "true"]).0, 69);
}

#[test]
fn a_wrong_password_is_told_apart_from_a_server_that_is_away() {
    let context = TestContext::new();
    let Some(server) = Redis::start_with_or_skip(&[("requirepass", "sesame")]).unwrap() else { return };
    let addr = server.addr();
    for (url, code) in [
        (format!("redis://:sesame@{addr}"), 0),
        (format!("redis://:swordfish@{addr}"), 77),
        (format!("redis://missing:sesame@{addr}"), 77),
        (format!("redis://{addr}"), 77),
    ] {
        for args in [&["run", "-n", "x", "--", "true"][..], &["ls"]] {
            let (got, said) = at(&context, &url, args);
            assert_eq!(got, code, "{args:?}: {said}");
            assert!(!said.contains("swordfish") && !said.contains("sesame"), "{said}");
        }
    }
}

#[test]
fn a_scan_finds_the_locks_of_others() {
    let context = TestContext::new();
    let Some(server) = Redis::start_or_skip().unwrap() else { return };
    let url = format!("{}?layout=plain&prefix=locks:", server.url());
    let redis_command = |words: &[&str]| oarlock_testbed::server::redis_command(server.addr(), words).unwrap();
    redis_command(&["SET", "locks:theirs", "a token", "NX", "PX", "60000"]);
    redis_command(&["SET", "locks:no lock", "it does not end"]);
    redis_command(&["SET", "elsewhere", "a token", "NX", "PX", "60000"]);
    let (code, said) = at(&context, &url, &["ls"]);
    assert!(code == 0 && said.contains("theirs") && said.contains("no index"), "it scans by itself: {said}");
    let row = said.lines().find(|line| line.starts_with("theirs")).unwrap();
    assert!(!row.contains("0 ms"), "it is not known since when: {row}");
    assert_eq!(at(&context, &url, &["ls", "--scan", "-o", "name"]), (0, "theirs\n".to_owned()));

    // Of our own layout it finds what the index has lost: a renewal would put it back.
    let program = env!("CARGO_BIN_EXE_oarlock");
    let script = format!("read go; {program} ls -o name; echo and; {program} ls --scan -o name");
    let mut held = context.bare(["run", "--no-renew", "x", "--", "sh", "-c", &script]);
    held.env("OARLOCK_URL", server.url()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let (mut held, asked) = (held.spawn().unwrap(), Instant::now());
    while redis_command(&["KEYS", "oarlock:{??}:x"]).trim().is_empty() && asked.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(10));
    }
    redis_command(&["DEL", redis_command(&["KEYS", "oarlock:{??}"]).trim()]);
    drop(held.stdin.take());
    let done = held.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "and\nx\n");
}

/// A fair lock that is handed on begins with a lease of two seconds or less, and to end a command takes longer.
#[test]
fn a_lock_that_was_handed_on_is_held_to_the_end_of_the_command() {
    let context = TestContext::new();
    let Some(server) = Redis::start_or_skip().unwrap() else { return };
    let fair = |command: &str| {
        let mut run = context.bare(["run", "--fair", "x", "--", "sh", "-c", command]);
        run.env("OARLOCK_URL", server.url()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        run.spawn().unwrap()
    };
    let mut first = fair("echo mine; read go; true");
    let mut mine = [0; 5];
    first.stdout.as_mut().unwrap().read_exact(&mut mine).unwrap();
    let second = fair("sleep 1");
    let waits = || at(&context, &server.url(), &["show", "x"]).1;
    let asked = Instant::now();
    while !waits().contains("waiters   1") && asked.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(first.stdin.take());
    let done = second.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(first.wait().unwrap().success());
}

/// A lock whose lease is over cannot be released any more: there is nothing to wait for.
#[test]
fn a_silent_store_keeps_a_command_no_longer_than_the_lease() {
    const LEASE: Duration = Duration::from_secs(5);
    let context = TestContext::new();
    let Some(server) = Redis::start_or_skip().unwrap() else { return };
    for (command, code) in [("echo up; exec sleep 100", 76), ("echo up; read go; true", 0)] {
        let mut run = context.bare(["run", "-t", "5s", "-k", "500ms", "x", "-c", command]);
        run.env("OARLOCK_URL", server.url()).stdin(Stdio::piped());
        let mut run = Running::start(run);
        assert_eq!(run.line(), "up");
        server.pause().unwrap();
        let silent = Instant::now();
        let done = run.finish();
        let took = silent.elapsed();
        server.resume().unwrap();
        assert_eq!(done.code, Some(code), "{done:?}");
        let said = done.err.contains("lost: \"x\": the store did not confirm a renewal");
        assert_eq!(said, code == 76, "it says that the store is away: {done:?}");
        assert!(took < LEASE + Duration::from_secs(1), "{took:?} with a lease of {LEASE:?}: {done:?}");
    }
}

/// A hold of another program has no fence: its id names it.
#[test]
fn a_hold_without_a_fence_is_broken_by_its_id() {
    let context = TestContext::new();
    let Some(server) = Redis::start_or_skip().unwrap() else { return };
    let url = format!("{}?layout=plain", server.url());
    let redis_command = |words: &[&str]| oarlock_testbed::server::redis_command(server.addr(), words).unwrap();
    redis_command(&["SET", "theirs", "a token", "NX", "PX", "60000"]);
    let (code, said) = at(&context, &url, &["break", "theirs", "--fence", "1", "--yes"]);
    let id = said.split("--id ").nth(1).map(|rest| rest.trim_end().trim_end_matches('.').to_owned());
    let id = id.unwrap_or_else(|| panic!("{code}: {said}"));
    assert_eq!(code, 75);
    assert!(at(&context, &url, &["show", "theirs"]).1.contains(&id), "show prints it too");
    let (code, said) = at(&context, &url, &["break", "theirs", "--id", &id, "--grace", "0", "--yes"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(redis_command(&["EXISTS", "theirs"]).trim(), "0");
    let (code, said) = at(&context, &url, &["break", "theirs", "--id", &id, "--yes"]);
    assert!(code == 75 && said.contains("it is free now"), "{code}: {said}");
    assert_eq!(at(&context, &url, &["break", "theirs", "--yes"]).0, 64, "one of the two is needed");
}

/// A wait for a store that is away lasts as long as `-w` says, and the cause is said.
#[test]
fn a_wait_for_a_store_that_is_away_keeps_to_its_time() {
    let context = TestContext::new();
    let started = Instant::now();
    let (code, said) = at(&context, "redis://127.0.0.1:1", &["run", "-w", "3", "x", "--", "true"]);
    let took = started.elapsed();
    assert!(code == 69 && said.contains("gave up after 3 s") && said.contains("still trying"), "{code}: {said}");
    assert!(took >= Duration::from_secs(3) && took < Duration::from_secs(6), "{took:?}");
    let started = Instant::now();
    assert_eq!(at(&context, "redis://127.0.0.1:1", &["run", "-n", "x", "--", "true"]).0, 69);
    assert!(started.elapsed() < Duration::from_secs(3));
}

/// The same for one that accepts connections and never answers, as a server that hangs or a firewall does.
#[test]
fn a_wait_for_a_silent_store_keeps_to_its_time() {
    let context = TestContext::new();
    // The kernel accepts, and nothing ever reads.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = silent.local_addr().unwrap();
    for scheme in ["redis", "etcd", "zk", "postgres", "mysql"] {
        let database = if ["postgres", "mysql"].contains(&scheme) { "/locks" } else { "" };
        for (wait, timeout, least) in [("3", "60s", 3), ("0.2", "60s", 0), ("0", "2s", 2)] {
            let url = format!("{scheme}://{addr}{database}?connect_timeout={timeout}");
            let started = Instant::now();
            let (code, said) = at(&context, &url, &["run", "-w", wait, "x", "--", "true"]);
            let took = started.elapsed();
            assert!(code == 69 && said.contains("gave up after") && said.contains("answer"), "{url} {code}: {said}");
            // A busy machine may need a second before it gives up at once.
            assert!(least == 0 || said.contains("still trying"), "{url}: {said}");
            assert!(said.contains(&addr.to_string()), "{url}: {said}");
            assert!(took >= Duration::from_secs(least) && took < Duration::from_secs(20), "{url} -w {wait}: {took:?}");
        }
    }
}

/// Whatever takes longer than a second on a terminal says what it does.
#[test]
fn a_slow_connection_is_told_on_a_terminal() {
    let context = TestContext::new();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("OARLOCK_URL=redis://{}?connect_timeout=20s", silent.local_addr().unwrap());
    let mut cases = vec![&["ls"][..], &["show", "x"], &["watch"]];
    if cfg!(feature = "torture") {
        cases.push(&["torture"]);
    }
    for args in cases {
        let mut terminal =
            Terminal::with(&context, &[&["env", &*url, env!("CARGO_BIN_EXE_oarlock")][..], args].concat());
        terminal.expect("connecting to redis://127.0.0.1:");
    }
}
