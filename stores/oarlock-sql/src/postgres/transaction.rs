//! A lock that a transaction of yours takes itself, and that ends with it.

use oarlock_core::{ResourceName, Result};

use crate::postgres::config::Keys;
use crate::postgres::key::Key;

/// The lock of one name for the transactions that run its statements: they hold it until they end, whichever way they
/// do.
///
/// It is an advisory lock with the key that [`PostgresSession`](crate::postgres::PostgresSession) gives to the same
/// name, so the two exclude each other, and so do programs that call `pg_advisory_lock` themselves.
/// [`Postgres`](crate::postgres::Postgres) does not take part: its row of that name must not be locked for as long as a
/// transaction of an application lasts.
///
/// What is written in the same transaction needs no fence: it is there if and only if the lock was held to the end.
///
/// # Guarantees
/// At most one transaction, or session, of a database has it. It ends with `COMMIT`, `ROLLBACK`, `ROLLBACK TO` a
/// savepoint from before, or the connection; nothing else ends it, and it cannot be released sooner. It works behind
/// poolers, in transaction mode too.
///
/// # Examples
/// ```
/// # use oarlock_sql::postgres::{Keys, TransactionLock};
/// # fn example() -> oarlock_core::Result<()> {
/// let lock = TransactionLock::new(Keys::Named, "oarlock:", "balance/7")?;
/// let statements = format!("BEGIN; {}; UPDATE account SET balance = 42 WHERE id = 7; COMMIT", lock.wait());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionLock {
    key: Key,
}

impl TransactionLock {
    /// The lock of `name`, with the key that `keys` and `prefix` give it.
    ///
    /// # Errors
    /// [`InvalidName`](oarlock_core::ErrorKind::InvalidName) if the name is empty, too long, or no [raw](Keys::Raw)
    /// key.
    pub fn new(keys: Keys, prefix: &str, name: impl AsRef<str>) -> Result<Self> {
        Ok(Self { key: Key::of(keys, prefix, &ResourceName::new(name)?)? })
    }

    /// The statement that waits for it. `SET LOCAL lock_timeout` bounds the wait.
    #[must_use]
    pub fn wait(self) -> String {
        format!("SELECT pg_advisory_xact_lock({})", self.key)
    }

    /// The statement that takes it if it is free: its answer is one boolean.
    #[must_use]
    pub fn attempt(self) -> String {
        format!("SELECT pg_try_advisory_xact_lock({})", self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_statements_have_numbers_and_nothing_else() {
        let lock = TransactionLock::new(Keys::Named, "", "'); DROP TABLE account; --").unwrap();
        assert!(
            lock.wait().bytes().all(|byte| byte.is_ascii_alphanumeric() || b" _()-".contains(&byte)),
            "{}",
            lock.wait()
        );
        let pair = TransactionLock::new(Keys::Raw, "", "7,-42").unwrap();
        assert_eq!(pair.attempt(), "SELECT pg_try_advisory_xact_lock(7, -42)");
        assert_eq!(TransactionLock::new(Keys::Raw, "", "42").unwrap().wait(), "SELECT pg_advisory_xact_lock(42)");
        assert!(TransactionLock::new(Keys::Raw, "", "nightly").is_err());
    }
}
