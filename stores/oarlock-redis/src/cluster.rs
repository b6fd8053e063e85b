//! The nodes of a cluster, and which of them serves which slots.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use oarlock_core::reconnect::{Joined, SharedTask};
use oarlock_core::{Error, ErrorKind, Result};
use redis::Value;

use crate::connection::Target;
use crate::error::{SCHEME, failed};

use crate::node::{Make, Node};

/// The known nodes and slots of a cluster.
pub(crate) struct Cluster {
    seeds: Vec<Target>,
    make: Make,
    state: Mutex<State>,
    /// The slots may have changed since they were learnt.
    stale: AtomicBool,
    learning: SharedTask,
}

#[derive(Default)]
struct State {
    nodes: HashMap<Target, Arc<Node>>,
    ranges: Vec<Range>,
    /// Nodes that failed since the slots were learnt: other nodes may have their slots now.
    doubted: HashSet<Target>,
    closed: bool,
}

struct Range {
    first: u16,
    last: u16,
    master: Target,
}

impl Cluster {
    pub(crate) fn new(seeds: Vec<Target>, make: Make) -> Self {
        Self { seeds, make, state: Mutex::default(), stale: AtomicBool::new(true), learning: SharedTask::new(SCHEME) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node that serves this slot, as far as this client knows: a wrong node replies with a redirection. The slots
    /// are learnt again first if that node has failed.
    pub(crate) async fn node(self: &Arc<Self>, slot: u16) -> Result<Arc<Node>> {
        if self.is_stale() {
            self.learn_anew();
        }
        if let Some(node) = self.lock().trusted(slot) {
            return Ok(node);
        }
        let learnt = self.learn_anew().done().await;
        // Old knowledge is better than none.
        if let Some(node) = self.lock().serving(slot) {
            return Ok(node);
        }
        learnt?;
        Err(Error::new(ErrorKind::Unreachable, format!("no node serves slot {slot}")).on(SCHEME).retry_later())
    }

    /// The node at this address, which the cluster named. It may serve no slots yet.
    pub(crate) fn at(&self, target: Target) -> Arc<Node> {
        self.lock().nodes.entry(target.clone()).or_insert_with(|| (self.make)(target)).clone()
    }

    /// All nodes that serve slots.
    pub(crate) async fn nodes(self: &Arc<Self>) -> Result<Vec<Arc<Node>>> {
        if self.is_stale() || self.lock().ranges.is_empty() {
            let learnt = self.learn_anew().done().await;
            // Old knowledge is better than none.
            if self.lock().ranges.is_empty() {
                learnt?;
            }
        }
        let state = self.lock();
        let masters: HashSet<_> = state.ranges.iter().map(|range| &range.master).collect();
        Ok(masters.into_iter().filter_map(|master| state.nodes.get(master).cloned()).collect())
    }

    fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Acquire)
    }

    /// A node failed: the slots are learnt again before the next request to it. Requests to other nodes do not wait for
    /// that.
    pub(crate) fn doubt(&self, node: &Node) {
        self.lock().doubted.insert(node.target.clone());
        self.stale.store(true, Ordering::Release);
    }

    /// A node has replied that this master serves the slot now.
    pub(crate) fn moved(&self, slot: u16, master: Target) {
        self.stale.store(true, Ordering::Release);
        let mut state = self.lock();
        state.ranges.insert(0, Range { first: slot, last: slot, master });
    }

    fn learn_anew(self: &Arc<Self>) -> Joined {
        self.learning.join(|| {
            let cluster = self.clone();
            async move {
                cluster.stale.store(false, Ordering::Release);
                let learnt = cluster.learn().await;
                if learnt.is_err() {
                    cluster.stale.store(true, Ordering::Release);
                }
                if cluster.lock().closed {
                    cluster.close();
                }
                learnt
            }
        })
    }

    /// Learns the slots from the known nodes, or else from the configured ones.
    async fn learn(&self) -> Result<()> {
        let known: Vec<_> = self.lock().nodes.values().cloned().collect();
        let Err(error) = self.learn_from(known.clone()).await else { return Ok(()) };
        let seeds = self.seeds.iter().map(|seed| self.at(seed.clone()));
        let seeds: Vec<_> = seeds.filter(|seed| !known.iter().any(|known| Arc::ptr_eq(known, seed))).collect();
        if seeds.is_empty() { Err(error) } else { self.learn_from(seeds).await }
    }

