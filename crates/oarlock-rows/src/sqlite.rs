//! For `rusqlite`. Requests block the thread for as long as SQLite takes, at most its `busy_timeout`.

use rusqlite::types::Value;
use rusqlite::{Connection, Transaction, TransactionBehavior, TransactionState, params_from_iter};

use crate::{Classify, Client, Contention, Dialect, Done, Failed, Retry};

/// A row, as the names and values of its columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    columns: Vec<(String, Value)>,
}

impl Row {
    /// The value of a column, if there is one of this name.
    #[must_use]
    pub fn get(&self, column: &str) -> Option<&Value> {
        self.columns.iter().find(|(name, _)| name == column).map(|(_, value)| value)
    }

    /// The whole number in a column, if there is one.
    #[must_use]
    pub fn integer(&self, column: &str) -> Option<i64> {
        match self.get(column)? {
            Value::Integer(number) => Some(*number),
            _ => None,
        }
    }
}

impl Classify for rusqlite::Error {
    fn contention(&self) -> Option<Contention> {
        Contention::of_sqlite(self.sqlite_error()?.extended_code)
    }
}

fn rows(connection: &Connection, sql: &str, values: Vec<Value>) -> Result<Vec<Row>, rusqlite::Error> {
    let mut statement = connection.prepare_cached(sql)?;
    let names: Vec<_> = statement.column_names().map(str::to_owned).collect();
    let mut found = statement.query(params_from_iter(values))?;
    let mut rows = Vec::new();
    while let Some(row) = found.next()? {
        let columns = names.iter().enumerate().map(|(at, name)| Ok((name.clone(), row.get(at)?)));
        rows.push(Row { columns: columns.collect::<Result<_, rusqlite::Error>>()? });
    }
    Ok(rows)
}

fn execute(connection: &Connection, sql: &str, values: Vec<Value>) -> Result<u64, rusqlite::Error> {
    let changed = connection.prepare_cached(sql)?.execute(params_from_iter(values))?;
    Ok(changed as u64)
}

macro_rules! client {
    ($client:ty) => {
        impl Client for $client {
            type Row = Row;
            type Value = Value;
            type Error = rusqlite::Error;

            fn dialect(&self) -> Dialect {
                Dialect::Sqlite
            }

            fn rows(
                &mut self, sql: &str, values: Vec<Value>,
            ) -> impl Future<Output = Result<Vec<Row>, Self::Error>> + Send {
                std::future::ready(rows(self, sql, values))
            }

            fn execute(
                &mut self, sql: &str, values: Vec<Value>,
            ) -> impl Future<Output = Result<u64, Self::Error>> + Send {
                std::future::ready(execute(self, sql, values))
            }

            fn last_text(row: &Row) -> Option<String> {
                match row.columns.last() {
                    Some((_, Value::Text(text))) => Some(text.clone()),
                    _ => None,
                }
            }

            fn in_transaction(&self) -> bool {
                !self.is_autocommit()
            }

            fn refuses_locks(&self) -> Option<&'static str> {
                match self.transaction_state(None::<&str>) {
                    Ok(TransactionState::Write) => None,
                    _ => Some("SQLite has no locks on rows: begin the transaction as a writing one, with `sqlite::transaction`"),
                }
            }
        }
    };
}

client!(Connection);
client!(Transaction<'_>);

/// Runs `work` in a transaction that is alone in writing from its beginning, and commits it; again when another one was
/// in the way.
///
/// **`work` may run more than once.** The future cannot move between threads, as the transaction cannot. How long the
/// beginning waits for another writer is the connection's `busy_timeout`.
///
/// # Errors
/// That of `work`, after a rollback, or of beginning and committing.
///
/// # Cancel safety
/// When the future is dropped, the transaction is rolled back.
pub async fn transaction<T, E, F>(connection: &mut Connection, retry: &Retry, mut work: F) -> Result<Done<T>, Failed<E>>
where
    F: AsyncFnMut(&mut Transaction<'_>) -> Result<T, E>,
    E: Classify + From<rusqlite::Error>,
{
    retry
        .run(async || {
            let mut transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let value = work(&mut transaction).await?;
            transaction.commit()?;
            Ok(value)
        })
        .await
}
