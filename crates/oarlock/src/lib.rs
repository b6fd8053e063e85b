//! A distributed lock over the store you already run: Redis, Redlock, etcd, ZooKeeper, PostgreSQL, MySQL and MariaDB,
//! or an embedded store that needs no server.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock::Result<()> {
//! let locks = oarlock::connect("mem:").await?; // or redis://…, etcd://…, postgres://…
//! let guard = locks.mutex("deploy/prod").lock().await?;
//! println!("mine, fence {}", guard.fence());
//! guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! | to … | use |
//! |---|---|
//! | connect | [`connect`] → [`Locks`]; with settings: [`builder`]; without async: [`blocking::connect`] |
//! | run one at a time | [`Locks::mutex`] → [`Mutex`] → [`Mutex::lock`] → [`Guard`] |
//! | know that the lock is still held | [`Held::is_held`], [`Held::lost`], [`Held::token`], [`Guard::with`] |
//! | protect data from a paused holder | [`Held::fence`], [`Fenced`] |
//! | share, count, elect, do once, take several | [`RwLock`], [`Semaphore`], [`Election`], [`Once`], [`Multi`] |
//! | list locks with their holders, end a hold | [`Locks::inspect`], [`Locks::list`], [`Locks::break_hold`] |
//! | examine a deployment | [`doctor::examine`] |
//! | observe events | [`Observer`], [`LockEvent`], [`Step`] |
//! | test your own code | `oarlock::testing` (feature `testing`) |
//!
//! # Features
//!
//! | feature | brings |
//! |---|---|
//! | (always) | `mem:`, the memory of one process |
//! | `local` (default) | `local:`, the embedded store |
//! | `redis` | `redis://`, `rediss://`, Sentinel, Cluster, `redlock://` |
//! | `etcd` | `etcd://`, `etcds://` |
//! | `zookeeper` | `zk://` |
//! | `zookeeper-tls` | `zks://`; it brings a second cryptography library, built with a C compiler |
//! | `postgres` | `postgres://` |
//! | `mysql` | `mysql://`, `mariadb://` |
//! | `stores` | all of these but `zks://` |
//! | `metrics` | metrics of every lock, through the `metrics` facade |
//! | `tracing` | spans of every acquisition and hold |
//! | `testing` | `oarlock::testing`, a store in memory that loses locks on request |
//!
//! A store of your own implements [`driver::Driver`]; [`Locks::over`] makes a client from it.

pub mod blocking;
mod connect;
pub mod doctor;
pub mod driver;
mod memory;
mod registry;
pub mod setup;
pub mod url;

pub use connect::{builder, connect};
pub use oarlock_core::kinds::*;
pub use oarlock_core::{
    Belief, CancellationToken, Ended, Ending, Error, ErrorKind, Fence, Fenced, Guard, Held, Label, Lifetime, LockEvent,
    LockTicket, Locks, LocksBuilder, LossReason, Observer, Owner, Released, Result, Runtime, Step,
};
pub use oarlock_core::{error, event, fenced};

/// The state of locks: names, holders, waiters.
pub mod state {
    pub use oarlock_core::claim::{ClaimId, Kind, Limit, ResourceName, Weight};
    pub use oarlock_core::clock::Moment;
    pub use oarlock_core::state::{
        Ending, HolderState, MAX_MEMO_BYTES, MAX_VALUE_BYTES, Memo, ResourceState, WaiterState, Waiters,
    };
}

/// A store in memory that loses locks, drops replies and moves its clock ahead on request: to test how your own code
/// reacts.
#[cfg(feature = "testing")]
pub mod testing {
    pub use oarlock_core::clock::{BootClock, Clock, Moment, TokioClock};
    pub use oarlock_core::memory::{Kit, Memory, Snapshot, Verb};
}
