//! `inspect`: the state that a majority shows.

use std::collections::HashMap;
use std::sync::Arc;

use super::memo::newest;
use super::requests::{Requests, never_mind};
use super::rounds::{claim_of, fence_of, untagged};
use super::{Core, PATIENCE, SCHEME};
use oarlock_core::claim::{ClaimId, Fence, ResourceName};
use oarlock_core::driver::memo::Versioned;
use oarlock_core::error::{Error, ErrorKind, Result};
use oarlock_core::state::{HolderState, Memo, Page, Query, ResourceState, Select, Waiters};

/// A round that a majority keeps.
pub(super) struct Found {
    /// The id of the round.
    pub(super) id: ClaimId,
    /// Its fence, if a majority agrees on it.
    pub(super) fence: Option<Fence>,
    /// Which nodes do.
    pub(super) confirmed: Vec<usize>,
    /// The newest memo.
    pub(super) memo: Option<Versioned>,
}

/// What the nodes that have answered show of one resource.
struct View {
    nodes: usize,
    majority: usize,
    free: usize,
    /// By the round that each has there.
    held: HashMap<ClaimId, Vec<(usize, HolderState)>>,
    last_fence: Option<Fence>,
    memos: Vec<Option<Memo>>,
    fault: Option<Error>,
}

impl View {
    fn add(&mut self, node: usize, answer: Result<Page>) {
        let state = match answer {
            Ok(page) => page.resources.into_iter().next(),
            Err(error) => {
                self.fault = Some(error);
                return;
            }
        };
        self.last_fence = self.last_fence.max(state.as_ref().and_then(|state| state.last_fence));
        self.memos.push(state.as_ref().and_then(|state| state.memo.clone()));
        match state.and_then(|state| state.holders.into_iter().next()) {
            Some(holder) => self.held.entry(holder.id).or_default().push((node, holder)),
            None => self.free += 1,
        }
    }

    fn answered(&self) -> usize {
        self.free + self.held.values().map(Vec::len).sum::<usize>()
    }

    /// The round that most nodes have.
    fn first(&self) -> &[(usize, HolderState)] {
        self.held.values().max_by_key(|shown| shown.len()).map_or(&[], Vec::as_slice)
    }

    /// What most of those nodes show as the leader's value. A majority has the one that was published last; another
    /// node may be late.
    fn value(&self) -> Option<&HolderState> {
        let first = self.first();
        let alike = |value| first.iter().filter(|(_, shown)| shown.value == value).count();
        first.iter().map(|(_, shown)| shown).max_by_key(|shown| (alike(shown.value.clone()), shown.lease_left))
    }

    fn found(&self) -> Option<Found> {
        let first = self.first();
        let (_, holder) = first.first().filter(|_| first.len() >= self.majority)?;
        // A node that was won back has a number of its own, and was told the fence: only a round that was won has asked
        // it.
        let voted = || first.iter().filter(|(_, shown)| fence_of(shown).is_none());
        let agree = |fence: Fence| voted().filter(move |(_, shown)| shown.fence == Some(fence));
        let agreed = voted().filter_map(|(_, shown)| shown.fence).find(|fence| agree(*fence).count() >= self.majority);
        let fence = agreed.or_else(|| first.iter().find_map(|(_, shown)| fence_of(shown)));
        let confirmed = fence.map(|fence| agree(fence).map(|(node, _)| *node).collect()).unwrap_or_default();
        Some(Found { id: holder.id, fence, confirmed, memo: self.memo() })
    }

    fn memo(&self) -> Option<Versioned> {
        newest(self.memos.iter().map(Option::as_ref))
    }

    fn is_decided(&self) -> bool {
        let out = self.nodes - self.answered();
        // Fewer may not know the newest memo.
        if out > self.nodes - self.majority {
            return false;
        }
        let mut values = self.first().iter().map(|(_, shown)| &shown.value);
        let is_one = values.next().is_none_or(|first| values.all(|other| other == first));
        match self.found() {
            Some(found) => found.fence.is_some() && is_one,
            None => self.first().len() + out < self.majority,
        }
    }

