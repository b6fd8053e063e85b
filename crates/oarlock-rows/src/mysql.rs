//! For `mysql_async`.

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, FromValueError, Params, Row, Transaction, TxOpts, Value};

use crate::{Classify, Client, Contention, Dialect, Done, Failed, Retry};

impl Classify for mysql_async::Error {
    fn contention(&self) -> Option<Contention> {
        match self {
            Self::Server(error) => Contention::of_mysql(error.code),
            _ => None,
        }
    }
}

fn params(values: Vec<Value>) -> Params {
    if values.is_empty() { Params::Empty } else { Params::Positional(values) }
}

fn last_text(row: &Row) -> Option<String> {
    let text: Result<String, FromValueError> = row.get_opt(row.len().checked_sub(1)?)?;
    text.ok()
}

/// MariaDB says that it is MySQL 10 or later, which MySQL itself is not.
fn dialect((major, ..): (u16, u16, u16)) -> Dialect {
    if major >= 10 { Dialect::MariaDb } else { Dialect::MySql }
}

macro_rules! client {
    ($client:ty, in_transaction: $in_transaction:literal) => {
        impl Client for $client {
            type Row = Row;
            type Value = Value;
            type Error = mysql_async::Error;

            fn dialect(&self) -> Dialect {
                dialect(self.server_version())
            }

            async fn rows(&mut self, sql: &str, values: Vec<Value>) -> Result<Vec<Row>, Self::Error> {
                match params(values) {
                    Params::Empty => self.query(sql).await,
                    values => self.exec(sql, values).await,
                }
            }

            async fn execute(&mut self, sql: &str, values: Vec<Value>) -> Result<u64, Self::Error> {
                // Not every statement can be prepared, and one without values need not be.
                match params(values) {
                    Params::Empty => self.query_drop(sql).await?,
                    values => self.exec_drop(sql, values).await?,
                }
                Ok(self.affected_rows())
            }

            fn last_text(row: &Row) -> Option<String> {
                last_text(row)
            }

            fn in_transaction(&self) -> bool {
                $in_transaction
            }
        }
    };
}

client!(Conn, in_transaction: false);
client!(Transaction<'_>, in_transaction: true);

/// Runs `work` in a transaction and commits it; from the beginning again when the database says that another one was in
/// the way.
///
/// **`work` may run more than once.** It runs at the isolation that the connection is set to.
///
/// # Errors
/// That of `work`, after a rollback, or of beginning and committing. An error from the commit itself that is no
/// [`Contention`], such as a lost connection, leaves open whether it was committed; nothing is repeated then.
///
/// **An error of the database must leave `work`.** After a deadlock the server has undone the whole transaction, and
/// whatever `work` does next is committed by itself; after a wait that was over it has undone only the statement. This
/// client does not tell, so if `work` swallows such an error, half of the work may be kept and called a success.
///
/// # Cancel safety
/// When the future is dropped, the transaction is rolled back before the connection is used again, unless it was being
/// committed: then it may have been.
pub async fn transaction<T, E, F>(conn: &mut Conn, retry: &Retry, mut work: F) -> Result<Done<T>, Failed<E>>
where
    F: AsyncFnMut(&mut Transaction<'_>) -> Result<T, E>,
    E: Classify + From<mysql_async::Error>,
{
    // A loop of its own: through the closure of `Retry::run` the compiler cannot see that the future may move between
    // threads.
    let mut attempts = retry.begin();
    loop {
        let tried = async {
            let mut transaction = conn.start_transaction(TxOpts::default()).await?;
            match work(&mut transaction).await {
                Ok(value) => {
                    transaction.commit().await?;
                    Ok(value)
                }
                // The server ends only the statement when a wait was over: what came before it must not be kept.
                Err(error) => {
                    transaction.rollback().await?;
                    Err(error)
                }
            }
        };
        let error: E = match tried.await {
            Ok(value) => return Ok(attempts.done(value)),
            Err(error) => error,
        };
        match attempts.after(error.contention()) {
            Some(pause) => tokio::time::sleep(pause).await,
            None => return Err(attempts.failed(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mariadb_is_told_by_its_number() {
        assert_eq!(dialect((10, 11, 6)), Dialect::MariaDb);
        assert_eq!(dialect((11, 4, 2)), Dialect::MariaDb);
        assert_eq!(dialect((8, 4, 0)), Dialect::MySql);
        assert_eq!(dialect((9, 1, 0)), Dialect::MySql);
    }
}
