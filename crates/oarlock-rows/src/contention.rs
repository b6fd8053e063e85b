//! Which errors of a database mean that another transaction was there at the same time, by the codes the servers send.

use std::error::Error as StdError;

/// Why the database did not do it, when the reason is another transaction and not the statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Contention {
    /// What was read is no longer so: a serialization failure, or a snapshot that is too old.
    Stale,
    /// Each waited for the other, and this one was chosen to give way.
    Deadlock,
    /// A lock was not to be had in the time that was allowed, which may have been none.
    Busy,
}

impl Contention {
    /// By the SQLSTATE that PostgreSQL sends.
    #[must_use]
    pub fn of_postgres(state: &str) -> Option<Self> {
        match state {
            "40001" => Some(Self::Stale),
            "40P01" => Some(Self::Deadlock),
            "55P03" => Some(Self::Busy),
            _ => None,
        }
    }

    /// By the number that MySQL and MariaDB send.
    ///
    /// `1205` ends the statement only and leaves the transaction open. A client that goes on after it commits half of
    /// the work.
    #[must_use]
    pub fn of_mysql(number: u16) -> Option<Self> {
        match number {
            // MariaDB, with snapshot isolation: the record has changed since it was read.
            1020 => Some(Self::Stale),
            // 3058 is the same among named locks.
            1213 | 3058 => Some(Self::Deadlock),
            // MariaDB sends 1205 for `NOWAIT` too, MySQL 3572.
            1205 | 3572 => Some(Self::Busy),
            _ => None,
        }
    }

    /// By the extended result code of SQLite.
    #[must_use]
    pub fn of_sqlite(code: i32) -> Option<Self> {
        const BUSY: i32 = 5;
        const BUSY_SNAPSHOT: i32 = 517;
        match code {
            BUSY_SNAPSHOT => Some(Self::Stale),
            _ if code & 0xff == BUSY => Some(Self::Busy),
            _ => None,
        }
    }
}

/// An error that can be classified: was another transaction in the way?
///
/// Implement it for an error of your own to use it in a transaction that is rerun: return what the error of the database
/// in it returns.
pub trait Classify {
    /// How another transaction was in the way; `None` for any other error.
    fn contention(&self) -> Option<Contention>;
}

/// Looks through the error and what caused it for one that this crate knows.
impl Classify for Box<dyn StdError + Send + Sync> {
    fn contention(&self) -> Option<Contention> {
        let mut at: Option<&(dyn StdError + 'static)> = Some(self.as_ref());
        while let Some(error) = at {
            if let Some(contention) = known(error) {
                return Some(contention);
            }
            at = error.source();
        }
        None
    }
}

fn known(error: &(dyn StdError + 'static)) -> Option<Contention> {
    #[cfg(feature = "postgres")]
    if let Some(error) = error.downcast_ref::<tokio_postgres::Error>() {
        return error.contention();
    }
    #[cfg(feature = "mysql")]
    if let Some(error) = error.downcast_ref::<mysql_async::Error>() {
        return error.contention();
    }
    #[cfg(feature = "sqlite")]
    if let Some(error) = error.downcast_ref::<rusqlite::Error>() {
        return error.contention();
    }
    #[cfg(any(feature = "sqlx-postgres", feature = "sqlx-mysql"))]
    if let Some(error) = error.downcast_ref::<sqlx::Error>() {
        return error.contention();
    }
    #[cfg(feature = "diesel")]
    if let Some(error) = error.downcast_ref::<diesel::result::Error>() {
        return error.contention();
    }
    let _ = error;
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_codes() {
        use Contention::{Busy, Deadlock, Stale};
        for (state, is) in [("40001", Some(Stale)), ("40P01", Some(Deadlock)), ("55P03", Some(Busy)), ("23505", None)] {
            assert_eq!(Contention::of_postgres(state), is, "{state}");
        }
        let numbers = [(1020, Some(Stale)), (1213, Some(Deadlock)), (3058, Some(Deadlock)), (1205, Some(Busy))];
        for (number, is) in numbers.into_iter().chain([(3572, Some(Busy)), (1062, None)]) {
            assert_eq!(Contention::of_mysql(number), is, "{number}");
        }
        for (code, is) in [(5, Some(Busy)), (261, Some(Busy)), (517, Some(Stale)), (19, None)] {
            assert_eq!(Contention::of_sqlite(code), is, "{code}");
        }
    }

    #[test]
    fn an_unknown_error_is_no_contention() {
        let error: Box<dyn StdError + Send + Sync> = "sold out".into();
        assert_eq!(error.contention(), None);
    }
}
