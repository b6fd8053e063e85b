//! Sends script calls and commands to the servers that serve them, and follows redirections.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use oarlock_core::{Error, ErrorKind, ResourceName, Result};
use redis::{Cmd, RedisError, ServerErrorKind, Value};
use tokio::time::Instant;

use crate::connection::Target;
use crate::error::{SCHEME, failed, not_loaded, unexpected};
use crate::keys::{NativeKey, queue_of};
use crate::node::{Node, Replies};
use crate::pool::{Destination, Pool, Route};
use crate::scripts::Script;

/// How often a call may be sent: again with its script (`NOSCRIPT`), or to another node (`MOVED`, `ASK`). Each of these
/// replies means that the script did not run.
const ROUNDS: usize = 5;

/// How many keys one `SCAN` looks at.
const SCAN_COUNT: u32 = 1000;

/// A call of a script, to which its arguments are to be added.
pub(crate) struct ScriptCall {
    pub(crate) script: Arc<Script>,
    pub(crate) slot: u16,
    pub(crate) command: Cmd,
}

/// A call of a script of the native layout, and the hash tag of its resource.
pub(crate) struct NativeCall {
    pub(crate) call: ScriptCall,
    pub(crate) tag: u8,
}

/// Calls for one node, by their indexes.
struct Batch {
    node: Arc<Node>,
    calls: Vec<usize>,
    /// Whether to load the scripts first.
    load: bool,
    asking: bool,
}

/// Why a call has no result.
enum Failed {
    Server(RedisError),
    Otherwise(Error),
}

impl Pool {
    /// A call of `script` on a resource.
    pub(crate) fn call(&self, script: &Arc<Script>, name: &ResourceName) -> ScriptCall {
        let keys = self.keys(name);
        let mut command = Cmd::with_capacity(20, 512);
        command.arg("EVALSHA");
        command.arg(script.hash()).arg(2 + keys.more.len()).arg(&keys.key).arg(&keys.side).arg(&keys.more);
        command.arg(self.mail(&keys));
        ScriptCall { script: script.clone(), slot: self.slot(&keys.key), command }
    }

    /// A call of `script` on a lock of the native layout.
    pub(crate) fn native_call(&self, script: &Arc<Script>, name: &ResourceName) -> NativeCall {
        let NativeKey { key, index, tag } = NativeKey::of(&self.config.prefix, name);
        let mut command = Cmd::with_capacity(6, 384);
        command.arg("EVALSHA").arg(script.hash()).arg("2").arg(&key).arg(key.get(..index).unwrap_or_default());
        NativeCall { call: ScriptCall { script: script.clone(), slot: self.slot(&key), command }, tag }
    }

    /// A call of `script` on a lock of the plain layout.
    pub(crate) fn plain_call(&self, script: &Arc<Script>, name: &ResourceName) -> ScriptCall {
        let keys = self.keys(name);
        let mut command = Cmd::with_capacity(12, 512);
        command.arg("EVALSHA").arg(script.hash()).arg("3").arg(&keys.key).arg(&keys.side);
        command.arg(queue_of(&keys.side));
        ScriptCall { script: script.clone(), slot: self.slot(&keys.key), command }
    }

    /// A call of `script` on one key.
    pub(crate) fn key_call(&self, script: &Arc<Script>, key: &str) -> ScriptCall {
        let mut command = redis::cmd("EVALSHA");
        command.arg(script.hash()).arg(1).arg(key);
        ScriptCall { script: script.clone(), slot: self.slot(key), command }
    }

