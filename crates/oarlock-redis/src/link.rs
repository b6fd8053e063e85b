//! One client's way to the store: which server serves what, and how a request gets there.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use oarlock_core::driver::Watch;
use oarlock_core::{Claim, Error, ErrorKind, ResourceName, Result};
use redis::{Cmd, RedisError, ServerErrorKind, Value};
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::config::{Address, Config};
use crate::dial::{Dialler, Greeting, Target, Wire};
use crate::error::{SCHEME, closed, failed, unexpected, untaught};
use crate::facts::{Facts, Wanted};
use crate::node::{Answers, Make, Node};
use crate::place::{self, Place};
use crate::scripts::Script;
use crate::sentinel::Sentinels;
use crate::watch::{Hub, Source, Topic};

/// How often a call may be sent on: to a node that was taught its script, or to the one that serves its slot now. Each
/// time the answer said that nothing was done.
const ROUNDS: usize = 5;

/// How many keys a server looks at in one go.
const SCANNED: u32 = 1000;

/// What is open.
pub(crate) struct Link {
    pub(crate) config: Config,
    /// Names the mailbox of this client.
    pub(crate) session: String,
    /// Its channel, where it is not sharded.
    mailbox: String,
    wanted: Wanted,
    dialler: Arc<Dialler>,
    hub: Arc<Hub>,
    route: Route,
    closed: AtomicBool,
}

enum Route {
    One(Arc<Node>),
    Sentinels(Arc<Sentinels>),
    Cluster(Arc<Cluster>),
}

/// A call of a script.
pub(crate) struct Call {
    pub(crate) script: Arc<Script>,
    pub(crate) slot: u16,
    pub(crate) command: Cmd,
}

/// Where a call is to be sent.
#[derive(Clone)]
enum To {
    /// Where its slot is.
    Home,
    /// To a node that was named, perhaps only for this once.
    There { target: Target, asking: bool },
}

/// Calls for one node.
struct Batch {
    node: Arc<Node>,
    at: Vec<usize>,
    /// Whether the node has to be taught first.
    teach: bool,
    asking: bool,
}

impl Link {
    pub(crate) async fn open(config: Config) -> Result<(Self, Facts)> {
        let mut bits = [0; 16];
        getrandom::fill(&mut bits)
            .map_err(|error| Error::new(ErrorKind::Os, "no random numbers").on(SCHEME).because(error))?;
        let (dialler, wanted) = (Arc::new(Dialler::new(&config)?), Wanted::by(&config));
        let hub = Hub::new(format!("{}mail:", config.prefix));
        let node: Make = {
            let (dialler, hub) = (dialler.clone(), hub.clone());
            Arc::new(move |target| Arc::new(Node::new(target, dialler.clone(), wanted, hub.clone())))
        };
        let route = match &config.address {
            Address::Tcp(host, port) => Route::One(node(Target::Tcp(host.clone(), *port))),
            Address::Unix(path) => Route::One(node(Target::Unix(path.clone()))),
            Address::Sentinel { hosts, master } => {
                let (hosts, master) = (hosts.clone(), master.clone());
                Route::Sentinels(Arc::new(Sentinels::new(hosts, master, dialler.clone(), node, hub.clone())))
            }
            Address::Cluster(hosts) => {
                let seeds = hosts.iter().map(|(host, port)| Target::Tcp(host.clone(), *port)).collect();
                Route::Cluster(Arc::new(Cluster::new(seeds, node)))
            }
        };
        let session = format!("{:032x}", u128::from_be_bytes(bits));
        let link = Self {
            mailbox: format!("{}mail:{session}", config.prefix),
            session,
            config,
            wanted,
            dialler,
            hub,
            route,
            closed: AtomicBool::new(false),
        };
        let facts = link.look().await?;
        Ok((link, facts))
    }

