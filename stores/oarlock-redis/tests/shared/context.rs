//! A server of one's own, and a plain connection to it.

use oarlock_redis::{Address, Config, Redis};
use redis::FromRedisValue;
use redis::aio::MultiplexedConnection;

use super::patient;

pub(crate) struct TestContext {
    pub(crate) server: oarlock_testbed::Redis,
    pub(crate) raw: MultiplexedConnection,
}

impl TestContext {
    pub(crate) async fn start() -> Option<Self> {
        let server = oarlock_testbed::Redis::start_or_skip().unwrap()?;
        let raw = patient::connect(&server.url()).await;
        Some(Self { server, raw })
    }

    pub(crate) async fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        redis::cmd(words[0]).arg(&words[1..]).query_async(&mut self.raw).await.unwrap()
    }

    pub(crate) fn config(&self) -> Config {
        let addr = self.server.addr();
        Config::new(Address::Tcp(addr.ip().to_string(), addr.port()))
    }

    pub(crate) async fn open(&self) -> Redis {
        Redis::open(self.config()).await.unwrap()
    }
}
