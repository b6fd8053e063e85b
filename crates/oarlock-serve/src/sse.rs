//! Streams of server-sent events.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::answer::{self, Answer, AnswerBody};
use crate::problem::Problem;
use crate::state::State;

/// A comment is sent so often, so that both ends notice when the other is gone.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// The client of a stream is gone, or the server ends.
#[derive(Debug)]
pub(crate) struct Closed;

/// The sending side of a stream.
#[derive(Debug)]
pub(crate) struct Events {
    sender: mpsc::Sender<Bytes>,
}

impl Events {
    /// Sends an event; waits while the client is behind.
    pub(crate) async fn send(&self, event: &str, data: &str) -> Result<(), Closed> {
        // JSON has no line breaks, so that one line of data is enough.
        let text = format!("event: {event}\ndata: {data}\n\n");
        self.sender.send(Bytes::from(text)).await.map_err(|_| Closed)
    }

    pub(crate) async fn send_json(&self, event: &str, data: &Value) -> Result<(), Closed> {
        self.send(event, &data.to_string()).await
    }

    async fn beat(&self) -> Result<(), Closed> {
        self.sender.send(Bytes::from_static(b":\n\n")).await.map_err(|_| Closed)
    }

    /// Waits for `next`, with heartbeats; fails when the client is gone.
    pub(crate) async fn while_open<T>(&self, next: impl Future<Output = T>) -> Result<T, Closed> {
        tokio::pin!(next);
        loop {
            tokio::select! {
                biased;
                next = &mut next => return Ok(next),
                () = self.sender.closed() => return Err(Closed),
                () = tokio::time::sleep(HEARTBEAT) => self.beat().await?,
            }
        }
    }
}

/// A client that found all streams taken may come back after this.
const RETRY: Duration = Duration::from_secs(5);

/// Answers with the events that `produce` sends. It is dropped when the client is gone or the server ends. There are at
/// most as many streams as the settings say.
pub(crate) fn stream<F>(state: &Arc<State>, produce: impl FnOnce(Events) -> F) -> Result<Answer, Problem>
where
    F: Future<Output = Result<(), Closed>> + Send + 'static,
{
    let Ok(permit) = state.streams.clone().try_acquire_owned() else {
        let most = state.config.streams;
        let detail =
            format!("all {most} streams of this server are open (--streams): try again, or poll GET /v1/locks");
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-many-streams", detail);
        return Err(problem.retry_after(RETRY));
    };
    let (sender, receiver) = mpsc::channel(8);
    let (closing, open, produced) = (state.closing.clone(), sender.clone(), produce(Events { sender }));
    tokio::spawn(async move {
        tokio::select! {
            _ = produced => {}
            () = open.closed() => {}
            () = closing.cancelled() => {}
        }
        drop(permit);
    });
    Ok(answer::of(StatusCode::OK, "text/event-stream", AnswerBody::Events(receiver)))
}
