//! What `oarlock torture` is made of: a run on a store, its worker processes, and the histories of runs.

pub(crate) mod files;
pub(crate) mod show;
pub(crate) mod start;
mod view;
pub(crate) mod worker;
pub(crate) mod zoo;
