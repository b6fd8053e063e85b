//! One server: a connection for requests and notifications, and one for writes that replicas must confirm. In a cluster
//! notifications have a connection of their own. A request opens the connection that it needs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oarlock_core::driver::Watch;
use oarlock_core::reconnect::{Ends, Reopened};
use oarlock_core::{Error, Result};
use redis::{Cmd, Pipeline, PushKind, RedisError, Value};
use tokio::sync::oneshot;

use crate::connection::{Connection, Connector, Login, Target};
use crate::error::{SCHEME, failed, unconfirmed, unexpected};
use crate::notifications::{Notifications, Source, Topic};
use crate::server_info::{Requirements, ServerInfo};

/// The reply to each command.
pub(crate) type Replies = Vec<Result<Value, RedisError>>;

/// Creates the node at an address.
pub(crate) type Make = Arc<dyn Fn(Target) -> Arc<Node> + Send + Sync>;

/// One server.
pub(crate) struct Node {
    pub(crate) target: Target,
    connector: Arc<Connector>,
    required: Requirements,
    notifications: Arc<Notifications>,
    requests: Reopened<NodeConnection>,
    /// For notifications of slots. The client crate may take such a message for a reply, so requests have another
    /// connection.
    subscriptions: Reopened<NodeConnection>,
    confirmed: Reopened<NodeConnection>,
    /// Writes that wait for the connection on which replicas confirm.
    queue: Mutex<Queue>,
    server_info: Mutex<Option<ServerInfo>>,
}

/// An open connection to this server, with its subscriptions.
struct NodeConnection {
    inner: Connection,
    ended: Arc<AtomicBool>,
    source: Source,
    notifications: Arc<Notifications>,
    /// Locked while subscriptions change.
    changing: tokio::sync::Mutex<()>,
}

impl Ends for NodeConnection {
    fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

impl NodeConnection {
    fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.notifications.end(self.source);
    }
}

impl Drop for NodeConnection {
    fn drop(&mut self) {
        self.end();
    }
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Queued>,
    /// Whether a task sends them.
    served: bool,
}

impl Queue {
    /// Adds it, and says whether a task serves the queue. If not, the caller must start one.
    fn is_served_after(&mut self, queued: Queued) -> bool {
        self.waiting.push(queued);
        std::mem::replace(&mut self.served, true)
    }
}

/// Commands of one request, which are sent and confirmed together with those of other requests.
struct Queued {
    commands: Vec<Cmd>,
    timeout: Duration,
    done: oneshot::Sender<Result<(Replies, u32)>>,
}

/// The task that serves the queue until it is empty. A task, because the future of a request may be dropped while
/// others depend on the queue.
struct Serving {
    node: Arc<Node>,
    over: bool,
}

impl Serving {
    async fn run(mut self) {
        while !self.is_over() {
            self.node.confirm().await;
        }
    }

    fn is_over(&mut self) -> bool {
        let mut queue = self.node.queue();
        self.over = queue.waiting.is_empty();
        queue.served = !self.over;
        self.over
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if !self.over {
            // The runtime ends, and no task will serve the queue.
            *self.node.queue() = Queue::default();
        }
    }
}

impl Node {
    pub(crate) fn new(
        target: Target,
        connector: Arc<Connector>,
        required: Requirements,
        notifications: Arc<Notifications>,
    ) -> Self {
        Self {
            target,
            connector,
            required,
            notifications,
            requests: Reopened::new(SCHEME),
            subscriptions: Reopened::new(SCHEME),
            confirmed: Reopened::new(SCHEME),
            queue: Mutex::default(),
            server_info: Mutex::default(),
        }
    }

    /// Connects, checks the requirements, and returns what the server reports.
    pub(crate) async fn reach(self: &Arc<Self>) -> Result<ServerInfo> {
        self.connect(&self.requests).await?;
        let server_info = self.server_info.lock().unwrap_or_else(PoisonError::into_inner);
        server_info.clone().ok_or_else(unexpected)
    }

    async fn connect(self: &Arc<Self>, connections: &Reopened<NodeConnection>) -> Result<Arc<NodeConnection>> {
        let open = || {
            let node = self.clone();
            async move {
                let connection = node.open().await?;
                let server_info = ServerInfo::fetch(&mut connection.inner.client.clone()).await?;
                server_info.check(node.required, &node.target)?;
                *node.server_info.lock().unwrap_or_else(PoisonError::into_inner) = Some(server_info);
                Ok(connection)
            }
        };
        connections.get(open).await
    }