    /// Reaches all servers there are, and gives what is true of each of them. Of a cluster those that can be reached: a master
    /// that is dead until another takes its slots keeps nobody from the rest, and is looked at when it is back.
    async fn look(&self) -> Result<Facts> {
        let (mut facts, mut missing): (Option<Facts>, _) = (None, unexpected());
        let nodes = self.nodes().await?;
        let told = join_all(nodes.iter().map(Node::reach)).await;
        for (node, told) in nodes.iter().zip(told) {
            let told = match told {
                Ok(told) => told,
                Err(error) if self.is_cluster() && error.kind() == ErrorKind::Unreachable => {
                    self.doubt(node);
                    missing = error;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if told.replica && matches!(self.route, Route::One(_)) {
                let message =
                    format!("{} is a replica, which takes no writes: name its master, or its Sentinels", node.target);
                return Err(Error::new(ErrorKind::Config, message).on(SCHEME));
            }
            facts = Some(facts.map_or(told.clone(), |facts| facts.weaker(told)));
        }
        facts.ok_or(missing)
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.route, Route::Cluster(_))
    }

    /// What a server is at risk of forgetting.
    pub(crate) fn consistency(&self, facts: &Facts) -> oarlock_core::capabilities::Consistency {
        facts.consistency(!matches!(self.route, Route::One(_)), self.wanted)
    }

    /// Whether grants count only when replicas have them.
    pub(crate) fn confirms(&self) -> bool {
        self.wanted.replicas > 0
    }

    /// What goes before a session to name the channel of its mailbox for this resource.
    fn mail(&self, place: &Place) -> String {
        let tag = if self.is_cluster() { &*place.tag } else { "" };
        format!("{}mail:{tag}", self.config.prefix)
    }

    pub(crate) fn mail_of(&self, name: &ResourceName) -> String {
        self.mail(&self.place(name))
    }

    pub(crate) fn place(&self, name: &ResourceName) -> Place {
        Place::of(self.config.layout, &self.config.prefix, name)
    }

    /// A call of `script` on a resource, to which its arguments are to be added.
    pub(crate) fn call(&self, script: &Arc<Script>, name: &ResourceName) -> Call {
        let place = self.place(name);
        let slot = if self.is_cluster() { place::slot(&place.key) } else { 0 };
        let mut command = Cmd::with_capacity(20, 512);
        command.arg("EVALSHA");
        command.arg(script.hash()).arg(2 + place.more.len()).arg(&place.key).arg(&place.side).arg(&place.more);
        command.arg(self.mail(&place));
        Call { script: script.clone(), slot, command }
    }

    /// A call of `script` on a plain lock, to which its arguments are to be added.
    pub(crate) fn call_bare(&self, script: &Arc<Script>, name: &ResourceName) -> Call {
        let place = self.place(name);
        let slot = if self.is_cluster() { place::slot(&place.key) } else { 0 };
        let mut command = Cmd::with_capacity(9, 512);
        command.arg("EVALSHA").arg(script.hash()).arg("2").arg(&place.key).arg(&place.side);
        Call { script: script.clone(), slot, command }
    }

    /// A call of `script` on one key, to which its arguments are to be added.
    pub(crate) fn call_on(&self, script: &Arc<Script>, key: &str) -> Call {
        let slot = if self.is_cluster() { place::slot(key) } else { 0 };
        let mut command = redis::cmd("EVALSHA");
        command.arg(script.hash()).arg(1).arg(key);
        Call { script: script.clone(), slot, command }
    }

    /// Runs one call.
    pub(crate) async fn run_one(&self, call: Call) -> Result<Value> {
        let node = self.node(call.slot, &To::Home).await?;
        let error = match node.send_one(&call.command).await.inspect_err(|_| self.doubt(&node))? {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let Some(next) = self.next(0, &error, &node, false) else { return Err(self.failure(error, &node)) };
        let calls = [call];
        Box::pin(self.run_from(&calls, vec![next], None)).await.pop().unwrap_or_else(|| Err(unexpected()))
    }

    /// Runs calls in one go, those for different servers at once: an answer for each.
    pub(crate) async fn run(&self, calls: Vec<Call>) -> Vec<Result<Value>> {
        self.run_on(&calls, None).await
    }

    /// As [`run`](Self::run); what was done counts as failed unless enough replicas confirm it within `patience`.
    pub(crate) async fn run_confirmed(&self, calls: Vec<Call>, patience: Duration) -> Vec<Result<Value>> {
        self.run_on(&calls, Some(patience)).await
    }

    /// As the two above, each server by itself: once one has answered, the others have this much time, so that one that hangs
    /// takes nothing with it. What they were asked goes on: who else would notice that they hang?
    pub(crate) async fn run_apart(
        self: &Arc<Self>,
        calls: Vec<Call>,
        patience: Option<Duration>,
        rest: Duration,
    ) -> Vec<Result<Value>> {
        if !self.is_cluster() {
            return self.run_on(&calls, patience).await;
        }
        let mut answers: Vec<Option<Result<Value>>> = calls.iter().map(|_| None).collect();
        let mut parts: Vec<(Arc<Node>, Vec<usize>, Vec<Call>)> = Vec::new();
        for (at, call) in calls.into_iter().enumerate() {
            match self.node(call.slot, &To::Home).await {
                Err(error) => answers[at] = Some(Err(error)),
                Ok(node) => match parts.iter_mut().find(|(known, ..)| Arc::ptr_eq(known, &node)) {
                    Some((_, places, calls)) => {
                        places.push(at);
                        calls.push(call);
                    }
                    None => parts.push((node, vec![at], vec![call])),
                },
            }
        }
        let run = |(_, places, calls): (_, Vec<usize>, Vec<Call>)| {
            let link = self.clone();
            let task = tokio::spawn(async move { link.run_on(&calls, patience).await });
            async move { (places, task.await) }
        };
        let mut running: FuturesUnordered<_> = parts.into_iter().map(run).collect();
        let mut first = running.next().await;
        let over = Instant::now() + rest;
        while let Some((places, said)) = first.take() {
            // None of a task that ended with its runtime.
            for (at, answer) in places.into_iter().zip(said.unwrap_or_default()) {
                answers[at] = Some(answer);
            }
            first = tokio::time::timeout_at(over, running.next()).await.unwrap_or_default();
        }
        let late = || Error::unreachable("its node has not answered, though others have").on(SCHEME);
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(late()))).collect()
    }

