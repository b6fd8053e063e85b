//! The databases, by what leads to them.

use std::path::PathBuf;
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use oarlock_rows::postgres::Cached;
use oarlock_stock::{Shelf, Sql, Stock};

/// A database that tests can run on.
pub(crate) trait Bed: Send + Sync + 'static {
    type Shelf: Shelf;

    /// Stock over one more connection.
    async fn stock(&self) -> Stock<Self::Shelf>;
}

pub(crate) struct Pg(pub(crate) String);

impl Bed for Pg {
    type Shelf = Sql<Cached>;

    async fn stock(&self) -> Stock<Self::Shelf> {
        let (client, connection) = tokio_postgres::connect(&self.0, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        Stock::new(Sql::new(Cached::new(client)))
    }
}

pub(crate) struct Maria(pub(crate) String);

impl Bed for Maria {
    type Shelf = Sql<mysql_async::Conn>;

    async fn stock(&self) -> Stock<Self::Shelf> {
        let mut conn = mysql_async::Conn::from_url(&self.0).await.unwrap();
        conn.query_drop("set session transaction isolation level read committed").await.unwrap();
        Stock::new(Sql::new(conn))
    }
}

pub(crate) struct Lite(pub(crate) PathBuf);

impl Bed for Lite {
    type Shelf = Sql<rusqlite::Connection>;

    async fn stock(&self) -> Stock<Self::Shelf> {
        let connection = rusqlite::Connection::open(&self.0).unwrap();
        connection.busy_timeout(Duration::from_secs(10)).unwrap();
        connection.pragma_update(None, "journal_mode", "wal").unwrap();
        connection.pragma_update(None, "synchronous", "normal").unwrap();
        Stock::new(Sql::new(connection))
    }
}
