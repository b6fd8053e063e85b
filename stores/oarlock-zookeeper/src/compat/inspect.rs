//! Inspection, also of what other programs wrote.

use std::sync::Arc;

use oarlock_core::state::{HolderState, Page, Query, ResourceState, Select, WaiterState, Waiters};
use oarlock_core::{Fence, Kind, Label, Limit, Result, Weight};
use zookeeper_client as zk;

use super::if_there;
use super::names::{Dialect, Entry, Tag, unsupported};
use super::queue::CompatQueue;
use crate::inspect::age;
use crate::record::{ClaimRecord, read};
use crate::session::Session;

impl Session {
    pub(crate) async fn inspect_compat(&self, dialect: Dialect, query: &Query) -> Result<Page> {
        let Select::Name(name) = &query.select else {
            return Err(unsupported(format!("locks of the layout {} have no index: name one", dialect.name())));
        };
        let base = self.base(dialect, name)?;
        let mut state = ResourceState::free(name.clone());
        let mut waiters = Vec::new();
        let (gate, leases) = (dialect.gate(&base), dialect.leases(&base));
        let queues = [
            (self.poll_queue(dialect, &base).await?, base.clone()),
            // kazoo has permits where others have queues.
            (if leases == base { CompatQueue::default() } else { self.poll_queue(dialect, &leases).await? }, leases),
            (self.poll_queue(dialect, &gate).await?, gate.clone()),
        ];
        // A claim at the gate waits, whether or not its permit exists already.
        let waiting: Vec<_> = queues[2].0.entries.iter().map(|entry| entry.id).collect();
        for (queue, folder) in &queues {
            let reads: Vec<_> =
                queue.entries.iter().map(|entry| self.client.get_data(&format!("{folder}/{}", entry.node))).collect();
            for (at, (entry, answer)) in queue.entries.iter().zip(reads).enumerate() {
                // A claim that ended between the list and the read is skipped.
                let Some((data, stat)) = if_there(answer.await)? else { continue };
                let about = About::read(dialect, entry, &data, *folder == gate);
                if *folder == gate {
                    waiters.push(about.waiter(entry, &stat));
                } else if entry.tag == Tag::Lease {
                    if !waiting.contains(&entry.id) {
                        state.holders.push(about.holder(entry, &stat));
                    }
                } else if queue.holds(at) {
                    state.holders.push(about.holder(entry, &stat));
                } else {
                    waiters.push(about.waiter(entry, &stat));
                }
            }
        }
        state.capacity = self.capacity_compat(dialect, &base, &state, &waiters).await?;
        state.last_fence = state.holders.iter().filter_map(|holder| holder.fence).max();
        state.waiters = Waiters::Listed(waiters);
        Ok(Page::cut(vec![state], query))
    }

    /// Only kazoo's semaphores store their capacity; readers are unlimited.
    async fn capacity_compat(
        &self,
        dialect: Dialect,
        base: &str,
        state: &ResourceState,
        waiters: &[WaiterState],
    ) -> Result<Option<Limit>> {
        let kinds = || state.holders.iter().map(|holder| holder.kind).chain(waiters.iter().map(|waiter| waiter.kind));
        if kinds().any(|kind| matches!(kind, Kind::Read | Kind::Write)) {
            return Ok(Some(Limit::Unlimited));
        }
        if dialect == Dialect::Curator || !kinds().any(|kind| kind == Kind::Semaphore) {
            return Ok(None);
        }
        let said = if_there(self.client.get_data(base).await)?.map(|(data, _)| data).unwrap_or_default();
        Ok(std::str::from_utf8(&said).ok().and_then(|text| text.trim().parse().ok()).map(Limit::Units))
    }
}

/// What a node says about its claim.
struct About {
    kind: Kind,
    weight: Weight,
    record: ClaimRecord,
}

impl About {
    fn read(dialect: Dialect, entry: &Entry, data: &[u8], at_gate: bool) -> Self {
        let mut kind = match entry.tag {
            _ if at_gate => Kind::Semaphore,
            Tag::Lock => Kind::Mutex,
            Tag::Latch => Kind::Election,
            Tag::Write => Kind::Write,
            Tag::Read => Kind::Read,
            Tag::Lease => Kind::Semaphore,
        };
        let weight = if at_gate || entry.tag.shares() { Weight::ONE } else { Weight::All };
        let record = match read::<ClaimRecord>(&entry.node, data) {
            Ok(record) => {
                // kazoo's name is the same for mutexes, writers and leaders.
                if entry.tag == Tag::Lock && !at_gate {
                    kind = record.kind;
                }
                record
            }
            Err(_) => unknown(dialect, kind, data),
        };
        Self { kind, weight, record }
    }

    fn holder(self, entry: &Entry, stat: &zk::Stat) -> HolderState {
        let mut holder = HolderState::new(entry.id, self.kind, self.weight);
        let made = u64::try_from(stat.czxid).ok().map(Fence::new);
        holder.fence = self.record.fence.or(made);
        (holder.label, holder.value) = (self.record.label, self.record.value);
        (holder.held_for, holder.lease_left) = (age(stat), self.record.lease);
        holder.ending = self.record.ending.map(|(ending, _)| ending);
        holder
    }

    fn waiter(self, entry: &Entry, stat: &zk::Stat) -> WaiterState {
        let mut waiter = WaiterState::new(entry.id, self.kind, self.weight);
        (waiter.label, waiter.waited, waiter.behind) = (self.record.label, age(stat), self.record.behind);
        waiter
    }
}

/// What other programs write: Curator the address of the machine, or a leader's id; kazoo whatever its user chose.
fn unknown(dialect: Dialect, kind: Kind, data: &[u8]) -> ClaimRecord {
    let text = String::from_utf8_lossy(data).into_owned();
    let mut record = ClaimRecord::silent();
    let mut label = Label::default();
    match (dialect, kind) {
        _ if text.is_empty() => {}
        (Dialect::Curator, Kind::Election) => record.value = Some(text.into()),
        (Dialect::Curator, _) => label.host = text,
        (Dialect::Kazoo, _) => label.reason = Some(text),
    }
    record.label = Arc::new(label);
    record
}
