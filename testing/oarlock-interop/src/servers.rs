//! The servers of one pairing.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use oarlock_testbed::server::{self, redis_command};
use oarlock_testbed::{Etcd, MariaDb, Postgres, Redis, RedisCluster, ZooKeeper};

use crate::clients::Store;

/// The number of servers of a Redlock.
const MASTERS: usize = 5;

/// The servers of one pairing.
#[derive(Debug)]
pub(crate) struct Servers {
    servers: Vec<Server>,
    store: Store,
}

#[derive(Debug)]
enum Server {
    Etcd(Etcd),
    Local(tempfile::TempDir),
    MariaDb(MariaDb),
    Postgres(Postgres),
    Redis(Redis),
    RedisCluster(RedisCluster),
    ZooKeeper(ZooKeeper),
}

impl Server {
    /// The databases sync each commit, as they do by default: figures without that would say little.
    fn start(store: Store) -> Result<Self> {
        Ok(match store {
            Store::Redis(_) | Store::Redlock(_) => Self::Redis(Redis::start()?),
            Store::RedisCluster(_) => Self::RedisCluster(RedisCluster::start()?),
            Store::Etcd(_) => Self::Etcd(Etcd::start()?),
            Store::ZooKeeper(_) => Self::ZooKeeper(ZooKeeper::start()?),
            Store::Postgres(_) => Self::Postgres(Postgres::start_with(&[("fsync", "on")])?),
            Store::MariaDb(_) => Self::MariaDb(MariaDb::start_with(&[("innodb-flush-log-at-trx-commit", "1")])?),
            Store::Local => Self::Local(tempfile::tempdir()?),
        })
    }

    /// Its addresses: more than one if it is a cluster.
    fn addrs(&self) -> Vec<SocketAddr> {
        match self {
            Self::Etcd(server) => vec![server.addr()],
            Self::Local(_) => Vec::new(),
            Self::MariaDb(server) => vec![server.addr()],
            Self::Postgres(server) => vec![server.addr()],
            Self::Redis(server) => vec![server.addr()],
            Self::RedisCluster(cluster) => cluster.masters.iter().map(server::Server::addr).collect(),
            Self::ZooKeeper(server) => vec![server.addr()],
        }
    }

    /// The URL as other clients write it.
    fn theirs(&self) -> String {
        match self {
            Self::Etcd(server) => server.url(),
            Self::Local(folder) => folder.path().display().to_string(),
            Self::MariaDb(server) => server.url(),
            Self::Postgres(server) => server.url(),
            Self::Redis(server) => server.url(),
            Self::RedisCluster(cluster) => cluster.url(),
            Self::ZooKeeper(server) => server.addr().to_string(),
        }
    }
}

impl Servers {
    /// Starts them.
    pub(crate) fn start(store: Store) -> Result<Self> {
        let many = if let Store::Redlock(_) = store { MASTERS } else { 1 };
        Ok(Self { servers: (0..many).map(|_| Server::start(store)).collect::<Result<_>>()?, store })
    }

    /// The short name, for tables.
    pub(crate) fn shown(store: Store) -> String {
        match store {
            Store::Redis(query) | Store::RedisCluster(query) => {
                let layout = query.split_once("layout=").map_or("native", |(_, rest)| rest);
                let many = if let Store::RedisCluster(_) = store { "redis cluster" } else { "redis" };
                format!("{many}, {}", layout.split('&').next().unwrap_or(layout))
            }
            Store::Redlock(_) => "redlock".to_owned(),
            Store::Etcd(_) => "etcd".to_owned(),
            Store::ZooKeeper(_) => "zookeeper".to_owned(),
            Store::Postgres(_) => "postgres, session".to_owned(),
            Store::MariaDb(_) => "mysql, session".to_owned(),
            Store::Local => "local".to_owned(),
        }
    }

    /// The URL as other clients write it.
    pub(crate) fn theirs(&self) -> String {
        self.servers.iter().map(Server::theirs).collect::<Vec<_>>().join(",")
    }

    /// The URL of Oarlock. A store with sessions has sessions of `lease`.
    pub(crate) fn ours(&self, lease: Duration) -> String {
        let base = self.base();
        match self.store {
            Store::ZooKeeper(query) => format!("{base}{query}&ttl={}ms", lease.as_millis()),
            Store::Redis(query)
            | Store::RedisCluster(query)
            | Store::Redlock(query)
            | Store::Etcd(query)
            | Store::Postgres(query)
            | Store::MariaDb(query) => format!("{base}{query}"),
            Store::Local => base,
        }
    }

    /// The URL of Oarlock without options.
    pub(crate) fn base(&self) -> String {
        let hosts = self.servers.iter().flat_map(Server::addrs).map(|addr| addr.to_string());
        let hosts = hosts.collect::<Vec<_>>().join(",");
        match self.store {
            Store::Redis(_) => format!("redis://{hosts}"),
            Store::RedisCluster(_) => format!("redis+cluster://{hosts}"),
            Store::Redlock(_) => format!("redlock://{hosts}"),
            Store::Etcd(_) => format!("etcd://{hosts}"),
            Store::ZooKeeper(_) => format!("zk://{hosts}"),
            Store::Postgres(_) | Store::MariaDb(_) => self.theirs(),
            Store::Local => format!("local:{}/oarlock", self.theirs()),
        }
    }

    /// The addresses of servers of Redis, which count requests.
    pub(crate) fn redis(&self) -> Vec<SocketAddr> {
        let is_redis = |server: &&Server| matches!(server, Server::Redis(_));
        self.servers.iter().filter(is_redis).flat_map(Server::addrs).collect()
    }

    /// Sets a key of Redis, on the server that has its slot. It blocks.
    pub(crate) fn set(&self, key: &str, value: u64) -> Result<()> {
        let addrs = self.servers.iter().flat_map(Server::addrs);
        let said: Vec<_> = addrs.map(|addr| redis_command(addr, &["SET", key, &value.to_string()])).collect();
        ensure!(said.iter().flatten().count() == 1, "the answers to SET {key} are {said:?}");
        Ok(())
    }
}
