//! What `oarlock bench` is made of: loads, what comes of them, and how that is shown.

pub(crate) mod measure;
pub(crate) mod plan;
pub(crate) mod show;
pub(crate) mod worker;
pub(crate) mod workers;
