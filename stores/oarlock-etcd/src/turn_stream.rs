//! One stream for all watches for turns of a client: a stream of its own costs the server much more than a watch.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_core::Stream;
use oarlock_core::{Error, Result};
use tokio::sync::mpsc;
use tonic::transport::Channel;

use crate::api::{WatchCancel, WatchCreate, WatchRequest, WatchResponse};
use crate::connection::stream;
use crate::error::{SCHEME, failed};
use crate::login::Pass;
use crate::members::Members;

/// A stream, open until the last of its watches and its client are gone, or until its member is left.
pub(crate) struct TurnStream {
    /// The token that it was opened with.
    pub(crate) pass: Pass,
    requests: mpsc::UnboundedSender<WatchRequest>,
    watches: Arc<Mutex<Watches>>,
}

/// What is told to one watch.
type Answers = mpsc::UnboundedSender<WatchResponse>;

#[derive(Debug, Default)]
struct Watches {
    /// The member that serves the stream.
    member: Option<Channel>,
    /// Requested and not confirmed. The server confirms in the order of the requests.
    opening: VecDeque<Answers>,
    /// By the number that the server gave to each.
    open: HashMap<i64, Answers>,
    /// Why it has ended.
    ended: Option<Error>,
}

impl TurnStream {
    /// Opens a stream, which a task of the current runtime serves.
    pub(crate) fn open(members: Arc<Members>, pass: Pass) -> Self {
        let (requests, receiver) = mpsc::unbounded_channel();
        let watches = Arc::new(Mutex::new(Watches::default()));
        let serving = Serving { requests: requests.downgrade(), watches: watches.clone() };
        tokio::spawn(serving.run(members, pass.clone(), Requests(receiver)));
        Self { pass, requests, watches }
    }

    fn lock(&self) -> MutexGuard<'_, Watches> {
        lock(&self.watches)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended.is_some()
    }

    /// The member that serves it; `None` before it has answered.
    pub(crate) fn member(&self) -> Option<Channel> {
        self.lock().member.clone()
    }

    /// Requests a watch. Its first answer confirms it.
    pub(crate) fn watch(self: &Arc<Self>, create: WatchCreate) -> Result<TurnWatch> {
        let (sender, answers) = mpsc::unbounded_channel();
        let mut watches = self.lock();
        if let Some(error) = &watches.ended {
            return Err(error.clone());
        }
        // Under the lock: the answers come in this order.
        watches.opening.push_back(sender);
        // Without a task it has ended, and says so to all its watches.
        let _ = self.requests.send(WatchRequest { create: Some(create), cancel: None });
        drop(watches);
        Ok(TurnWatch { stream: self.clone(), id: None, answers })
    }
}

fn lock(watches: &Mutex<Watches>) -> MutexGuard<'_, Watches> {
    watches.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for TurnStream {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnStream").field("watches", &self.watches).finish_non_exhaustive()
    }
}

/// One watch. Dropping it ends it at the server, too.
#[derive(Debug)]
pub(crate) struct TurnWatch {
    pub(crate) stream: Arc<TurnStream>,
    /// Once it is confirmed.
    id: Option<i64>,
    answers: mpsc::UnboundedReceiver<WatchResponse>,
}

impl TurnWatch {
    /// The next answer; `None` when the stream has ended.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<WatchResponse>> {
        let answer = self.answers.poll_recv(cx);
        if let Poll::Ready(Some(answer)) = &answer {
            self.note(answer);
        }
        answer
    }

    /// The answer that confirms it.
    pub(crate) async fn confirmed(&mut self) -> Result<WatchResponse> {
        let answer = poll_fn(|cx| self.poll_next(cx)).await;
        answer.ok_or_else(|| self.stream.lock().ended.clone().unwrap_or_else(gone))
    }

    fn note(&mut self, answer: &WatchResponse) {
        if answer.created && !answer.canceled {
            self.id = Some(answer.watch_id);
        }
    }
}

impl Drop for TurnWatch {
    fn drop(&mut self) {
        // If its confirmation comes later, the task ends it.
        self.answers.close();
        while let Ok(answer) = self.answers.try_recv() {
            self.note(&answer);
        }
        if let Some(id) = self.id
            && self.stream.lock().open.remove(&id).is_some()
        {
            let _ = self.stream.requests.send(cancel(id));
        }
    }
}

fn cancel(watch_id: i64) -> WatchRequest {
    WatchRequest { create: None, cancel: Some(WatchCancel { watch_id }) }
}

fn gone() -> Error {
    Error::unreachable("the stream of watches has ended").on(SCHEME)
}

/// The task that serves a stream. However it ends, its watches end with it.
struct Serving {
    /// Weak: the stream ends when no task can send any more.
    requests: mpsc::WeakUnboundedSender<WatchRequest>,
    watches: Arc<Mutex<Watches>>,
}

