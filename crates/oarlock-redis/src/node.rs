//! One server: a connection for requests and news, and one for writes that replicas must confirm. In a cluster news have one of
//! their own. Each is opened by whoever needs it next.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oarlock_core::driver::Watch;
use oarlock_core::reconnect::{Ends, Reopened};
use oarlock_core::{ClaimId, Error, Result};
use redis::{Cmd, Pipeline, PushKind, RedisError, Value};
use tokio::sync::oneshot;

use crate::dial::{Dialler, Greeting, Target, Wire};
use crate::error::{SCHEME, failed, unconfirmed, unexpected};
use crate::facts::{Facts, Wanted};
use crate::watch::{Hub, Source, Topic};

/// What the server said to each command; an error for all if it could not be asked.
pub(crate) type Answers = Vec<Result<Value, RedisError>>;

/// Makes a server of its address.
pub(crate) type Make = Arc<dyn Fn(Target) -> Arc<Node> + Send + Sync>;

/// One server.
pub(crate) struct Node {
    pub(crate) target: Target,
    dialler: Arc<Dialler>,
    wanted: Wanted,
    hub: Arc<Hub>,
    requests: Reopened<Line>,
    /// For news of slots, which may come as if they were answers: requests must not be among them.
    news: Reopened<Line>,
    confirmed: Reopened<Line>,
    /// Writes that wait for their turn on the connection that is waited on.
    queue: Mutex<Queue>,
    facts: Mutex<Option<Facts>>,
}

/// A connection.
struct Line {
    wire: Wire,
    ended: Arc<AtomicBool>,
    source: Source,
    hub: Arc<Hub>,
    /// Held by whoever changes what is heard.
    changing: tokio::sync::Mutex<()>,
}

impl Ends for Line {
    fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

impl Line {
    fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.hub.end(self.source);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.end();
    }
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Queued>,
    /// Whether there is a task that sends what waits.
    served: bool,
}

impl Queue {
    /// Puts it to those that wait, and says whether there is a task for them. If not, there has to be one now.
    fn is_served_after(&mut self, queued: Queued) -> bool {
        self.waiting.push(queued);
        std::mem::replace(&mut self.served, true)
    }
}

/// Commands to be sent together with those of others, and confirmed together.
struct Queued {
    commands: Vec<Cmd>,
    patience: Duration,
    done: oneshot::Sender<Result<(Answers, u32)>>,
}

/// Sends what waits, until nothing does: a task, since whoever asked may not go on when the others need it.
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
            // The runtime ends: nobody will answer those who wait.
            *self.node.queue() = Queue::default();
        }
    }
}

impl Node {
    pub(crate) fn new(target: Target, dialler: Arc<Dialler>, wanted: Wanted, hub: Arc<Hub>) -> Self {
        Self {
            target,
            dialler,
            wanted,
            hub,
            requests: Reopened::new(SCHEME),
            news: Reopened::new(SCHEME),
            confirmed: Reopened::new(SCHEME),
            queue: Mutex::default(),
            facts: Mutex::default(),
        }
    }

    /// Makes sure that it is there and good enough, and says what it is like.
    pub(crate) async fn reach(self: &Arc<Self>) -> Result<Facts> {
        self.line(&self.requests).await?;
        let facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        facts.clone().ok_or_else(unexpected)
    }

    async fn line(self: &Arc<Self>, lines: &Reopened<Line>) -> Result<Arc<Line>> {
        let open = || {
            let node = self.clone();
            async move {
                let line = node.dial().await?;
                let facts = Facts::ask(&mut line.wire.connection.clone()).await?;
                facts.check(node.wanted, &node.target)?;
                *node.facts.lock().unwrap_or_else(PoisonError::into_inner) = Some(facts);
                Ok(line)
            }
        };
        lines.get(open).await
    }

