//! The fewest requests that a Redlock needs, for `oarlock bench`. Not a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use oarlock_core::driver::BoxFuture;
use oarlock_core::floor::{Floor, Rival};
use oarlock_core::{Error, ErrorKind, Result};
use redis::{Cmd, Value};

use crate::config::{Address, Config};
use crate::dial::{Dialler, Greeting, Target, Wire};
use crate::error::{SCHEME, failed};
use crate::scripts::Script;

static DELETE: LazyLock<Script> = LazyLock::new(|| {
    let code = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";
    Script::new(code.to_owned())
});

/// A round to take and a round to free, each over when a majority has answered.
struct Rounds {
    nodes: Vec<Wire>,
    majority: usize,
    prefix: String,
    owners: AtomicU64,
}

/// The floor beneath a Redlock over these servers, of which a majority must be there.
///
/// # Errors
/// As for [`Redis::open`](crate::Redis::open); [`ErrorKind::Unreachable`] without a majority.
pub async fn open(configs: Vec<Config>) -> Result<Arc<dyn Floor>> {
    let majority = configs.len() / 2 + 1;
    let prefix = configs.first().map(|config| config.prefix.clone()).unwrap_or_default();
    let (mut nodes, mut last) = (Vec::new(), None);
    for opened in join_all(configs.iter().map(connect)).await {
        match opened {
            Ok(wire) => nodes.push(wire),
            Err(error) if error.kind() == ErrorKind::Unreachable => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    match last {
        Some(error) if nodes.len() < majority => Err(error),
        _ => Ok(Arc::new(Rounds { nodes, majority, prefix, owners: AtomicU64::new(0) })),
    }
}

async fn connect(config: &Config) -> Result<Wire> {
    let Address::Tcp(host, port) = &config.address else {
        return Err(Error::new(ErrorKind::Config, "a node of a quorum is one server").on(SCHEME));
    };
    let wire = Dialler::new(config)?.open(&Target::Tcp(host.clone(), *port), Greeting::User, |_| {}).await?;
    wire.connection.clone().send_packed_command(&DELETE.load()).await.map_err(failed)?;
    Ok(wire)
}

impl Rounds {
    /// Sends `command` to all, and waits until a majority has said what it should.
    async fn round(&self, command: &Cmd, wanted: &Value) -> Result<()> {
        let mut calls = FuturesUnordered::new();
        for node in &self.nodes {
            let mut connection = node.connection.clone();
            calls.push(async move { connection.send_packed_command(command).await });
        }
        let mut done = 0;
        while done < self.majority {
            match calls.next().await {
                Some(answer) => done += usize::from(answer.is_ok_and(|answer| answer == *wanted)),
                None => return Err(Error::unreachable("no majority, or somebody else uses the floor").on(SCHEME)),
            }
        }
        Ok(())
    }
}

impl Floor for Rounds {
    fn what(&self) -> &'static str {
        "SET NX PX on all servers, then a script that deletes the key if it is ours, each until a majority has answered"
    }

    fn pair(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let key = format!("{}floor:{name}", self.prefix);
            let owner = format!("{:032x}", self.owners.fetch_add(1, Ordering::Relaxed));
            let mut take = redis::cmd("SET");
            take.arg(&key).arg(&owner).arg("NX").arg("PX").arg(30_000);
            self.round(&take, &Value::Okay).await?;
            let mut free = redis::cmd("EVALSHA");
            free.arg(DELETE.hash()).arg(1).arg(&key).arg(&owner);
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