impl Serving {
    async fn run(self, members: Arc<Members>, pass: Pass, requests: Requests) {
        let opened = stream::<_, WatchResponse>(&members, "/etcdserverpb.Watch/Watch", requests, &pass).await;
        let (mut answers, mut left) = match opened {
            Ok((answers, left, member)) => {
                lock(&self.watches).member = Some(member);
                (answers, left)
            }
            Err(status) => return self.end(failed(status)),
        };
        drop(members);
        loop {
            let answer = tokio::select! {
                biased;
                () = &mut left => return,
                answer = answers.message() => answer,
            };
            match answer {
                Ok(Some(answer)) => self.pass_on(answer),
                Ok(None) => return,
                Err(status) => return self.end(failed(status)),
            }
        }
    }

    fn pass_on(&self, answer: WatchResponse) {
        let mut watches = lock(&self.watches);
        let (id, is_over) = (answer.watch_id, answer.canceled);
        if answer.created {
            let Some(watch) = watches.opening.pop_front() else { return };
            if watch.send(answer).is_ok() && !is_over {
                watches.open.insert(id, watch);
            } else if !is_over && let Some(requests) = self.requests.upgrade() {
                let _ = requests.send(cancel(id));
            }
        } else if is_over {
            // One that was dropped is not there any more.
            watches.open.remove(&id).map(|watch| watch.send(answer));
        } else if let Some(watch) = watches.open.get(&id) {
            let _ = watch.send(answer);
        }
    }

    fn end(&self, error: Error) {
        let mut watches = lock(&self.watches);
        watches.ended.get_or_insert(error);
        // Without their senders, all watches have ended.
        watches.opening.clear();
        watches.open.clear();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.end(gone());
    }
}

/// What is sent, until no task can send any more.
struct Requests(mpsc::UnboundedReceiver<WatchRequest>);

impl Stream for Requests {
    type Item = WatchRequest;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WatchRequest>> {
        self.0.poll_recv(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::api::Range;
    use crate::config::Config;
    use crate::connection::Connection;
    use crate::operations::put;

    const SOON: Duration = Duration::from_secs(10);

    fn create(key: &str) -> WatchCreate {
        WatchCreate::of(&Range::key(key))
    }

    #[tokio::test]
    async fn each_watch_hears_of_its_own_key() {
        let Some(server) = oarlock_testbed::Etcd::start_or_skip().unwrap() else { return };
        let connection = Connection::open(&Config::new([server.addr().to_string()])).await.unwrap();
        let mut watches = Vec::new();
        for number in 0..5 {
            watches.push(connection.watch_turn(create(&number.to_string())).await.unwrap().0);
        }
        assert!(watches.windows(2).all(|two| Arc::ptr_eq(&two[0].stream, &two[1].stream)), "several streams");
        drop(watches.remove(1));
        for (number, watch) in [0, 2, 3, 4].into_iter().zip(&mut watches) {
            let key = Range::key(number.to_string());
            connection.txn(Vec::new(), vec![put(&key, Vec::new(), 0)], Vec::new()).await.unwrap();
            let heard = tokio::time::timeout(SOON, poll_fn(|cx| watch.poll_next(cx))).await.unwrap().unwrap();
            assert_eq!(heard.events[0].kv.as_ref().unwrap().key, key.key);
        }
    }

    /// The server would keep it for as long as the client lives.
    #[tokio::test]
    async fn a_watch_that_is_dropped_before_it_is_confirmed_is_ended() {
        let Some(server) = oarlock_testbed::Etcd::start_or_skip().unwrap() else { return };
        let connection = Connection::open(&Config::new([server.addr().to_string()])).await.unwrap();
        let watchers = || server.metric("etcd_debugging_mvcc_watcher_total").unwrap();
        let kept = connection.watch_turn(create("kept")).await.unwrap().0;
        let before = watchers();
        for number in 0..20 {
            drop(kept.stream.watch(create(&number.to_string())).unwrap());
        }
        // Its confirmation comes after those of all others.
        let last = connection.watch_turn(create("last")).await.unwrap();
        let late = Instant::now() + SOON;
        while watchers() > before + 1.0 {
            assert!(Instant::now() < late, "{} are left", watchers() - before - 1.0);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        drop(last);
    }

    #[tokio::test]
    async fn watches_end_with_their_stream_and_the_next_opens_another() {
        let Some(server) = oarlock_testbed::Etcd::start_or_skip().unwrap() else { return };
        let connection = Connection::open(&Config::new([server.addr().to_string()])).await.unwrap();
        let mut watch = connection.watch_turn(create("k")).await.unwrap().0;
        let ended = tokio::spawn(async move { poll_fn(|cx| watch.poll_next(cx)).await.is_none() });
        server.restart().unwrap();
        assert!(tokio::time::timeout(SOON, ended).await.unwrap().unwrap());
        let late = Instant::now() + SOON;
        while connection.watch_turn(create("k")).await.is_err() {
            assert!(Instant::now() < late);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