    async fn dial(&self) -> Result<Line> {
        let ended = Arc::new(AtomicBool::new(false));
        let (source, hub, told) = (self.hub.begin(), self.hub.clone(), ended.clone());
        let wire = self.dialler.open(&self.target, Greeting::User, move |push| {
            if push.kind == PushKind::Disconnection {
                told.store(true, Ordering::Release);
            }
            hub.push(source, push);
        });
        let wire = wire.await.inspect_err(|_| self.hub.end(source))?;
        Ok(Line { wire, ended, source, hub: self.hub.clone(), changing: tokio::sync::Mutex::default() })
    }

    /// Where news come.
    async fn ear(self: &Arc<Self>, sharded: bool) -> Result<Arc<Line>> {
        let dial = || {
            let node = self.clone();
            async move { node.dial().await }
        };
        if sharded { self.news.get(dial).await } else { self.line(&self.requests).await }
    }

    /// Sends one command.
    pub(crate) async fn send_one(self: &Arc<Self>, command: &Cmd) -> Result<Result<Value, RedisError>> {
        let line = self.line(&self.requests).await?;
        let answer = line.wire.connection.clone().send_packed_command(command).await;
        Ok(match answer {
            Ok(answer) => answer.extract_error(),
            Err(error) => {
                self.requests.discard(&line);
                Err(error)
            }
        })
    }

    /// Sends commands in one go: an answer for each.
    pub(crate) async fn send(self: &Arc<Self>, commands: Vec<Cmd>) -> Result<Answers> {
        let line = self.line(&self.requests).await?;
        Ok(self.pipe(&self.requests, &line, commands).await)
    }

    async fn pipe(&self, lines: &Reopened<Line>, line: &Arc<Line>, commands: Vec<Cmd>) -> Answers {
        let count = commands.len();
        let mut pipeline = Pipeline::with_capacity(count);
        commands.into_iter().for_each(|command| {
            pipeline.add_command(command);
        });
        match line.wire.connection.clone().send_packed_commands(&pipeline, 0, count).await {
            Ok(answers) => answers.into_iter().map(Value::extract_error).collect(),
            Err(error) => {
                lines.discard(line);
                vec![Err(error); count]
            }
        }
    }

