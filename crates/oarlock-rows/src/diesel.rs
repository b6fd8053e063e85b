//! For diesel, whose connections block: call this in a program without async, or inside `spawn_blocking`.
//!
//! diesel has row locks of its own (`for_update()`, `skip_locked()`, `no_wait()`). What it lacks is here: which errors
//! mean that another transaction was in the way, a transaction that is rerun then, and a limit for the wait.
//! [`Postgres`] and [`MySql`] make a connection a [`Client`], for [`Versioned`](crate::Versioned),
//! [`Locked`](crate::Locked) and stock.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use diesel::backend::Backend;
use diesel::connection::{LoadConnection, SimpleConnection as _, TransactionManager as _};
use diesel::mysql::Mysql;
use diesel::pg::Pg;
use diesel::query_builder::{BoxedSqlQuery, SqlQuery};
use diesel::result::{DatabaseErrorKind, Error};
use diesel::row::{Field as _, NamedRow};
use diesel::sql_types::{BigInt, Binary, Bool, Double, Text};
use diesel::{Connection, QueryableByName, RunQueryDsl as _, deserialize, sql_query};

pub use crate::value::Value;
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

/// A row, read as `R`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row<R> {
    columns: R,
    last: Option<String>,
}

impl<R> Row<R> {
    /// What was read.
    pub fn into_inner(self) -> R {
        self.columns
    }
}

impl<R> Deref for Row<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.columns
    }
}

/// Stands for a row whose columns are not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unread;

impl<DB: Backend> QueryableByName<DB> for Unread {
    fn build<'a>(_: &impl NamedRow<'a, DB>) -> deserialize::Result<Self> {
        Ok(Self)
    }
}

/// What MySQL says of a statement that begins or ends a transaction: diesel prepares all but those of a batch.
const NOT_PREPARED: &str = "not supported in the prepared statement protocol";

macro_rules! client {
    ($(#[$doc:meta])* $client:ident, $backend:ty) => {
        $(#[$doc])*
        pub struct $client<C, R = Unread> {
            conn: C,
            dialect: Dialect,
            in_transaction: bool,
            reads: PhantomData<fn() -> R>,
        }

        impl<C, R> $client<C, R> {
            /// The same connection, whose rows are read as `T`.
            pub fn reading<T: QueryableByName<$backend>>(self) -> $client<C, T> {
                let Self { conn, dialect, in_transaction, .. } = self;
                $client { conn, dialect, in_transaction, reads: PhantomData }
            }

            /// The statement with its values.
            fn bound(sql: &str, values: Vec<Value>) -> BoxedSqlQuery<'_, $backend, SqlQuery> {
                values.into_iter().fold(sql_query(sql).into_boxed(), |query, value| match value {
                    Value::Text(text) => query.bind::<Text, _>(text),
                    Value::Integer(number) => query.bind::<BigInt, _>(number),
                    Value::Float(number) => query.bind::<Double, _>(number),
                    Value::Bool(is) => query.bind::<Bool, _>(is),
                    Value::Bytes(bytes) => query.bind::<Binary, _>(bytes),
                })
            }
        }

        impl<C, R> fmt::Debug for $client<C, R> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut debug = f.debug_struct(stringify!($client));
                debug.field("in_transaction", &self.in_transaction).finish_non_exhaustive()
            }
        }

        impl<R: QueryableByName<$backend>> QueryableByName<$backend> for Row<R> {
            fn build<'a>(row: &impl NamedRow<'a, $backend>) -> deserialize::Result<Self> {
                let field = row.field_count().checked_sub(1).and_then(|last| diesel::row::Row::get(row, last));
                let value = field.as_ref().and_then(|field| field.value());
                // Only statements of this crate need it, and theirs is text.
                let last = value.and_then(|value| String::from_utf8(value.as_bytes().to_vec()).ok());
                Ok(Self { columns: R::build(row)?, last })
            }
        }

        impl<C, R> Client for $client<C, R>
        where
            C: DerefMut<Target: LoadConnection<Backend = $backend>> + Send,
            R: QueryableByName<$backend> + Send + 'static,
        {
            type Row = Row<R>;
            type Value = Value;
            type Error = Error;

            fn dialect(&self) -> Dialect {
                self.dialect
            }

            async fn rows(&mut self, sql: &str, values: Vec<Value>) -> Result<Vec<Row<R>>, Error> {
                Self::bound(sql, values).load(&mut *self.conn)
            }

            async fn execute(&mut self, sql: &str, values: Vec<Value>) -> Result<u64, Error> {
                let is_plain = values.is_empty();
                match Self::bound(sql, values).execute(&mut *self.conn) {
                    // A statement that changes rows can always be prepared.
                    Err(Error::DatabaseError(_, said)) if is_plain && said.message().contains(NOT_PREPARED) => {
                        self.conn.batch_execute(sql).map(|()| 0)
                    }
                    changed => changed.map(|changed| u64::try_from(changed).unwrap_or(u64::MAX)),
                }
            }

            fn last_text(row: &Row<R>) -> Option<String> {
                row.last.clone()
            }

            fn in_transaction(&self) -> bool {
                self.in_transaction
            }

            // diesel expects to know the columns before a procedure has run.
            fn reads_calls(&self) -> bool {
                false
            }
        }
    };
}

client! {
    /// A connection of diesel to PostgreSQL as a [`Client`]: borrowed, as inside a transaction, or owned, as from a pool.
    /// Its futures never wait, because the connection blocks.
    Postgres, Pg
}

client! {
    /// A connection of diesel to MySQL or MariaDB as a [`Client`]: borrowed, as inside a transaction, or owned, as from a
    /// pool. Its futures never wait, because the connection blocks.
    MySql, Mysql
}

impl<C: DerefMut<Target: Connection<Backend = Pg>>> Postgres<C> {
    /// This connection. Whether it is in a transaction is looked at now.
    pub fn new(mut conn: C) -> Self {
        let in_transaction = in_transaction(&mut *conn);
        Self { conn, dialect: Dialect::Postgres, in_transaction, reads: PhantomData }
    }
}

impl<C: DerefMut<Target: Connection<Backend = Mysql>>> MySql<C> {
    /// This connection, and which of the two servers it is: diesel does not tell. Whether it is in a transaction is looked
    /// at now.
    pub fn new(mut conn: C, dialect: Dialect) -> Self {
        let in_transaction = in_transaction(&mut *conn);
        Self { conn, dialect, in_transaction, reads: PhantomData }
    }
}
