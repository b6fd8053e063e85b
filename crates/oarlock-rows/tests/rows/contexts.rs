//! The databases, each with a table of four items: an identifier, a stock, a version and a time.

use mysql_async::prelude::Queryable as _;
use oarlock_rows::Client;
use oarlock_testbed::{Flavour, Postgres, SqlServer};

/// A database that tests can run on.
pub(crate) trait TestContext: Sized {
    type Conn: Client<Value: From<i64>> + Send;

    /// The database, or `None` when it is skipped.
    async fn start() -> Option<Self>;

    /// One more connection.
    async fn conn(&self) -> Self::Conn;

    /// A whole number of a row.
    fn int(row: &<Self::Conn as Client>::Row, column: &str) -> i64;
}

/// Makes the items anew, each with this stock.
pub(crate) async fn restock<C: Client<Value: From<i64>>>(conn: &mut C, stock: i64) {
    let time = match conn.dialect() {
        oarlock_rows::Dialect::Postgres => "timestamptz not null default now()",
        oarlock_rows::Dialect::Sqlite => "text not null default '2026-01-01 00:00:00.000'",
        _ => "datetime(6) not null default now(6)",
    };
    let table = format!(
        "create table items (id bigint primary key, stock bigint not null, version bigint not null default 1, changed {time})"
    );
    for sql in ["drop table if exists items", &table] {
        conn.execute(sql, Vec::new()).await.unwrap();
    }
    // Backwards, so that the order of keys is not the order they lie in.
    for id in (1..=4).rev() {
        let row = format!("insert into items (id, stock) values ({id}, {stock})");
        conn.execute(&row, Vec::new()).await.unwrap();
    }
}

/// What there is of each item.
pub(crate) async fn stocks<B: TestContext>(conn: &mut B::Conn) -> Vec<i64> {
    let rows = conn.rows("select * from items order by id", Vec::new()).await.unwrap();
    rows.iter().map(|row| B::int(row, "stock")).collect()
}

pub(crate) struct Pg(Postgres);

impl TestContext for Pg {
    type Conn = tokio_postgres::Client;

    async fn start() -> Option<Self> {
        Postgres::start_or_skip().unwrap().map(Self)
    }

    async fn conn(&self) -> tokio_postgres::Client {
        let (client, connection) = tokio_postgres::connect(&self.0.url(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    fn int(row: &tokio_postgres::Row, column: &str) -> i64 {
        row.get(column)
    }
}

/// MariaDB, or MySQL.
pub(crate) struct Sql<const IS_MYSQL: bool>(SqlServer);

pub(crate) type Maria = Sql<false>;
pub(crate) type My = Sql<true>;

impl<const IS_MYSQL: bool> TestContext for Sql<IS_MYSQL> {
    type Conn = mysql_async::Conn;

    async fn start() -> Option<Self> {
        let flavour = if IS_MYSQL { Flavour::MySql } else { Flavour::MariaDb };
        SqlServer::start_with_or_skip(flavour, &[]).unwrap().map(Self)
    }

    async fn conn(&self) -> mysql_async::Conn {
        let mut conn = mysql_async::Conn::from_url(self.0.url()).await.unwrap();
        conn.query_drop("set session transaction isolation level read committed").await.unwrap();
        conn
    }

    fn int(row: &mysql_async::Row, column: &str) -> i64 {
        row.get(column).unwrap()
    }
}

pub(crate) struct Lite(tempfile::TempDir);

impl TestContext for Lite {
    type Conn = rusqlite::Connection;

    async fn start() -> Option<Self> {
        let context = Self(tempfile::tempdir().unwrap());
        context.conn().await.pragma_update(None, "journal_mode", "wal").unwrap();
        Some(context)
    }

    async fn conn(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.0.path().join("shop.db")).unwrap()
    }

    fn int(row: &oarlock_rows::sqlite::Row, column: &str) -> i64 {
        row.integer(column).unwrap()
    }
}
