//! Where the rows of a demo live: a place of its own, made for it and gone afterwards.

#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub(crate) mod sqlite;

use std::time::Duration;

use oarlock_rows::{Client, Dialect, Locked, Retry};
use oarlock_stock::Shelf;

use crate::demo::trouble::Boxed;

/// A place for stock.
pub(crate) trait Shelves: Clone + Send + Sync + 'static {
    type Shelf: Shelf;

    /// What it is, for people.
    fn what(&self) -> String;

    /// One more connection to it.
    async fn shelf(&self) -> Result<Self::Shelf, Boxed>;

    /// Takes these items away, where the place itself stays.
    async fn tidy(&self, _items: &[String]) -> Result<(), Boxed> {
        Ok(())
    }
}

/// A place for rows, and for stock.
pub(crate) trait Database: Shelves {
    type Conn: Client<Value: From<i64>> + Send + 'static;

    /// One more connection to it.
    async fn connect(&self) -> Result<Self::Conn, Boxed>;

    /// Takes the whole place away.
    async fn clear(&self) -> Result<(), Boxed>;

    /// A whole number of a row.
    fn number(row: &<Self::Conn as Client>::Row, column: &str) -> Option<i64>;

    /// Locks rows in a transaction, asks with their numbers what is to be done, and does that after a pause. Says how
    /// often it was tried again.
    async fn locked(conn: &mut Self::Conn, rows: &Rows<'_>, decide: Decide<'_>) -> Result<u32, Boxed>;
}

/// Statements to be carried out, given the numbers of the rows that were locked. None: nothing is to be done.
pub(crate) type Decide<'a> = &'a mut dyn FnMut(&[i64]) -> Vec<String>;

/// Rows to be locked.
pub(crate) struct Rows<'a> {
    pub(crate) table: &'a Locked,
    pub(crate) keys: &'a [i64],
    pub(crate) column: &'a str,
    pub(crate) pause: Duration,
}

/// How long anything may take that waits for others.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How long a connection is tried for.
pub(crate) fn patient() -> Retry {
    Retry::default().attempts(10_000).deadline(PATIENCE).when_busy()
}

/// The body of [`Database::locked`], with the transaction of the client's own crate.
macro_rules! locked {
    ($client:ident, $conn:ident, $rows:ident, $decide:ident) => {{
        let retry = crate::demo::database::patient();
        let done = oarlock_rows::$client::transaction($conn, &retry, async |tx| {
            let wait = oarlock_rows::Wait::UpTo(crate::demo::database::PATIENCE);
            let keys = $rows.keys.iter().copied();
            let found = $rows.table.lock(tx, keys, oarlock_rows::Mode::Update, wait).await?;
            let numbers: Vec<i64> = found.iter().filter_map(|row| Self::number(row, $rows.column)).collect();
            let statements = $decide(&numbers);
            if !statements.is_empty() {
                tokio::time::sleep($rows.pause).await;
            }
            for statement in statements {
                oarlock_rows::Client::execute(tx, &statement, Vec::new()).await?;
            }
            Ok(())
        });
        done.await.map(|done| done.conflicts).map_err(|failed: oarlock_rows::Failed<oarlock_rows::Error<_, _>>| {
            crate::demo::trouble::boxed(failed.error)
        })
    }};
}
pub(crate) use locked;

/// A name that no other process has.
pub(crate) fn own_name() -> String {
    format!("oarlock_demo_{:x}_{:08x}", std::process::id(), fastrand::u32(..))
}

/// Carries out statements that answer nothing.
pub(crate) async fn run<C: Client>(conn: &mut C, statements: &[&str]) -> Result<(), Boxed> {
    for statement in statements {
        conn.execute(statement, Vec::new()).await?;
    }
    Ok(())
}

/// A whole number that a query answers: `what` of `from`.
pub(crate) async fn query<C: Client>(conn: &mut C, what: &str, from: &str) -> Result<i64, C::Error> {
    let text = match conn.dialect() {
        Dialect::Postgres => format!("({what})::text"),
        Dialect::Sqlite => format!("cast({what} as text)"),
        _ => format!("cast({what} as char)"),
    };
    let rows = conn.rows(&format!("select {text} from {from}"), Vec::new()).await?;
    // A demo that reads nonsense sells nothing, and says so.
    Ok(rows.first().and_then(C::last_text).and_then(|text| text.parse().ok()).unwrap_or(-1))
}
