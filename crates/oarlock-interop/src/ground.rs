//! The servers that both sides meet on.

use anyhow::Result;
use oarlock_testbed::Redis;

use crate::clients::Store;

/// How many a Redlock has.
const MASTERS: usize = 5;

/// Servers of one duel, of its own.
#[derive(Debug)]
pub(crate) struct Ground {
    servers: Vec<Redis>,
    store: Store,
}

impl Ground {
    /// Starts them.
    pub(crate) fn start(store: Store) -> Result<Self> {
        let many = match store {
            Store::Redis(_) => 1,
            Store::Redlock(_) => MASTERS,
        };
        let servers = (0..many).map(|_| Redis::start()).collect::<Result<_>>()?;
        Ok(Self { servers, store })
    }

    /// In a few words, for tables.
    pub(crate) fn shown(store: Store) -> String {
        match store {
            Store::Redis(query) => {
                let layout = query.split_once("layout=").map_or("native", |(_, rest)| rest);
                format!("redis, {}", layout.split('&').next().unwrap_or(layout))
            }
            Store::Redlock(_) => "redlock".to_owned(),
        }
    }

    /// The URL in the words of other clients.
    pub(crate) fn theirs(&self) -> String {
        self.servers.iter().map(Redis::url).collect::<Vec<_>>().join(",")
    }

    /// Our URL.
    pub(crate) fn ours(&self) -> String {
        let hosts: Vec<_> = self.servers.iter().map(|server| server.addr().to_string()).collect();
        match self.store {
            Store::Redis(query) => format!("redis://{}{query}", hosts.join(",")),
            Store::Redlock(query) => format!("redlock://{}{query}", hosts.join(",")),
        }
    }
}
