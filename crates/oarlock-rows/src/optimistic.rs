//! Optimistic locking: no transaction waits, and the second one learns that it came second.

use crate::sql::{as_text, later, place, quoted, time_as_text};
use crate::{Classify, Client, Dialect, Done, Error, Failed, Retry};

/// What tells one state of a row from the next.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Version {
    /// A column of whole numbers, counted up by each change.
    Integer(String),
    /// A column of times, always moved forward. It must keep microseconds on PostgreSQL (any `timestamp`), MySQL and
    /// MariaDB (`datetime(6)`), and be text with milliseconds on SQLite: two changes in one tick would look like one.
    /// On MySQL and MariaDB not `timestamp(6)`: connections with different time zones show it differently.
    Timestamp(String),
    /// PostgreSQL's own `xmin`, the transaction that wrote the row: no column is needed, and changes of those who know
    /// nothing of versions are seen too. It cannot tell two changes of one transaction apart.
    Xmin,
}

impl Version {
    /// A column of whole numbers.
    #[must_use]
    pub fn integer(column: &str) -> Self {
        Self::Integer(column.to_owned())
    }

    /// A column of times.
    #[must_use]
    pub fn timestamp(column: &str) -> Self {
        Self::Timestamp(column.to_owned())
    }
}

/// What is to become of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<V> {
    /// These columns get these values, and the version moves on.
    Set(Vec<(String, V)>),
    /// It is deleted.
    Delete,
    /// It stays as it is.
    Leave,
}

impl<V> Change<V> {
    /// One column.
    #[must_use]
    pub fn set(column: &str, value: impl Into<V>) -> Self {
        Self::Set(vec![(column.to_owned(), value.into())])
    }

    /// One more column. A row that was to be deleted or left is changed instead.
    #[must_use]
    pub fn and(self, column: &str, value: impl Into<V>) -> Self {
        let mut columns = match self {
            Self::Set(columns) => columns,
            Self::Delete | Self::Leave => Vec::new(),
        };
        columns.push((column.to_owned(), value.into()));
        Self::Set(columns)
    }
}

/// What became of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It was changed.
    Changed,
    /// It was deleted.
    Deleted,
    /// It was left as it is.
    Left,
    /// There is no such row.
    Missing,
}

/// A row and the version at which it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen<R> {
    /// All columns of the table, and the version as text behind them.
    pub row: R,
    /// The version.
    pub version: String,
}

/// A table whose rows have versions.
///
/// ```no_run
/// # #[cfg(feature = "postgres")]
/// # async fn example(mut client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use oarlock_rows::{Change, Retry, Version, Versioned};
///
/// let items = Versioned::new("items", "id", Version::integer("version"));
/// let done = items
///     .modify(&mut client, 7_i64, &Retry::default(), |row| match row.get::<_, i32>("stock") {
///         0 => Change::Leave,
///         left => Change::set("stock", left - 1),
///     })
///     .await?;
/// println!("{:?} after {} conflicts", done.value, done.conflicts);
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
/// A change or a deletion takes effect only on the very state that was read: both are one statement that names key and
/// version. That holds against every writer that moves the version too; a writer that does not move it is not seen,
/// except with [`Version::Xmin`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    table: String,
    key: String,
    version: Version,
}

impl Versioned {
    /// The rows of a table, by one column that names each of them. `schema.table` is taken apart at the dot.
    #[must_use]
    pub fn new(table: &str, key: &str, version: Version) -> Self {
        Self { table: table.to_owned(), key: key.to_owned(), version }
    }

    /// The row, with its version.
    ///
    /// # Errors
    /// The client's own, and [`Error::Refused`] where this database has no such version, or this row has none (`NULL`).
    pub async fn read<C: Client>(
        &self,
        client: &mut C,
        key: impl Into<C::Value>,
    ) -> Result<Option<Seen<C::Row>>, Error<C::Row, C::Error>> {
        let dialect = client.dialect();
        let (table, column) = (quoted(dialect, &self.table), quoted(dialect, &self.key));
        let version = self.as_text(dialect)?;
        let sql = format!("select {table}.*, {version} from {table} where {column} = {}", place(dialect, 1));
        let Some(row) = client.rows(&sql, vec![key.into()]).await?.into_iter().next() else { return Ok(None) };
        let version = C::last_text(&row).ok_or_else(|| Error::Refused("the row has no version".to_owned()))?;
        Ok(Some(Seen { row, version }))
    }

    /// Changes the row if it is still at this version.
    ///
    /// # Errors
    /// [`Error::Conflict`] with the row as it is now, if it is not; otherwise as [`Versioned::read`].
    ///
    /// # Cancel safety
    /// When the future is dropped, the change may have been made, and wholly.
    pub async fn update<C: Client>(
        &self,
        client: &mut C,
        key: impl Into<C::Value>,
        version: &str,
        columns: Vec<(String, C::Value)>,
    ) -> Result<(), Error<C::Row, C::Error>> {
        let (key, statement) = (key.into(), self.update_statement(client.dialect(), columns)?);
        match self.write(client, statement, key.clone(), version).await? {
            true => Ok(()),
            false => Err(self.conflict(client, key).await),
        }
    }

    /// Deletes the row if it is still at this version.
    ///
    /// # Errors
    /// As [`Versioned::update`].
    ///
    /// # Cancel safety
    /// As [`Versioned::update`].
    pub async fn delete<C: Client>(
        &self,
        client: &mut C,
        key: impl Into<C::Value>,
        version: &str,
    ) -> Result<(), Error<C::Row, C::Error>> {
        let (key, statement) = (key.into(), self.delete_statement(client.dialect()));
        match self.write(client, statement, key.clone(), version).await? {
            true => Ok(()),
            false => Err(self.conflict(client, key).await),
        }
    }

