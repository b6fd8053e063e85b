//! `oarlock serve`, as a process: what it prints, refuses and survives.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::support::{PATIENCE, Running, TestContext, await_true};

fn serve(context: &TestContext, more: &[&str]) -> (Running, String) {
    let mut command = context.oarlock(["serve", "-o", "name", "--listen", "127.0.0.1:0"]);
    command.args(more).stdin(Stdio::null());
    let mut server = Running::start(command);
    let url = server.line();
    let address = url.strip_prefix("http://").and_then(|url| url.strip_suffix('/')).expect("an address").to_owned();
    (server, address)
}

/// The status and the body of the answer.
pub(super) fn send(address: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
    send_with(address, method, path, body, "").expect("an answer")
}

/// The same with more lines in the head; an error if there is no server.
fn send_with(address: &str, method: &str, path: &str, body: &str, more: &str) -> std::io::Result<(u16, Value)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n");
    stream.write_all(format!("{head}{more}\r\n{body}").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let cut_off = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(cut_off)?;
    Ok((head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap_or_default()))
}

#[test]
fn a_killed_server_loses_no_lock_of_a_client_that_renews_in_time() {
    let context = TestContext::new();
    let (mut server, address) = serve(&context, &[]);
    let (status, kept) = send(&address, "POST", "/v1/locks/kept", &json!({ "ttl_ms": 20_000 }).to_string());
    assert_eq!(status, 201, "{kept}");
    let (_, left) = send(&address, "POST", "/v1/locks/left", &json!({ "ttl_ms": 500 }).to_string());
    assert_eq!(context.show("kept")["holders"][0]["fence"], kept["fence"], "the same locks as everywhere");
    server.signal(Signal::KILL);
    server.wait();
    let (mut server, address) = serve(&context, &[]);
    let lease = |granted: &Value| json!({ "lease": granted["lease"] }).to_string();
    let (status, renewed) = send(&address, "POST", "/v1/locks/kept/renew", &lease(&kept));
    assert_eq!((status, &renewed["fence"]), (200, &kept["fence"]), "{renewed}");
    assert_eq!(context.code(&["run", "-n", "kept", "--", "true"]), 75);
    assert_eq!(context.code(&["run", "-w", "20", "left", "--", "true"]), 0, "its client did not renew");
    let (status, lost) = send(&address, "POST", "/v1/locks/left/renew", &lease(&left));
    assert_eq!((status, lost["code"].as_str()), (410, Some("lost")), "{lost}");
    // It ends in order, and the lease stays.
    server.await_handler(Signal::TERM);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(143));
    assert_eq!(context.code(&["run", "-n", "kept", "--", "true"]), 75);
}

#[test]
fn an_unsafe_address_is_refused() {
    let context = TestContext::new();
    let tokens = context.path("tokens.toml");
    std::fs::write(&tokens, "[[token]]\nname = \"a\"\nsecret = \"0123456789abcdef0123\"\nread = [\"*\"]\n").unwrap();
    for (args, code, words) in [
        (&["--listen", "0.0.0.0:0"][..], 78, "--token-file"),
        (&["--listen", "0.0.0.0:0", "--token-file", &tokens], 78, "--tls-cert"),
        (&["--allow-break"], 64, "--token-file"),
        (&["--token-file", "/no/such/file"], 78, "/no/such/file"),
        (&["--listen", "nowhere"], 64, "--listen"),
        (&["--token-file", &tokens, "--tls-cert", &tokens, "--tls-key", &tokens], 78, "tokens.toml"),
    ] {
        let mut command = context.oarlock(["serve", "-q"]);
        let done = super::support::finish({
            command.args(args);
            command
        });
        assert_eq!(done.code, Some(code), "{args:?}: {done:?}");
        assert!(done.err.contains(words) && !done.err.contains("0123456789"), "{args:?}: {done:?}");
    }
}

/// Without a token every user of the machine has the server's rights on the store.
#[test]
fn a_server_that_every_user_can_lock_with_says_so() {
    let context = TestContext::new();
    let tokens = context.path("tokens.toml");
    std::fs::write(&tokens, "[[token]]\nname = \"a\"\nsecret = \"0123456789abcdef0123\"\nread = [\"*\"]\n").unwrap();
    let (_server, taken) = serve(&context, &[]);
    for (args, warns) in [(&[][..], true), (&["--read-only"], false), (&["--token-file", &tokens], false)] {
        // It ends at once, as the port is taken.
        let done = context.run(&[&["serve", "--listen", &taken], args].concat());
        assert_eq!(done.code, Some(71), "{args:?}: {done:?}");
        assert_eq!(done.err.contains("every user of this machine"), warns, "{args:?}: {done:?}");
    }
}

#[test]
fn a_port_that_is_taken_is_told() {
    let context = TestContext::new();
    let (_server, address) = serve(&context, &[]);
    let begun = Instant::now();
    let done = context.run(&["serve", "--listen", &address]);
    assert_eq!(done.code, Some(71), "{done:?}");
    assert!(done.err.contains(&address) && begun.elapsed() < Duration::from_secs(20), "{done:?}");
}