    async fn open(&self) -> Result<NodeConnection> {
        let ended = Arc::new(AtomicBool::new(false));
        let (source, notifications, told) = (self.notifications.begin(), self.notifications.clone(), ended.clone());
        let inner = self.connector.open(&self.target, Login::User, move |push| {
            if push.kind == PushKind::Disconnection {
                told.store(true, Ordering::Release);
            }
            notifications.push(source, push);
        });
        let inner = inner.await.inspect_err(|_| self.notifications.end(source))?;
        Ok(NodeConnection {
            inner,
            ended,
            source,
            notifications: self.notifications.clone(),
            changing: tokio::sync::Mutex::default(),
        })
    }

    /// The connection for subscriptions.
    async fn subscribing(self: &Arc<Self>, sharded: bool) -> Result<Arc<NodeConnection>> {
        let open = || {
            let node = self.clone();
            async move { node.open().await }
        };
        if sharded { self.subscriptions.get(open).await } else { self.connect(&self.requests).await }
    }

    /// Sends one command.
    pub(crate) async fn send_one(self: &Arc<Self>, command: &Cmd) -> Result<Result<Value, RedisError>> {
        let connection = self.connect(&self.requests).await?;
        let answer = connection.inner.client.clone().send_packed_command(command).await;
        Ok(match answer {
            Ok(answer) => answer.extract_error(),
            Err(error) => {
                self.requests.discard(&connection);
                Err(error)
            }
        })
    }

    /// Sends commands in one pipeline: a reply for each.
    pub(crate) async fn send(self: &Arc<Self>, commands: Vec<Cmd>) -> Result<Replies> {
        let connection = self.connect(&self.requests).await?;
        Ok(self.pipe(&self.requests, &connection, commands).await)
    }

    async fn pipe(
        &self,
        connections: &Reopened<NodeConnection>,
        connection: &Arc<NodeConnection>,
        commands: Vec<Cmd>,
    ) -> Replies {
        let count = commands.len();
        let mut pipeline = Pipeline::with_capacity(count);
        commands.into_iter().for_each(|command| {
            pipeline.add_command(command);
        });
        match connection.inner.client.clone().send_packed_commands(&pipeline, 0, count).await {
            Ok(answers) => answers.into_iter().map(Value::extract_error).collect(),
            Err(error) => {
                connections.discard(connection);
                vec![Err(error); count]
            }
        }
    }

