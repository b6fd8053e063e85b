//! For `tokio_postgres`.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use futures_core::Stream as _;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, SimpleQueryMessage, Statement, Transaction};

use crate::{Classify, Client, Contention, Dialect, Done, Failed, Retry};

/// A value to send: anything that the client can.
#[derive(Clone)]
pub struct Value(Arc<dyn ToSql + Send + Sync>);

impl<T: ToSql + Send + Sync + 'static> From<T> for Value {
    fn from(value: T) -> Self {
        Self(Arc::new(value))
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Classify for tokio_postgres::Error {
    fn contention(&self) -> Option<Contention> {
        Contention::of_postgres(self.code()?.code())
    }
}

fn borrowed(values: &[Value]) -> Vec<&(dyn ToSql + Sync)> {
    values.iter().map(|Value(value)| &**value as &(dyn ToSql + Sync)).collect()
}

fn last_text(row: &Row) -> Option<String> {
    row.try_get(row.len().checked_sub(1)?).ok()
}

/// How many rows the last statement changed.
fn changed(messages: &[SimpleQueryMessage]) -> u64 {
    let count = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::CommandComplete(count) => Some(*count),
        _ => None,
    };
    messages.iter().rev().find_map(count).unwrap_or(0)
}

macro_rules! client {
    ($client:ty, in_transaction: $in_transaction:literal) => {
        impl Client for $client {
            type Row = Row;
            type Value = Value;
            type Error = tokio_postgres::Error;

            fn dialect(&self) -> Dialect {
                Dialect::Postgres
            }

            async fn rows(&mut self, sql: &str, values: Vec<Value>) -> Result<Vec<Row>, Self::Error> {
                let statement: Statement = self.prepare(sql).await?;
                self.query(&statement, &borrowed(&values)).await
            }

            async fn execute(&mut self, sql: &str, values: Vec<Value>) -> Result<u64, Self::Error> {
                if values.is_empty() {
                    return Ok(changed(&self.simple_query(sql).await?));
                }
                let statement: Statement = self.prepare(sql).await?;
                <$client>::execute(self, &statement, &borrowed(&values)).await
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

client!(tokio_postgres::Client, in_transaction: false);
client!(Transaction<'_>, in_transaction: true);

/// A connection that prepares each statement once and keeps it: one round trip a statement instead of two. For
/// connections that live long and always send the same few.
///
/// A statement that the server refuses because its table was altered (`0A000`) fails once, and is prepared anew the
/// next time.
#[derive(Debug)]
pub struct Cached {
    client: tokio_postgres::Client,
    statements: HashMap<String, Statement>,
}

impl Cached {
    /// Nothing is prepared yet.
    #[must_use]
    pub fn new(client: tokio_postgres::Client) -> Self {
        Self { client, statements: HashMap::new() }
    }

    async fn statement(&mut self, sql: &str) -> Result<Statement, tokio_postgres::Error> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql).await?;
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    /// Forgets a statement that the server will refuse for ever: its table was altered, or the server has forgotten it.
    fn checked<T>(&mut self, sql: &str, answer: Result<T, tokio_postgres::Error>) -> Result<T, tokio_postgres::Error> {
        let code = answer.as_ref().err().and_then(tokio_postgres::Error::code);
        if code
            .is_some_and(|code| [SqlState::FEATURE_NOT_SUPPORTED, SqlState::INVALID_SQL_STATEMENT_NAME].contains(code))
        {
            self.statements.remove(sql);
        }
        answer
    }
}

impl Client for Cached {
    type Row = Row;
    type Value = Value;
    type Error = tokio_postgres::Error;

    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    async fn rows(&mut self, sql: &str, values: Vec<Value>) -> Result<Vec<Row>, Self::Error> {
        let statement = self.statement(sql).await?;
        let answer = self.client.query(&statement, &borrowed(&values)).await;
        self.checked(sql, answer)
    }

    async fn execute(&mut self, sql: &str, values: Vec<Value>) -> Result<u64, Self::Error> {
        if values.is_empty() {
            return Client::execute(&mut self.client, sql, values).await;
        }
        let statement = self.statement(sql).await?;
        let answer = self.client.execute(&statement, &borrowed(&values)).await;
        self.checked(sql, answer)
    }

    fn last_text(row: &Row) -> Option<String> {
        last_text(row)
    }
}

/// Runs `work` in a transaction and commits it; from the beginning again when the database says that another one was in
/// the way.
///
/// **`work` may run more than once.** It runs at the isolation that the connection is set to.
///
/// # Errors
/// That of `work`, after a rollback, or of beginning and committing. An error from the commit itself that is no
/// [`Contention`], such as a lost connection, leaves open whether it was committed; nothing is repeated then.
///
/// An error of the database must leave `work`, or the savepoint in which it happened: the server has given up the whole
/// transaction. If `work` swallows it, the error is `25P02`, nothing was committed, and nothing is rerun.
///
/// # Cancel safety
/// When the future is dropped, the transaction is rolled back, unless it was being committed: then it may have been.
pub async fn transaction<T, E, F>(
    client: &mut tokio_postgres::Client,
    retry: &Retry,
    mut work: F,
) -> Result<Done<T>, Failed<E>>
where
    F: AsyncFnMut(&mut Transaction<'_>) -> Result<T, E>,
    E: Classify + From<tokio_postgres::Error>,
{
    // A loop of its own: through the closure of `Retry::run` the compiler cannot see that the future may move between
    // threads.
    let mut attempts = retry.begin();
    loop {
        let tried = async {
            let mut transaction = client.transaction().await?;
            let value = work(&mut transaction).await?;
            commit(transaction).await?;
            Ok(value)
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

/// The server gives up a transaction at the first error, but calls its commit a success all the same.
async fn commit(transaction: Transaction<'_>) -> Result<(), tokio_postgres::Error> {
    // On its way together with the commit, and refused if the transaction was given up.
    let mut asked = pin!(transaction.client().simple_query_raw("select 1").await?);
    let mut commit = pin!(transaction.commit());
    let (mut committed, mut answered) = (None, None);
    // Both at once: the server may never send the second answer to a client that does not read the first.
    poll_fn(|cx| {
        while answered.is_none()
            && let Poll::Ready(answer) = asked.as_mut().poll_next(cx)
        {
            match answer {
                Some(Ok(_)) => {}
                Some(Err(error)) => answered = Some(Err(error)),
                None => answered = Some(Ok(())),
            }
        }
        if committed.is_none()
            && let Poll::Ready(answer) = commit.as_mut().poll(cx)
        {
            committed = Some(answer);
        }
        if committed.is_some() && answered.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    committed.unwrap_or(Ok(())).and_then(|()| answered.unwrap_or(Ok(())))
}
