//! `redlock:`: the fewest requests that a Redlock needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use oarlock::driver::BoxFuture;
use oarlock::url::Url;
use oarlock::{Error, ErrorKind, Result};
use oarlock_redis::Config;
use oarlock_redis::raw::{Connection, Servers, failed};
use redis::{Cmd, Value};

use super::redis::{DELETE, SCHEME};
use super::{Baseline, Rival};

/// A round to take and a round to free, each over when a majority has answered.
struct Rounds {
    nodes: Vec<Connection>,
    majority: usize,
    prefix: String,
    owners: AtomicU64,
}

/// Connects to all servers, of which a majority must answer.
pub(super) async fn open(url: &Url) -> Result<Arc<dyn Baseline>> {
    let configs = oarlock_quorum::configs(url)?;
    let majority = configs.len() / 2 + 1;
    let prefix = configs.first().map(|config| config.prefix.clone()).unwrap_or_default();
    let (mut nodes, mut last) = (Vec::new(), None);
    for opened in join_all(configs.into_iter().map(connect)).await {
        match opened {
            Ok(connection) => nodes.push(connection),
            Err(error) if error.kind() == ErrorKind::Unreachable => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    match last {
        Some(error) if nodes.len() < majority => Err(error),
        _ => Ok(Arc::new(Rounds { nodes, majority, prefix, owners: AtomicU64::new(0) })),
    }
}

async fn connect(config: Config) -> Result<Connection> {
    let servers = Servers::open(config).await?;
    let connection = servers.connect(&servers.of("").await?).await?;
    servers.close();
    DELETE.load_async(&mut connection.get()).await.map_err(failed)?;
    Ok(connection)
}

impl Rounds {
    /// Sends `command` to all, and waits until a majority has said what it should.
    async fn round(&self, command: &Cmd, wanted: &Value) -> Result<()> {
        let mut calls = FuturesUnordered::new();
        for node in &self.nodes {
            let mut connection = node.get();
            calls.push(async move { connection.send_packed_command(command).await });
        }
        let mut done = 0;
        while done < self.majority {
            match calls.next().await {
                Some(answer) => done += usize::from(answer.is_ok_and(|answer| answer == *wanted)),
                None => {
                    let message = "no majority, or another client uses the keys of the baseline";
                    return Err(Error::unreachable(message).on(SCHEME));
                }
            }
        }
        Ok(())
    }
}

impl Baseline for Rounds {
    fn what(&self) -> &'static str {
        "SET NX PX on all servers, then a script that deletes the key if it is ours, each until a majority has answered"
    }

    fn pair(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let key = format!("{}baseline:{name}", self.prefix);
            let owner = format!("{:032x}", self.owners.fetch_add(1, Ordering::Relaxed));
            let mut take = redis::cmd("SET");
            take.arg(&key).arg(&owner).arg("NX").arg("PX").arg(30_000);
            self.round(&take, &Value::Okay).await?;
            let mut free = redis::cmd("EVALSHA");
            free.arg(DELETE.get_hash()).arg(1).arg(&key).arg(&owner);
            self.round(&free, &Value::Int(1)).await
        })
    }

    fn rival(self: Arc<Self>, _: Arc<str>) -> BoxFuture<Result<Option<Arc<dyn Rival>>>> {
        Box::pin(async { Ok(None) })
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async { Ok(()) })
    }
}
