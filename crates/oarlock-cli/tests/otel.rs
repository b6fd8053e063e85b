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

fn oarlock(dir: &std::path::Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oarlock"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("OTEL_")) {
        command.env_remove(name);
    }
    let url = format!("local:{}/store", dir.display());
    command.args(["run", "-u", &url, "deploy/prod", "--", "true"]);
    command
}

#[test]
fn a_collector_receives_the_spans_of_a_lock() {
    let (url, received) = collector();
    let dir = tempfile::TempDir::new().unwrap();
    let done = oarlock(dir.path()).env("OTEL_EXPORTER_OTLP_ENDPOINT", &url).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    // Strings are themselves in this format.
    let has = |body: &[u8], text: &str| body.windows(text.len()).any(|part| part == text.as_bytes());
    let mut left = vec!["lock wait", "lock hold", "lock release", "deploy/prod", "acquired", "released"];
    let give_up = Instant::now() + Duration::from_secs(30);
    while !left.is_empty() {
        let patience = give_up.saturating_duration_since(Instant::now());
        let (path, body) = received.recv_timeout(patience).unwrap_or_else(|_| panic!("not received: {left:?}"));
        assert_eq!(path, "/v1/traces");
        assert!(has(&body, "service.name") && has(&body, "oarlock"), "who it is");
        left.retain(|text| !has(&body, text));
    }
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
