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
//! A call sleeps the calling thread until it has its answer. It works where there is no runtime, and on a thread of one, which
//! it then blocks. Locks are renewed on a thread of the client's own. A call cannot be interrupted from outside: bound it with
//! `wait`, which is 30 seconds by default.

pub use oarlock_core::blocking::*;

use crate::Result;
use crate::url::IntoUrl;

/// Connects to the store behind a URL, with defaults. With settings: [`builder`](crate::builder) and
/// [`connect_blocking`](crate::LocksBuilder::connect_blocking).
///
/// # Errors
/// As [`connect`](crate::connect).
pub fn connect(url: impl IntoUrl) -> Result<Locks> {
    crate::builder(url).connect_blocking()
}