    /// Runs one call.
    pub(crate) async fn run_one(&self, call: ScriptCall) -> Result<Value> {
        let node = self.node(call.slot, &Destination::SlotOwner).await?;
        let error = match node.send_one(&call.command).await.inspect_err(|_| self.doubt(&node))? {
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        let Some(next) = self.next(0, &error, &node, false) else { return Err(self.failure(error, &node)) };
        let calls = [call];
        Box::pin(self.run_from(&calls, vec![next], None)).await.pop().unwrap_or_else(|| Err(unexpected()))
    }

    /// Runs calls in one pipeline for each server, on all servers at once: one result for each call.
    pub(crate) async fn run(&self, calls: Vec<ScriptCall>) -> Vec<Result<Value>> {
        self.run_all(&calls, None).await
    }

    /// As [`run`](Self::run); a call fails unless enough replicas confirm it within this time.
    pub(crate) async fn run_confirmed(&self, calls: Vec<ScriptCall>, confirm_timeout: Duration) -> Vec<Result<Value>> {
        self.run_all(&calls, Some(confirm_timeout)).await
    }

    /// As the two above, but each node of a cluster on its own: once one has answered, the others have `others_timeout`
    /// left, so that a node that hangs delays no other. Their requests go on in tasks, which notice when a node hangs.
    pub(crate) async fn run_by_node(
        self: &Arc<Self>,
        calls: Vec<ScriptCall>,
        confirm_timeout: Option<Duration>,
        others_timeout: Duration,
    ) -> Vec<Result<Value>> {
        if !self.is_cluster() {
            return self.run_all(&calls, confirm_timeout).await;
        }
        let mut results: Vec<Option<Result<Value>>> = calls.iter().map(|_| None).collect();
        let mut parts: Vec<(Arc<Node>, Vec<usize>, Vec<ScriptCall>)> = Vec::new();
        for (at, call) in calls.into_iter().enumerate() {
            match self.node(call.slot, &Destination::SlotOwner).await {
                Err(error) => results[at] = Some(Err(error)),
                Ok(node) => match parts.iter_mut().find(|(known, ..)| Arc::ptr_eq(known, &node)) {
                    Some((_, indexes, calls)) => {
                        indexes.push(at);
                        calls.push(call);
                    }
                    None => parts.push((node, vec![at], vec![call])),
                },
            }
        }
        let run = |(_, indexes, calls): (_, Vec<usize>, Vec<ScriptCall>)| {
            let pool = self.clone();
            let task = tokio::spawn(async move { pool.run_all(&calls, confirm_timeout).await });
            async move { (indexes, task.await) }
        };
        let mut running: FuturesUnordered<_> = parts.into_iter().map(run).collect();
        let mut first = running.next().await;
        let deadline = Instant::now() + others_timeout;
        while let Some((indexes, replies)) = first.take() {
            // A task that ended with its runtime has no replies.
            for (at, reply) in indexes.into_iter().zip(replies.unwrap_or_default()) {
                results[at] = Some(reply);
            }
            first = tokio::time::timeout_at(deadline, running.next()).await.unwrap_or_default();
        }
        let late = || Error::unreachable("the node of this lock has not answered, though other nodes have").on(SCHEME);
        results.into_iter().map(|result| result.unwrap_or_else(|| Err(late()))).collect()
    }

    async fn run_all(&self, calls: &[ScriptCall], confirm_timeout: Option<Duration>) -> Vec<Result<Value>> {
        let open = (0..calls.len()).map(|at| (at, Destination::SlotOwner, false)).collect();
        self.run_from(calls, open, confirm_timeout).await
    }

    /// Runs the calls that are open: each an index, where to send it, and whether to load its script there first.
    async fn run_from(
        &self,
        calls: &[ScriptCall],
        mut open: Vec<(usize, Destination, bool)>,
        confirm_timeout: Option<Duration>,
    ) -> Vec<Result<Value>> {
        let mut results: Vec<Option<Result<Value>>> = calls.iter().map(|_| None).collect();
        for round in 0..ROUNDS {
            let mut batches: Vec<Batch> = Vec::new();
            for (at, to, load) in std::mem::take(&mut open) {
                let asking = matches!(to, Destination::Node { asking: true, .. });
                match self.node(calls[at].slot, &to).await {
                    Ok(node) => add(&mut batches, node, at, load, asking),
                    Err(error) => results[at] = Some(Err(error)),
                }
            }
            if batches.is_empty() {
                break;
            }
            let sent = join_all(batches.iter().map(|batch| self.send(batch, calls, confirm_timeout))).await;
            for (batch, replies) in batches.iter().zip(sent) {
                let replies = match replies {
                    Ok(replies) => replies,
                    Err(error) => {
                        self.doubt(&batch.node);
                        batch.calls.iter().for_each(|at| results[*at] = Some(Err(error.clone())));
                        continue;
                    }
                };
                for (at, reply) in batch.calls.iter().zip(replies) {
                    match reply {
                        Err(Failed::Server(error)) => match self.next(*at, &error, &batch.node, batch.asking) {
                            Some(next) if round + 1 < ROUNDS => open.push(next),
                            _ => results[*at] = Some(Err(self.failure(error, &batch.node))),
                        },
                        Err(Failed::Otherwise(error)) => results[*at] = Some(Err(error)),
                        Ok(reply) => results[*at] = Some(Ok(reply)),
                    }
                }
            }
        }
        results.into_iter().map(|result| result.unwrap_or_else(|| Err(unexpected()))).collect()
    }

    /// Where to send a call that did not run.
    fn next(
        &self,
        at: usize,
        error: &RedisError,
        node: &Arc<Node>,
        asking: bool,
    ) -> Option<(usize, Destination, bool)> {
        if is(error, ServerErrorKind::NoScript) {
            return Some((at, Destination::Node { target: node.target.clone(), asking }, true));
        }
        let Route::Cluster(cluster) = &self.route else { return None };
        let (address, slot) = error.redirect_node()?;
        let (host, port) = address.rsplit_once(':')?;
        // An empty host means the host of the node that replied.
        let host = match (host, &node.target) {
            ("", Target::Tcp(asked, _)) => asked.clone(),
            (host, _) => host.to_owned(),
        };
        let target = Target::Tcp(host, port.parse().ok()?);
        let asking = is(error, ServerErrorKind::Ask);
        if !asking {
            cluster.moved(slot, target.clone());
        }
        Some((at, Destination::Node { target, asking }, false))
    }

    fn failure(&self, error: RedisError, node: &Arc<Node>) -> Error {
        let error = failed(error);
        if error.kind() == ErrorKind::Unreachable {
            self.doubt(node);
        }
        error
    }

    /// Sends a batch: first the scripts that the node lacks, then the calls.
    async fn send(
        &self,
        batch: &Batch,
        calls: &[ScriptCall],
        confirm_timeout: Option<Duration>,
    ) -> Result<Vec<Result<Value, Failed>>> {
        let mut commands = Vec::with_capacity(batch.calls.len());
        if batch.load {
            let mut loaded: Vec<&str> = Vec::new();
            for script in batch.calls.iter().map(|at| &calls[*at].script) {
                if !loaded.contains(&script.hash()) {
                    loaded.push(script.hash());
                    commands.push(script.load());
                }
            }
        }
        let loads = commands.len();
        for at in &batch.calls {
            if batch.asking {
                commands.push(redis::cmd("ASKING"));
            }
            commands.push(calls[*at].command.clone());
        }
        let (mut replies, confirmed): (Replies, Result<()>) = match confirm_timeout {
            None => (batch.node.send(commands).await?, Ok(())),
            Some(timeout) => {
                let (replies, confirmed) = batch.node.send_confirmed(commands, timeout).await?;
                (replies, batch.node.is_confirmed(confirmed))
            }
        };
        let load_error = replies.drain(..loads.min(replies.len())).find_map(Result::err);
        let each = if batch.asking { 2 } else { 1 };
        let replies =
            replies.into_iter().skip(each - 1).step_by(each).map(|reply| match (reply, &load_error, &confirmed) {
                (Err(error), Some(cause), _) if is(&error, ServerErrorKind::NoScript) => {
                    Err(Failed::Otherwise(not_loaded(cause.clone())))
                }
                (Err(error), ..) => Err(Failed::Server(error)),
                (Ok(_), _, Err(unconfirmed)) => Err(Failed::Otherwise(unconfirmed.clone())),
                (Ok(reply), ..) => Ok(reply),
            });
        Ok(replies.collect())
    }

    /// Runs commands that are not scripts and change nothing, each with the key that it reads.
    pub(crate) async fn query(&self, commands: Vec<(&str, Cmd)>) -> Result<Vec<Value>> {
        let mut by_node: Vec<(Arc<Node>, Vec<usize>)> = Vec::new();
        for (at, (key, _)) in commands.iter().enumerate() {
            let node = self.node_of(key).await?;
            match by_node.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &node)) {
                Some((_, indexes)) => indexes.push(at),
                None => by_node.push((node, vec![at])),
            }
        }
        let sent =
            by_node.iter().map(|(node, indexes)| node.send(indexes.iter().map(|at| commands[*at].1.clone()).collect()));
        let mut results = vec![Value::Nil; commands.len()];
        for ((node, indexes), replies) in by_node.iter().zip(join_all(sent).await) {
            let replies = replies.inspect_err(|_| self.doubt(node))?;
            for (at, reply) in indexes.iter().zip(replies) {
                results[*at] = reply.map_err(|error| self.failure(error, node))?;
            }
        }
        Ok(results)
    }

    /// Every key of this type that matches `pattern`. It scans the whole database.
    pub(crate) async fn scan(&self, pattern: &str, kind: &str) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for node in self.nodes().await? {
            let mut cursor = "0".to_owned();
            loop {
                let mut command = redis::cmd("SCAN");
                command.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT).arg("TYPE").arg(kind);
                let reply = node.send_one(&command).await.inspect_err(|_| self.doubt(&node))?;
                let reply = reply.map_err(|error| self.failure(error, &node))?;
                let (next, keys): (String, Vec<Vec<u8>>) =
                    redis::from_redis_value(reply).map_err(|error| unexpected().because(error))?;
                found.extend(keys.into_iter().filter_map(|key| String::from_utf8(key).ok()));
                if next == "0" {
                    break;
                }
                cursor = next;
            }
        }
        // A scan may return a key twice, and a key that moves to another node is found on both.
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }
}

fn add(batches: &mut Vec<Batch>, node: Arc<Node>, at: usize, load: bool, asking: bool) {
    let same = |batch: &&mut Batch| Arc::ptr_eq(&batch.node, &node) && (batch.load, batch.asking) == (load, asking);
    match batches.iter_mut().find(same) {
        Some(batch) => batch.calls.push(at),
        None => batches.push(Batch { node, calls: vec![at], load, asking }),
    }
}

fn is(error: &RedisError, kind: ServerErrorKind) -> bool {
    error.kind() == kind.into()
}
