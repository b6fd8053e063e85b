//! The databases, by what leads to them.

use std::path::PathBuf;
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use oarlock_rows::postgres::Cached;
use oarlock_stock::{Redis, Shelf, Sql, Stock};

/// A database that tests can run on.
pub(crate) trait TestContext: Send + Sync + 'static {
    type Shelf: Shelf;

    /// Whether `count` sees all of it at one moment.
    const AT_ONCE: bool = true;

    /// Stock over one more connection.
    async fn stock(&self) -> Stock<Self::Shelf>;
}

pub(crate) struct Pg(pub(crate) String);

impl TestContext for Pg {
    type Shelf = Sql<Cached>;

    async fn stock(&self) -> Stock<Self::Shelf> {
        let (client, connection) = tokio_postgres::connect(&self.0, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        Stock::new(Sql::new(Cached::new(client)))
    }
}

/// MariaDB or MySQL.
pub(crate) struct Maria(pub(crate) String);

impl TestContext for Maria {
    type Shelf = Sql<mysql_async::Conn>;

    async fn stock(&self) -> Stock<Self::Shelf> {
        let mut conn = mysql_async::Conn::from_url(&self.0).await.unwrap();
        conn.query_drop("set session transaction isolation level read committed").await.unwrap();
        Stock::new(Sql::new(conn))
    }
}

pub(crate) struct Lite(pub(crate) PathBuf);

impl TestContext for Lite {
    type Shelf = Sql<rusqlite::Connection>;

    async fn stock(&self) -> Stock<Self::Shelf> {
        let connection = rusqlite::Connection::open(&self.0).unwrap();
        connection.busy_timeout(Duration::from_secs(10)).unwrap();
        connection.pragma_update(None, "journal_mode", "wal").unwrap();
        connection.pragma_update(None, "synchronous", "normal").unwrap();
        Stock::new(Sql::new(connection))
    }
}

pub(crate) struct One(pub(crate) String);

impl TestContext for One {
    type Shelf = Redis<redis::aio::MultiplexedConnection>;

    const AT_ONCE: bool = false;

    async fn stock(&self) -> Stock<Self::Shelf> {
        // The client's own limit of half a second is too short for a busy machine.
        let (client, patience) = (redis::Client::open(self.0.as_str()).unwrap(), Some(Duration::from_secs(30)));
        let config =
            redis::AsyncConnectionConfig::new().set_response_timeout(patience).set_connection_timeout(patience);
        Stock::new(Redis::new(client.get_multiplexed_async_connection_with_config(&config).await.unwrap()))
    }
}

pub(crate) struct Many(pub(crate) Vec<String>);

impl TestContext for Many {
    type Shelf = Redis<redis::cluster_async::ClusterConnection>;

    const AT_ONCE: bool = false;

    async fn stock(&self) -> Stock<Self::Shelf> {
        let client = redis::cluster::ClusterClient::new(self.0.clone()).unwrap();
        Stock::new(Redis::new(client.get_async_connection().await.unwrap()))
    }
}
