//! The fewest raw requests to a store that do what a lock does.

#[cfg(feature = "etcd")]
mod etcd;
mod local;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod redlock;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use std::sync::Arc;

use oarlock::driver::BoxFuture;
use oarlock::url::Url;
use oarlock::{Error, ErrorKind, Result};

/// The fewest raw requests to a store that do what a lock does, on connections like those of its driver.
///
/// It has no fence, no queue and no renewal. It shows what the store and the network cost alone.
pub trait Baseline: Send + Sync {
    /// What a pair is, in a few words.
    fn what(&self) -> &'static str;

    /// Takes `name` and gives it back. No other client may use `name`.
    fn pair(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<()>>;

    /// A contender that passes `name` on to others and waits for it; `None` where the store has no plain way to do
    /// that.
    fn rival(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<Option<Arc<dyn Rival>>>>;

    /// How many requests the store has served so far, of the kinds that locks and baselines send; `None` where it does
    /// not count them.
    fn calls(self: Arc<Self>) -> BoxFuture<Result<Option<u64>>> {
        Box::pin(async { Ok(None) })
    }

    /// Removes what was made, and closes the connections.
    fn close(self: Arc<Self>) -> BoxFuture<Result<()>>;
}

/// A contender that passes a name on without Oarlock, on a connection of its own.
pub trait Rival: Send + Sync {
    /// How the name is passed on, in a few words.
    fn what(&self) -> &'static str;

    /// Waits until the name is here. Fails after some seconds without it, so that a run does not hang.
    fn take(self: Arc<Self>) -> BoxFuture<Result<()>>;

    /// Passes the name on to the next waiter.
    fn give(self: Arc<Self>) -> BoxFuture<Result<()>>;

    /// Asks no more in this turn. Where the name comes to contenders that do not ask, it passes it on once more: others
    /// may still wait.
    fn leave(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

/// The baseline of the store behind `url`; `None` for `mem:`, which sends no requests.
///
/// # Errors
/// As [`oarlock::connect`].
pub async fn open_baseline(url: &Url) -> Result<Option<Arc<dyn Baseline>>> {
    match url.driver() {
        "mem" => Ok(None),
        #[cfg(feature = "etcd")]
        "etcd" => etcd::open(url).await.map(Some),
        "local" => local::open(url).map(Some),
        #[cfg(feature = "mysql")]
        "mysql" => mysql::open(url).await.map(Some),
        #[cfg(feature = "postgres")]
        "postgres" => postgres::open(url).await.map(Some),
        #[cfg(feature = "redis")]
        "redis" => redis::open(url).await.map(Some),
        #[cfg(feature = "redis")]
        "redlock" => redlock::open(url).await.map(Some),
        #[cfg(feature = "zookeeper")]
        "zookeeper" => zookeeper::open(url).await.map(Some),
        driver => Err(Error::new(ErrorKind::Config, format!("this build has no {driver} driver"))),
    }
}

/// Another client uses what the baseline made for itself.
#[cfg(any(feature = "etcd", feature = "mysql", feature = "postgres", feature = "redis", feature = "zookeeper"))]
fn disturbed(scheme: &'static str) -> Error {
    Error::new(ErrorKind::Foreign, "another client uses what the baseline created").on(scheme)
}