    /// Sends commands, and returns how many replicas have them. Commands that arrive during a wait are sent together
    /// after it, with one `WAIT` for all, on the connection that wrote.
    pub(crate) async fn send_confirmed(
        self: &Arc<Self>,
        commands: Vec<Cmd>,
        timeout: Duration,
    ) -> Result<(Replies, u32)> {
        let (done, answer) = oneshot::channel();
        if !self.queue().is_served_after(Queued { commands, timeout, done }) {
            tokio::spawn(Serving { node: self.clone(), over: false }.run());
        }
        answer.await.unwrap_or_else(|_| Err(Error::unreachable("the runtime of this client ended").on(SCHEME)))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the queued commands, and waits for the replicas.
    async fn confirm(self: &Arc<Self>) {
        let connection = self.connect(&self.confirmed).await;
        let queued = std::mem::take(&mut self.queue().waiting);
        let connection = match connection {
            Ok(connection) => connection,
            Err(error) => {
                return queued.into_iter().for_each(|queued| drop(queued.done.send(Err(error.clone()))));
            }
        };
        let (mut commands, mut waiting) = (Vec::new(), Vec::with_capacity(queued.len()));
        for Queued { commands: sent, timeout, done } in queued {
            waiting.push((timeout, sent.len(), Replies::new(), done));
            commands.extend(sent);
        }
        let (mut waited, mut answered) = (Duration::ZERO, false);
        // The request with the shortest time-out is answered when that ends; for the others the wait goes on.
        while let Some(least) = waiting.iter().map(|(timeout, ..)| *timeout).min() {
            let mut wait = redis::cmd("WAIT");
            let span = u64::try_from(least.saturating_sub(waited).as_millis()).unwrap_or(u64::MAX);
            wait.arg(self.required.replicas).arg(span.max(1));
            commands.push(wait);
            let mut replies = self.pipe(&self.confirmed, &connection, std::mem::take(&mut commands)).await;
            let (confirmed, failed) = match replies.pop() {
                Some(Ok(Value::Int(count))) => (u32::try_from(count).unwrap_or(0), false),
                _ => (0, true),
            };
            let mut replies = replies.into_iter();
            for (_, count, answers, _) in waiting.iter_mut().filter(|_| !answered) {
                *answers = replies.by_ref().take(*count).collect();
            }
            (waited, answered) = (least, true);
            let over = failed || self.is_confirmed(confirmed).is_ok();
            for (_, _, answers, done) in waiting.extract_if(.., |(timeout, ..)| over || *timeout <= least) {
                // The future of the request may have been dropped.
                let _ = done.send(Ok((answers, confirmed)));
            }
        }
    }

    /// Whether so many confirmations are enough.
    pub(crate) fn is_confirmed(&self, confirmed: u32) -> Result<()> {
        if confirmed >= self.required.replicas { Ok(()) } else { Err(unconfirmed(confirmed, self.required.replicas)) }
    }

    /// Arms a watch. Notifications from now on reach it, once this returns.
    pub(crate) async fn listen(self: &Arc<Self>, topic: Topic, channel: &str, sharded: bool) -> Result<Watch> {
        let connection = self.subscribing(sharded).await?;
        let is_turn = matches!(topic, Topic::Turn(_));
        let watch = self.notifications.listen(topic, channel, connection.source);
        // A waiting claim mostly needs no request: its mailbox is subscribed to already.
        if !(is_turn && self.notifications.is_subscribed(channel, connection.source)) {
            self.subscribe_in_task(connection, channel, sharded).await?;
        }
        Ok(watch)
    }

    /// The open connection on which notifications arrive.
    pub(crate) fn source(&self, sharded: bool) -> Option<Source> {
        let connections = if sharded { &self.subscriptions } else { &self.requests };
        Some(connections.current()?.source)
    }

    /// Subscribes to this channel.
    pub(crate) async fn subscribe(self: &Arc<Self>, channel: &str, sharded: bool) -> Result<()> {
        let connection = self.subscribing(sharded).await?;
        self.subscribe_in_task(connection, channel, sharded).await
    }

    /// In a task: other watches need the subscription, also if the future of this one is dropped.
    async fn subscribe_in_task(
        self: &Arc<Self>,
        connection: Arc<NodeConnection>,
        channel: &str,
        sharded: bool,
    ) -> Result<()> {
        let (node, channel) = (self.clone(), channel.to_owned());
        let subscribed = tokio::spawn(async move { node.send_subscribe(&connection, &channel, sharded).await });
        let ended = |_| Err(Error::unreachable("the runtime of this client ended").on(SCHEME));
        subscribed.await.unwrap_or_else(ended)
    }

    async fn send_subscribe(&self, connection: &Arc<NodeConnection>, channel: &str, sharded: bool) -> Result<()> {
        let (arrive, leave) = if sharded { ("SSUBSCRIBE", "SUNSUBSCRIBE") } else { ("SUBSCRIBE", "UNSUBSCRIBE") };
        let _changing = connection.changing.lock().await;
        let mut pipeline = Pipeline::new();
        for unused in self.notifications.take_unused(connection.source) {
            pipeline.cmd(leave).arg(&*unused);
        }
        if !self.notifications.is_subscribed(channel, connection.source) {
            pipeline.cmd(arrive).arg(channel);
        }
        if pipeline.is_empty() {
            return Ok(());
        }
        // One channel for each command, because each command gets one reply.
        let answers = connection.inner.client.clone().send_packed_commands(&pipeline, 0, pipeline.len()).await;
        let answered: Result<Vec<_>, _> =
            answers.and_then(|answers| answers.into_iter().map(Value::extract_error).collect());
        let error = match answered {
            // The client crate takes the message that a slot has left for a reply: only the subscription itself counts.
            Ok(_) if self.notifications.is_subscribed(channel, connection.source) => return Ok(()),
            Ok(_) => Error::unreachable("unexpected reply to a subscription").on(SCHEME),
            // The server refused, perhaps because another node serves the slot now: the other subscriptions remain.
            Err(error) if error.code().is_some() => return Err(failed(error)),
            Err(error) => failed(error),
        };
        connection.end();
        Err(error)
    }

    /// Closes all connections: requests under way fail, watches end.
    pub(crate) fn close(&self) {
        for connections in [&self.requests, &self.subscriptions, &self.confirmed] {
            if let Some(connection) = connections.take() {
                connection.end();
            }
        }
    }
}
