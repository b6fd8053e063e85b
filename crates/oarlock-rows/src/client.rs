//! What is asked of a database client: two requests, and a few words about itself.

use crate::Classify;

/// Whose SQL it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// PostgreSQL.
    Postgres,
    /// MySQL 8.
    MySql,
    /// MariaDB.
    MariaDb,
    /// SQLite.
    Sqlite,
}

/// A connection or a transaction of a database client.
///
/// It is there for `tokio_postgres`, `mysql_async`, `rusqlite`, sqlx and diesel behind features, and takes about thirty
/// lines for another one: a pool's connection, your own.
///
/// # Cancel safety
/// As that of the client: a request whose future is dropped may still be carried out.
pub trait Client {
    /// A row of an answer.
    type Row: Send;
    /// A value to send.
    type Value: Clone + From<String> + Send + Sync;
    /// What can go wrong.
    type Error: std::error::Error + Classify + Send + Sync + 'static;

    /// Whose SQL it takes.
    fn dialect(&self) -> Dialect;

    /// Sends a statement and returns its rows.
    fn rows(
        &mut self,
        sql: &str,
        values: Vec<Self::Value>,
    ) -> impl Future<Output = Result<Vec<Self::Row>, Self::Error>> + Send;

    /// Sends a statement and returns how many rows it changed.
    fn execute(&mut self, sql: &str, values: Vec<Self::Value>)
    -> impl Future<Output = Result<u64, Self::Error>> + Send;

    /// The text in the last column of a row.
    fn last_text(row: &Self::Row) -> Option<String>;

    /// Whether this is a transaction, or is inside one. Only then can rows be [locked](crate::Locked::lock): outside of
    /// one a lock ends with its statement. And nothing is sent again then after an error: the server may have undone
    /// what came before it, and only who began the transaction can run all of it again.
    ///
    /// `tokio_postgres` and `mysql_async` do not tell of a transaction that was begun by a statement: begin it with
    /// `postgres::transaction`, `mysql::transaction` or the client's own call.
    fn in_transaction(&self) -> bool {
        false
    }

    /// Whether [`rows`](Self::rows) reads what a procedure returns (`CALL`).
    fn reads_calls(&self) -> bool {
        true
    }

    /// Why rows cannot be locked here now, if so.
    fn refuses_locks(&self) -> Option<&'static str> {
        None
    }
}
