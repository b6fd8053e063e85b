//! A distributed lock over the store you already run.
//!
//! [`connect`] takes a URL and gives [`Locks`] on the store behind it; everything else is the same on every store. Which stores a build knows is chosen with features; `default` has the embedded one.
//!
//! # Examples
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock::Result<()> {
//! let locks = oarlock::connect("mem:").await?;
//! let guard = locks.mutex("deploy/prod").lock().await?;
//! println!("mine, fence {}", guard.fence());
//! guard.release().await?;
//! # Ok(()) }
//! ```

pub mod blocking;
mod connect;
mod init;
mod registry;
pub mod span;
pub mod url;

pub use connect::{builder, connect};
pub use init::{init, init_script};
pub use oarlock_core::*;
pub use registry::{bare_of, built_in, floor_of, local_dir, other_local_dir};
pub use url::Url;

/// The README's program is compiled, so that it stays true.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The programs on the pages are run, so that they stay true.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../docs/blocking.md")]
    struct Blocking;
    #[doc = include_str!("../../../docs/kinds/cohort.md")]
    struct Cohort;
    #[doc = include_str!("../../../docs/kinds/election.md")]
    struct Election;
    #[doc = include_str!("../../../docs/kinds/hand-over.md")]
    struct HandOver;
    #[doc = include_str!("../../../docs/kinds/multi.md")]
    struct Multi;
    #[doc = include_str!("../../../docs/kinds/mutex.md")]
    struct Mutex;
    #[doc = include_str!("../../../docs/kinds/once.md")]
    struct Once;
    #[doc = include_str!("../../../docs/kinds/read-write.md")]
    struct ReadWrite;
    #[doc = include_str!("../../../docs/kinds/re-entrant.md")]
    struct Reentrant;
    #[doc = include_str!("../../../docs/kinds/semaphore.md")]
    struct Semaphore;
    #[doc = include_str!("../../../docs/kinds/spin.md")]
    struct Spin;
    #[doc = include_str!("../../../docs/testing.md")]
    struct Testing;
}
