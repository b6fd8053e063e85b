//! `oarlock serve`, as a process: what it prints, refuses and survives.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::support::{PATIENCE, Running, TestContext};

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
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n");
    stream.write_all(format!("{head}\r\n{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap_or_default())
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
