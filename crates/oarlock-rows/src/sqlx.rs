//! For sqlx: connections, pooled connections and transactions of PostgreSQL, MySQL and MariaDB.
//!
//! On PostgreSQL a connection, a pooled connection and a transaction are a [`Client`](crate::Client) each. On MySQL and
//! MariaDB wrap them in [`On`], which says which of the two it is: sqlx does not tell.

use sqlx::{Connection, Database, Executor, Pool, Row as _, Transaction};

pub use crate::value::Value;
use crate::{Classify, Client, Contention, Dialect, Done, Failed, Retry};

impl Classify for sqlx::Error {
    fn contention(&self) -> Option<Contention> {
        let error = self.as_database_error()?;
        #[cfg(feature = "sqlx-postgres")]
        if let Some(error) = error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>() {
            return Contention::of_postgres(error.code());
        }
        #[cfg(feature = "sqlx-mysql")]
        if let Some(error) = error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
            return Contention::of_mysql(error.number());
        }
        let _ = error;
        None
    }
}

/// A connection to MySQL or MariaDB, and which of the two it is: `On::new(&mut *tx, Dialect::MariaDb)`.
#[derive(Debug)]
pub struct On<C> {
    conn: C,
    dialect: Dialect,
}

impl<C> On<C> {
    /// This connection, which takes this SQL.
    pub fn new(conn: C, dialect: Dialect) -> Self {
        Self { conn, dialect }
    }
}

macro_rules! client {
    ($([$($life:lifetime)?] $client:ty, $database:ty, $this:ident => $conn:expr, $dialect:expr);* $(;)?) => {$(
        impl<$($life)?> Client for $client {
            type Row = <$database as Database>::Row;
            type Value = Value;
            type Error = sqlx::Error;

            fn dialect(&self) -> Dialect {
                let $this = self;
                $dialect
            }

            async fn rows(&mut self, sql: &str, values: Vec<Value>) -> Result<Vec<Self::Row>, sqlx::Error> {
                let $this = self;
                bound::<$database>(sql, values).fetch_all(&mut $conn).await
            }

            async fn execute(&mut self, sql: &str, values: Vec<Value>) -> Result<u64, sqlx::Error> {
                let $this = self;
                // Not every statement can be prepared, and one without values need not be.
                let done = if values.is_empty() {
                    Executor::execute(&mut $conn, sql).await?
                } else {
                    bound::<$database>(sql, values).execute(&mut $conn).await?
                };
                Ok(done.rows_affected())
            }

            fn last_text(row: &Self::Row) -> Option<String> {
                // Of any type: names are bytes on MySQL.
                row.try_get_unchecked(row.len().checked_sub(1)?).ok()
            }

            fn in_transaction(&self) -> bool {
                let $this = self;
                $conn.is_in_transaction()
            }
        }
    )*};
}

/// The statement with its values.
fn bound<DB: Database>(sql: &str, values: Vec<Value>) -> sqlx::query::Query<'_, DB, DB::Arguments<'_>>
where
    for<'a> String: sqlx::Encode<'a, DB> + sqlx::Type<DB>,
    for<'a> i64: sqlx::Encode<'a, DB> + sqlx::Type<DB>,
    for<'a> f64: sqlx::Encode<'a, DB> + sqlx::Type<DB>,
    for<'a> bool: sqlx::Encode<'a, DB> + sqlx::Type<DB>,
    for<'a> Vec<u8>: sqlx::Encode<'a, DB> + sqlx::Type<DB>,
{
    values.into_iter().fold(sqlx::query(sql), |query, value| match value {
        Value::Text(text) => query.bind(text),
        Value::Integer(number) => query.bind(number),
        Value::Float(number) => query.bind(number),
        Value::Bool(is) => query.bind(is),
        Value::Bytes(bytes) => query.bind(bytes),
    })
}

#[cfg(feature = "sqlx-postgres")]
client! {
    [] sqlx::PgConnection, sqlx::Postgres, this => *this, { let _ = this; Dialect::Postgres };
    [] sqlx::pool::PoolConnection<sqlx::Postgres>, sqlx::Postgres, this => **this, { let _ = this; Dialect::Postgres };
    ['a] Transaction<'a, sqlx::Postgres>, sqlx::Postgres, this => **this, { let _ = this; Dialect::Postgres };
}

#[cfg(feature = "sqlx-mysql")]
client! {
    ['a] On<&'a mut sqlx::MySqlConnection>, sqlx::MySql, this => *this.conn, this.dialect;
    [] On<sqlx::pool::PoolConnection<sqlx::MySql>>, sqlx::MySql, this => *this.conn, this.dialect;
}

/// Runs `work` in a transaction and commits it; from the beginning again when the database says that another one was in
/// the way. The pool opens a connection again that was lost. `work` gets the transaction, and gives it back with its
/// result: a future that borrowed it could not move between threads.
///
/// **`work` may run more than once.** It runs at the isolation that the connection is set to.
///
/// ```no_run
/// # #[cfg(feature = "sqlx-postgres")]
/// # async fn example(pool: sqlx::PgPool) -> Result<(), oarlock_rows::Failed<sqlx::Error>> {
/// use oarlock_rows::{Retry, sqlx::transaction};
///
/// transaction(&pool, &Retry::default(), |mut tx| async move {
///     sqlx::query("update items set stock = stock - 1 where id = 7").execute(&mut *tx).await?;
///     Ok::<_, sqlx::Error>((tx, ()))
/// })
/// .await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// That of `work`, after a rollback, or of beginning and committing. An error from the commit itself that is no
/// [`Contention`], such as a lost connection, leaves open whether it was committed; nothing is repeated then.
///
/// **An error of the database must leave `work`.** PostgreSQL has given up the transaction then: if `work` swallows the
/// error, the result is `25P02`. On MySQL and MariaDB a swallowed deadlock is not noticed.
///
/// # Cancel safety
/// When the future is dropped, the transaction is rolled back, unless it was being committed: then it may have been.
pub async fn transaction<DB, T, E, F>(
    pool: &Pool<DB>,
    retry: &Retry,
    mut work: impl FnMut(Transaction<'static, DB>) -> F,
) -> Result<Done<T>, Failed<E>>
where
    DB: Database,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    F: Future<Output = Result<(Transaction<'static, DB>, T), E>>,
    E: Classify + From<sqlx::Error>,
{
    let mut attempts = retry.begin();
    loop {
        let error = match attempt(pool, &mut work).await {
            Ok(value) => return Ok(attempts.done(value)),
            Err(error) => error,
        };
        match attempts.after(error.contention()) {
            Some(pause) => tokio::time::sleep(pause).await,
            None => return Err(attempts.failed(error)),
        }
    }
}

/// Once. A transaction that `work` does not give back is rolled back before its connection is used again.
async fn attempt<DB, T, E, F>(pool: &Pool<DB>, work: &mut impl FnMut(Transaction<'static, DB>) -> F) -> Result<T, E>
where
    DB: Database,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    F: Future<Output = Result<(Transaction<'static, DB>, T), E>>,
    E: From<sqlx::Error>,
{
    let (mut transaction, value) = work(pool.begin().await?).await?;
    // PostgreSQL calls the commit of a transaction that it gave up a success.
    Executor::execute(&mut *transaction, "select 1").await?;
    transaction.commit().await?;
    Ok(value)
}
