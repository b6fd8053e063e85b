//! Locks that a command's ancestors hold: waiting for one of them would be waiting for oneself.

use oarlock::state::ResourceName;
use oarlock::{Fence, Locks, MultiGuard};
use serde::{Deserialize, Serialize};

/// The variable that carries them.
pub(crate) const VARIABLE: &str = "OARLOCK_LOCKS";

/// One lock of an ancestor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Nested {
    pub(crate) name: ResourceName,
    pub(crate) fence: Fence,
    /// Which store, without secrets.
    #[serde(default)]
    pub(crate) store: String,
}

/// What the ancestors say they hold. Nonsense in the variable is no lock.
pub(crate) fn inherited() -> Vec<Nested> {
    std::env::var(VARIABLE).ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// The value of the variable for our command: what the ancestors hold, and what we hold.
pub(crate) fn handed_on(locks: &Locks, multi: &MultiGuard) -> Vec<Nested> {
    let store = store(locks);
    let ours =
        multi.iter().map(|held| Nested { name: held.resource().clone(), fence: held.fence(), store: store.clone() });
    inherited().into_iter().chain(ours).collect()
}

fn store(locks: &Locks) -> String {
    let info = locks.info();
    format!("{}:{}", info.scheme, info.address)
}

/// The one of `names` that an ancestor holds, as the store sees it now: the variable outlives the lock in processes
/// that left their group.
pub(crate) async fn held_by_ancestor(locks: &Locks, names: &[ResourceName]) -> Option<Nested> {
    let store = store(locks);
    for nested in inherited().into_iter().filter(|nested| nested.store == store && names.contains(&nested.name)) {
        let state = locks.inspect(&nested.name).await.ok()?;
        if state.holders.iter().any(|holder| holder.fence == Some(nested.fence)) {
            return Some(nested);
        }
    }
    None
}
