//! What `oarlock bench` is made of: loads, what comes of them, and how that is shown.

#[cfg(feature = "serve")]
pub(crate) mod http;
pub(crate) mod measure;
pub(crate) mod plan;
#[cfg(feature = "serve")]
pub(crate) mod server;
pub(crate) mod show;
pub(crate) mod worker;
pub(crate) mod workers;
