//! Children that look like claims and are none: put there by hand, or by a tool that copied the tree.
//!
//! Two things about a node cannot be forged: the session that it ends with, and the transaction that made it. Every claim is
//! ephemeral, so what no session keeps is no claim and never becomes one. What makes a claim lighter was made by the session of
//! that claim. Both are asked for only where a child stands in the way or lets somebody in.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oarlock_core::Result;
use zookeeper_client as zk;

use crate::error::from_zk;
use crate::link::Session;
use crate::queue::{Entry, Obstacle, Queue};

/// So many are remembered: whoever is forgotten is asked for again.
const MOST: usize = 4096;

/// What was found out about nodes, by their paths.
#[derive(Clone, Debug, Default)]
pub(crate) struct Strangers(Arc<Mutex<Found>>);

#[derive(Debug, Default)]
struct Found {
    strangers: HashSet<String>,
    claims: HashSet<String>,
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

    /// What a parent and its children say, without those that are known to be none of ours.
    pub(crate) fn queue(&self, parent: &str, mut children: Vec<String>, home: &zk::Stat) -> Queue {
        let found = self.found();
        if !found.strangers.is_empty() {
            children.retain(|child| !found.strangers.contains(&format!("{parent}/{child}")));
        }
        Queue::of(&children, home)
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

    /// Whether one of these turned out to be no claim. Those that are gone are nobody's trouble.
    pub(crate) async fn unmask(&self, parent: &str, suspects: &[&Entry]) -> Result<bool> {
        let looks: Vec<_> = suspects
            .iter()
            .map(|entry| format!("{parent}/{}", entry.node))
            .filter(|path| !self.strangers.found().claims.contains(path))
            .map(|path| (self.client.check_stat(&path), path))
            .collect();
        let mut any = false;
        for (look, path) in looks {
            if let Some(stat) = look.await.map_err(from_zk)? {
                any |= lasts(&stat);
                self.strangers.note(path, lasts(&stat));
            }
        }
        Ok(any)
    }

    /// Whether one of those up to `at` passes for lighter than its own session made it.
    async fn unmask_marks(&self, parent: &str, queue: &Queue, at: usize) -> Result<bool> {
        let mut any = false;
        for (entry, mark) in queue.marked(at) {
            let mark = format!("{parent}/{mark}");
            let looks = (self.client.check_stat(&format!("{parent}/{}", entry.node)), self.client.check_stat(&mark));
            let (made, marked) = (looks.0.await.map_err(from_zk)?, looks.1.await.map_err(from_zk)?);
            if let (Some(made), Some(marked)) = (made, marked)
                && made.ephemeral_owner != marked.ephemeral_owner
            {
                self.pass_over(&mark);
                any = true;
            }
        }
        Ok(any)
    }

    /// Whether what decides about the claim at `at` is not what it seemed, so that the others have to be listed again.
    ///
    /// Who waits for one node need not ask: its watch reads that node.
    pub(crate) async fn was_deceived(&self, parent: &str, queue: &Queue, at: usize, waits: bool) -> Result<bool> {
        if at < queue.held {
            return self.unmask_marks(parent, queue, at).await;
        }
        match queue.obstacle(at) {
            Obstacle::Any => self.unmask(parent, &queue.entries[..at].iter().collect::<Vec<_>>()).await,
            Obstacle::Rival(other) | Obstacle::Waiter(other) if !waits => self.unmask(parent, &[other]).await,
            Obstacle::Rival(_) | Obstacle::Waiter(_) => Ok(false),
        }
    }
}
