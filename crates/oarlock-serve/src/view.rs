//! Locks as documents. The words are those of `oarlock show -o json`. Claim ids are secrets here, as a program that
//! has one could forge a lease: a digest stands for each.

use std::sync::Arc;
use std::time::Duration;

use oarlock::Label;
use oarlock::state::{ClaimId, Ending, HolderState, Kind, Limit, ResourceState, WaiterState, Waiters, Weight};
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::state::millis;

/// One lock.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Lock {
    pub(crate) name: String,
    pub(crate) state: &'static str,
    pub(crate) kind: Option<Kind>,
    pub(crate) capacity: Option<Value>,
    pub(crate) holders: Vec<Holder>,
    /// `None` where the store does not list them.
    pub(crate) waiters: Option<Vec<Waiter>>,
    pub(crate) waiting: Option<usize>,
    pub(crate) last_fence: Option<String>,
}

/// One holder.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Holder {
    pub(crate) claim: String,
    pub(crate) kind: Kind,
    pub(crate) weight: Value,
    pub(crate) fence: Option<String>,
    pub(crate) label: Arc<Label>,
    pub(crate) held_ms: u64,
    pub(crate) lease_left_ms: u64,
    pub(crate) value: Option<Arc<str>>,
    pub(crate) ending: Option<Ending>,
}

/// One waiter, in the order of the queue.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Waiter {
    pub(crate) claim: String,
    pub(crate) kind: Kind,
    pub(crate) weight: Value,
    pub(crate) label: Arc<Label>,
    pub(crate) waited_ms: u64,
    pub(crate) behind: u32,
}

impl From<&ResourceState> for Lock {
    fn from(state: &ResourceState) -> Self {
        let waiting = state.waiters.count();
        let word = if state.holders.iter().any(|holder| holder.ending.is_some()) {
            "ending"
        } else if !state.holders.is_empty() {
            "held"
        } else if waiting.is_some_and(|waiting| waiting > 0) {
            "waiting"
        } else {
            "free"
        };
        Self {
            name: state.name.as_str().to_owned(),
            state: word,
            kind: state.kind(),
            capacity: state.capacity.map(|limit| match limit {
                Limit::Units(units) => json!(units),
                Limit::Unlimited => json!("unlimited"),
            }),
            holders: state.holders.iter().map(Holder::from).collect(),
            waiters: match &state.waiters {
                Waiters::Listed(waiters) => Some(waiters.iter().map(Waiter::from).collect()),
                _ => None,
            },
            waiting,
            last_fence: state.last_fence.map(|fence| fence.to_string()),
        }
    }
}

impl From<&HolderState> for Holder {
    fn from(holder: &HolderState) -> Self {
        Self {
            claim: claim(holder.id),
            kind: holder.kind,
            weight: weight(holder.weight),
            fence: holder.fence.map(|fence| fence.to_string()),
            label: holder.label.clone(),
            held_ms: millis(holder.held_for),
            lease_left_ms: millis(holder.lease_left),
            value: holder.value.clone(),
            ending: holder.ending.clone(),
        }
    }
}

impl From<&WaiterState> for Waiter {
    fn from(waiter: &WaiterState) -> Self {
        Self {
            claim: claim(waiter.id),
            kind: waiter.kind,
            weight: weight(waiter.weight),
            label: waiter.label.clone(),
            waited_ms: millis(waiter.waited),
            behind: waiter.behind,
        }
    }
}

impl Lock {
    pub(crate) fn json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// How long the first of the queue has waited, if any waits.
    pub(crate) fn oldest_wait_ms(&self) -> Option<u64> {
        self.waiters.iter().flatten().map(|waiter| waiter.waited_ms).max()
    }
}

/// How exactly the store tells what is left of a lease: some (etcd) tell whole seconds.
pub(crate) fn granularity(left: Duration) -> Duration {
    if left.subsec_millis() == 0 { Duration::from_secs(1) } else { Duration::ZERO }
}

fn weight(weight: Weight) -> Value {
    match weight {
        Weight::Units(units) => json!(units),
        Weight::All => json!("all"),
    }
}

/// A claim for people: the same claim has the same text, which is not its id.
pub(crate) fn claim(id: ClaimId) -> String {
    Sha256::digest(id.bits().to_be_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// A process for people, as its label names it: `ana@build-7 (pid 6440)`.
pub(crate) fn person(label: &Label) -> String {
    let user = if label.user.is_empty() { String::new() } else { format!("{}@", label.user) };
    let host = if label.host.is_empty() { "unnamed" } else { label.host.as_str() };
    let pid = if label.pid == 0 { String::new() } else { format!(" (pid {})", label.pid) };
    format!("{user}{host}{pid}")
}
