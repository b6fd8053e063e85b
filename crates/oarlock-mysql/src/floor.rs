//! The fewest statements that a lease on `MySQL` or `MariaDB` needs, for `oarlock bench`. Not a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, params};
use oarlock_core::driver::BoxFuture;
use oarlock_core::floor::{Floor, Rival};
use oarlock_core::{Error, ErrorKind, Result};
use tokio::sync::{Mutex, Semaphore};

use crate::config::Config;
use crate::error::{SCHEME, closed, failed};
use crate::link::{REQUESTS, dial};

/// A row for each name, in a table of this run's own, on as many connections as the driver has for requests.
struct Row {
    config: Config,
    permits: Semaphore,
    idle: std::sync::Mutex<Vec<Conn>>,
    table: String,
    take: String,
    give: String,
    owners: AtomicI64,
}

/// The floor beneath the store with this configuration, whose database must be there.
///
/// # Errors
/// As for [`MySql::connect`](crate::MySql::connect).
pub async fn open(config: Config) -> Result<Arc<dyn Floor>> {
    let mut idle = Vec::new();
    for _ in 0..REQUESTS {
        idle.push(dial(&config).await?);
    }
    let number = idle.first().map_or(0, Conn::id);
    let table = format!("oarlock_floor_{number}");
    let make = format!(
        "CREATE TABLE {table} (name VARBINARY(1536) PRIMARY KEY, owner BIGINT, fence BIGINT NOT NULL, \
         expires DATETIME(6) NOT NULL) ENGINE = InnoDB"
    );
    if let Some(conn) = idle.first_mut() {
        conn.query_drop(format!("DROP TABLE IF EXISTS {table}")).await.map_err(failed)?;
        conn.query_drop(make).await.map_err(failed)?;
    }
    let take = format!(
        "INSERT INTO {table} VALUES (:name, :owner, 1, NOW(6) + INTERVAL 30 SECOND) ON DUPLICATE KEY UPDATE \
         fence = IF(owner IS NULL OR expires < NOW(6), LAST_INSERT_ID(fence + 1), fence), \
         expires = IF(owner IS NULL OR expires < NOW(6), NOW(6) + INTERVAL 30 SECOND, expires), \
         owner = IF(owner IS NULL OR expires < NOW(6), :owner, owner)"
    );
    let give = format!("UPDATE {table} SET owner = NULL WHERE name = :name AND owner = :owner");
    let (permits, idle, owners) = (Semaphore::new(REQUESTS), std::sync::Mutex::new(idle), AtomicI64::new(1));
    Ok(Arc::new(Row { config, permits, idle, table, take, give, owners }))
}

impl Row {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Conn>> {
        self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Floor for Row {
    fn what(&self) -> &'static str {
        "a guarded upsert of one row, and one update of it"
    }

    fn pair(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let owner = self.owners.fetch_add(1, Ordering::Relaxed);
            let params = params! { "name" => name.as_bytes(), "owner" => owner };
            let _permit = self.permits.acquire().await.map_err(|error| closed().because(error))?;
            let idle = self.idle().pop();
            let mut conn = idle.ok_or_else(closed)?;
            conn.exec_drop(&self.take, params.clone()).await.map_err(failed)?;
            let taken = conn.affected_rows();
            conn.exec_drop(&self.give, params).await.map_err(failed)?;
            let given = conn.affected_rows();
            self.idle().push(conn);
            if taken > 0 && given == 1 {
                return Ok(());
            }
            Err(Error::new(ErrorKind::Foreign, "somebody else uses the row of the floor").on(SCHEME))
        })
    }

    fn rival(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<Option<Arc<dyn Rival>>>> {
        Box::pin(async move {
            let conn = Mutex::new(dial(&self.config).await?);
            Ok(Some(Arc::new(Named { conn, name: format!("oarlock_floor_{name}") }) as Arc<dyn Rival>))
        })
    }

    fn calls(self: Arc<Self>) -> BoxFuture<Result<Option<u64>>> {
        Box::pin(async move {
            let _permit = self.permits.acquire().await.map_err(|error| closed().because(error))?;
            let idle = self.idle().pop();
            let mut conn = idle.ok_or_else(closed)?;
            let status: Option<(String, u64)> =
                conn.query_first("SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'").await.map_err(failed)?;
            self.idle().push(conn);
            Ok(status.map(|(_, count)| count))
        })
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let idle = self.idle().pop();
            let mut conn = idle.ok_or_else(closed)?;
            conn.query_drop(format!("DROP TABLE {}", self.table)).await.map_err(failed)
        })
    }
}

/// The server's own lock, on a connection of its own.
struct Named {
    conn: Mutex<Conn>,
    name: String,
}

impl Named {
    async fn ask(&self, statement: &str) -> Result<()> {
        let mut conn = self.conn.lock().await;
        let done: Option<Option<i64>> = conn.exec_first(statement, (&self.name,)).await.map_err(failed)?;
        if done.flatten() == Some(1) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Busy, "the named lock was not to be had").on(SCHEME))
    }
}

impl Rival for Named {
    fn what(&self) -> &'static str {
        "GET_LOCK and RELEASE_LOCK"
    }

    fn take(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move { self.ask("SELECT GET_LOCK(LEFT(?, 60), 5)").await })
    }

    fn give(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move { self.ask("SELECT RELEASE_LOCK(LEFT(?, 60))").await })
    }
}
