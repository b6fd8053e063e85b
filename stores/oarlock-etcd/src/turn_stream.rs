//! One stream for all watches for turns of a client: a stream of its own costs the server much more than a watch.
//!
//! A watch whose wait is over stays open for a moment: keys are used again, so that the next claim that waits is often
//! behind the same key. It needs no request then, and cannot be late
//! ([`watch_turn`](crate::connection::Connection::watch_turn)).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_core::Stream;
use oarlock_core::{Error, Result};
use tokio::sync::{Notify, mpsc};
use tonic::transport::Channel;

use crate::api::{WatchCancel, WatchCreate, WatchRequest, WatchResponse};
use crate::connection::stream;
use crate::error::{SCHEME, failed};
use crate::login::Pass;
use crate::members::Members;

/// A watch without a wait stays open for so long at least, and at most twice as long.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// The most watches without a wait.
const MOST_KEPT: usize = 64;

/// A stream, open until the last of its watches and its client are gone, or until its member is left.
pub(crate) struct TurnStream {
    /// The token that it was opened with.
    pub(crate) pass: Pass,
    requests: mpsc::UnboundedSender<WatchRequest>,
    watches: Arc<Mutex<Watches>>,
    /// Notified when a watch is kept, and none was before.
    kept: Arc<Notify>,
}

/// Where one watch receives its answers.
type Listener = mpsc::UnboundedSender<WatchResponse>;

#[derive(Debug, Default)]
struct Watches {
    /// The member that serves the stream.
    member: Option<Channel>,
    /// Requested and not confirmed. The server confirms in the order of the requests.
    opening: VecDeque<Listener>,
    /// By the number that the server gave to each.
    open: HashMap<i64, Open>,
    /// Those without a wait, by their key.
    kept: HashMap<Vec<u8>, i64>,
    /// Why it has ended.
    ended: Option<Error>,
}

/// A confirmed watch.
#[derive(Debug)]
struct Open {
    /// `None` while no claim waits.
    answers: Option<Listener>,
    /// The revision of the last change that it has reported; zero = none.
    latest: i64,
    /// Since when no claim waits.
    idle_since: Instant,
}

impl TurnStream {
    /// Opens a stream, which a task of the current runtime serves.
    pub(crate) fn open(members: Arc<Members>, pass: Pass) -> Self {
        let (requests, receiver) = mpsc::unbounded_channel();
        let watches = Arc::new(Mutex::new(Watches::default()));
        let kept = Arc::new(Notify::new());
        let serving = Serving { requests: requests.downgrade(), watches: watches.clone(), kept: kept.clone() };
        tokio::spawn(serving.run(members, pass.clone(), Requests(receiver)));
        Self { pass, requests, watches, kept }
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
        Ok(TurnWatch { stream: self.clone(), id: None, key: None, answers })
    }

    /// The number of the watch of this key that is kept.
    #[cfg(test)]
    pub(crate) fn kept(&self, key: &[u8]) -> Option<i64> {
        self.lock().kept.get(key).copied()
    }

    /// Whether a claim waits on the watch of this number.
    #[cfg(test)]
    pub(crate) fn serves(&self, id: i64) -> bool {
        self.lock().open.get(&id).is_some_and(|watch| watch.answers.is_some())
    }

