//! The fewest statements that a lease on `MySQL` or `MariaDB` needs, for `oarlock bench`. Not a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, params};
use oarlock_core::driver::BoxFuture;
use oarlock_core::floor::{Floor, Rival};
use oarlock_core::{Claim, ClaimId, Error, ErrorKind, Label, ResourceName, Result};
use tokio::sync::{Mutex, Semaphore};

use crate::answer::{bytes, micros, write};
use crate::config::Config;
use crate::driver::{ATTEMPT, RELEASE};
use crate::error::{SCHEME, closed, failed};
use crate::link::{REQUESTS, dial};

/// As many connections as the driver has for requests.
struct Lanes {
    permits: Semaphore,
    idle: std::sync::Mutex<Vec<Conn>>,
}

impl Lanes {
    async fn open(config: &Config) -> Result<Self> {
        let mut idle = Vec::new();
        for _ in 0..REQUESTS {
            idle.push(dial(config).await?);
        }
        Ok(Self { permits: Semaphore::new(REQUESTS), idle: std::sync::Mutex::new(idle) })
    }

    /// What `request` does on one of them, which is of no more use if that fails.
    async fn on<T>(&self, request: impl AsyncFnOnce(&mut Conn) -> mysql_async::Result<T>) -> Result<T> {
        let _permit = self.permits.acquire().await.map_err(|error| closed().because(error))?;
        let idle = self.idle().pop();
        let mut conn = idle.ok_or_else(closed)?;
        let done = request(&mut conn).await.map_err(failed)?;
        self.idle().push(conn);
        Ok(done)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Conn>> {
        self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A row for each name, in a table of this run's own.
struct Row {
    config: Config,
    lanes: Lanes,
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
    let lanes = Lanes::open(&config).await?;
    let number = lanes.idle().first().map_or(0, Conn::id);
    let table = format!("oarlock_floor_{number}");
    let make = format!(
        "DROP TABLE IF EXISTS {table}; CREATE TABLE {table} (name VARBINARY(1536) PRIMARY KEY, owner BIGINT, fence BIGINT NOT NULL, \
         expires DATETIME(6) NOT NULL) ENGINE = InnoDB"
    );
    lanes.on(async |conn| conn.query_drop(make).await).await?;
    let take = format!(
        "INSERT INTO {table} VALUES (:name, :owner, 1, NOW(6) + INTERVAL 30 SECOND) ON DUPLICATE KEY UPDATE \
         fence = IF(owner IS NULL OR expires < NOW(6), LAST_INSERT_ID(fence + 1), fence), \
         expires = IF(owner IS NULL OR expires < NOW(6), NOW(6) + INTERVAL 30 SECOND, expires), \
         owner = IF(owner IS NULL OR expires < NOW(6), :owner, owner)"
    );
    let give = format!("UPDATE {table} SET owner = NULL WHERE name = :name AND owner = :owner");
    Ok(Arc::new(Row { config, lanes, table, take, give, owners: AtomicI64::new(1) }))
}

impl Floor for Row {
    fn what(&self) -> &'static str {
        "a guarded upsert of one row, and one update of it"
    }

    fn pair(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let owner = self.owners.fetch_add(1, Ordering::Relaxed);
            let params = params! { "name" => name.as_bytes(), "owner" => owner };
            let (taken, given) = self
                .lanes
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
            let status: Option<(String, u64)> = self
                .lanes
                .on(async |conn| conn.query_first("SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'").await)
                .await?;
            Ok(status.map(|(_, count)| count))
        })
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            self.lanes.on(async |conn| conn.query_drop(format!("DROP TABLE {}", self.table)).await).await
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

/// The driver's own statements and nothing around them.
struct Statements {
    prefix: String,
    lanes: Lanes,
    label: String,
    next: AtomicI64,
}

/// The two statements of a lock and its release, sent raw: what is left between this and a lock is ours.
///
/// # Errors
/// As for [`MySql::connect`](crate::MySql::connect).
pub async fn statements(config: Config) -> Result<Arc<dyn Floor>> {
    let (lanes, label) = (Lanes::open(&config).await?, write(&Label::of_this_process())?);
    Ok(Arc::new(Statements { prefix: config.prefix, lanes, label, next: AtomicI64::new(1) }))
}

impl Floor for Statements {
    fn what(&self) -> &'static str {
        "the same two statements, sent raw"
    }

    fn pair(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let claim = Claim::new(ClaimId::from_bits(number.unsigned_abs().into()), ResourceName::new(&*name)?);
            let (name, id) = ([self.prefix.as_bytes(), name.as_bytes()].concat(), bytes(claim.id));
            let (id, nothing): (&[u8], Option<&[u8]>) = (&id, None);
            let attempt = params! {
                "name" => &name, "id" => id, "session" => 1, "tethered" => true, "kind" => claim.kind.as_str(),
                "capacity" => nothing, "adopt" => true, "weight" => 0, "wait" => true, "behind" => 0,
                "lease" => micros(claim.ttl), "place" => micros(claim.place_ttl()), "label" => &self.label,
                "value" => nothing, "wake" => false,
            };
            let taken = self.lanes.on(async |conn| conn.exec(ATTEMPT, attempt).await).await?;
            let given = (&name, id, nothing, nothing, 0);
            let given = self.lanes.on(async |conn| conn.exec(RELEASE, given).await).await?;
            if outcome(&taken, "granted") && outcome(&given, "released") {
                return Ok(());
            }
            Err(Error::new(ErrorKind::Foreign, "somebody else uses this name").on(SCHEME))
        })
    }

    fn rival(self: Arc<Self>, _: Arc<str>) -> BoxFuture<Result<Option<Arc<dyn Rival>>>> {
        Box::pin(async { Ok(None) })
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

fn outcome(rows: &[mysql_async::Row], wanted: &str) -> bool {
    rows.first().and_then(|row| row.get::<String, _>("outcome")).as_deref() == Some(wanted)
}
