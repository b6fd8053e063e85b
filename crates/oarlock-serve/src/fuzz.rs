//! Hostile bytes on a connection to `oarlock serve`: whatever comes in, the answer is none or a whole one, and never that
//! the server itself has failed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use oarlock_fuzz::{Seen, fuzz_at_least};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::config::Config;
use crate::connection::{Peer, http};
use crate::state::State;

/// No answer to a request in the corpus is longer, and none takes longer: time does not pass while anything runs.
const MOST_BYTES: u64 = 256 * 1024;
const PATIENCE: Duration = Duration::from_secs(90);

/// A request takes some 20 ms in a debug build.
const LEAST_REQUESTS: u64 = 300;

fn state(folder: &Path) -> State {
    let locks = oarlock_core::Locks::over(oarlock_core::Memory::new()).expect("a client");
    // Nothing is refused because it comes too fast.
    let config = Config { rate: u32::MAX, audit: Some(folder.join("audit")), ..Config::default() };
    State::new(locks, config).expect("a state")
}

async fn answer(state: &Arc<State>, request: &[u8]) -> Vec<u8> {
    let (mut client, server) = tokio::io::duplex(64 * 1024);
    let peer = Peer { address: [127, 0, 0, 1].into(), certificate: None };
    let serving = tokio::spawn(http(server, peer, state.clone()));
    let mut answer = Vec::new();
    let asking = async {
        client.write_all(request).await?;
        client.shutdown().await?;
        (&mut client).take(MOST_BYTES).read_to_end(&mut answer).await
    };
    // A stream of events does not end by itself, and a connection may be closed before all is sent.
    let _ = tokio::time::timeout(PATIENCE, asking).await;
    drop(client);
    serving.await.expect("the connection panicked");
    answer
}

/// The status of the first answer; 0 if there is none.
fn status(answer: &[u8]) -> u16 {
    if answer.is_empty() {
        return 0;
    }
    let line = String::from_utf8_lossy(&answer[..answer.len().min(12)]).into_owned();
    let number = line.strip_prefix("HTTP/1.1 ").or(line.strip_prefix("HTTP/1.0 ")).and_then(|rest| rest.parse().ok());
    number.unwrap_or_else(|| panic!("no answer of HTTP: {line:?}"))
}

#[test]
fn fuzz_request() {
    let words = [
        "GET ",
        "POST ",
        "DELETE ",
        "HEAD ",
        "/v1/locks/a",
        "/v1/locks",
        "/v1/watch",
        "/renew",
        "/release",
        "/history",
        "?",
        "&limit=",
        "prefix=",
        "%2F",
        "Host: localhost\r\n",
        "Content-Length: ",
        "Transfer-Encoding: chunked\r\n",
        "\r\n\r\n",
        "0\r\n\r\n",
        "{\"kind\":",
        "\"wait_ms\":",
        "\"ttl_ms\":",
        "\"permits\":",
        "\"label\":{",
        "\"lease\":",
        "Last-Event-ID: ",
        "Authorization: Bearer ",
        "Origin: ",
        "Expect: 100-continue\r\n",
        "Accept: ",
    ];
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/request");
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("one");
    let state = runtime.block_on(async { Arc::new(state(folder.path())) });
    fuzz_at_least(LEAST_REQUESTS, "request", &corpus, &[], &words, |input| {
        let answer = runtime.block_on(answer(&state, input));
        let status = status(&answer);
        assert!(status < 500 || status == 503, "{}", String::from_utf8_lossy(&answer));
        let text = String::from_utf8_lossy(&answer);
        let code =
            text.split_once("\"code\":\"").map(|(_, rest)| rest.split('"').next().unwrap_or_default().to_owned());
        Seen::of((status, code, answer.len().checked_ilog2()))
    });
    runtime.block_on(async { state.closing.cancel() });
}