    /// A watch of this key that was kept, and the revision of the last change that it has reported.
    pub(crate) fn resume(self: &Arc<Self>, key: &[u8]) -> Option<(TurnWatch, i64)> {
        let mut watches = self.lock();
        let (key, id) = watches.kept.remove_entry(key)?;
        let open = watches.open.get_mut(&id)?;
        let (sender, answers) = mpsc::unbounded_channel();
        open.answers = Some(sender);
        Some((TurnWatch { stream: self.clone(), id: Some(id), key: Some(key), answers }, open.latest))
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

/// One watch. Dropping it ends it at the server, too, unless it is [kept](Self::keep_for).
#[derive(Debug)]
pub(crate) struct TurnWatch {
    pub(crate) stream: Arc<TurnStream>,
    /// Once it is confirmed.
    id: Option<i64>,
    /// The key under which it is kept.
    key: Option<Vec<u8>>,
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

    /// Keeps it for the next wait for the end of a claim with this key. It must report nothing else.
    pub(crate) fn keep_for(&mut self, key: Vec<u8>) {
        self.key = Some(key);
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
        let Some(id) = self.id else { return };
        let mut watches = self.stream.lock();
        let Watches { open, kept, .. } = &mut *watches;
        let Some(watch) = open.get_mut(&id) else { return };
        match self.key.take().filter(|key| kept.len() < MOST_KEPT && !kept.contains_key(key)) {
            Some(key) => {
                (watch.answers, watch.idle_since) = (None, Instant::now());
                if kept.is_empty() {
                    self.stream.kept.notify_one();
                }
                kept.insert(key, id);
            }
            None => {
                open.remove(&id);
                let _ = self.stream.requests.send(cancel(id));
            }
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
    kept: Arc<Notify>,
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
        let sweep = tokio::time::sleep(KEPT_FOR);
        tokio::pin!(sweep);
        let mut sweeps = false;
        loop {
            let answer = tokio::select! {
                biased;
                () = &mut left => return,
                answer = answers.message() => answer,
                () = self.kept.notified(), if !sweeps => {
                    sweep.as_mut().reset(tokio::time::Instant::now() + KEPT_FOR);
                    sweeps = true;
                    continue;
                }
                () = &mut sweep, if sweeps => {
                    sweep.as_mut().reset(tokio::time::Instant::now() + KEPT_FOR);
                    sweeps = self.sweep();
                    continue;
                }
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
                watches.open.insert(id, Open { answers: Some(watch), latest: 0, idle_since: Instant::now() });
            } else if !is_over && let Some(requests) = self.requests.upgrade() {
                let _ = requests.send(cancel(id));
            }
        } else if is_over {
            // One that was dropped is not there any more.
            watches.kept.retain(|_, kept| *kept != id);
            watches.open.remove(&id).and_then(|watch| watch.answers).map(|waiting| waiting.send(answer));
        } else if let Some(watch) = watches.open.get_mut(&id) {
            let changes = answer.events.iter().filter_map(|event| event.kv.as_ref());
            watch.latest = changes.map(|kv| kv.mod_revision).fold(watch.latest, i64::max);
            if let Some(waiting) = &watch.answers {
                let _ = waiting.send(answer);
            }
        }
    }

    /// Ends watches that were kept for long. False if none is left.
    fn sweep(&self) -> bool {
        let Some(requests) = self.requests.upgrade() else { return false };
        let mut watches = lock(&self.watches);
        let Watches { open, kept, .. } = &mut *watches;
        kept.retain(|_, id| {
            let is_old = open.get(id).is_none_or(|watch| watch.idle_since.elapsed() >= KEPT_FOR);
            if is_old && open.remove(id).is_some() {
                let _ = requests.send(cancel(*id));
            }
            !is_old
        });
        !kept.is_empty()
    }

    fn end(&self, error: Error) {
        let mut watches = lock(&self.watches);
        watches.ended.get_or_insert(error);
        // Without their senders, all watches have ended.
        watches.opening.clear();
        watches.open.clear();
        watches.kept.clear();
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

    async fn write(connection: &Connection, key: &str) -> i64 {
        let put = put(&Range::key(key), Vec::new(), 0);
        connection.txn(Vec::new(), vec![put], Vec::new()).await.unwrap().revision
    }

    async fn heard(watch: &mut TurnWatch) -> i64 {
        let heard = tokio::time::timeout(SOON, poll_fn(|cx| watch.poll_next(cx))).await.unwrap().unwrap();
        heard.events[0].kv.as_ref().unwrap().mod_revision
    }

    /// The next wait behind the same key needs no request, and misses nothing.
    #[tokio::test]
    async fn a_kept_watch_serves_the_next_wait_and_ends_after_a_while() {
        let Some(server) = oarlock_testbed::Etcd::start_or_skip().unwrap() else { return };
        let connection = Connection::open(&Config::new([server.addr().to_string()])).await.unwrap();
        let watchers = || server.metric("etcd_debugging_mvcc_watcher_total").unwrap();
        let late = Instant::now() + 3 * SOON;
        // A slow machine may need so long for these steps that the watch has ended meanwhile: then once more.
        let mut watch = 'kept: loop {
            let (mut watch, _) = connection.watch_turn(create("k")).await.unwrap();
            watch.keep_for(b"k".to_vec());
            let (kept_at, stream) = (Instant::now(), watch.stream.clone());
            drop(watch);
            let meanwhile = write(&connection, "k").await;
            loop {
                assert!(Instant::now() < late, "it is not kept, or has not reported {meanwhile}");
                let Some((watch, latest)) = connection.resume_turn(b"k").await.unwrap() else {
                    assert!(kept_at.elapsed() >= KEPT_FOR || stream.has_ended(), "it was not kept");
                    break;
                };
                if latest == meanwhile {
                    assert!(connection.resume_turn(b"k").await.unwrap().is_none(), "it has a wait already");
                    break 'kept watch;
                }
                assert_eq!(latest, 0, "it is not {meanwhile}");
                drop(watch);
                tokio::task::yield_now().await;
            }
        };
        let next = write(&connection, "k").await;
        while heard(&mut watch).await != next {}
        drop(watch);
        let late = Instant::now() + SOON;
        while watchers() > 0.0 {
            assert!(Instant::now() < late, "it stays");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(connection.resume_turn(b"k").await.unwrap().is_none());
    }

    #[tokio::test]
    async fn few_watches_are_kept() {
        let Some(server) = oarlock_testbed::Etcd::start_or_skip().unwrap() else { return };
        let connection = Connection::open(&Config::new([server.addr().to_string()])).await.unwrap();
        for number in 0..2 * MOST_KEPT {
            let (mut watch, _) = connection.watch_turn(create(&number.to_string())).await.unwrap();
            watch.keep_for(number.to_string().into_bytes());
            drop(watch);
        }
        let stream = connection.watch_turn(create("last")).await.unwrap().0.stream.clone();
        assert!(stream.lock().kept.len() <= MOST_KEPT && stream.lock().open.len() <= MOST_KEPT + 1);
    }

    /// Between two steps of the server a transaction of another client may end: then it takes up to 100 ms to report.
    /// A figure to read, and no limit: the server counts such watches only now and then.
    #[tokio::test(flavor = "multi_thread")]
    async fn watches_of_the_past_beside_busy_clients() {
        if std::env::var_os("OARLOCK_LONG").is_none() {
            println!("watches of the past: only in the long tier (OARLOCK_LONG=1)");
            return;
        }
        let Some(server) = oarlock_testbed::Etcd::start_or_skip().unwrap() else { return };
        let connection = Connection::open(&Config::new([server.addr().to_string()])).await.unwrap();
        let mut busy = tokio::task::JoinSet::new();
        for client in 0..8 {
            let connection = Connection::open(&Config::new([server.addr().to_string()])).await.unwrap();
            busy.spawn(async move {
                loop {
                    write(&connection, &format!("busy{client}")).await;
                }
            });
        }
        let is_past = || server.metric("etcd_debugging_mvcc_slow_watcher_total").unwrap() > 0.0;
        let mut past = 0;
        for _ in 0..800 {
            let watch = connection.watch_turn(create("k")).await.unwrap();
            // Twice: the other watches may be of the past until the server has ended them.
            past += u32::from(is_past() && is_past());
            drop(watch);
        }
        // Without a second watch it is one to five in a hundred.
        println!("{past} of 800 watches were of the past");
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
