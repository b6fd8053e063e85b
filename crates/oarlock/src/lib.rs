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

/// Compiles the program of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Compiles the program of the README in Chinese.
#[cfg(doctest)]
#[doc = include_str!("../../../README.zh.md")]
struct ReadmeInChinese;

/// Runs the programs of the pages.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../docs/backends/etcd.md")]
    struct BackendEtcd;
    #[doc = include_str!("../../../docs/backends/local.md")]
    struct BackendLocal;
    #[doc = include_str!("../../../docs/backends/mysql.md")]
    struct BackendMysql;
    #[doc = include_str!("../../../docs/backends/postgres.md")]
    struct BackendPostgres;
    #[doc = include_str!("../../../docs/backends/redis.md")]
    struct BackendRedis;
    #[doc = include_str!("../../../docs/backends/redisson.md")]
    struct BackendRedisson;
    #[doc = include_str!("../../../docs/backends/redlock.md")]
    struct BackendRedlock;
    #[doc = include_str!("../../../docs/backends/zookeeper.md")]
    struct BackendZooKeeper;
    #[doc = include_str!("../../../docs/blocking.md")]
    struct Blocking;
    #[doc = include_str!("../../../docs/errors.md")]
    struct Errors;
    #[doc = include_str!("../../../docs/guide/concepts.md")]
    struct GuideConcepts;
    #[doc = include_str!("../../../docs/guide/cookbook.md")]
    struct GuideCookbook;
    #[doc = include_str!("../../../docs/guide/fences.md")]
    struct GuideFences;
    #[doc = include_str!("../../../docs/guide/operations.md")]
    struct GuideOperations;
    #[doc = include_str!("../../../docs/guide/migrate/advisory.md")]
    struct MigrateFromAdvisory;
    #[doc = include_str!("../../../docs/guide/migrate/curator.md")]
    struct MigrateFromCurator;
    #[doc = include_str!("../../../docs/guide/migrate/etcd.md")]
    struct MigrateFromEtcd;
    #[doc = include_str!("../../../docs/guide/migrate/flock.md")]
    struct MigrateFromFlock;
    #[doc = include_str!("../../../docs/guide/migrate/redisson.md")]
    struct MigrateFromRedisson;
    #[doc = include_str!("../../../docs/guide/migrate/redlock.md")]
    struct MigrateFromRedlock;
    #[doc = include_str!("../../../docs/guide/migrate/shedlock.md")]
    struct MigrateFromShedlock;
    #[doc = include_str!("../../../docs/guide/migrate/redisson.zh.md")]
    struct MigrateFromRedissonChinese;
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
    #[doc = include_str!("../../../docs/observability/README.md")]
    struct Observability;
    #[doc = include_str!("../../../docs/testing.md")]
    struct Testing;
}
