//! Children that look like claims and are none: put there by hand, or by a tool that copied the tree.
//!
//! Two things about a node cannot be forged: the session that it ends with, and the transaction that made it. Every claim is
//! ephemeral, so what no session keeps is no claim and never becomes one. What makes a claim lighter was made by the session of
//! that claim. Both are asked for only where a child stands in the way or lets somebody in.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oarlock_core::clock::{BootClock, Clock as _, Moment};
use oarlock_core::{ClaimId, Result};
use zookeeper_client as zk;

use crate::error::from_zk;
use crate::link::Session;
use crate::queue::{Entry, Obstacle, Queue};

/// So many are remembered, which is more than a server lists of one name.
const MOST: usize = 1 << 16;

/// What was found out about nodes, by their paths.
#[derive(Clone, Debug, Default)]
pub(crate) struct Strangers(Arc<Mutex<Found>>);

#[derive(Debug, Default)]
struct Found {
    strangers: HashSet<String>,
    /// Since `asked`. Another node may come to have the same path.
    claims: HashSet<String>,
    asked: Option<Moment>,
}

impl Strangers {
    fn found(&self) -> MutexGuard<'_, Found> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, path: String, stranger: bool) {
        let mut found = self.found();
        let nodes = if stranger { &mut found.strangers } else { &mut found.claims };
        if nodes.len() == MOST {
            nodes.clear();
        }
        nodes.insert(path);
    }

    /// Those of these that were not found to be claims of late.
    fn unknown<'a>(&self, parent: &str, suspects: &[&'a Entry], lately: Duration) -> Vec<&'a Entry> {
        let (mut found, now) = (self.found(), BootClock.now());
        if found.asked.is_none_or(|asked| now.since(asked) > lately) {
            found.claims.clear();
            found.asked = Some(now);
        }
        let is_unknown = |entry: &&Entry| !found.claims.contains(&format!("{parent}/{}", entry.node));
        suspects.iter().copied().filter(is_unknown).collect()
    }

    /// What a parent and its children say, without those that are known to be none of ours.
    pub(crate) fn queue(&self, parent: &str, mut children: Vec<String>, home: &zk::Stat) -> Queue {
        let (found, all) = (self.found(), children.len());
        if !found.strangers.is_empty() {
            children.retain(|child| !found.strangers.contains(&format!("{parent}/{child}")));
        }
        let mut queue = Queue::of(&children, home);
        queue.thinned = children.len() < all;
        queue
    }
}

/// Whether no session keeps it. A container says so in its own way; a node with a time to live ends by itself.
pub(crate) fn lasts(stat: &zk::Stat) -> bool {
    stat.ephemeral_owner == 0 || stat.ephemeral_owner == i64::MIN
}

impl Session {
    /// Remembers that a node is no claim.
    pub(crate) fn pass_over(&self, path: &str) {
        self.strangers.note(path.to_owned(), true);
    }

    /// Those of these that are no claims. What is gone is nobody's trouble.
    pub(crate) async fn unmask(&self, parent: &str, suspects: &[&Entry]) -> Result<HashSet<String>> {
        let unknown = self.strangers.unknown(parent, suspects, self.client.session_timeout());
        let looks: Vec<_> = unknown.into_iter().map(|entry| (self.stat(parent, &entry.node), entry)).collect();
        let mut strangers = HashSet::new();
        for (look, entry) in looks {
            if let Some(stat) = look.await.map_err(from_zk)? {
                self.strangers.note(format!("{parent}/{}", entry.node), lasts(&stat));
                strangers.extend(lasts(&stat).then(|| entry.node.clone()));
            }
        }
        Ok(strangers)
    }

    /// A queue in which one stranger was found, without all others: a tree that was copied has many of them, and they are asked
    /// for at once instead of one after the other.
    pub(crate) async fn without_strangers(&self, parent: &str, queue: Queue) -> Result<Queue> {
        let suspects: Vec<_> = queue.entries.iter().collect();
        Ok(queue.without(&self.unmask(parent, &suspects).await?))
    }

    /// Those that would make one of these claims lighter and do not belong to it.
    pub(crate) async fn unmask_marks<'a>(
        &self,
        parent: &str,
        queue: &'a Queue,
        claims: impl Iterator<Item = &'a Entry> + Send,
    ) -> Result<HashSet<String>> {
        let mut strangers = HashSet::new();
        for (entry, mark) in queue.marked(claims) {
            // A claim's own goes with its node or after it. Asked for first, it is gone only where the node is.
            let (marked, made) = (self.stat(parent, mark), self.stat(parent, &entry.node));
            let (marked, made) = (marked.await.map_err(from_zk)?, made.await.map_err(from_zk)?);
            if made.is_some_and(|made| marked.is_none_or(|marked| marked.ephemeral_owner != made.ephemeral_owner)) {
                strangers.insert(mark.to_owned());
            }
        }
        Ok(strangers)
    }

    fn stat(
        &self,
        parent: &str,
        node: &str,
    ) -> impl Future<Output = Result<Option<zk::Stat>, zk::Error>> + Send + use<> {
        self.client.check_stat(&format!("{parent}/{node}"))
    }

    /// What decides about the claim at `at` without being what it seems.
    ///
    /// Who comes to wait for one node need not ask: its watch reads that node. Who comes again may have no watch.
    pub(crate) async fn deceivers(
        &self,
        parent: &str,
        queue: &Queue,
        at: usize,
        holds: bool,
        will_watch: bool,
    ) -> Result<HashSet<String>> {
        if holds {
            return self.unmask_marks(parent, queue, queue.entries.iter().take(at + 1)).await;
        }
        let first = |count| queue.entries.iter().take(count).collect();
        let suspects: Vec<_> = match queue.obstacle(at) {
            Obstacle::Any => first(at),
            Obstacle::Rival(_) | Obstacle::Waiter(_) if will_watch => Vec::new(),
            Obstacle::Rival(other) => vec![other],
            // The holders and the first that they keep out decide whether it waits.
            Obstacle::Waiter(_) => first(queue.held + 1),
        };
        self.unmask(parent, &suspects).await
    }

    /// The claims below `parent`, without what only bears the id of this one.
    pub(crate) async fn look_for_claim(&self, parent: &str, id: ClaimId) -> Result<Queue> {
        let queue = self.look(parent).await?;
        let its: Vec<_> = queue.entries.iter().filter(|entry| entry.id == id).collect();
        let mut strangers = self.unmask(parent, &its).await?;
        strangers.extend(self.unmask_marks(parent, &queue, its.into_iter()).await?);
        Ok(if strangers.is_empty() { queue } else { queue.without(&strangers) })
    }
}
