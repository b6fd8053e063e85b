//! Hints from many nodes, as one stream.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use tokio::time::timeout_at;

use super::{Core, PATIENCE, SCHEME};
use crate::claim::ClaimId;
use crate::driver::{BoxFuture, Hint, Interest, Watch};
use crate::error::{Error, Result};

/// Watches on nodes: being armed, armed, or ended.
struct Union {
    core: Arc<Core>,
    nodes: Vec<Ear>,
    /// Nodes that have hinted since the last hint was passed on.
    hinted: HashSet<usize>,
    /// How many nodes must have hinted before it means something.
    enough: usize,
}

enum Ear {
    Arming(BoxFuture<Result<Watch>>),
    Armed(BoxFuture<(Option<Hint>, Watch)>),
    Ended,
}

/// Arms a watch on all nodes, and waits for a majority of them.
pub(super) async fn arm(core: &Arc<Core>, interest: &Interest) -> Result<Watch> {
    let (interest, enough) = match interest {
        // Nodes know nobody who waits. A grant or a release is seen on a majority, so on more nodes than can be missing; what
        // fewer tell are rounds that come to nothing, and whoever looked for each of these would only make more of them.
        Interest::Turn(claim, _) => (Interest::Resource(claim.resource.clone()), core.spare() + 1),
        Interest::Resource(_) => (interest.clone(), core.spare() + 1),
        Interest::Mailbox => (Interest::Mailbox, 1),
    };
    let nodes = core.nodes.iter().map(|node| Ear::Arming(node.driver().watch(interest.clone()))).collect();
    let mut union = Union { core: core.clone(), nodes, hinted: HashSet::new(), enough };
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let armed = std::future::poll_fn(|cx| {
        for node in 0..union.nodes.len() {
            union.arm(node, cx);
        }
        let count = |of: fn(&Ear) -> bool| union.nodes.iter().filter(|ear| of(ear)).count();
        let armed = count(|ear| matches!(ear, Ear::Armed(_)));
        let ended = count(|ear| matches!(ear, Ear::Ended));
        if armed >= union.core.majority || ended > union.core.spare() { Poll::Ready(armed) } else { Poll::Pending }
    });
    match timeout_at(deadline, armed).await {
        Ok(armed) if armed >= core.majority => Ok(Watch::new(union)),
        _ => Err(Error::unreachable("too few nodes to watch").on(SCHEME)),
    }
}

fn listen(mut watch: Watch) -> Ear {
    Ear::Armed(Box::pin(async move { (watch.changed().await, watch) }))
}

impl Union {
    fn arm(&mut self, node: usize, cx: &mut Context<'_>) {
        let Some(ear) = self.nodes.get_mut(node) else { return };
        if let Ear::Arming(arming) = ear
            && let Poll::Ready(watch) = arming.as_mut().poll(cx)
        {
            *ear = watch.map_or(Ear::Ended, listen);
        }
    }

    /// The hints of one node that are there.
    fn hear(&mut self, node: usize, cx: &mut Context<'_>) -> Option<Hint> {
        self.arm(node, cx);
        let ear = self.nodes.get_mut(node)?;
        let Ear::Armed(armed) = ear else { return None };
        let Poll::Ready((hint, watch)) = armed.as_mut().poll(cx) else { return None };
        *ear = hint.map_or(Ear::Ended, |_| listen(watch));
        // What a watch missed when it ended is seen by looking.
        Some(hint.unwrap_or(Hint { claim: None }))
    }

    fn outer(&self, hint: Hint) -> Hint {
        Hint { claim: hint.claim.and_then(|id: ClaimId| self.core.registry.outer(id)) }
    }
}

impl Stream for Union {
    type Item = Hint;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Hint>> {
        for node in 0..self.nodes.len() {
            while let Some(hint) = self.hear(node, cx) {
                self.hinted.insert(node);
                if self.hinted.len() >= self.enough {
                    self.hinted.clear();
                    return Poll::Ready(Some(self.outer(hint)));
                }
            }
        }
        let ended = self.nodes.iter().filter(|ear| matches!(ear, Ear::Ended)).count();
        if ended > self.core.spare() { Poll::Ready(None) } else { Poll::Pending }
    }
}
