//! The servers that both sides meet on.

use std::time::Duration;

use anyhow::Result;
use oarlock_testbed::{Redis, ZooKeeper};

use crate::clients::Store;

/// How many a Redlock has.
const MASTERS: usize = 5;

/// Servers of one duel, of its own.
#[derive(Debug)]
pub(crate) struct Ground {
    servers: Vec<Redis>,
    zookeeper: Option<ZooKeeper>,
    store: Store,
}

impl Ground {
    /// Starts them.
    pub(crate) fn start(store: Store) -> Result<Self> {
        let many = match store {
            Store::Redis(_) => 1,
            Store::Redlock(_) => MASTERS,
            Store::ZooKeeper(_) => 0,
        };
        let servers = (0..many).map(|_| Redis::start()).collect::<Result<_>>()?;
        let zookeeper = if many == 0 { Some(ZooKeeper::start()?) } else { None };
        Ok(Self { servers, zookeeper, store })
    }

    /// In a few words, for tables.
    pub(crate) fn shown(store: Store) -> String {
        match store {
            Store::Redis(query) => {
                let layout = query.split_once("layout=").map_or("native", |(_, rest)| rest);
                format!("redis, {}", layout.split('&').next().unwrap_or(layout))
            }
            Store::Redlock(_) => "redlock".to_owned(),
            Store::ZooKeeper(_) => "zookeeper".to_owned(),
        }
    }

    /// The URL in the words of other clients.
    pub(crate) fn theirs(&self) -> String {
        let redis = self.servers.iter().map(Redis::url);
        redis.chain(self.zookeeper.iter().map(|server| server.addr().to_string())).collect::<Vec<_>>().join(",")
    }

    /// Our URL. What lives by its session has one of `lease`.
    pub(crate) fn ours(&self, lease: Duration) -> String {
        let redis = self.servers.iter().map(Redis::addr);
        let hosts: Vec<_> = redis.chain(self.zookeeper.iter().map(ZooKeeper::addr)).map(|a| a.to_string()).collect();
        match self.store {
            Store::Redis(query) => format!("redis://{}{query}", hosts.join(",")),
            Store::Redlock(query) => format!("redlock://{}{query}", hosts.join(",")),
            Store::ZooKeeper(query) => format!("zk://{}{query}&ttl={}ms", hosts.join(","), lease.as_millis()),
        }
    }
}
