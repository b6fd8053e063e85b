//! `mysql:`: the fewest statements that a lease needs, and the server's own named lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, params};
use oarlock::driver::BoxFuture;
use oarlock::url::Url;
use oarlock::{Error, ErrorKind, Result};
use oarlock_sql::mysql::Config;
use oarlock_sql::mysql::raw::{CONNECTIONS, connect, failed};
use tokio::sync::{Mutex, Semaphore};

use super::{Baseline, Rival, disturbed};

const SCHEME: &str = "mysql";

/// As many connections as the driver has for requests.
struct Pool {
    permits: Semaphore,
    idle: std::sync::Mutex<Vec<Conn>>,
}

impl Pool {
    async fn open(config: &Config) -> Result<Self> {
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS {
            idle.push(connect(config).await?);
        }
        Ok(Self { permits: Semaphore::new(CONNECTIONS), idle: std::sync::Mutex::new(idle) })
    }

    /// Runs `request` on one of them. A connection whose request failed is not used again.
    async fn on<T>(&self, request: impl AsyncFnOnce(&mut Conn) -> mysql_async::Result<T>) -> Result<T> {
        let _permit = self.permits.acquire().await.map_err(|error| broken().because(error))?;
        let idle = self.idle().pop();
        let mut conn = idle.ok_or_else(broken)?;
        let done = request(&mut conn).await.map_err(failed)?;
        self.idle().push(conn);
        Ok(done)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Conn>> {
        self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn broken() -> Error {
    Error::unreachable("all connections of the baseline have failed").on(SCHEME)
}

/// A row for each name, in a table of this run's own.
struct Row {
    config: Config,
    pool: Pool,
    table: String,
    take: String,
    give: String,
    owners: AtomicI64,
}

/// Makes a table in the database, which must be there.
pub(super) async fn open(url: &Url) -> Result<Arc<dyn Baseline>> {
    let config = Config::from_url(url)?;
    let pool = Pool::open(&config).await?;
    let number = pool.idle().first().map_or(0, Conn::id);
    let table = format!("oarlock_baseline_{number}");
    let make = format!(
        "DROP TABLE IF EXISTS {table}; CREATE TABLE {table} (name VARBINARY(1536) PRIMARY KEY, owner BIGINT, fence BIGINT NOT NULL, \
         expires DATETIME(6) NOT NULL) ENGINE = InnoDB"
    );
    pool.on(async |conn| conn.query_drop(make).await).await?;
    let take = format!(
        "INSERT INTO {table} VALUES (:name, :owner, 1, NOW(6) + INTERVAL 30 SECOND) ON DUPLICATE KEY UPDATE \
         fence = IF(owner IS NULL OR expires < NOW(6), LAST_INSERT_ID(fence + 1), fence), \
         expires = IF(owner IS NULL OR expires < NOW(6), NOW(6) + INTERVAL 30 SECOND, expires), \
         owner = IF(owner IS NULL OR expires < NOW(6), :owner, owner)"
    );
    let give = format!("UPDATE {table} SET owner = NULL WHERE name = :name AND owner = :owner");
    Ok(Arc::new(Row { config, pool, table, take, give, owners: AtomicI64::new(1) }))
}

impl Baseline for Row {
    fn what(&self) -> &'static str {
        "a guarded upsert of one row, and one update of it"
    }

    fn pair(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let owner = self.owners.fetch_add(1, Ordering::Relaxed);
            let params = params! { "name" => name.as_bytes(), "owner" => owner };
            let (taken, given) = self
                .pool
                .on(async |conn| {
                    conn.exec_drop(&self.take, params.clone()).await?;
                    let taken = conn.affected_rows();
                    conn.exec_drop(&self.give, params).await?;
                    Ok((taken, conn.affected_rows()))
                })
                .await?;
            if taken > 0 && given == 1 {
                return Ok(());
            }
            Err(disturbed(SCHEME))
        })
    }

    fn rival(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<Option<Arc<dyn Rival>>>> {
        Box::pin(async move {
            let conn = Mutex::new(connect(&self.config).await?);
            Ok(Some(Arc::new(Named { conn, name: format!("oarlock_baseline_{name}") }) as Arc<dyn Rival>))
        })
    }

    fn calls(self: Arc<Self>) -> BoxFuture<Result<Option<u64>>> {
        Box::pin(async move {
            let status: Option<(String, u64)> =
                self.pool.on(async |conn| conn.query_first("SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'").await).await?;
            Ok(status.map(|(_, count)| count))
        })
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(
            async move { self.pool.on(async |conn| conn.query_drop(format!("DROP TABLE {}", self.table)).await).await },
        )
    }
}

/// The server's own lock, on a connection of its own.
struct Named {
    conn: Mutex<Conn>,
    name: String,
}

impl Named {
    async fn send(&self, statement: &str) -> Result<()> {
        let mut conn = self.conn.lock().await;
        let done: Option<Option<i64>> = conn.exec_first(statement, (&self.name,)).await.map_err(failed)?;
        if done.flatten() == Some(1) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Busy, "the named lock was not granted in time").on(SCHEME))
    }
}

impl Rival for Named {
    fn what(&self) -> &'static str {
        "GET_LOCK and RELEASE_LOCK"
    }

    fn take(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move { self.send("SELECT GET_LOCK(LEFT(?, 60), 5)").await })
    }

    fn give(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move { self.send("SELECT RELEASE_LOCK(LEFT(?, 60))").await })
    }
}
