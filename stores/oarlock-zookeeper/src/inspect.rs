//! Inspection: the state of names, for people and tools.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use oarlock_core::state::{HolderState, Memo, Page, Query, ResourceState, Select, WaiterState, Waiters};
use oarlock_core::{ErrorKind, Fence, ResourceName, Result};
use zookeeper_client as zk;

use crate::ZooKeeper;
use crate::error::from_zk;
use crate::names::unescape;
use crate::queue::{Entry, MEMO, Queue};
use crate::record::{ClaimRecord, ResourceRecord, read};
use crate::session::{Session, if_there};
use crate::unknown_nodes::lasts;

impl ZooKeeper {
    /// Answers a query.
    pub(crate) async fn inspect_query(&self, query: &Query) -> Result<Page> {
        let session = self.route.session().await?;
        match session.dialect() {
            Some(dialect) => session.inspect_compat(dialect, query).await,
            None => session.inspect_native(query).await,
        }
    }
}

impl Session {
    pub(crate) async fn inspect_native(&self, query: &Query) -> Result<Page> {
        let resources = match &query.select {
            Select::Name(name) => {
                let queue = self.poll(&self.parent(name)).await?;
                vec![self.state(name.clone(), queue).await?]
            }
            Select::Live => self.live().await?,
        };
        Ok(Page::cut(resources, query))
    }

    async fn live(&self) -> Result<Vec<ResourceState>> {
        let (fresh, nodes) = (self.client.sync(self.root()), self.client.list_children(self.root()));
        fresh.await.map_err(from_zk)?;
        let nodes = if_there(nodes.await)?.unwrap_or_default();
        let nodes: Vec<_> = nodes.into_iter().filter(|node| !node.starts_with('.')).collect();
        // All requests are sent before the first answer is read.
        let lists: Vec<_> = nodes
            .into_iter()
            .map(|node| {
                let parent = format!("{}/{node}", self.root());
                let above = node.starts_with('#').then(|| self.client.get_data(&parent));
                (self.client.get_children(&parent), above, node, parent)
            })
            .collect();
        let mut live = Vec::new();
        for (list, above, node, parent) in lists {
            let above = match above {
                Some(above) => if_there(above.await)?,
                None => None,
            };
            let Some((children, _)) = if_there(list.await)? else { continue };
            let written = || read::<ResourceRecord>(&parent, &above?.0).ok().map(|record| record.name);
            let Some(name) = unescape(&node).or_else(written) else { continue };
            let queue = Queue::read(children);
            if !queue.entries.is_empty() {
                live.push(self.state(name, queue).await?);
            }
        }
        live.retain(|state| !state.is_free());
        Ok(live)
    }

    async fn state(&self, name: ResourceName, mut queue: Queue) -> Result<ResourceState> {
        let parent = self.parent(&name);
        let unknown = self.unknown_marks(&parent, &queue, queue.entries.iter()).await?;
        if !unknown.is_empty() {
            queue = queue.without(&unknown);
        }
        let reads: Vec<_> =
            queue.entries.iter().map(|entry| self.client.get_data(&format!("{parent}/{}", entry.node))).collect();
        let memo = queue.has_memo.then(|| self.client.get_data(&format!("{parent}/{MEMO}")));
        let mut seen = HashMap::new();
        for (entry, answer) in queue.entries.iter().zip(reads) {
            // A claim that ended between the list and the read is skipped, and so is a persistent node. A claim that
            // may not be read is shown without details.
            let answer = match answer.await {
                Err(zk::Error::NoAuth) => {
                    let stat = self.client.check_stat(&format!("{parent}/{}", entry.node)).await.map_err(from_zk)?;
                    stat.map(|stat| (Vec::new(), stat))
                }
                answer => if_there(answer)?,
            };
            if let Some((data, stat)) = answer.filter(|(_, stat)| !lasts(stat)) {
                seen.insert(entry.node.clone(), (data, stat));
            }
        }
        queue.order_by(|entry| seen.get(&entry.node).map(|(_, stat)| stat.czxid));
        let mut state = ResourceState::free(name);
        let mut waiters = Vec::new();
        for (at, entry) in queue.entries.iter().enumerate() {
            let Some((data, stat)) = seen.get(&entry.node) else { continue };
            let record = match read::<ClaimRecord>(&format!("{parent}/{}", entry.node), data) {
                // It counts, whatever it says: one unreadable or newer node must not hide all the others.
                Err(error) if matches!(error.kind(), ErrorKind::Foreign | ErrorKind::NewerFormat) => {
                    ClaimRecord::silent()
                }
                record => record?,
            };
            let made = || u64::try_from(stat.czxid).ok().filter(|_| at == 0).map(Fence::new);
            // A claim whose turn has come is a waiter until it has taken it.
            match record.mark(stat).or_else(made).filter(|_| at < queue.held) {
                Some(fence) => state.holders.push(holder(entry, record, stat, fence)),
                None => waiters.push(waiter(entry, record, stat)),
            }
        }
        state.capacity = queue.stated_before(queue.entries.len()).map(|(_, limit)| limit);
        state.last_fence = state.holders.iter().filter_map(|holder| holder.fence).max();
        state.waiters = Waiters::Listed(waiters);
        if let Some(memo) = memo {
            state.memo = if_there(memo.await)?.map(|(bytes, _)| Memo::from(bytes));
        }
        Ok(state)
    }
}

fn holder(entry: &Entry, record: ClaimRecord, stat: &zk::Stat, fence: Fence) -> HolderState {
    let mut holder = HolderState::new(entry.id, record.kind, entry.weight);
    holder.fence = Some(fence);
    (holder.label, holder.value) = (record.label, record.value);
    (holder.held_for, holder.lease_left) = (age(stat), record.lease);
    holder.ending = record.ending.map(|(ending, _)| ending);
    holder
}

fn waiter(entry: &Entry, record: ClaimRecord, stat: &zk::Stat) -> WaiterState {
    let mut waiter = WaiterState::new(entry.id, record.kind, entry.weight);
    (waiter.label, waiter.waited, waiter.behind) = (record.label, age(stat), record.behind);
    waiter
}

/// How long a node has been there, if the server's clock and ours agree.
pub(crate) fn age(stat: &zk::Stat) -> Duration {
    let made = Duration::from_millis(u64::try_from(stat.ctime).unwrap_or_default());
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().saturating_sub(made)
}
