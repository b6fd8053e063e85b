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
//! A call blocks the calling thread until the store has answered. It works with and without an async runtime; on a thread of a
//! runtime it blocks that thread. The client renews locks on its own thread. A call cannot be cancelled: limit it with `wait`,
//! which is 30 seconds by default.

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
