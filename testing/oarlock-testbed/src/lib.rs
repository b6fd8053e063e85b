//! For the tests of Oarlock: servers, a proxy that injects network faults, and processes to stop and kill.

mod child;
pub mod lock_process;
pub mod processes;
#[cfg(feature = "conformance")]
pub mod proxied;
pub mod server;

pub use child::plain;
pub use lock_process::{LockProcess, Report};
pub use oarlock_torture::ports;
pub use oarlock_torture::proxy::{self, Proxy};
#[cfg(feature = "conformance")]
pub use proxied::ProxiedConnection;
pub use server::{
    CertificateFolder, Etcd, EtcdCluster, EtcdTls, Flavour, MariaDb, MariaDbClock, MySql, PgBouncer, Postgres,
    PostgresClock, Redis, RedisClock, RedisCluster, RedisSentinel, RedisTls, SqlServer, ZooKeeper, ZooKeeperEnsemble,
    ZooKeeperTls,
};