    /// Reads the row, asks what is to become of it, and does that; again, with the row as it is then, whenever another
    /// writer came first.
    ///
    /// **`change` may be called more than once**, each time with a newer row: it must do nothing but decide.
    ///
    /// Not for use inside a transaction that isolates more than `READ COMMITTED`: it would read the same old row again.
    ///
    /// # Errors
    /// [`Error::Conflict`] when attempts or time are used up; otherwise as [`Versioned::read`]. Deadlocks and
    /// serialization failures are tried again like conflicts, but not inside a transaction: the server has undone what
    /// came before, so the error must leave it, for the whole of it to be rerun. A transaction that was begun by a
    /// statement on a connection of `tokio_postgres` or `mysql_async` is not noticed.
    ///
    /// # Cancel safety
    /// When the future is dropped, the last change may have been made, and wholly.
    pub async fn modify<C: Client>(
        &self,
        client: &mut C,
        key: impl Into<C::Value>,
        retry: &Retry,
        mut change: impl FnMut(&C::Row) -> Change<C::Value>,
    ) -> Result<Done<Outcome>, Failed<Error<C::Row, C::Error>>> {
        let key = key.into();
        let mut attempts = retry.begin();
        // Before the first statement: one that fails may end the transaction.
        let is_alone = !client.in_transaction();
        loop {
            let met = match self.attempt(client, &key, &mut change).await {
                Ok(Some(outcome)) => return Ok(attempts.done(outcome)),
                Ok(None) => None,
                Err(error) if is_alone && retry.covers(error.contention()) => Some(error),
                Err(error) => return Err(attempts.failed(error)),
            };
            let Some(pause) = attempts.again() else {
                let error = match met {
                    Some(error) => error,
                    None => self.conflict(client, key).await,
                };
                return Err(attempts.failed(error));
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// `None` when another writer came first.
    async fn attempt<C: Client>(
        &self,
        client: &mut C,
        key: &C::Value,
        change: &mut impl FnMut(&C::Row) -> Change<C::Value>,
    ) -> Result<Option<Outcome>, Error<C::Row, C::Error>> {
        let Some(seen) = self.read(client, key.clone()).await? else { return Ok(Some(Outcome::Missing)) };
        let (statement, outcome) = match change(&seen.row) {
            Change::Leave => return Ok(Some(Outcome::Left)),
            Change::Set(columns) => (self.update_statement(client.dialect(), columns)?, Outcome::Changed),
            Change::Delete => (self.delete_statement(client.dialect()), Outcome::Deleted),
        };
        let written = self.write(client, statement, key.clone(), &seen.version).await?;
        Ok(written.then_some(outcome))
    }

    /// Sends a statement that is guarded by key and version, and says whether it found them.
    async fn write<C: Client>(
        &self,
        client: &mut C,
        (head, mut values): (String, Vec<C::Value>),
        key: C::Value,
        version: &str,
    ) -> Result<bool, Error<C::Row, C::Error>> {
        let dialect = client.dialect();
        let seen = self.as_text(dialect)?;
        values.push(key);
        let by_key = format!("{} = {}", quoted(dialect, &self.key), place(dialect, values.len()));
        values.push(version.to_owned().into());
        let sql = format!("{head} where {by_key} and {seen} = {}", place(dialect, values.len()));
        Ok(client.execute(&sql, values).await? > 0)
    }

    async fn conflict<C: Client>(&self, client: &mut C, key: C::Value) -> Error<C::Row, C::Error> {
        match self.read(client, key).await {
            Ok(current) => Error::Conflict { current: current.map(|seen| (seen.row, seen.version)) },
            Err(error) => error,
        }
    }

    fn update_statement<V, R, E>(
        &self,
        dialect: Dialect,
        columns: Vec<(String, V)>,
    ) -> Result<(String, Vec<V>), Error<R, E>> {
        let mut values = Vec::new();
        let mut changes = Vec::new();
        for (column, value) in columns {
            values.push(value);
            changes.push(format!("{} = {}", quoted(dialect, &column), place(dialect, values.len())));
        }
        if changes.is_empty() {
            return Err(Error::Refused("no column is to be changed".to_owned()));
        }
        changes.extend(self.moved_on(dialect));
        Ok((format!("update {} set {}", quoted(dialect, &self.table), changes.join(", ")), values))
    }

    fn delete_statement<V>(&self, dialect: Dialect) -> (String, Vec<V>) {
        (format!("delete from {}", quoted(dialect, &self.table)), Vec::new())
    }

    /// The version as text, as an expression over the table.
    fn as_text<R, E>(&self, dialect: Dialect) -> Result<String, Error<R, E>> {
        match &self.version {
            Version::Integer(column) => Ok(as_text(dialect, &quoted(dialect, column))),
            Version::Timestamp(column) => Ok(time_as_text(dialect, &quoted(dialect, column))),
            Version::Xmin if dialect == Dialect::Postgres => Ok(as_text(dialect, "xmin")),
            Version::Xmin => Err(Error::Refused("only PostgreSQL has `xmin`: give the table a column".to_owned())),
        }
    }

    /// What makes the next version, where the database does not do it by itself.
    fn moved_on(&self, dialect: Dialect) -> Option<String> {
        match &self.version {
            Version::Integer(column) => {
                let column = quoted(dialect, column);
                Some(format!("{column} = {column} + 1"))
            }
            Version::Timestamp(column) => {
                let column = quoted(dialect, column);
                Some(format!("{column} = {}", later(dialect, &column)))
            }
            Version::Xmin => None,
        }
    }
}