    /// The resource, with the holder that a majority may have.
    fn shown(&self, name: ResourceName) -> ResourceState {
        let mut state = ResourceState::free(name);
        (state.waiters, state.last_fence) = (Waiters::Hidden, self.last_fence);
        state.memo = self.memo().map(|memo| memo.memo());
        let (first, silent) = (self.first(), self.nodes - self.answered());
        let Some((_, holder)) = first.first().filter(|_| first.len() + silent >= self.majority) else { return state };
        let mut shown = holder.clone();
        (shown.id, shown.label) = (claim_of(holder), Arc::new(untagged(&holder.label)));
        let agreed = self.found().and_then(|found| found.fence);
        shown.fence = agreed;
        shown.value = self.value().and_then(|shown| shown.value.clone());
        shown.ending = first.iter().find_map(|(_, shown)| shown.ending.clone());
        shown.held_for = first.iter().map(|(_, shown)| shown.held_for).max().unwrap_or_default();
        if agreed.is_none() {
            // Nodes that do not agree are in the middle of a round, whose fence no client has yet; or, later, some of
            // them voted late or again, and have larger ones.
            let least = first.iter().filter_map(|(_, shown)| shown.fence).min();
            let settled = shown.held_for > PATIENCE * 2;
            if least.is_some() && silent == 0 && !settled {
                return state;
            }
            shown.fence = least.filter(|_| settled);
        }
        let mut left: Vec<_> = first.iter().map(|(_, shown)| shown.lease_left).collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        // Only what a majority shows is left of it: a late vote outlives the lease of its round.
        shown.lease_left = left.get(self.majority - 1).copied().unwrap_or_default();
        state.holders.push(shown);
        state
    }
}

impl Core {
    pub(super) async fn inspect(self: &Arc<Self>, query: &Query) -> Result<Page> {
        let Select::Name(name) = &query.select else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the nodes of a quorum have no index of their locks: inspect them by name",
            )
            .on(SCHEME));
        };
        let view = self.poll(name).await?;
        Ok(Page::cut(vec![view.shown(name.clone())], query))
    }

    /// The round of a claim that some client holds.
    pub(super) async fn find(self: &Arc<Self>, name: &ResourceName, claim: ClaimId) -> Result<Option<Found>> {
        let view = self.poll(name).await?;
        let Some(found) = view.found() else { return Ok(None) };
        let known = view.first().iter().any(|(_, holder)| holder.id == claim || claim_of(holder) == claim);
        Ok(Some(found).filter(|_| known))
    }

    async fn poll(self: &Arc<Self>, name: &ResourceName) -> Result<View> {
        let query = Query::name(name.clone());
        let mut calls = Requests::send(self, self.all(), PATIENCE, move |node| node.inspect(query.clone()), never_mind);
        let (nodes, majority) = (self.nodes.len(), self.majority);
        let mut view =
            View { nodes, majority, free: 0, held: HashMap::new(), last_fence: None, memos: Vec::new(), fault: None };
        while !view.is_decided() {
            let Some((node, answer)) = calls.next().await else { break };
            view.add(node, answer);
        }
        if view.is_decided() || view.answered() >= majority {
            return Ok(view);
        }
        let message = format!("{} of {nodes} nodes answered, {majority} are needed", view.answered());
        let error = Error::unreachable(message).on(SCHEME);
        Err(match view.fault {
            Some(cause) => error.because(cause),
            None => error,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use oarlock_core::claim::{Kind, Weight};

    /// A node that has not received the last publication may have the longer lease, and may be the first to answer.
    #[test]
    fn the_value_is_that_of_most_nodes() {
        let id = ClaimId::from_bits(1);
        let shows = |value: &str, left: u64| {
            let mut holder = HolderState::new(id, Kind::Election, Weight::All);
            (holder.value, holder.lease_left) = (Some(value.into()), Duration::from_secs(left));
            holder
        };
        let nodes = [shows("old", 9), shows("new", 5), shows("new", 6)].into_iter().enumerate().collect();
        let view = View {
            nodes: 3,
            majority: 2,
            free: 0,
            held: HashMap::from([(id, nodes)]),
            last_fence: None,
            memos: Vec::new(),
            fault: None,
        };
        assert_eq!(view.value().and_then(|shown| shown.value.as_deref()), Some("new"));
        assert!(!view.is_decided(), "nodes that differ are waited for");
    }
}
