//! Pessimistic locking: rows are locked when they are read, and the second transaction waits.

use std::time::Duration;

use crate::sql::{place, quoted};
use crate::{Client, Dialect, Error};

/// What others may still do with a locked row. Where a database does not know a mode, the next stronger one is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Mode {
    /// Nothing but read it without a lock.
    #[default]
    Update,
    /// On PostgreSQL also point a foreign key at it.
    NoKeyUpdate,
    /// Also lock it in this mode.
    Share,
    /// On PostgreSQL also change anything but its key.
    KeyShare,
}

/// How long to wait for rows that another transaction has locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// At most so long, per statement. PostgreSQL counts milliseconds, MySQL and MariaDB whole seconds, rounded up.
    UpTo(Duration),
    /// Not at all.
    No,
    /// Not at all, and without the rows that are locked: for jobs that any worker may take.
    Skip,
}

/// A table whose rows are locked inside a transaction.
///
/// ```no_run
/// # #[cfg(feature = "postgres")]
/// # async fn example(mut client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use std::time::Duration;
///
/// use oarlock_rows::{Locked, Mode, Retry, Wait, postgres};
///
/// let accounts = Locked::new("accounts", "id");
/// let moved = postgres::transaction(&mut client, &Retry::default(), async |tx| {
///     let wait = Wait::UpTo(Duration::from_secs(2));
///     let rows = accounts.lock(tx, [1_i64, 2], Mode::Update, wait).await?;
///     if rows[0].get::<_, i64>("balance") < 30 {
///         return Err(Box::<dyn std::error::Error + Send + Sync>::from("too little"));
///     }
///     tx.execute("update accounts set balance = balance - 30 where id = 1", &[]).await?;
///     tx.execute("update accounts set balance = balance + 30 where id = 2", &[]).await?;
///     Ok(())
/// })
/// .await
/// .map_err(|failed| failed.error)?;
/// println!("done at attempt {}", moved.attempts);
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
/// The rows stay locked until the transaction ends. They are locked in the order of their keys, so that two callers
/// that want the same ones do not wait for each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locked {
    table: String,
    key: String,
}

impl Locked {
    /// The rows of a table, by one column that names each of them and has an index. `schema.table` is taken apart at
    /// the dot.
    #[must_use]
    pub fn new(table: &str, key: &str) -> Self {
        Self { table: table.to_owned(), key: key.to_owned() }
    }

    /// Locks these rows and returns them, in the order of their keys. A row that does not exist is not among them, and
    /// nothing keeps others from making it.
    ///
    /// On PostgreSQL a [`Wait::UpTo`] holds for the rest of the transaction, for every statement of it.
    ///
    /// # Errors
    /// The client's own; [`Contention::Busy`](crate::Contention::Busy) when the wait was over. [`Error::Refused`] outside of
    /// a transaction, where a lock would end with the statement that takes it; a transaction that was begun by a
    /// statement (`BEGIN`) on a connection of `tokio_postgres` or `mysql_async` is not noticed, so use
    /// `postgres::transaction`, `mysql::transaction` or the client's own call. Also for what this database cannot do:
    /// SQLite has no locks on rows, so the transaction must have been begun as a writing one (`sqlite::transaction`
    /// does), and nothing can be skipped.
    ///
    /// # Cancel safety
    /// When the future is dropped, the rows may be locked until the transaction ends.
    pub async fn lock<C: Client, K: Into<C::Value>>(
        &self,
        client: &mut C,
        keys: impl IntoIterator<Item = K>,
        mode: Mode,
        wait: Wait,
    ) -> Result<Vec<C::Row>, Error<C::Row, C::Error>> {
        if let Some(why) = client.refuses_locks() {
            return Err(Error::Refused(why.to_owned()));
        }
        if !client.in_transaction() {
            return Err(Error::Refused(OUTSIDE.to_owned()));
        }
        let dialect = client.dialect();
        let values: Vec<C::Value> = keys.into_iter().map(Into::into).collect();
        if values.is_empty() {
            return Ok(Vec::new());
        }
        let (table, key) = (quoted(dialect, &self.table), quoted(dialect, &self.key));
        let places: Vec<_> = (1..=values.len()).map(|number| place(dialect, number)).collect();
        let clause = clause(dialect, mode, wait).map_err(|why| Error::Refused(why.to_owned()))?;
        let sql = format!("select * from {table} where {key} in ({}) order by {key}{clause}", places.join(", "));
        let limit = limit(dialect, wait);
        if let Some((before, _)) = &limit {
            client.execute(before, Vec::new()).await?;
        }
        let rows = client.rows(&sql, values).await;
        if let Some((_, Some(after))) = &limit {
            client.execute(after, Vec::new()).await?;
        }
        Ok(rows?)
    }
}

