//! `redis:`: the fewest requests that a lock needs, and a token in a list.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use oarlock::driver::BoxFuture;
use oarlock::url::Url;
use oarlock::{Error, Result};
use oarlock_redis::Config;
use oarlock_redis::raw::{Connection, Server, Servers, failed};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Script, Value};

use super::{Baseline, Rival, disturbed};

pub(super) const SCHEME: &str = "redis";

/// A token that is not passed on for this long was lost.
const TAKE_SECONDS: u64 = 5;

/// What a run that was killed leaves behind goes after this long.
const LEFT_SECONDS: u64 = 600;

/// The requests that locks and this baseline send again and again. Others are counted too when scripts run them.
const REQUESTS: [&str; 4] = ["evalsha", "script|load", "lpush", "blpop"];

pub(super) static DELETE: LazyLock<Script> = LazyLock::new(|| {
    Script::new("if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end")
});

/// One key for each name, on connections like those of the driver.
struct Key {
    servers: Servers,
    prefix: String,
    connections: Mutex<HashMap<Server, Connection>>,
    owners: AtomicU64,
    /// What this run passed on, to be removed.
    tokens: Mutex<Vec<String>>,
}

pub(super) async fn open(url: &Url) -> Result<Arc<dyn Baseline>> {
    let config = Config::from_url(url)?;
    let (prefix, servers) = (config.prefix.clone(), Servers::open(config).await?);
    let (connections, owners, tokens) = (Mutex::default(), AtomicU64::new(0), Mutex::default());
    Ok(Arc::new(Key { servers, prefix, connections, owners, tokens }))
}

impl Key {
    fn name(&self, name: &str) -> String {
        format!("{}baseline:{{{name}}}", self.prefix)
    }

    /// The connection for this key, opened when it is first needed.
    async fn connection(&self, key: &str) -> Result<MultiplexedConnection> {
        let server = self.servers.of(key).await?;
        let known = || self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = known().get(&server) {
            return Ok(connection.get());
        }
        let connection = self.servers.connect(&server).await?;
        Ok(known().entry(server).or_insert(connection).get())
    }
}

impl Baseline for Key {
    fn what(&self) -> &'static str {
        "SET NX PX, and a script that deletes the key if it is ours"
    }

    fn pair(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let (key, owner) = (self.name(&name), self.owners.fetch_add(1, Ordering::Relaxed));
            let mut connection = self.connection(&key).await?;
            let mut set = redis::cmd("SET");
            set.arg(&key).arg(owner).arg("NX").arg("PX").arg(30_000);
            let taken: bool = set.query_async(&mut connection).await.map_err(failed)?;
            let freed: bool = DELETE.key(&key).arg(owner).invoke_async(&mut connection).await.map_err(failed)?;
            if taken && freed {
                return Ok(());
            }
            Err(disturbed(SCHEME))
        })
    }

    fn rival(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<Option<Arc<dyn Rival>>>> {
        Box::pin(async move {
            let token = self.name(&name);
            let laid = format!("{token}:laid");
            let connection = self.servers.connect(&self.servers.of(&token).await?).await?;
            // The first to come lays the token that all of them pass on.
            let mut first = redis::cmd("SET");
            self.tokens.lock().unwrap_or_else(PoisonError::into_inner).extend([token.clone(), laid.clone()]);
            first.arg(laid).arg(1).arg("NX").arg("EX").arg(LEFT_SECONDS);
            let first: bool = first.query_async(&mut connection.get()).await.map_err(failed)?;
            let rival = Arc::new(Token { connection, token });
            if first {
                rival.clone().give().await?;
            }
            Ok(Some(rival as Arc<dyn Rival>))
        })
    }

    fn calls(self: Arc<Self>) -> BoxFuture<Result<Option<u64>>> {
        Box::pin(async move {
            let mut sum = 0;
            for server in self.servers.all().await? {
                let connection = self.servers.connect(&server).await?;
                let mut ask = redis::cmd("INFO");
                let told: String = ask.arg("commandstats").query_async(&mut connection.get()).await.map_err(failed)?;
                sum += requests(&told);
            }
            Ok(Some(sum))
        })
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let tokens = std::mem::take(&mut *self.tokens.lock().unwrap_or_else(PoisonError::into_inner));
            for token in tokens {
                let mut connection = self.connection(&token).await?;
                redis::cmd("DEL").arg(token).exec_async(&mut connection).await.map_err(failed)?;
            }
            self.servers.close();
            Ok(())
        })
    }
}

/// How many of [`REQUESTS`] a server has served: lines such as `cmdstat_evalsha:calls=7,usec=…`.
fn requests(told: &str) -> u64 {
    let served = |line: &str| {
        let (command, figures) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        REQUESTS.contains(&command).then(|| figures.split(',').next()?.parse::<u64>().ok()).flatten()
    };
    told.lines().filter_map(served).sum()
}

/// A list of one element, or of none while a contender has it.
struct Token {
    connection: Connection,
    token: String,
}

impl Token {
    async fn send(&self, command: &Cmd) -> Result<Value> {
        self.connection.get().send_packed_command(command).await.map_err(failed)
    }
}

impl Rival for Token {
    fn what(&self) -> &'static str {
        "LPUSH and BLPOP of one token"
    }

    fn take(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let mut pop = redis::cmd("BLPOP");
            pop.arg(&self.token).arg(TAKE_SECONDS);
            match self.send(&pop).await? {
                Value::Nil => Err(Error::unreachable("the token of the baseline was lost").on(SCHEME)),
                _ => Ok(()),
            }
        })
    }

    fn give(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let mut push = redis::cmd("LPUSH");
            push.arg(&self.token).arg(1);
            self.send(&push).await.map(drop)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn requests_are_counted_and_what_scripts_do_is_not() {
        let told = "# Commandstats\r\ncmdstat_evalsha:calls=7,usec=9\r\ncmdstat_hset:calls=5,usec=9\r\n\
                    cmdstat_blpop:calls=2,usec=1\r\ncmdstat_script|load:calls=1,usec=1\r\n";
        assert_eq!(requests(told), 10);
    }
    #[tokio::test]
    async fn nothing_is_sent_in_the_clear_that_was_to_be_encrypted() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("rediss://:swordfish@{}", listener.local_addr().unwrap());
        let heard = tokio::task::spawn_blocking(move || {
            let mut first = [0; 256];
            let read = listener.accept().unwrap().0.read(&mut first).unwrap();
            first[..read].to_vec()
        });
        assert!(open(&oarlock::url::parse(&url).unwrap()).await.is_err());
        let heard = heard.await.unwrap();
        assert_eq!(heard[0], 22, "the beginning of a TLS handshake");
        assert!(!heard.windows(9).any(|bytes| bytes == b"swordfish"));
    }
}
