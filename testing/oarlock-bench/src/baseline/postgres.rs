//! `postgres:`: the fewest statements that a lease needs, and the server's own advisory lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use oarlock::Result;
use oarlock::driver::BoxFuture;
use oarlock::url::Url;
use oarlock_sql::postgres::Config;
use oarlock_sql::postgres::raw::{connect, failed};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::{Baseline, Rival, disturbed};

/// A row for each name, in a table of this run's own.
struct Row {
    config: Config,
    client: Client,
    table: String,
    take: String,
    give: String,
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
    let take = format!(
        "INSERT INTO {table} AS old VALUES ($1, $2, 1, clock_timestamp() + interval '30 s') ON CONFLICT (name) DO UPDATE \
         SET owner = $2, fence = old.fence + 1, expires = clock_timestamp() + interval '30 s' \
         WHERE old.owner IS NULL OR old.expires < clock_timestamp() RETURNING fence"
    );
    let give = format!("UPDATE {table} SET owner = NULL WHERE name = $1 AND owner = $2");
    Ok(Arc::new(Row { config, client, table, take, give, owners: AtomicI64::new(0) }))
}

impl Baseline for Row {
    fn what(&self) -> &'static str {
        "a guarded upsert of one row, and one update of it"
    }

    fn pair(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let (name, owner) = (name.as_bytes(), self.owners.fetch_add(1, Ordering::Relaxed));
            let params = [(&name as _, Type::BYTEA), (&owner as _, Type::INT8)];
            let taken = self.client.query_typed(&self.take, &params).await.map_err(failed)?.len();
            let given = self.client.execute_typed(&self.give, &params).await.map_err(failed)?;
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
        Box::pin(async move { self.client.batch_execute(&format!("DROP TABLE {}", self.table)).await.map_err(failed) })
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