    /// Sends commands, and says how many replicas have them. What comes while a confirmation is awaited goes out together
    /// afterwards: one wait for all, on the very connection that wrote.
    pub(crate) async fn send_confirmed(
        self: &Arc<Self>,
        commands: Vec<Cmd>,
        patience: Duration,
    ) -> Result<(Answers, u32)> {
        let (done, answer) = oneshot::channel();
        if !self.queue().is_served_after(Queued { commands, patience, done }) {
            tokio::spawn(Serving { node: self.clone(), over: false }.run());
        }
        answer.await.unwrap_or_else(|_| Err(Error::unreachable("the runtime of this client ended").on(SCHEME)))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what waits, and waits for its confirmation.
    async fn confirm(self: &Arc<Self>) {
        let line = self.line(&self.confirmed).await;
        let queued = std::mem::take(&mut self.queue().waiting);
        let line = match line {
            Ok(line) => line,
            Err(error) => {
                return queued.into_iter().for_each(|queued| drop(queued.done.send(Err(error.clone()))));
            }
        };
        let (mut commands, mut waiting) = (Vec::new(), Vec::with_capacity(queued.len()));
        for Queued { commands: sent, patience, done } in queued {
            waiting.push((patience, sent.len(), Answers::new(), done));
            commands.extend(sent);
        }
        let (mut waited, mut answered) = (Duration::ZERO, false);
        // Whoever has the least patience is answered when it ends; for the others the same wait goes on.
        while let Some(least) = waiting.iter().map(|(patience, ..)| *patience).min() {
            let mut wait = redis::cmd("WAIT");
            let span = u64::try_from(least.saturating_sub(waited).as_millis()).unwrap_or(u64::MAX);
            wait.arg(self.wanted.replicas).arg(span.max(1));
            commands.push(wait);
            let mut said = self.pipe(&self.confirmed, &line, std::mem::take(&mut commands)).await;
            let (confirmed, failed) = match said.pop() {
                Some(Ok(Value::Int(count))) => (u32::try_from(count).unwrap_or(0), false),
                _ => (0, true),
            };
            let mut said = said.into_iter();
            for (_, count, answers, _) in waiting.iter_mut().filter(|_| !answered) {
                *answers = said.by_ref().take(*count).collect();
            }
            (waited, answered) = (least, true);
            let over = failed || self.is_confirmed(confirmed).is_ok();
            for (_, _, answers, done) in waiting.extract_if(.., |(patience, ..)| over || *patience <= least) {
                // Whoever went away does not want to know.
                let _ = done.send(Ok((answers, confirmed)));
            }
        }
    }

    /// Whether so many confirmations are enough.
    pub(crate) fn is_confirmed(&self, confirmed: u32) -> Result<()> {
        if confirmed >= self.wanted.replicas { Ok(()) } else { Err(unconfirmed(confirmed, self.wanted.replicas)) }
    }

    /// Arms a watch; it is in force when this returns.
    pub(crate) async fn listen(self: &Arc<Self>, topic: Topic, channel: &str, sharded: bool) -> Result<Watch> {
        let line = self.ear(sharded).await?;
        let watch = self.hub.listen(topic, channel, line.source);
        self.hear(line, channel, sharded).await?;
        Ok(watch)
    }

    /// Keeps word for a claim that is about to wait, if this mailbox is heard: on which connection.
    pub(crate) fn expect(&self, claim: ClaimId, mailbox: &str, sharded: bool) -> Option<Source> {
        let lines = if sharded { &self.news } else { &self.requests };
        let source = lines.current()?.source;
        self.hub.expect(claim, mailbox, source).then_some(source)
    }

    /// Sees to it that this channel is heard.
    pub(crate) async fn attend(self: &Arc<Self>, channel: &str, sharded: bool) -> Result<()> {
        let line = self.ear(sharded).await?;
        self.hear(line, channel, sharded).await
    }

    /// In a task: what others hear must not depend on whether this caller goes on.
    async fn hear(self: &Arc<Self>, line: Arc<Line>, channel: &str, sharded: bool) -> Result<()> {
        let (node, channel) = (self.clone(), channel.to_owned());
        let heard = tokio::spawn(async move { node.subscribe(&line, &channel, sharded).await });
        let ended = |_| Err(Error::unreachable("the runtime of this client ended").on(SCHEME));
        heard.await.unwrap_or_else(ended)
    }

    async fn subscribe(&self, line: &Arc<Line>, channel: &str, sharded: bool) -> Result<()> {
        let (arrive, leave) = if sharded { ("SSUBSCRIBE", "SUNSUBSCRIBE") } else { ("SUBSCRIBE", "UNSUBSCRIBE") };
        let _changing = line.changing.lock().await;
        let mut pipeline = Pipeline::new();
        for unheard in self.hub.unheard(line.source) {
            pipeline.cmd(leave).arg(&*unheard);
        }
        if !self.hub.attends(channel, line.source) {
            pipeline.cmd(arrive).arg(channel);
        }
        if pipeline.is_empty() {
            return Ok(());
        }
        // One channel a command: each is answered once.
        let answers = line.wire.connection.clone().send_packed_commands(&pipeline, 0, pipeline.len()).await;
        let answered: Result<Vec<_>, _> =
            answers.and_then(|answers| answers.into_iter().map(Value::extract_error).collect());
        let error = match answered {
            // The client crate takes word that a slot has left for an answer: what counts is what was heard.
            Ok(_) if self.hub.attends(channel, line.source) => return Ok(()),
            Ok(_) => Error::unreachable("another answer came than that to a subscription").on(SCHEME),
            // It was refused, perhaps because another node serves the slot now: others are still heard.
            Err(error) if error.code().is_some() => return Err(failed(error)),
            Err(error) => failed(error),
        };
        line.end();
        Err(error)
    }

    /// Lets go of all connections: requests under way fail, watches end.
    pub(crate) fn close(&self) {
        for lines in [&self.requests, &self.news, &self.confirmed] {
            if let Some(line) = lines.take() {
                line.end();
            }
        }
    }
}
