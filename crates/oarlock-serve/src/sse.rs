//! Streams of server-sent events.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::answer::{self, Answer, AnswerBody};
use crate::problem::Problem;
use crate::quota;
use crate::service::Call;
use crate::state::State;

/// A stream on which nothing was sent for so long sends a comment, so that both ends notice when the other is gone.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(10);

/// The client of a stream is gone, or the server ends.
#[derive(Debug)]
pub(crate) struct Closed;

/// The sending side of a stream.
#[derive(Debug)]
pub(crate) struct Events {
    sender: mpsc::Sender<Bytes>,
    last_written: Mutex<Instant>,
}

impl Events {
    /// To a client that reads from the other end.
    pub(crate) fn to(sender: mpsc::Sender<Bytes>) -> Self {
        Self { sender, last_written: Mutex::new(Instant::now()) }
    }

    /// Sends an event; waits while the client is behind.
    pub(crate) async fn send(&self, event: &str, data: &str) -> Result<(), Closed> {
        // JSON has no line breaks, so that one line of data is enough.
        self.write(Bytes::from(format!("event: {event}\ndata: {data}\n\n"))).await
    }

    /// Sends an event whose data ends with text that streams share: there is one copy of it.
    pub(crate) async fn send_shared(&self, event: &str, start: &str, rest: Bytes) -> Result<(), Closed> {
        self.write(Bytes::from(format!("event: {event}\ndata: {start}"))).await?;
        self.write(rest).await?;
        self.write(Bytes::from_static(b"\n\n")).await
    }

    async fn write(&self, bytes: Bytes) -> Result<(), Closed> {
        self.sender.send(bytes).await.map_err(|_| Closed)?;
        *self.last_written.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Ok(())
    }

    pub(crate) async fn send_json(&self, event: &str, data: &Value) -> Result<(), Closed> {
        self.send(event, &data.to_string()).await
    }

    async fn beat(&self) -> Result<(), Closed> {
        self.write(Bytes::from_static(b":\n\n")).await
    }

    /// Waits for `next`, with heartbeats; fails when the client is gone.
    pub(crate) async fn while_open<T>(&self, next: impl Future<Output = T>) -> Result<T, Closed> {
        tokio::pin!(next);
        loop {
            // Callers that are woken often, and send nothing, do not begin anew.
            let last_written = *self.last_written.lock().unwrap_or_else(PoisonError::into_inner);
            tokio::select! {
                biased;
                next = &mut next => return Ok(next),
                () = self.sender.closed() => return Err(Closed),
                () = tokio::time::sleep_until(last_written + HEARTBEAT) => self.beat().await?,
            }
        }
    }
}

/// A client that found all streams taken may come back after this.
const RETRY: Duration = Duration::from_secs(5);

/// Answers with the events that `produce` sends. It is dropped when the client is gone, when tokens or rights are
/// exchanged, and when the server ends. There are at most as many streams as the settings say, and a quarter of them for
/// one client.
pub(crate) fn stream<F>(state: &Arc<State>, call: &Call, produce: impl FnOnce(Events) -> F) -> Result<Answer, Problem>
where
    F: Future<Output = Result<(), Closed>> + Send + 'static,
{
    let too_many = |which: String| {
        let detail = format!("{which} are open (--streams): try again, or poll GET /v1/locks");
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-many-streams", detail);
        problem.retry_after(RETRY)
    };
    let most = state.config.streams;
    let Some(of_client) = state.streams_of.take(client_of(state, call)) else {
        return Err(too_many(format!("a quarter of the {most} streams of this server, the most for one client,")));
    };
    let Ok(permit) = state.streams.clone().try_acquire_owned() else {
        return Err(too_many(format!("all {most} streams of this server")));
    };
    // One, so that little is kept for a client that reads slowly: it gets what has changed since then.
    let (sender, receiver) = mpsc::channel(1);
    let (closing, open, produced) = (state.closing.clone(), sender.clone(), produce(Events::to(sender)));
    let revoked = call.revoked.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = produced => {}
            () = open.closed() => {}
            () = closing.cancelled() => {}
            () = revoked.cancelled() => {}
        }
        drop((permit, of_client));
    });
    let mut answer = answer::of(StatusCode::OK, "text/event-stream", AnswerBody::Events(receiver));
    // Proxies that know this header (nginx) pass each event on at once.
    answer.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(answer)
}

/// What tells clients apart; `None` where nothing does. An address that many share tells nothing, nor does the only token.
fn client_of(state: &State, call: &Call) -> Option<String> {
    let name = &call.client.name;
    if state.config.is_shared(call.peer) {
        return state.has_names().then(|| name.clone());
    }
    Some(format!("{name} {}", quota::network(call.peer)))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn call(client: &str, peer: [u8; 4]) -> Call {
        let mut call = Call {
            client: crate::access::Access::open().client(&http::HeaderMap::new(), None).unwrap(),
            peer: peer.into(),
            arrived: crate::state::now(),
            headers: http::HeaderMap::new(),
            revoked: tokio_util::sync::CancellationToken::new(),
            path: String::new(),
            query: Vec::new(),
            body: Bytes::new(),
        };
        client.clone_into(&mut call.client.name);
        call
    }

    async fn state(config: crate::config::Config) -> Arc<State> {
        let locks = oarlock::connect("mem:").await.unwrap();
        Arc::new(State::new(locks, config).unwrap())
    }

    #[tokio::test]
    async fn little_is_kept_for_a_client_that_does_not_read() {
        let state = state(crate::config::Config::default()).await;
        let sent = Arc::new(AtomicUsize::new(0));
        let counted = sent.clone();
        let answer = stream(&state, &call("c", [10, 0, 0, 7]), async move |events| {
            loop {
                events.send("x", "{}").await?;
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(sent.load(Ordering::SeqCst), 1);
        assert_eq!(answer.unwrap().headers()["x-accel-buffering"], "no");
    }

    #[tokio::test]
    async fn one_client_leaves_streams_for_others() {
        let state = state(crate::config::Config { streams: 8, ..Default::default() }).await;
        let open = |client: &str, peer| {
            stream(&state, &call(client, peer), async |_| {
                std::future::pending::<()>().await;
                Ok(())
            })
        };
        let far = [10, 0, 0, 7];
        let (one, _two) = (open("c", far).unwrap(), open("c", far).unwrap());
        let refused = open("c", far).unwrap_err();
        assert!(refused.code == "too-many-streams" && refused.detail.contains("one client"), "{}", refused.detail);
        let _others: Vec<_> = [("d", far), ("c", [10, 0, 0, 8])].map(|(name, peer)| open(name, peer).unwrap()).into();
        drop(one);
        let again = async {
            while open("c", far).is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), again).await.expect("it may open another");
        let _local: Vec<_> = (0..4).map(|_| open("c", [127, 0, 0, 1]).expect("many users share it")).collect();
    }
}
