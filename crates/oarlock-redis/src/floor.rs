//! The fewest requests that a lock on Redis needs, for `oarlock bench`. Not a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use oarlock_core::driver::BoxFuture;
use oarlock_core::floor::{Floor, Rival};
use oarlock_core::{Error, ErrorKind, Result};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, IntoConnectionInfo as _, ProtocolVersion, RedisConnectionInfo,
    Script, Value,
};

use crate::config::{Address, Config};
use crate::error::{SCHEME, failed, unconnected};

/// What is not passed on for this long was lost.
const TAKE_SECONDS: u64 = 5;

/// What a run that was killed leaves behind goes after this long.
const LEFT_SECONDS: u64 = 600;

static DELETE: LazyLock<Script> = LazyLock::new(|| {
    Script::new("if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end")
});

/// One key for each name.
struct Key {
    config: Config,
    connection: MultiplexedConnection,
    owners: AtomicU64,
    /// What this run passed on, to be removed.
    tokens: Mutex<Vec<String>>,
}

/// The floor beneath the store with this configuration.
///
/// # Errors
/// As for [`Redis::open`](crate::Redis::open); [`ErrorKind::Unsupported`] where there is more than one server.
pub async fn open(config: Config) -> Result<Arc<dyn Floor>> {
    let connection = connect(&config).await?;
    Ok(Arc::new(Key { config, connection, owners: AtomicU64::new(0), tokens: Mutex::default() }))
}

async fn connect(config: &Config) -> Result<MultiplexedConnection> {
    // What is to be encrypted must not be sent in the clear, a password least of all.
    if config.tls.is_some() {
        return Err(Error::new(ErrorKind::Unsupported, "there is no floor for encrypted connections").on(SCHEME));
    }
    let address = if let Address::Tcp(host, port) = &config.address {
        ConnectionAddr::Tcp(host.clone(), *port)
    } else if let Address::Unix(path) = &config.address {
        ConnectionAddr::Unix(path.clone())
    } else {
        return Err(Error::new(ErrorKind::Unsupported, "there is no floor for this kind of address").on(SCHEME));
    };
    let mut user = RedisConnectionInfo::default().set_db(config.database.into()).set_protocol(ProtocolVersion::RESP3);
    if let Some(name) = &config.user {
        user = user.set_username(name);
    }
    if let Some(password) = &config.password {
        user = user.set_password(password);
    }
    let tcp = TcpSettings::default().set_nodelay(true);
    let info = address.into_connection_info().map_err(unconnected)?.set_redis_settings(user).set_tcp_settings(tcp);
    let patience = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(config.connect_timeout))
        .set_response_timeout(Some(Duration::from_secs(TAKE_SECONDS * 2)));
    let client = Client::open(info).map_err(unconnected)?;
    client.get_multiplexed_async_connection_with_config(&patience).await.map_err(unconnected)
}

impl Key {
    fn name(&self, name: &str) -> String {
        format!("{}floor:{name}", self.config.prefix)
    }
}

impl Floor for Key {
    fn what(&self) -> &'static str {
        "SET NX PX, and a script that deletes the key if it is ours"
    }

    fn pair(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let (key, owner) = (self.name(&name), self.owners.fetch_add(1, Ordering::Relaxed));
            let mut connection = self.connection.clone();
            let mut set = redis::cmd("SET");
            set.arg(&key).arg(owner).arg("NX").arg("PX").arg(30_000);
            let taken: bool = set.query_async(&mut connection).await.map_err(failed)?;
            let freed: bool = DELETE.key(&key).arg(owner).invoke_async(&mut connection).await.map_err(failed)?;
            if taken && freed {
                return Ok(());
            }
            Err(Error::new(ErrorKind::Foreign, "somebody else uses the key of the floor").on(SCHEME))
        })
    }

    fn rival(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<Option<Arc<dyn Rival>>>> {
        Box::pin(async move {
            let (token, laid) = (self.name(&name), self.name(&format!("{name}:laid")));
            let mut connection = connect(&self.config).await?;
            // The first to come lays the token that all of them pass on.
            let mut first = redis::cmd("SET");
            self.tokens.lock().unwrap_or_else(PoisonError::into_inner).extend([token.clone(), laid.clone()]);
            first.arg(laid).arg(1).arg("NX").arg("EX").arg(LEFT_SECONDS);
            let first: bool = first.query_async(&mut connection).await.map_err(failed)?;
            let rival = Arc::new(Token { connection, token });
            if first {
                rival.clone().give().await?;
            }
            Ok(Some(rival as Arc<dyn Rival>))
        })
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let tokens = std::mem::take(&mut *self.tokens.lock().unwrap_or_else(PoisonError::into_inner));
            if tokens.is_empty() {
                return Ok(());
            }
            redis::cmd("DEL").arg(tokens).exec_async(&mut self.connection.clone()).await.map_err(failed)
        })
    }
}

/// A list of one element, or of none while somebody has it.
struct Token {
    connection: MultiplexedConnection,
    token: String,
}

impl Token {
    async fn ask(&self, command: &Cmd) -> Result<Value> {
        self.connection.clone().send_packed_command(command).await.map_err(failed)
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
            match self.ask(&pop).await? {
                Value::Nil => Err(Error::unreachable("the token of the floor was lost").on(SCHEME)),
                _ => Ok(()),
            }
        })
    }

    fn give(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let mut push = redis::cmd("LPUSH");
            push.arg(&self.token).arg(1);
            self.ask(&push).await.map(drop)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Tls;

    #[tokio::test]
    async fn nothing_is_sent_in_the_clear_that_was_to_be_encrypted() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut config = Config::new(Address::Tcp("127.0.0.1".into(), listener.local_addr().unwrap().port()));
        config.password = Some("swordfish".into());
        config.tls = Some(Tls::default());
        let Err(refused) = open(config).await else { panic!("it has a floor") };
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
    }
}