/// What a rotation of logs, of tokens and of certificates needs.
#[test]
fn hup_reads_tokens_again_and_ends_no_lease() {
    let context = TestContext::new();
    let (tokens, log) = (context.path("tokens.toml"), context.path("audit"));
    let write = |secret: &str| {
        let text = format!("[[token]]\nname = \"ci\"\nsecret = \"{secret}\"\nread = [\"*\"]\nlock = [\"*\"]\n");
        std::fs::write(&tokens, text).unwrap();
        std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o644)).unwrap();
    };
    let (old, new) = ("0123456789abcdef-old", "0123456789abcdef-new");
    write(old);
    let (mut server, address) = serve(&context, &["--token-file", &tokens, "--audit-log", &log]);
    let send = |secret: &str, method: &str, path: &str, body: &Value| {
        send_with(&address, method, path, &body.to_string(), &format!("authorization: Bearer {secret}\r\n")).unwrap()
    };
    let (status, held) = send(old, "POST", "/v1/locks/held", &json!({ "ttl_ms": 60_000 }));
    assert_eq!(status, 201, "{held}");
    write(new);
    std::fs::rename(&log, context.path("audit.1")).unwrap();
    server.await_handler(Signal::HUP);
    server.signal(Signal::HUP);
    await_true("the new token", || send(new, "GET", "/v1/locks", &json!({})).0 == 200);
    let lease = json!({ "lease": held["lease"] });
    assert_eq!(send(old, "POST", "/v1/locks/held/renew", &lease).0, 401);
    assert_eq!(send(new, "POST", "/v1/locks/held/renew", &lease).0, 200);
    // A file that cannot be used changes nothing.
    write("short");
    server.signal(Signal::HUP);
    assert_eq!(send(new, "POST", "/v1/locks/held/release", &lease).0, 200);
    assert!(server.is_running());
    server.signal(Signal::TERM);
    let done = server.finish();
    assert!(done.err.contains("not reloaded") && !done.err.contains("short\""), "{done:?}");
    assert!(done.err.contains("others can read") && done.err.contains("tokens.toml"), "{done:?}");
    let read = |name: &str| std::fs::read_to_string(context.path(name)).unwrap();
    assert!(read("audit.1").contains("\"locked\"") && !read("audit.1").contains("\"released\""), "{}", read("audit.1"));
    assert!(read("audit").contains("\"released\""), "{}", read("audit"));
}

/// As when its terminal is closed.
#[test]
fn hup_ends_a_server_that_has_nothing_to_read_again() {
    let context = TestContext::new();
    let (mut server, _) = serve(&context, &[]);
    server.await_handler(Signal::HUP);
    server.signal(Signal::HUP);
    assert_eq!(server.wait().code(), Some(129));
}

/// Clients that wait with a key repeat their request at the next server: each gets its lock, one after the other, also
/// those whose claims the killed server left in the queue.
#[test]
fn clients_that_wait_at_a_killed_server_get_their_lock_at_the_next_one() {
    let Some(redis) = oarlock_testbed::Redis::start_or_skip().unwrap() else { return };
    let context = TestContext::new();
    let start = |listen: &str| {
        let mut command = context.bare(["serve", "-o", "name", "-u", &redis.url(), "--listen", listen]);
        command.stdin(Stdio::null());
        let mut server = Running::start(command);
        let url = server.line();
        let address = url.strip_prefix("http://").and_then(|url| url.strip_suffix('/')).expect("an address").to_owned();
        (server, address)
    };
    let held_by = |holder: &str| {
        let mut command = context.bare(["hold", "-u", &redis.url(), "x", "--reason", holder]);
        command.stdin(Stdio::piped());
        let mut holder = Running::start(command);
        holder.line();
        holder
    };
    let waiters = || {
        let done = super::support::finish(context.bare(["show", "-u", &redis.url(), "x", "-o", "json"]));
        serde_json::from_str::<Value>(&done.out).unwrap()["waiting"].as_u64().unwrap()
    };
    let mut holder = held_by("first");
    let (mut server, address) = start("127.0.0.1:0");
    let (holding, count) = (AtomicU32::new(0), 3);
    let client = |number: u32| {
        let key = format!("idempotency-key: client {number}\r\n");
        let body = json!({ "wait_ms": 60_000, "poll_ms": 2000, "ttl_ms": 3000 }).to_string();
        let give_up = Instant::now() + 2 * PATIENCE;
        loop {
            assert!(Instant::now() < give_up, "client {number} is not granted");
            let sent = Instant::now();
            match send_with(&address, "POST", "/v1/locks/x", &body, &key) {
                Ok((201, granted)) => {
                    let believe = Duration::from_millis(granted["believe_ms"].as_u64().unwrap());
                    assert_eq!(holding.fetch_add(1, Ordering::SeqCst), 0, "two hold it: {granted}");
                    // Asked again, it is the same lock.
                    let (status, again) = send_with(&address, "POST", "/v1/locks/x", &body, &key).unwrap();
                    assert_eq!((status, &again["lease"]), (201, &granted["lease"]), "{again}");
                    std::thread::sleep(Duration::from_millis(200));
                    assert!(sent.elapsed() < believe, "this machine is too slow for the test");
                    holding.fetch_sub(1, Ordering::SeqCst);
                    let lease = json!({ "lease": granted["lease"] }).to_string();
                    assert_eq!(send(&address, "POST", "/v1/locks/x/release", &lease).0, 200);
                    return granted["fence"].as_str().unwrap().parse::<u64>().unwrap();
                }
                Ok((202, _)) => {}
                Ok(other) => panic!("client {number}: {other:?}"),
                // Killed, or not started again yet.
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    };
    let mut fences = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..count).map(|number| scope.spawn(move || client(number))).collect();
        await_true("all wait", || waiters() == u64::from(count));
        for _ in 0..2 {
            server.signal(Signal::KILL);
            server.wait();
            (server, _) = start(&address);
        }
        await_true("all wait again", || waiters() >= u64::from(count));
        // Free while a server is away: the claims of the killed one may be granted, and to no client.
        server.signal(Signal::KILL);
        server.wait();
        holder.end_input();
        holder.wait();
        (server, _) = start(&address);
        clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), 3, "each had a hold of its own: {fences:?}");
    let mut last = held_by("last");
    last.end_input();
    assert!(last.wait().success());
    server.signal(Signal::TERM);
    server.wait();
}
