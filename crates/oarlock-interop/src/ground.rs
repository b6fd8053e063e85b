//! The servers that both sides meet on.

use std::time::Duration;

use anyhow::Result;
use oarlock_testbed::{Etcd, MariaDb, Postgres, Redis, ZooKeeper};

use crate::clients::Store;

/// How many a Redlock has.
const MASTERS: usize = 5;

/// Servers of one duel, of its own.
#[derive(Debug)]
pub(crate) struct Ground {
    servers: Vec<Server>,
    store: Store,
}

#[derive(Debug)]
enum Server {
    Etcd(Etcd),
    MariaDb(MariaDb),
    Postgres(Postgres),
    Redis(Redis),
    ZooKeeper(ZooKeeper),
}

impl Server {
    fn start(store: Store) -> Result<Self> {
        Ok(match store {
            Store::Redis(_) | Store::Redlock(_) => Self::Redis(Redis::start()?),
            Store::Etcd(_) => Self::Etcd(Etcd::start()?),
            Store::ZooKeeper(_) => Self::ZooKeeper(ZooKeeper::start()?),
            Store::Postgres(_) => Self::Postgres(Postgres::start()?),
            Store::MariaDb(_) => Self::MariaDb(MariaDb::start()?),
        })
    }

    fn addr(&self) -> String {
        match self {
            Self::Etcd(server) => server.addr().to_string(),
            Self::MariaDb(server) => server.addr().to_string(),
            Self::Postgres(server) => server.addr().to_string(),
            Self::Redis(server) => server.addr().to_string(),
            Self::ZooKeeper(server) => server.addr().to_string(),
        }
    }

    /// The URL in the words of other clients.
    fn theirs(&self) -> String {
        match self {
            Self::Etcd(server) => server.url(),
            Self::MariaDb(server) => server.url(),
            Self::Postgres(server) => server.url(),
            Self::Redis(server) => server.url(),
            Self::ZooKeeper(server) => server.addr().to_string(),
        }
    }
}

impl Ground {
    /// Starts them.
    pub(crate) fn start(store: Store) -> Result<Self> {
        let many = if let Store::Redlock(_) = store { MASTERS } else { 1 };
        Ok(Self { servers: (0..many).map(|_| Server::start(store)).collect::<Result<_>>()?, store })
    }

    /// In a few words, for tables.
    pub(crate) fn shown(store: Store) -> String {
        match store {
            Store::Redis(query) => {
                let layout = query.split_once("layout=").map_or("native", |(_, rest)| rest);
                format!("redis, {}", layout.split('&').next().unwrap_or(layout))
            }
            Store::Redlock(_) => "redlock".to_owned(),
            Store::Etcd(_) => "etcd".to_owned(),
            Store::ZooKeeper(_) => "zookeeper".to_owned(),
            Store::Postgres(_) => "postgres, session".to_owned(),
            Store::MariaDb(_) => "mysql, session".to_owned(),
        }
    }

    /// The URL in the words of other clients.
    pub(crate) fn theirs(&self) -> String {
        self.servers.iter().map(Server::theirs).collect::<Vec<_>>().join(",")
    }

    /// Our URL. What lives by its session has one of `lease`.
    pub(crate) fn ours(&self, lease: Duration) -> String {
        let hosts = self.servers.iter().map(Server::addr).collect::<Vec<_>>().join(",");
        match self.store {
            Store::Redis(query) => format!("redis://{hosts}{query}"),
            Store::Redlock(query) => format!("redlock://{hosts}{query}"),
            Store::Etcd(query) => format!("etcd://{hosts}{query}"),
            Store::ZooKeeper(query) => format!("zk://{hosts}{query}&ttl={}ms", lease.as_millis()),
            Store::Postgres(query) | Store::MariaDb(query) => format!("{}{query}", self.theirs()),
        }
    }
}
