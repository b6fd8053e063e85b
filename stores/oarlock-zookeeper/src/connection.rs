//! One connection to one server. It does not reconnect.
//!
//! The client crate reconnects by itself, and reports neither the server nor the session time-out that this server
//! gave. So its task is stopped as soon as the connection is lost, and [`resume`](crate::resume) decides where the
//! session goes on. Every answer here comes from one server, on one connection, with one session time-out.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use spawns_core::{Spawn, Task};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use zookeeper_client as zk;

/// A connection. Dropping the last handle of its client closes the session, if the connection is still alive.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: zk::Client,
    pub(crate) alive: Arc<Alive>,
    ended: watch::Receiver<bool>,
    serving: AbortHandle,
}

/// Whether a connection is alive.
#[derive(Debug)]
pub(crate) struct Alive(RwLock<bool>);

impl Alive {
    /// Runs `work` if the connection is alive, and delays the notice of its end until `work` is done.
    pub(crate) fn while_alive<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let stands = self.0.read().unwrap_or_else(PoisonError::into_inner);
        stands.then(work)
    }

    fn end(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

impl Connection {
    /// Connects to this server, once. The task that serves the connection runs on the current runtime.
    pub(crate) async fn open(connector: zk::Connector, server: &str) -> Result<Self, zk::Error> {
        let caught = Caught::default();
        let client = {
            let mut connecting = pin!(connector.with_fail_eagerly().connect(server));
            poll_fn(|context| {
                let _scope = spawns_core::enter(&caught);
                connecting.as_mut().poll(context)
            })
            .await?
        };
        let task = caught.0.into_inner().unwrap_or_else(PoisonError::into_inner).ok_or(zk::Error::ConnectionLoss)?;
        let (alive, (end, ended)) = (Arc::new(Alive(RwLock::new(true))), watch::channel(false));
        let serving = Serving { task: Some(task), alive: alive.clone(), end };
        let serving = tokio::spawn(serving.run(client.state_watcher())).abort_handle();
        Ok(Self { client, alive, ended, serving })
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.alive.while_alive(|| ()).is_none()
    }

    /// Waits for its end, also after this is dropped.
    pub(crate) fn end(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ended = self.ended.clone();
        async move {
            // An error means that the task is gone, and the connection with it.
            let _ = ended.wait_for(|ended| *ended).await;
        }
    }

    /// Ends it without closing the session, whatever handles to it are left. It has ended when [`end`](Self::end)
    /// resolves.
    pub(crate) fn stop(&self) -> impl FnOnce() + Send + use<> {
        let serving = self.serving.clone();
        move || serving.abort()
    }

    /// The first event of a watch; `None` when the connection ends before.
    pub(crate) fn event(&self, watcher: zk::OneshotWatcher) -> Event {
        Event { alive: self.alive.clone(), event: Box::pin(watcher.changed()) }
    }
}

/// Keeps the task that the client crate starts for a connection.
#[derive(Default)]
struct Caught(Mutex<Option<ServeFuture>>);

type ServeFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Spawn for Caught {
    fn spawn(&self, task: Task) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::into_pin(task.future));
    }
}

/// The task of the client crate, until its connection is lost.
struct Serving {
    task: Option<ServeFuture>,
    alive: Arc<Alive>,
    end: watch::Sender<bool>,
}

impl Serving {
    async fn run(mut self, mut states: zk::StateWatcher) {
        let task = &mut self.task;
        poll_fn(|context| {
            let done = task.as_mut().is_none_or(|task| task.as_mut().poll(context).is_ready());
            // The first change of state is the end of the connection. The crate then connects again, but not within
            // the same poll: it never gets to present the session to a server.
            let lost = states.changed().now_or_never().is_some();
            if done || lost { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // In this order: a watch that is polled after its task is gone panics.
        self.alive.end();
        self.task = None;
        self.end.send_replace(true);
    }
}

/// See [`Connection::event`].
pub(crate) struct Event {
    alive: Arc<Alive>,
    event: Pin<Box<dyn Future<Output = zk::WatchedEvent> + Send>>,
}

impl Future for Event {
    type Output = Option<zk::WatchedEvent>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { alive, event } = self.get_mut();
        match alive.while_alive(|| event.as_mut().poll(context)) {
            Some(polled) => polled.map(Some),
            None => Poll::Ready(None),
        }
    }
}
