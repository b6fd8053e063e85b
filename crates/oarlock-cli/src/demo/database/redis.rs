//! Stock on Redis, one server or a cluster. It has no rows; those are in SQLite then.

use std::time::Duration;

use oarlock::url::Url;
use oarlock_stock::{Redis, Stock};
use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, RedisConnectionInfo,
};

use super::Shelves;
use crate::demo::trouble::Boxed;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(crate) struct One {
    client: Client,
    address: String,
}

#[derive(Clone)]
pub(crate) struct Many {
    client: ClusterClient,
    address: String,
}

/// Whether stock can be kept behind this URL.
pub(crate) fn is_one(url: &Url) -> bool {
    matches!(url.scheme(), "redis" | "redis+unix")
}

pub(crate) fn is_many(url: &Url) -> bool {
    url.scheme() == "redis+cluster"
}

fn infos(url: &Url) -> Result<Vec<ConnectionInfo>, Boxed> {
    let mut settings = RedisConnectionInfo::default();
    if let Some(user) = url.user().filter(|user| !user.is_empty()) {
        settings = settings.set_username(user);
    }
    if let Some(password) = url.password()? {
        settings = settings.set_password(password.reveal());
    }
    settings = settings.set_db(url.path_part("database").parse().unwrap_or_default());
    let addresses: Vec<_> = match url.hosts() {
        [] => vec![ConnectionAddr::Unix(url.path().into())],
        hosts => hosts.iter().map(|host| ConnectionAddr::Tcp(host.name.clone(), host.port)).collect(),
    };
    let info = |address: ConnectionAddr| Ok(address.into_connection_info()?.set_redis_settings(settings.clone()));
    addresses.into_iter().map(info).collect()
}

async fn remove(shelves: &impl Shelves, items: &[String]) -> Result<(), Boxed> {
    let stock = Stock::new(shelves.shelf().await?);
    for item in items {
        stock.remove(item).await?;
    }
    Ok(())
}

impl One {
    pub(crate) fn new(url: &Url) -> Result<Self, Boxed> {
        let info = infos(url)?.pop().ok_or("the URL has no host")?;
        Ok(Self { address: info.addr().to_string(), client: Client::open(info)? })
    }
}

impl Many {
    pub(crate) fn new(url: &Url) -> Result<Self, Boxed> {
        let address = url.hosts().iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        Ok(Self { client: ClusterClient::new(infos(url)?)?, address })
    }
}

impl Shelves for One {
    type Shelf = Redis<MultiplexedConnection>;

    fn what(&self) -> String {
        format!("Redis at {}", self.address)
    }

    async fn shelf(&self) -> Result<Self::Shelf, Boxed> {
        // The client's own limit of half a second is too short for a crowd on a busy machine.
        let config =
            AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE)).set_connection_timeout(Some(PATIENCE));
        Ok(Redis::new(self.client.get_multiplexed_async_connection_with_config(&config).await?))
    }

    async fn tidy(&self, items: &[String]) -> Result<(), Boxed> {
        remove(self, items).await
    }
}

impl Shelves for Many {
    type Shelf = Redis<ClusterConnection>;

    fn what(&self) -> String {
        format!("Redis Cluster at {}", self.address)
    }

    async fn shelf(&self) -> Result<Self::Shelf, Boxed> {
        Ok(Redis::new(self.client.get_async_connection().await?))
    }

    async fn tidy(&self, items: &[String]) -> Result<(), Boxed> {
        remove(self, items).await
    }
}
