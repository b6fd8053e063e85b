//! `postgres:`: the fewest statements that a lease needs, and the server's own advisory lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use oarlock::driver::BoxFuture;
use oarlock::url::Url;
use oarlock::{Error, Result};
use oarlock_sql::postgres::Config;
use oarlock_sql::postgres::raw::{CONNECTIONS, connect, failed};
use tokio::sync::Semaphore;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Statement};

use super::{Baseline, Rival, disturbed};

/// A connection, and its statements, prepared.
struct Connection {
    client: Client,
    take: Statement,
    give: Statement,
}

/// A row for each name, in a table of this run's own, and as many connections as the driver has for requests.
struct Row {
    config: Config,
    table: String,
    permits: Semaphore,
    idle: std::sync::Mutex<Vec<Connection>>,
    owners: AtomicI64,
}

/// Makes a table in the schema `oarlock`, which must be there.
pub(super) async fn open(url: &Url) -> Result<Arc<dyn Baseline>> {
    let config = Config::from_url(url)?;
    let client = connect(&config).await?;
    let number: i32 =
        client.query_typed_one("SELECT pg_backend_pid()", &[]).await.and_then(|row| row.try_get(0)).map_err(failed)?;
    let table = format!("oarlock.baseline_{number}");
    let make = format!(
        "DROP TABLE IF EXISTS {table}; CREATE TABLE {table} (name bytea PRIMARY KEY, owner bigint, fence bigint NOT NULL, \
         expires timestamptz NOT NULL) WITH (fillfactor = 50)"
    );
    client.batch_execute(&make).await.map_err(failed)?;
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS {
        idle.push(prepared(&config, &table).await?);
    }
    let (permits, idle) = (Semaphore::new(CONNECTIONS), std::sync::Mutex::new(idle));
    Ok(Arc::new(Row { config, table, permits, idle, owners: AtomicI64::new(0) }))
}

async fn prepared(config: &Config, table: &str) -> Result<Connection> {
    let client = connect(config).await?;
    let take = format!(
        "INSERT INTO {table} AS old VALUES ($1, $2, 1, clock_timestamp() + interval '30 s') ON CONFLICT (name) DO UPDATE \
         SET owner = $2, fence = old.fence + 1, expires = clock_timestamp() + interval '30 s' \
         WHERE old.owner IS NULL OR old.expires < clock_timestamp() RETURNING fence"
    );
    let give = format!("UPDATE {table} SET owner = NULL WHERE name = $1 AND owner = $2");
    let types = [Type::BYTEA, Type::INT8];
    let take = client.prepare_typed(&take, &types).await.map_err(failed)?;
    let give = client.prepare_typed(&give, &types).await.map_err(failed)?;
    Ok(Connection { client, take, give })
}

impl Row {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn broken() -> Error {
    Error::unreachable("all connections of the baseline have failed").on("postgres")
}

impl Baseline for Row {
    fn what(&self) -> &'static str {
        "a guarded upsert of one row, and one update of it"
    }

    fn pair(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let (name, owner) = (name.as_bytes(), self.owners.fetch_add(1, Ordering::Relaxed));
            let _permit = self.permits.acquire().await.map_err(|error| broken().because(error))?;
            // One whose request fails is not used again.
            let idle = self.idle().pop();
            let connection = idle.ok_or_else(broken)?;
            let taken = connection.client.query(&connection.take, &[&name, &owner]).await.map_err(failed)?.len();
            let given = connection.client.execute(&connection.give, &[&name, &owner]).await.map_err(failed)?;
            self.idle().push(connection);
            if taken == 1 && given == 1 {
                return Ok(());
            }
            Err(disturbed("postgres"))
        })
    }

    fn rival(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<Option<Arc<dyn Rival>>>> {
        Box::pin(async move {
            let client = connect(&self.config).await?;
            client.batch_execute("SET lock_timeout = '5s'").await.map_err(failed)?;
            Ok(Some(Arc::new(Advisory { client, name }) as Arc<dyn Rival>))
        })
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let client = connect(&self.config).await?;
            client.batch_execute(&format!("DROP TABLE {}", self.table)).await.map_err(failed)
        })
    }
}

/// The server's own lock, on a connection of its own.
struct Advisory {
    client: Client,
    name: Arc<str>,
}

impl Advisory {
    async fn send(&self, statement: &str) -> Result<()> {
        self.client.query_typed(statement, &[(&&*self.name as _, Type::TEXT)]).await.map(drop).map_err(failed)
    }
}

impl Rival for Advisory {
    fn what(&self) -> &'static str {
        "pg_advisory_lock and pg_advisory_unlock"
    }

    fn take(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move { self.send("SELECT pg_advisory_lock(hashtextextended($1, 0))").await })
    }

    fn give(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move { self.send("SELECT pg_advisory_unlock(hashtextextended($1, 0))").await })
    }
}