const OUTSIDE: &str = "outside of a transaction a row is locked for one statement only: begin one with `transaction` \
     and lock the row through it";

/// The end of the statement.
fn clause(dialect: Dialect, mode: Mode, wait: Wait) -> Result<String, &'static str> {
    let strength = match (dialect, mode) {
        (Dialect::Sqlite, _) if wait == Wait::Skip => {
            return Err("SQLite locks the whole database: there are no locked rows to skip");
        }
        (Dialect::Sqlite, _) => return Ok(String::new()),
        (Dialect::Postgres, Mode::NoKeyUpdate) => "for no key update",
        (Dialect::Postgres, Mode::KeyShare) => "for key share",
        (_, Mode::Update | Mode::NoKeyUpdate) => "for update",
        (Dialect::MariaDb, Mode::Share | Mode::KeyShare) => "lock in share mode",
        (_, Mode::Share | Mode::KeyShare) => "for share",
    };
    Ok(match (dialect, wait) {
        (_, Wait::No) => format!(" {strength} nowait"),
        (_, Wait::Skip) => format!(" {strength} skip locked"),
        (Dialect::MariaDb, Wait::UpTo(limit)) => format!(" {strength} wait {}", seconds(limit)),
        (_, Wait::UpTo(_)) => format!(" {strength}"),
    })
}

/// What bounds the wait where the statement itself cannot say it, and what undoes that.
pub(crate) fn limit(dialect: Dialect, wait: Wait) -> Option<(String, Option<String>)> {
    let Wait::UpTo(limit) = wait else { return None };
    match dialect {
        // Nought would mean for ever.
        Dialect::Postgres => Some((format!("set local lock_timeout = {}", limit.as_millis().max(1)), None)),
        Dialect::MySql => Some((
            format!("set @oarlock_wait = @@innodb_lock_wait_timeout, innodb_lock_wait_timeout = {}", seconds(limit)),
            Some("set innodb_lock_wait_timeout = @oarlock_wait".to_owned()),
        )),
        Dialect::MariaDb | Dialect::Sqlite => None,
    }
}

pub(crate) fn seconds(limit: Duration) -> u64 {
    limit.as_secs() + u64::from(limit.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dialect_says_it_its_own_way() {
        let second = Wait::UpTo(Duration::from_millis(900));
        assert_eq!(clause(Dialect::Postgres, Mode::KeyShare, Wait::Skip).unwrap(), " for key share skip locked");
        assert_eq!(clause(Dialect::MySql, Mode::KeyShare, Wait::No).unwrap(), " for share nowait");
        assert_eq!(clause(Dialect::MySql, Mode::Update, second).unwrap(), " for update");
        assert_eq!(clause(Dialect::MariaDb, Mode::Share, second).unwrap(), " lock in share mode wait 1");
        assert!(clause(Dialect::Sqlite, Mode::Update, Wait::Skip).is_err());
        assert_eq!(limit(Dialect::Postgres, Wait::UpTo(Duration::ZERO)).unwrap().0, "set local lock_timeout = 1");
        assert!(limit(Dialect::MySql, second).unwrap().0.ends_with("innodb_lock_wait_timeout = 1"));
        assert_eq!(limit(Dialect::MariaDb, second), None);
    }
}
