//! For diesel, whose connections block: call this in a program without async, or inside `spawn_blocking`.
//!
//! diesel has row locks of its own (`for_update()`, `skip_locked()`, `no_wait()`). What it lacks is here: which errors
//! mean that another transaction was in the way, a transaction that is rerun then, and a limit for the wait.
//! [`Postgres`] makes a connection a [`Client`], for stock inside a transaction.

use std::fmt;
use std::time::Duration;

use diesel::connection::{LoadConnection, TransactionManager as _};
use diesel::pg::Pg;
use diesel::query_builder::QueryFragment;
use diesel::result::{DatabaseErrorKind, Error};
use diesel::row::{Field as _, NamedRow};
use diesel::sql_types::{BigInt, Text};
use diesel::{Connection, QueryableByName, RunQueryDsl as _, deserialize, sql_query};

use crate::{Classify, Client, Contention, Dialect, Done, Failed, Retry};

/// What the servers say, where diesel does not pass on their code. PostgreSQL says it in the language of `lc_messages`:
/// leave that at `C` or English.
const SAID: [(&str, Contention); 8] = [
    ("deadlock detected", Contention::Deadlock),
    ("could not obtain lock on", Contention::Busy),
    ("canceling statement due to lock timeout", Contention::Busy),
    ("Deadlock found when trying to get lock", Contention::Deadlock),
    ("Lock wait timeout exceeded", Contention::Busy),
    ("NOWAIT is set", Contention::Busy),
    ("Record has changed since last read", Contention::Stale),
    ("database is locked", Contention::Busy),
];

impl Classify for Error {
    fn contention(&self) -> Option<Contention> {
        match self {
            // MySQL's deadlock is this kind, too.
            Self::DatabaseError(DatabaseErrorKind::SerializationFailure, said) => {
                Some(said_by(said.message()).unwrap_or(Contention::Stale))
            }
            // Only where diesel knows no better: a message may quote what a user wrote.
            Self::DatabaseError(DatabaseErrorKind::Unknown, said) => said_by(said.message()),
            Self::RollbackErrorOnCommit { commit_error, .. } => commit_error.contention(),
            _ => None,
        }
    }
}

fn said_by(message: &str) -> Option<Contention> {
    SAID.iter().find(|(text, _)| message.contains(text)).map(|(_, is)| *is)
}

/// Runs `work` in a transaction and commits it; from the beginning again when the database says that another one was in
/// the way.
///
/// **`work` may run more than once.** An error of the database must leave it: if it swallows one on PostgreSQL, the server
/// has given up the transaction, and the result is an error. It blocks, also for the pauses.
///
/// # Errors
/// That of `work`, after a rollback, or of beginning and committing. [`Error::AlreadyInTransaction`] inside another
/// transaction: only the whole of it can be rerun.
pub fn transaction<C: Connection, T, E: Classify + From<Error>>(
    conn: &mut C,
    retry: &Retry,
    mut work: impl FnMut(&mut C) -> Result<T, E>,
) -> Result<Done<T>, Failed<E>> {
    let mut attempts = retry.begin();
    if in_transaction(conn) {
        return Err(attempts.failed(Error::AlreadyInTransaction.into()));
    }
    loop {
        let whole = |conn: &mut C| {
            let value = work(conn)?;
            // PostgreSQL calls the commit of a transaction that it gave up a success.
            conn.batch_execute("select 1")?;
            Ok(value)
        };
        let error: E = match conn.transaction(whole) {
            Ok(value) => return Ok(attempts.done(value)),
            Err(error) => error,
        };
        match attempts.after(error.contention()) {
            Some(pause) => std::thread::sleep(pause),
            None => return Err(attempts.failed(error)),
        }
    }
}

/// Limits how long a statement waits for a row that another transaction has locked: until the end of the transaction on
/// PostgreSQL, and for the whole session on MySQL and MariaDB, in whole seconds there.
///
/// # Errors
/// The connection's own; outside of a transaction on PostgreSQL, where it would have no effect.
pub fn wait_up_to<C: Connection>(conn: &mut C, dialect: Dialect, limit: Duration) -> Result<(), Error> {
    if dialect == Dialect::Postgres && !in_transaction(conn) {
        return Err(Error::NotInTransaction);
    }
    match crate::pessimistic::limit(dialect, crate::Wait::UpTo(limit)) {
        Some((statement, _)) => conn.batch_execute(&statement),
        // MariaDB names the limit in the statement that locks.
        None => {
            conn.batch_execute(&format!("set innodb_lock_wait_timeout = {}", crate::pessimistic::seconds(limit).max(1)))
        }
    }
}

fn in_transaction<C: Connection>(conn: &mut C) -> bool {
    let status = C::TransactionManager::transaction_manager_status_mut(conn);
    status.transaction_depth().is_ok_and(|depth| depth.is_some())
}

/// A connection of diesel to PostgreSQL as a [`Client`]: its futures never wait, because the connection blocks.
///
/// A row is the text of its last column: this is for `oarlock_stock::inside`. Read rows of your own with diesel.
pub struct Postgres<'a, C> {
    conn: &'a mut C,
    in_transaction: bool,
}

impl<'a, C: Connection> Postgres<'a, C> {
    /// This connection.
    pub fn new(conn: &'a mut C) -> Self {
        let in_transaction = in_transaction(conn);
        Self { conn, in_transaction }
    }
}

impl<C> fmt::Debug for Postgres<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("in_transaction", &self.in_transaction).finish_non_exhaustive()
    }
}

/// A value to send.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// Text.
    Text(String),
    /// A whole number.
    Integer(i64),
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

/// The text of the last column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastText(Option<String>);

impl QueryableByName<Pg> for LastText {
    fn build<'a>(row: &impl NamedRow<'a, Pg>) -> deserialize::Result<Self> {
        let field = row.field_count().checked_sub(1).and_then(|last| diesel::row::Row::get(row, last));
        let value = field.as_ref().and_then(|field| field.value());
        Ok(Self(value.map(|value| String::from_utf8(value.as_bytes().to_vec())).transpose()?))
    }
}

/// The statement with its values.
fn bound(
    sql: &str,
    values: Vec<Value>,
) -> diesel::query_builder::BoxedSqlQuery<'_, Pg, diesel::query_builder::SqlQuery> {
    values.into_iter().fold(sql_query(sql).into_boxed(), |query, value| match value {
        Value::Text(text) => query.bind::<Text, _>(text),
        Value::Integer(number) => query.bind::<BigInt, _>(number),
    })
}

impl<C: LoadConnection<Backend = Pg> + Send> Client for Postgres<'_, C>
where
    for<'q> diesel::query_builder::BoxedSqlQuery<'q, Pg, diesel::query_builder::SqlQuery>: QueryFragment<Pg>,
{
    type Row = LastText;
    type Value = Value;
    type Error = Error;

    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    async fn rows(&mut self, sql: &str, values: Vec<Value>) -> Result<Vec<LastText>, Error> {
        bound(sql, values).load(self.conn)
    }

    async fn execute(&mut self, sql: &str, values: Vec<Value>) -> Result<u64, Error> {
        let changed = bound(sql, values).execute(self.conn)?;
        Ok(u64::try_from(changed).unwrap_or(u64::MAX))
    }

    fn last_text(row: &LastText) -> Option<String> {
        row.0.clone()
    }

    fn in_transaction(&self) -> bool {
        self.in_transaction
    }
}
