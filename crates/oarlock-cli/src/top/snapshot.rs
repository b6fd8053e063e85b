//! What the store showed at one moment, in the form that is drawn.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use oarlock::state::{ClaimId, HolderState, ResourceState, Waiters};
use oarlock_core::text;

/// All locks at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) rows: Vec<Row>,
    /// When the request was sent.
    pub(crate) at: Instant,
}

/// One lock.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// Its first holder; more of them are shown when it is opened.
    pub(crate) holder: String,
    pub(crate) held: Duration,
    pub(crate) lease_left: Duration,
    pub(crate) fence: u64,
    pub(crate) waiters: usize,
    /// How long the first in the queue has waited.
    pub(crate) oldest_wait: Duration,
    pub(crate) state: ResourceState,
}

impl Row {
    fn of(state: ResourceState) -> Self {
        let first = state.holders.first();
        let held = |of: fn(&HolderState) -> Duration| first.map(of).unwrap_or_default();
        let holder = match state.holders.len() {
            0 => "-".to_owned(),
            1 => first.map(|holder| text::holder(&holder.label)).unwrap_or_default(),
            more => format!("{} and {} more", first.map(|h| text::holder(&h.label)).unwrap_or_default(), more - 1),
        };
        let oldest_wait = match &state.waiters {
            Waiters::Listed(waiters) => waiters.iter().map(|waiter| waiter.waited).max().unwrap_or_default(),
            _ => Duration::ZERO,
        };
        Self {
            name: text::plain(state.name.as_str()),
            holder,
            held: held(|holder| holder.held_for),
            lease_left: held(|holder| holder.lease_left),
            fence: first.and_then(|holder| holder.fence).map(oarlock::Fence::get).unwrap_or_default(),
            waiters: state.waiters.count().unwrap_or_default(),
            oldest_wait,
            state,
        }
    }

    pub(crate) fn claim(&self) -> Option<ClaimId> {
        self.state.holders.first().map(|holder| holder.id)
    }
}

impl Snapshot {
    pub(crate) fn of(states: Vec<ResourceState>, at: Instant) -> Self {
        Self { rows: states.into_iter().map(Row::of).collect(), at }
    }
}

/// The longest lease that was seen of each claim: a store shows what is left, and not what there was.
#[derive(Debug, Default)]
pub(crate) struct Leases(HashMap<ClaimId, Duration>);

impl Leases {
    /// Notes what is left now, and forgets the claims that are gone.
    pub(crate) fn note(&mut self, rows: &[Row]) {
        let seen = rows.iter().filter_map(|row| Some((row.claim()?, row.lease_left)));
        self.0 = seen.map(|(id, left)| (id, self.0.get(&id).map_or(left, |longest| left.max(*longest)))).collect();
    }

    pub(crate) fn whole(&self, row: &Row) -> Duration {
        row.claim().and_then(|id| self.0.get(&id).copied()).unwrap_or(row.lease_left)
    }
}
