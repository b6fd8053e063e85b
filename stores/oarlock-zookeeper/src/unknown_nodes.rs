//! Unknown nodes: children that look like claims and are none, created by hand or by a tool that copied the tree.
//!
//! Two things about a node cannot be forged: the session that owns it, and the transaction that created it. Every
//! claim is ephemeral, so a persistent node is no claim and never becomes one. The mark of a lighter claim was created
//! by the session of that claim. Both are checked only if a child blocks a claim or lets one in.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oarlock_core::clock::{BootClock, Clock as _, Moment};
use oarlock_core::queue::Obstacle;
use oarlock_core::{ClaimId, Result};
use zookeeper_client as zk;

use crate::error::from_zk;
use crate::queue::{Entry, Queue};
use crate::session::Session;

/// So many are remembered, which is more than a server lists of one name.
const MOST: usize = 1 << 16;

/// What was found out about nodes, by their paths.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnknownNodes(Arc<Mutex<Found>>);

#[derive(Debug, Default)]
struct Found {
    unknown: HashSet<String>,
    /// Checked since `asked`. Another node may get the same path later.
    claims: HashSet<String>,
    asked: Option<Moment>,
}

impl UnknownNodes {
    fn found(&self) -> MutexGuard<'_, Found> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, path: String, unknown: bool) {
        let mut found = self.found();
        let nodes = if unknown { &mut found.unknown } else { &mut found.claims };
        if nodes.len() == MOST {
            nodes.clear();
        }
        nodes.insert(path);
    }

    /// The suspects that were not found to be claims recently.
    fn unknown<'a>(&self, parent: &str, suspects: &[&'a Entry], lately: Duration) -> Vec<&'a Entry> {
        let (mut found, now) = (self.found(), BootClock.now());
        if found.asked.is_none_or(|asked| now.since(asked) > lately) {
            found.claims.clear();
            found.asked = Some(now);
        }
        let is_unknown = |entry: &&Entry| !found.claims.contains(&format!("{parent}/{}", entry.node));
        suspects.iter().copied().filter(is_unknown).collect()
    }

    /// The queue below a parent, without the nodes that are known to be no claims.
    pub(crate) fn queue(&self, parent: &str, mut children: Vec<String>, above: &zk::Stat) -> Queue {
        let (found, all) = (self.found(), children.len());
        if !found.unknown.is_empty() {
            children.retain(|child| !found.unknown.contains(&format!("{parent}/{child}")));
        }
        let thinned = children.len() < all;
        let mut queue = Queue::of(children, above);
        queue.thinned = thinned;
        queue
    }
}

/// Whether no session owns it. Containers have an owner number of their own; a node with a TTL ends by itself.
pub(crate) fn lasts(stat: &zk::Stat) -> bool {
    stat.ephemeral_owner == 0 || stat.ephemeral_owner == i64::MIN
}

impl Session {
    /// Remembers that a node is no claim.
    pub(crate) fn note_unknown(&self, path: &str) {
        self.unknown.note(path.to_owned(), true);
    }

    /// The suspects that are no claims. A node that is gone does not matter.
    pub(crate) async fn find_unknown(&self, parent: &str, suspects: &[&Entry]) -> Result<HashSet<String>> {
        let unknown = self.unknown.unknown(parent, suspects, self.client.session_timeout());
        let reads: Vec<_> = unknown.into_iter().map(|entry| (self.stat(parent, &entry.node), entry)).collect();
        let mut unknown = HashSet::new();
        for (answer, entry) in reads {
            if let Some(stat) = answer.await.map_err(from_zk)? {
                self.unknown.note(format!("{parent}/{}", entry.node), lasts(&stat));
                unknown.extend(lasts(&stat).then(|| entry.node.clone()));
            }
        }
        Ok(unknown)
    }

    /// A queue in which one unknown node was found, without all others: a copied tree has many of them, and they are
    /// checked at once instead of one after the other.
    pub(crate) async fn without_unknown(&self, parent: &str, queue: Queue) -> Result<Queue> {
        let suspects: Vec<_> = queue.entries.iter().collect();
        Ok(queue.without(&self.find_unknown(parent, &suspects).await?))
    }

    /// The marks on these claims that were not created by their own session.
    pub(crate) async fn unknown_marks<'a>(
        &self,
        parent: &str,
        queue: &'a Queue,
        claims: impl Iterator<Item = &'a Entry> + Send,
    ) -> Result<HashSet<String>> {
        let mut unknown = HashSet::new();
        for (entry, mark) in queue.marked(claims) {
            // A claim's own mark is removed with its node or after it. Requested first, it is gone only if the node
            // is.
            let (marked, made) = (self.stat(parent, mark), self.stat(parent, &entry.node));
            let (marked, made) = (marked.await.map_err(from_zk)?, made.await.map_err(from_zk)?);
            if made.is_some_and(|made| marked.is_none_or(|marked| marked.ephemeral_owner != made.ephemeral_owner)) {
                unknown.insert(mark.to_owned());
            }
        }
        Ok(unknown)
    }

    fn stat(
        &self,
        parent: &str,
        node: &str,
    ) -> impl Future<Output = Result<Option<zk::Stat>, zk::Error>> + Send + use<> {
        self.client.check_stat(&format!("{parent}/{node}"))
    }

    /// Unknown nodes that decide about the claim at `at`.
    ///
    /// A new waiter for one node need not check: its watch reads that node. A waiter that comes again may have no
    /// watch.
    pub(crate) async fn unknown_in_the_way(
        &self,
        parent: &str,
        queue: &Queue,
        at: usize,
        holds: bool,
        will_watch: bool,
    ) -> Result<HashSet<String>> {
        if holds {
            return self.unknown_marks(parent, queue, queue.entries.iter().take(at + 1)).await;
        }
        let first = |count| queue.entries.iter().take(count).collect();
        let suspects: Vec<_> = match queue.obstacle(at) {
            Obstacle::Any => first(at),
            Obstacle::Rival(_) | Obstacle::Waiter(_) if will_watch => Vec::new(),
            Obstacle::Rival(other) => vec![other],
            // The holders, and the first claim that they keep out, decide whether it waits.
            Obstacle::Waiter(_) => first(queue.held + 1),
        };
        self.find_unknown(parent, &suspects).await
    }

    /// The claims below `parent`, without unknown nodes that have the id of this one.
    pub(crate) async fn poll_for_claim(&self, parent: &str, id: ClaimId) -> Result<Queue> {
        let queue = self.poll(parent).await?;
        let its: Vec<_> = queue.entries.iter().filter(|entry| entry.id == id).collect();
        let mut unknown = self.find_unknown(parent, &its).await?;
        unknown.extend(self.unknown_marks(parent, &queue, its.into_iter()).await?);
        Ok(if unknown.is_empty() { queue } else { queue.without(&unknown) })
    }
}
