//! What `inspect` and `list` answer.

use oarlock::state::{HolderState, ResourceState};
use pyo3::prelude::*;

/// A holder of a lock.
#[pyclass(frozen, get_all, module = "oarlock._oarlock")]
#[derive(Clone)]
pub(crate) struct Holder {
    fence: Option<u64>,
    host: String,
    pid: u32,
    user: String,
    reason: Option<String>,
    held_for: f64,
    lease_left: f64,
}

/// A lock, as its store sees it now.
#[pyclass(frozen, get_all, module = "oarlock._oarlock")]
pub(crate) struct State {
    name: String,
    holders: Vec<Holder>,
    waiters: Option<usize>,
}

impl From<&HolderState> for Holder {
    fn from(holder: &HolderState) -> Self {
        let label = &holder.label;
        Self {
            fence: holder.fence.map(oarlock::Fence::get),
            host: label.host.clone(),
            pid: label.pid,
            user: label.user.clone(),
            reason: label.reason.clone(),
            held_for: holder.held_for.as_secs_f64(),
            lease_left: holder.lease_left.as_secs_f64(),
        }
    }
}

impl From<ResourceState> for State {
    fn from(state: ResourceState) -> Self {
        Self {
            name: state.name.to_string(),
            holders: state.holders.iter().map(Holder::from).collect(),
            waiters: state.waiters.count(),
        }
    }
}

#[pymethods]
impl Holder {
    fn __repr__(&self) -> String {
        format!("<oarlock.Holder {}:{} fence {:?}>", self.host, self.pid, self.fence)
    }
}

#[pymethods]
impl State {
    fn __repr__(&self) -> String {
        format!("<oarlock.State {:?} holders {} waiters {:?}>", self.name, self.holders.len(), self.waiters)
    }
}
