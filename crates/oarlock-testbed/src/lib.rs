//! Servers, proxies and victims for Oarlock tests.

mod child;
pub mod ports;
pub mod processes;
pub mod proxy;
pub mod server;
pub mod taker;

pub use child::plain;
pub use proxy::Proxy;
pub use server::{
    Etcd, EtcdCluster, EtcdTls, Flavour, MariaDb, MariaDbClock, MySql, PgBouncer, Postgres, PostgresClock, Redis,
    RedisClock, RedisCluster, RedisSentinel, RedisTls, SqlServer, ZooKeeper, ZooKeeperEnsemble,
};
pub use taker::{Said, Taker};
