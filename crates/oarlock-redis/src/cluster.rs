//! The nodes of a cluster, and which of them serves which slots.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oarlock_core::{Error, ErrorKind, Result};
use redis::Value;

use crate::dial::Target;
use crate::error::{SCHEME, failed};
use crate::node::Node;

/// What is known of a cluster.
pub(crate) struct Cluster {
    seeds: Vec<Target>,
    state: Mutex<State>,
    /// What is known may be outdated.
    stale: AtomicBool,
    learning: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    nodes: HashMap<Target, Arc<Node>>,
    ranges: Vec<Range>,
}

struct Range {
    first: u16,
    last: u16,
    master: Target,
}

impl Cluster {
    pub(crate) fn new(seeds: Vec<Target>) -> Self {
        Self { seeds, state: Mutex::default(), stale: AtomicBool::new(true), learning: tokio::sync::Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node that serves this slot. `node` makes one of its address.
    pub(crate) async fn node(&self, slot: u16, node: &impl Fn(Target) -> Arc<Node>) -> Result<Arc<Node>> {
        self.know(node).await?;
        self.lock().serving(slot).ok_or_else(|| {
            self.doubt();
            Error::new(ErrorKind::Unreachable, format!("no node serves slot {slot}")).on(SCHEME).retry_later()
        })
    }

    /// The node at this address, which the cluster named.
    pub(crate) fn at(&self, target: Target, node: &impl Fn(Target) -> Arc<Node>) -> Arc<Node> {
        self.lock().nodes.entry(target.clone()).or_insert_with(|| node(target)).clone()
    }

    /// All nodes that serve slots.
    pub(crate) async fn nodes(&self, node: &impl Fn(Target) -> Arc<Node>) -> Result<Vec<Arc<Node>>> {
        self.know(node).await?;
        let state = self.lock();
        let masters: HashSet<_> = state.ranges.iter().map(|range| &range.master).collect();
        Ok(masters.into_iter().filter_map(|master| state.nodes.get(master).cloned()).collect())
    }

    /// What is known turned out wrong: it is learnt anew before the next request.
    pub(crate) fn doubt(&self) {
        self.stale.store(true, Ordering::Release);
    }

    /// A node has said who serves a slot now.
    pub(crate) fn moved(&self, slot: u16, master: Target) {
        self.doubt();
        let mut state = self.lock();
        state.ranges.insert(0, Range { first: slot, last: slot, master });
    }

    async fn know(&self, node: &impl Fn(Target) -> Arc<Node>) -> Result<()> {
        if !self.stale.load(Ordering::Acquire) {
            return Ok(());
        }
        let _learning = self.learning.lock().await;
        if !self.stale.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let learnt = Box::pin(self.learn(node)).await;
        if let Err(error) = learnt {
            self.doubt();
            // What was known before is better than nothing.
            return if self.lock().ranges.is_empty() { Err(error) } else { Ok(()) };
        }
        Ok(())
    }

    async fn learn(&self, node: &impl Fn(Target) -> Arc<Node>) -> Result<()> {
        let known: Vec<_> = self.lock().nodes.values().cloned().collect();
        let seeds = self.seeds.iter().map(|seed| self.at(seed.clone(), node));
        let mut worst = Error::new(ErrorKind::Config, "no nodes are named").on(SCHEME);
        for asked in known.into_iter().chain(seeds.collect::<Vec<_>>()) {
            let mut question = redis::cmd("CLUSTER");
            question.arg("SLOTS");
            match asked.send_one(&question).await {
                Ok(Ok(answer)) => {
                    let ranges = ranges(answer, &asked.target);
                    if !ranges.is_empty() {
                        self.adopt(ranges, node);
                        return Ok(());
                    }
                    let message = format!("{} serves no slots yet", asked.target);
                    worst = Error::new(ErrorKind::Unreachable, message).on(SCHEME).retry_later();
                }
                Ok(Err(error)) if error.to_string().contains("cluster support disabled") => {
                    let message = format!("{} is no node of a cluster", asked.target);
                    return Err(Error::new(ErrorKind::Config, message).on(SCHEME).because(error));
                }
                Ok(Err(error)) => worst = failed(error),
                // A wrong password is wrong everywhere; the rest may be the trouble of one node.
                Err(error) if matches!(error.kind(), ErrorKind::Denied | ErrorKind::Config) => return Err(error),
                Err(error) => worst = error,
            }
        }
        Err(worst)
    }

    fn adopt(&self, ranges: Vec<Range>, node: &impl Fn(Target) -> Arc<Node>) {
        let mut state = self.lock();
        let masters: HashSet<Target> = ranges.iter().map(|range| range.master.clone()).collect();
        for master in &masters {
            state.nodes.entry(master.clone()).or_insert_with(|| node(master.clone()));
        }
        // Who serves nothing any more has no news, either: watches there end, and are armed where the slots are.
        let gone: Vec<_> = state.nodes.extract_if(|target, _| !masters.contains(target)).collect();
        state.ranges = ranges;
        drop(state);
        for (_, node) in gone {
            node.close();
        }
    }

    pub(crate) fn close(&self) {
        let nodes = std::mem::take(&mut self.lock().nodes);
        for node in nodes.into_values() {
            node.close();
        }
    }
}

impl State {
    fn serving(&self, slot: u16) -> Option<Arc<Node>> {
        let range = self.ranges.iter().find(|range| (range.first..=range.last).contains(&slot))?;
        self.nodes.get(&range.master).cloned()
    }
}

/// What `CLUSTER SLOTS` answers: first slot, last slot, master, replicas. A host that is left out is the one asked.
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
