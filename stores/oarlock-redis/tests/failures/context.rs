//! What the tests share.

use std::net::SocketAddr;
use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver as _, End};
use oarlock_core::{Claim, ClaimId, Locks, ResourceName};
use oarlock_redis::{Address, Config, Host, Redis};
use redis::FromRedisValue;
use redis::aio::MultiplexedConnection;

pub(crate) const DONE: End = End::Done { memo: None };

/// Evaluates to a started server, or ends the test if it is not installed.
macro_rules! started {
    ($start:expr) => {
        match $start.unwrap() {
            Some(started) => started,
            None => return,
        }
    };
}
pub(crate) use started;

pub(crate) fn host(addr: SocketAddr) -> Host {
    (addr.ip().to_string(), addr.port())
}

pub(crate) fn config(addr: SocketAddr) -> Config {
    Config::new(Address::Tcp(addr.ip().to_string(), addr.port()))
}

/// A client whose leases last so long.
pub(crate) async fn client(config: Config, ttl: Duration) -> Locks {
    let store = Redis::open(config).await.unwrap();
    Locks::builder(store).ttl(ttl).op_timeout((ttl / 3).min(Duration::from_secs(2))).build().unwrap()
}

/// A plain connection, to look from outside.
pub(crate) struct Raw(MultiplexedConnection);

impl Raw {
    pub(crate) async fn to(addr: SocketAddr) -> Self {
        Self(crate::patient::connect(&format!("redis://{addr}")).await)
    }

    pub(crate) fn connection(&mut self) -> &mut MultiplexedConnection {
        &mut self.0
    }

    pub(crate) async fn try_ask<T: FromRedisValue>(&mut self, words: &[&str]) -> redis::RedisResult<T> {
        redis::cmd(words[0]).arg(&words[1..]).query_async(&mut self.0).await
    }

    pub(crate) async fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        self.try_ask(words).await.unwrap()
    }
}

pub(crate) fn name(name: &str) -> ResourceName {
    ResourceName::new(name).unwrap()
}

pub(crate) fn claim(id: u128, resource: &str) -> Claim {
    Claim::new(ClaimId::from_bits(id), name(resource))
}

/// The fence, if it was granted.
pub(crate) async fn fence(store: &Redis, claim: &Claim) -> Option<u64> {
    match store.attempt(claim).await.unwrap() {
        Attempt::Granted(grant) => Some(grant.fence.get()),
        Attempt::Pending(_) => None,
    }
}

/// Waits for `is`, for half a minute at most.
pub(crate) async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(30), async {
        while !is().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(waited.await.is_ok(), "waited in vain for {what}");
}
