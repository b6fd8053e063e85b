//! OpenTelemetry: what a collector receives. `cargo test -p oarlock-cli --features otel --test otel`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A collector that takes everything: the path and the body of each request.
fn collector() -> (String, mpsc::Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, received) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let sender = sender.clone();
            std::thread::spawn(move || {
                while let Some(request) = answer(&stream) {
                    if sender.send(request).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (url, received)
}

/// Reads a request and answers it; `None` at the end of the connection.
fn answer(mut stream: &TcpStream) -> Option<(String, Vec<u8>)> {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    reader.read_line(&mut head).ok().filter(|read| *read > 0)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        if line == "\r\n" {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n").ok()?;
    Some((head.split(' ').nth(1)?.to_owned(), body))
}

fn program(dir: &std::path::Path, subcommand: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oarlock"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("OTEL_")) {
        command.env_remove(name);
    }
    command.args([subcommand, "-u", &format!("local:{}/store", dir.display())]);
    command
}

fn oarlock(dir: &std::path::Path) -> Command {
    let mut command = program(dir, "run");
    command.args(["deploy/prod", "--", "true"]);
    command
}

/// Waits until the collector has received all of these.
fn await_all(received: &mpsc::Receiver<(String, Vec<u8>)>, wanted: &[&str]) {
    // Strings are themselves in this format.
    let has = |body: &[u8], text: &str| body.windows(text.len()).any(|part| part == text.as_bytes());
    let (mut left, give_up) = (wanted.to_vec(), Instant::now() + Duration::from_secs(30));
    while !left.is_empty() {
        let patience = give_up.saturating_duration_since(Instant::now());
        let (path, body) = received.recv_timeout(patience).unwrap_or_else(|_| panic!("not received: {left:?}"));
        assert_eq!(path, "/v1/traces");
        assert!(has(&body, "service.name") && has(&body, "oarlock"), "who it is");
        left.retain(|text| !has(&body, text));
    }
}

#[test]
fn a_collector_receives_the_spans_of_a_lock() {
    let (url, received) = collector();
    let dir = tempfile::TempDir::new().unwrap();
    let done = oarlock(dir.path()).env("OTEL_EXPORTER_OTLP_ENDPOINT", &url).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    await_all(&received, &["lock wait", "lock hold", "lock release", "deploy/prod", "acquired", "released"]);
}

/// What a server does for its clients: each request, with the lock that it is for, and the spans of the lock.
#[cfg(feature = "serve")]
#[test]
fn a_collector_receives_the_spans_of_a_server() {
    let (url, received) = collector();
    let dir = tempfile::TempDir::new().unwrap();
    let mut command = program(dir.path(), "serve");
    command.args(["-o", "name", "--listen", "127.0.0.1:0"]).env("OTEL_EXPORTER_OTLP_ENDPOINT", &url);
    let mut server = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let send = |method: &str, path: &str, body: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        let head = format!("{method} /v1/locks/{path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
        write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let granted = send("POST", "deploy%2Fprod", "");
    assert!(granted.starts_with("HTTP/1.1 201"), "{granted}");
    let lease = granted.split_once("\"lease\":\"").and_then(|(_, rest)| rest.split_once('"')).expect("a lease").0;
    assert!(send("POST", "deploy%2Fprod/release", &format!("{{\"lease\":\"{lease}\"}}")).starts_with("HTTP/1.1 200"));
    // Only a request has this name.
    assert!(send("GET", "seen%2Fonly", "").starts_with("HTTP/1.1 200"));
    // The spans of the last requests are exported at its end.
    rustix::process::kill_process(rustix::process::Pid::from_child(&server), rustix::process::Signal::TERM).unwrap();
    let give_up = Instant::now() + Duration::from_secs(30);
    while server.try_wait().unwrap().is_none() {
        if Instant::now() > give_up {
            server.kill().unwrap();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let of_requests = ["http request", "/v1/locks/{name}/release", "seen/only"];
    let of_locks = ["deploy/prod", "lock wait", "lock hold", "lock release"];
    await_all(&received, &[&of_requests[..], &of_locks].concat());
}

#[test]
fn without_a_collector_nothing_is_exported_and_nothing_is_said() {
    let (url, received) = collector();
    let dir = tempfile::TempDir::new().unwrap();
    for disabled in [None, Some(("OTEL_SDK_DISABLED", "true")), Some(("OTEL_TRACES_EXPORTER", "none"))] {
        let mut command = oarlock(dir.path());
        if let Some((name, value)) = disabled {
            command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &url).env(name, value);
        }
        let done = command.output().unwrap();
        assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    }
    assert!(received.try_recv().is_err(), "something was exported");
}

/// It takes the request and does not answer.
#[test]
fn a_collector_that_is_silent_delays_only_the_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let dir = tempfile::TempDir::new().unwrap();
    let mut child = oarlock(dir.path()).env("OTEL_EXPORTER_OTLP_ENDPOINT", url).spawn().unwrap();
    // It exports when the command is over, and the lock is free by then.
    let (sender, accepted) = mpsc::channel();
    std::thread::spawn(move || sender.send(listener.accept()));
    let stream = accepted.recv_timeout(Duration::from_secs(30)).expect("it exports").unwrap();
    let store = format!("local:{}/store", dir.path().display());
    let mut other = Command::new(env!("CARGO_BIN_EXE_oarlock"));
    let free = other.args(["run", "-n", "-u", &store, "deploy/prod", "--", "true"]).status().unwrap();
    assert!(free.success(), "it is held while the collector is silent");
    let give_up = Instant::now() + Duration::from_secs(30);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < give_up, "it waits for the collector for ever");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success(), "{status}");
    drop(stream);
}

#[test]
fn a_collector_that_is_away_does_not_change_how_a_command_ends() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let dir = tempfile::TempDir::new().unwrap();
    let done = oarlock(dir.path()).env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{port}")).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}
