//! Locks for code that blocks: the same names and guarantees, without `async`.
//!
//! ```
//! # fn main() -> oarlock::Result<()> {
//! let locks = oarlock::blocking::connect("mem:")?;
//! let guard = locks.mutex("deploy/prod").lock()?;
//! assert!(guard.is_held());
//! # Ok(()) }
//! ```
//!
//! A call blocks the calling thread until it is done. It works with and without an async runtime; on a thread of a
//! runtime it blocks that thread. The client's background thread renews locks. A call cannot be cancelled: limit it
//! with `wait`, which is 30 seconds by default.

pub use oarlock_core::blocking::*;

use crate::Result;
use crate::url::IntoUrl;

/// Connects to the store behind a URL, with defaults.
///
/// # Errors
/// As [`connect`](crate::connect) of the async API.
pub fn connect(url: impl IntoUrl) -> Result<Locks> {
    builder(url).connect()
}

/// Connects to the store behind a URL, with settings; finish with [`connect`](LocksBuilder::connect), which also
/// returns the error of an invalid URL.
///
/// # Examples
/// ```
/// # use std::time::Duration;
/// # fn main() -> oarlock::Result<()> {
/// let locks = oarlock::blocking::builder("mem:").ttl(Duration::from_secs(10)).connect()?;
/// # locks.mutex("deploy/prod").lock()?.release()?;
/// # Ok(()) }
/// ```
pub fn builder(url: impl IntoUrl) -> LocksBuilder {
    crate::builder(url).into()
}

/// Examines a deployment: is it safe, and why not? Nothing is changed.
pub mod doctor {
    pub use crate::doctor::{Check, Fact, Finding, Guarantees, Limits, Promise, Report, Severity, checks, guarantees};

    use crate::Result;
    use crate::url::IntoUrl;

    /// Examines the store behind a URL. See [`examine`](crate::doctor::examine) of the async API.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> oarlock::Result<()> {
    /// let report = oarlock::blocking::doctor::examine("mem:", oarlock::doctor::Limits::default())?;
    /// assert_eq!(report.worst(), None);
    /// # Ok(()) }
    /// ```
    pub fn examine(url: impl IntoUrl, limits: Limits) -> Result<Report> {
        oarlock_core::Runtime::own_thread()?.block_on(crate::doctor::examine(url.into_url()?, limits))?
    }
}

/// Creates what a store needs before it can be used: the tables and procedures of an SQL store.
pub mod setup {
    pub use crate::setup::script;

    use crate::Result;
    use crate::url::IntoUrl;

    /// Creates what the store behind `url` needs, and gives the user `grant` the rights that locks need; false if the
    /// store needs nothing. See [`init`](crate::setup::init) of the async API.
    ///
    /// # Errors
    /// As [`connect`](crate::connect).
    ///
    /// # Examples
    /// ```
    /// # fn main() -> oarlock::Result<()> {
    /// assert!(!oarlock::blocking::setup::init("mem:", None)?);
    /// # Ok(()) }
    /// ```
    pub fn init(url: impl IntoUrl, grant: Option<&str>) -> Result<bool> {
        oarlock_core::Runtime::own_thread()?.block_on(crate::setup::init(url.into_url()?, grant))?
    }
}

#[cfg(test)]
mod tests {
    /// A blocking function has the path of its async twin, below `blocking`.
    #[test]
    fn every_async_function_has_a_twin() {
        let twins = include_str!("blocking.rs");
        let sources =
            [include_str!("lib.rs"), include_str!("connect.rs"), include_str!("doctor.rs"), include_str!("setup.rs")];
        let functions = sources.iter().flat_map(|source| source.split("\npub async fn ").skip(1));
        let names: Vec<_> = functions.filter_map(|rest| rest.split('(').next()).collect();
        assert!(names.contains(&"connect"), "{names:?}");
        // A driver's own functions are async, so one without an engine is of no use to blocking code.
        for name in names.into_iter().filter(|name| *name != "open_driver") {
            assert!(twins.contains(&format!("pub fn {name}(")), "`blocking` lacks `{name}`");
        }
    }
}