    async fn run_on(&self, calls: &[Call], patience: Option<Duration>) -> Vec<Result<Value>> {
        let open = (0..calls.len()).map(|at| (at, To::Home, false)).collect();
        self.run_from(calls, open, patience).await
    }

    /// Runs those that are open: each a call, where to send it, and whether to teach its script there first.
    async fn run_from(
        &self,
        calls: &[Call],
        mut open: Vec<(usize, To, bool)>,
        patience: Option<Duration>,
    ) -> Vec<Result<Value>> {
        let mut answers: Vec<Option<Result<Value>>> = calls.iter().map(|_| None).collect();
        for round in 0..ROUNDS {
            let mut batches: Vec<Batch> = Vec::new();
            for (at, to, teach) in std::mem::take(&mut open) {
                match self.node(calls[at].slot, &to).await {
                    Ok(node) => enlist(&mut batches, node, at, teach, matches!(to, To::There { asking: true, .. })),
                    Err(error) => answers[at] = Some(Err(error)),
                }
            }
            if batches.is_empty() {
                break;
            }
            let sent = join_all(batches.iter().map(|batch| self.send(batch, calls, patience))).await;
            for (batch, said) in batches.iter().zip(sent) {
                let said = match said {
                    Ok(said) => said,
                    Err(error) => {
                        self.doubt(&batch.node);
                        batch.at.iter().for_each(|at| answers[*at] = Some(Err(error.clone())));
                        continue;
                    }
                };
                for (at, answer) in batch.at.iter().zip(said) {
                    match answer {
                        Err(Failed::Server(error)) => match self.next(*at, &error, &batch.node, batch.asking) {
                            Some(next) if round + 1 < ROUNDS => open.push(next),
                            _ => answers[*at] = Some(Err(self.failure(error, &batch.node))),
                        },
                        Err(Failed::Otherwise(error)) => answers[*at] = Some(Err(error)),
                        Ok(answer) => answers[*at] = Some(Ok(answer)),
                    }
                }
            }
        }
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(unexpected()))).collect()
    }

    /// Where to send a call that had no effect where it was.
    fn next(&self, at: usize, error: &RedisError, node: &Arc<Node>, asking: bool) -> Option<(usize, To, bool)> {
        if is(error, ServerErrorKind::NoScript) {
            return Some((at, To::There { target: node.target.clone(), asking }, true));
        }
        let Route::Cluster(cluster) = &self.route else { return None };
        let (address, slot) = error.redirect_node()?;
        let (host, port) = address.rsplit_once(':')?;
        // A host that is left out is the one that was asked.
        let host = match (host, &node.target) {
            ("", Target::Tcp(asked, _)) => asked.clone(),
            (host, _) => host.to_owned(),
        };
        let target = Target::Tcp(host, port.parse().ok()?);
        let asking = is(error, ServerErrorKind::Ask);
        if !asking {
            cluster.moved(slot, target.clone());
        }
        Some((at, To::There { target, asking }, false))
    }

    fn failure(&self, error: RedisError, node: &Arc<Node>) -> Error {
        let error = failed(error);
        if error.kind() == ErrorKind::Unreachable {
            self.doubt(node);
        }
        error
    }

    /// This server may not be the one to ask any more.
    fn doubt(&self, node: &Arc<Node>) {
        match &self.route {
            Route::One(_) => {}
            Route::Sentinels(sentinels) => sentinels.doubt(node),
            Route::Cluster(cluster) => cluster.doubt(node),
        }
    }

    /// Sends a batch: first what the node has to be taught, then the calls.
    async fn send(
        &self,
        batch: &Batch,
        calls: &[Call],
        patience: Option<Duration>,
    ) -> Result<Vec<Result<Value, Failed>>> {
        let mut commands = Vec::with_capacity(batch.at.len());
        if batch.teach {
            let mut taught: Vec<&str> = Vec::new();
            for script in batch.at.iter().map(|at| &calls[*at].script) {
                if !taught.contains(&script.hash()) {
                    taught.push(script.hash());
                    commands.push(script.load());
                }
            }
        }
        let lessons = commands.len();
        for at in &batch.at {
            if batch.asking {
                commands.push(redis::cmd("ASKING"));
            }
            commands.push(calls[*at].command.clone());
        }
        let (mut said, confirmed): (Answers, Result<()>) = match patience {
            None => (batch.node.send(commands).await?, Ok(())),
            Some(patience) => {
                let (said, confirmed) = batch.node.send_confirmed(commands, patience).await?;
                (said, batch.node.is_confirmed(confirmed))
            }
        };
        let lessons: Vec<_> = said.drain(..lessons.min(said.len())).collect();
        let untaught_by = lessons.into_iter().find_map(Result::err);
        let each = if batch.asking { 2 } else { 1 };
        let said =
            said.into_iter().skip(each - 1).step_by(each).map(|answer| match (answer, &untaught_by, &confirmed) {
                (Err(error), Some(cause), _) if is(&error, ServerErrorKind::NoScript) => {
                    Err(Failed::Otherwise(untaught(cause.clone())))
                }
                (Err(error), ..) => Err(Failed::Server(error)),
                (Ok(_), _, Err(unconfirmed)) => Err(Failed::Otherwise(unconfirmed.clone())),
                (Ok(answer), ..) => Ok(answer),
            });
        Ok(said.collect())
    }

    async fn node(&self, slot: u16, to: &To) -> Result<Arc<Node>> {
        self.check_open()?;
        match (&self.route, to) {
            (Route::One(node), _) => Ok(node.clone()),
            (Route::Sentinels(sentinels), _) => sentinels.node().await,
            (Route::Cluster(cluster), To::Home) => cluster.node(slot).await,
            (Route::Cluster(cluster), To::There { target, .. }) => Ok(cluster.at(target.clone())),
        }
    }

    /// Every server that takes writes.
    async fn nodes(&self) -> Result<Vec<Arc<Node>>> {
        match &self.route {
            Route::Cluster(cluster) => cluster.nodes().await,
            Route::One(_) | Route::Sentinels(_) => Ok(vec![self.node(0, &To::Home).await?]),
        }
    }

    /// Where the server of this key is.
    pub(crate) async fn target(&self, key: &str) -> Result<Target> {
        let slot = if self.is_cluster() { place::slot(key) } else { 0 };
        Ok(self.node(slot, &To::Home).await?.target.clone())
    }

    /// Where every server is that takes writes.
    pub(crate) async fn targets(&self) -> Result<Vec<Target>> {
        Ok(self.nodes().await?.iter().map(|node| node.target.clone()).collect())
    }

    /// Another connection to this server, like those that requests go over.
    pub(crate) async fn dial(&self, target: &Target) -> Result<Wire> {
        self.dialler.open(target, Greeting::User, |_| {}).await
    }

    /// Runs commands that are not scripts, and that change nothing, each on the key that is named with it.
    pub(crate) async fn ask(&self, commands: Vec<(&str, Cmd)>) -> Result<Vec<Value>> {
        let cluster = self.is_cluster();
        let mut by_node: Vec<(Arc<Node>, Vec<usize>)> = Vec::new();
        for (at, (key, _)) in commands.iter().enumerate() {
            let node = self.node(if cluster { place::slot(key) } else { 0 }, &To::Home).await?;
            match by_node.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &node)) {
                Some((_, places)) => places.push(at),
                None => by_node.push((node, vec![at])),
            }
        }
        let asked =
            by_node.iter().map(|(node, places)| node.send(places.iter().map(|at| commands[*at].1.clone()).collect()));
        let mut answers = vec![Value::Nil; commands.len()];
        for ((node, places), said) in by_node.iter().zip(join_all(asked).await) {
            let said = said.inspect_err(|_| self.doubt(node))?;
            for (at, answer) in places.iter().zip(said) {
                answers[*at] = answer.map_err(|error| self.failure(error, node))?;
            }
        }
        Ok(answers)
    }

    /// Every key of this type with a name like `pattern`, by looking at all there are.
    pub(crate) async fn scan(&self, pattern: &str, kind: &str) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for node in self.nodes().await? {
            let mut cursor = "0".to_owned();
            loop {
                let mut command = redis::cmd("SCAN");
                command.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCANNED).arg("TYPE").arg(kind);
                let said = node.send_one(&command).await.inspect_err(|_| self.doubt(&node))?;
                let said = said.map_err(|error| self.failure(error, &node))?;
                let (next, keys): (String, Vec<Vec<u8>>) =
                    redis::from_redis_value(said).map_err(|error| unexpected().because(error))?;
                found.extend(keys.into_iter().filter_map(|key| String::from_utf8(key).ok()));
                if next == "0" {
                    break;
                }
                cursor = next;
            }
        }
        // A key that moves meanwhile may be met twice.
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// Arms a watch; it is in force when this returns.
    pub(crate) async fn listen(&self, topic: Topic, place: Option<&Place>) -> Result<Watch> {
        let cluster = self.is_cluster();
        let (key, channel) = match (&topic, place) {
            (Topic::Channel(channel) | Topic::Freed(channel), Some(place)) => (place.key.as_str(), channel.clone()),
            (_, Some(place)) => (place.key.as_str(), format!("{}{}", self.mail(place), self.session)),
            (_, None) => ("", self.mailbox.clone()),
        };
        let node = match (place, &self.route) {
            (None, Route::Cluster(_)) => self.nodes().await?.pop().ok_or_else(unexpected)?,
            (None, Route::Sentinels(sentinels)) => match self.node(0, &To::Home).await {
                Ok(node) => node,
                // All claims are to be looked at as soon as there is another master.
                Err(error) => {
                    return sentinels.sentry().map(|source| self.hub.listen(topic, &channel, source)).ok_or(error);
                }
            },
            _ => self.node(if cluster { place::slot(key) } else { 0 }, &To::Home).await?,
        };
        let watch = node.listen(topic, &channel, cluster && place.is_some()).await;
        watch.inspect_err(|_| self.doubt(&node))
    }

    /// Keeps word for a claim that is about to wait, if it would be heard: on which connection.
    pub(crate) async fn expect(&self, claim: &Claim) -> Option<Source> {
        if !self.is_cluster() {
            return self.node(0, &To::Home).await.ok()?.expect(claim.id, &self.mailbox, false);
        }
        let place = self.place(&claim.resource);
        let mailbox = format!("{}{}", self.mail(&place), self.session);
        self.node(place::slot(&place.key), &To::Home).await.ok()?.expect(claim.id, &mailbox, true)
    }

    /// What claims were told.
    pub(crate) fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Sees to it that the mailbox for this resource is heard, where each slot has its own.
    pub(crate) async fn attend(&self, name: &ResourceName) {
        let Some((slot, mailbox)) = self.unheard(name) else { return };
        // Without it the holder learns from its next renewal what it would have been told.
        let Ok(node) = self.node(slot, &To::Home).await else { return };
        let _ = node.attend(&mailbox, true).await.inspect_err(|_| self.doubt(&node));
    }

    /// As [`attend`](Self::attend) for all of these, which nobody waits for: a node may hang.
    pub(crate) fn attend_all<'a>(self: &Arc<Self>, names: impl Iterator<Item = &'a ResourceName>) {
        let unheard: Vec<_> = names.filter(|name| self.unheard(name).is_some()).cloned().collect();
        if !unheard.is_empty() {
            let link = self.clone();
            tokio::spawn(async move { join_all(unheard.iter().map(|name| link.attend(name))).await });
        }
    }

    /// The mailbox for this resource, and its slot, if it should be heard and is not.
    fn unheard(&self, name: &ResourceName) -> Option<(u16, String)> {
        let place = self.place(name);
        if !self.is_cluster() || place.tag.is_empty() {
            return None;
        }
        let mailbox = format!("{}{}", self.mail(&place), self.session);
        (!self.hub.is_attended(&mailbox)).then(|| (place::slot(&place.key), mailbox))
    }

    fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        match &self.route {
            Route::One(node) => node.close(),
            Route::Sentinels(sentinels) => sentinels.close(),
            Route::Cluster(cluster) => cluster.close(),
        }
    }
}

/// Why a call has no answer.
enum Failed {
    Server(RedisError),
    Otherwise(Error),
}

fn enlist(batches: &mut Vec<Batch>, node: Arc<Node>, at: usize, teach: bool, asking: bool) {
    let same = |batch: &&mut Batch| Arc::ptr_eq(&batch.node, &node) && (batch.teach, batch.asking) == (teach, asking);
    match batches.iter_mut().find(same) {
        Some(batch) => batch.at.push(at),
        None => batches.push(Batch { node, at: vec![at], teach, asking }),
    }
}

fn is(error: &RedisError, kind: ServerErrorKind) -> bool {
    error.kind() == kind.into()
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("config", &self.config).finish_non_exhaustive()
    }
}