    /// Asks all of them at once, so that a node that does not answer delays no request.
    async fn learn_from(&self, nodes: Vec<Arc<Node>>) -> Result<()> {
        let mut worst = Error::new(ErrorKind::Unreachable, "no node of the cluster is known").on(SCHEME).retry_later();
        let mut asked: FuturesUnordered<_> = nodes.into_iter().map(slots).collect();
        while let Some(said) = asked.next().await {
            match said {
                Ok(ranges) => {
                    self.adopt(ranges);
                    return Ok(());
                }
                // A wrong password is wrong everywhere; other errors may concern one node.
                Err(_) if matches!(worst.kind(), ErrorKind::Denied | ErrorKind::Config) => {}
                Err(error) => worst = error,
            }
        }
        Err(worst)
    }

    fn adopt(&self, ranges: Vec<Range>) {
        let mut state = self.lock();
        let masters: HashSet<Target> = ranges.iter().map(|range| range.master.clone()).collect();
        for master in &masters {
            state.nodes.entry(master.clone()).or_insert_with(|| (self.make)(master.clone()));
        }
        let gone: Vec<_> = state.nodes.extract_if(|target, _| !masters.contains(target)).collect();
        state.ranges = ranges;
        state.doubted.clear();
        drop(state);
        // A node that serves no slots sends no notifications: watches there end, and are armed where the slots are.
        // Requests under way are answered: each keeps its connection.
        for (_, node) in gone {
            node.close();
        }
    }

    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let nodes = std::mem::take(&mut state.nodes);
        drop(state);
        for node in nodes.into_values() {
            node.close();
        }
    }
}

impl State {
    fn trusted(&self, slot: u16) -> Option<Arc<Node>> {
        self.serving(slot).filter(|node| self.doubted.is_empty() || !self.doubted.contains(&node.target))
    }

    fn serving(&self, slot: u16) -> Option<Arc<Node>> {
        let range = self.ranges.iter().find(|range| (range.first..=range.last).contains(&slot))?;
        self.nodes.get(&range.master).cloned()
    }
}

/// The slots and their masters, as this node sees them.
async fn slots(asked: Arc<Node>) -> Result<Vec<Range>> {
    let mut question = redis::cmd("CLUSTER");
    question.arg("SLOTS");
    match asked.send_one(&question).await? {
        Ok(answer) => {
            let ranges = ranges(answer, &asked.target);
            let message = || format!("{} serves no slots yet", asked.target);
            let none = || Error::new(ErrorKind::Unreachable, message()).on(SCHEME).retry_later();
            if ranges.is_empty() { Err(none()) } else { Ok(ranges) }
        }
        Err(error) if error.to_string().contains("cluster support disabled") => {
            let message = format!("{} is not a node of a cluster", asked.target);
            Err(Error::new(ErrorKind::Config, message).on(SCHEME).because(error))
        }
        Err(error) => Err(failed(error)),
    }
}

/// The reply of `CLUSTER SLOTS`: first slot, last slot, master, replicas. An empty host is that of the node that was
/// asked.
fn ranges(answer: Value, asked: &Target) -> Vec<Range> {
    let Value::Array(rows) = answer else { return Vec::new() };
    rows.into_iter().filter_map(|row| range(row, asked)).collect()
}

fn range(row: Value, asked: &Target) -> Option<Range> {
    let Value::Array(row) = row else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &row[..] else { return None };
    let [host, Value::Int(port), ..] = &master[..] else { return None };
    let host = match (host, asked) {
        (Value::BulkString(host), _) if !host.is_empty() && host != b"?" => String::from_utf8(host.clone()).ok()?,
        (_, Target::Tcp(asked, _)) => asked.clone(),
        (_, Target::Unix(_)) => return None,
    };
    let master = Target::Tcp(host, u16::try_from(*port).ok()?);
    Some(Range { first: u16::try_from(*first).ok()?, last: u16::try_from(*last).ok()?, master })
}
