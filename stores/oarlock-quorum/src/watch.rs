//! `watch`: hints from many nodes, as one stream.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use tokio::time::timeout_at;

use super::node::Node;
use super::{Core, PATIENCE, SCHEME};
use oarlock_core::capabilities::WaiterView;
use oarlock_core::claim::{ClaimId, ResourceName};
use oarlock_core::driver::{BoxFuture, Hint, Interest, Watch};
use oarlock_core::error::{Error, Result};

/// Watches on nodes: being armed, armed, or ended.
struct Union {
    core: Arc<Core>,
    nodes: Vec<NodeWatch>,
    /// Nodes that have hinted since the last hint was passed on.
    hinted: HashSet<usize>,
    /// How many nodes must have hinted before it means something.
    enough: usize,
    /// What is waited for.
    name: Option<ResourceName>,
}

enum NodeWatch {
    Arming(BoxFuture<Result<Watch>>),
    Armed(BoxFuture<(Option<Hint>, Watch)>),
    Ended,
}

/// Arms a watch on all nodes, and waits for a majority of them.
pub(super) async fn arm(core: &Arc<Core>, interest: &Interest) -> Result<Watch> {
    // A majority reports a grant or a release, so more nodes than can be missing. Hints of fewer nodes come from lost
    // rounds; a client that checked after each of those would only start more of them.
    let enough = if let Interest::Mailbox = interest { 1 } else { core.spare() + 1 };
    let arming = |node: &Node| {
        let driver = node.driver();
        let interest = match interest {
            // A node that keeps waiters does not know this one.
            Interest::Turn(claim, _) if driver.info().capabilities.waiters != WaiterView::Hidden => {
                Interest::Resource(claim.resource.clone())
            }
            _ => interest.clone(),
        };
        NodeWatch::Arming(driver.watch(interest))
    };
    let nodes = core.nodes.iter().map(arming).collect();
    let name = if let Interest::Turn(claim, _) = interest { Some(claim.resource.clone()) } else { None };
    let mut union = Union { core: core.clone(), nodes, hinted: HashSet::new(), enough, name };
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let armed = std::future::poll_fn(|cx| {
        for node in 0..union.nodes.len() {
            union.arm(node, cx);
        }
        let count = |of: fn(&NodeWatch) -> bool| union.nodes.iter().filter(|watched| of(watched)).count();
        let armed = count(|watched| matches!(watched, NodeWatch::Armed(_)));
        let ended = count(|watched| matches!(watched, NodeWatch::Ended));
        if armed >= union.core.majority || ended > union.core.spare() { Poll::Ready(armed) } else { Poll::Pending }
    });
    match timeout_at(deadline, armed).await {
        Ok(armed) if armed >= core.majority => Ok(Watch::new(union)),
        _ => Err(Error::unreachable("too few nodes to watch").on(SCHEME)),
    }
}

fn listen(mut watch: Watch) -> NodeWatch {
    NodeWatch::Armed(Box::pin(async move { (watch.changed().await, watch) }))
}

impl Union {
    fn arm(&mut self, node: usize, cx: &mut Context<'_>) {
        let Some(watched) = self.nodes.get_mut(node) else { return };
        if let NodeWatch::Arming(arming) = watched
            && let Poll::Ready(watch) = arming.as_mut().poll(cx)
        {
            *watched = watch.map_or(NodeWatch::Ended, listen);
        }
    }

    /// The hints of one node that are there.
    fn poll_node(&mut self, node: usize, cx: &mut Context<'_>) -> Option<Hint> {
        self.arm(node, cx);
        let watched = self.nodes.get_mut(node)?;
        let NodeWatch::Armed(armed) = watched else { return None };
        let Poll::Ready((hint, watch)) = armed.as_mut().poll(cx) else { return None };
        *watched = hint.map_or(NodeWatch::Ended, |_| listen(watch));
        // A watch that ended may have missed a change, so the claim is checked.
        Some(hint.unwrap_or(Hint::ANY))
    }

    /// Whether enough nodes have given a hint. A waiter asks one node first, so that node must be among them.
    fn is_enough(&self) -> bool {
        let first = self.name.as_ref().and_then(|name| self.core.first(name));
        let silent =
            |node: &usize| matches!(self.nodes.get(*node), Some(NodeWatch::Armed(_))) && !self.hinted.contains(node);
        self.hinted.len() >= self.enough && !first.is_some_and(|node| silent(&node))
    }

    fn outer(&self, hint: Hint) -> Hint {
        hint.claim.and_then(|id: ClaimId| self.core.registry.outer(id)).map_or(Hint::ANY, Hint::about)
    }
}

impl Stream for Union {
    type Item = Hint;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Hint>> {
        for node in 0..self.nodes.len() {
            while let Some(hint) = self.poll_node(node, cx) {
                self.hinted.insert(node);
                if self.is_enough() {
                    self.hinted.clear();
                    return Poll::Ready(Some(self.outer(hint)));
                }
            }
        }
        let ended = self.nodes.iter().filter(|watched| matches!(watched, NodeWatch::Ended)).count();
        if ended > self.core.spare() { Poll::Ready(None) } else { Poll::Pending }
    }
}
