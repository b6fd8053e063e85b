//! The fewest statements that a lease on PostgreSQL needs, for `oarlock bench`. Not a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use oarlock_core::driver::BoxFuture;
use oarlock_core::floor::{Floor, Rival};
use oarlock_core::{Claim, ClaimId, Error, ErrorKind, Label, ResourceName, Result};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::answer::{bytes, micros, write};
use crate::config::Config;
use crate::driver::{ATTEMPT, RELEASE};
use crate::error::{SCHEME, failed, no_connection};
use crate::link::{Open as _, Session, Wire};
use crate::tls::Tls;

/// A row for each name, in a table of this run's own.
struct Row {
    config: Config,
    client: Client,
    table: String,
    take: String,
    give: String,
    owners: AtomicI64,
}

/// The floor beneath the store with this configuration, whose schema must be there.
///
/// # Errors
/// As for [`Postgres::connect`](crate::Postgres::connect).
pub async fn open(config: Config) -> Result<Arc<dyn Floor>> {
    let client = connect(&config).await?;
    let number: i32 =
        client.query_typed_one("SELECT pg_backend_pid()", &[]).await.and_then(|row| row.try_get(0)).map_err(failed)?;
    let table = format!("oarlock.floor_{number}");
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

async fn connect(config: &Config) -> Result<Client> {
    let (client, connection) = config.to_client().connect(Tls::of(config)?).await.map_err(no_connection)?;
    tokio::spawn(connection);
    Ok(client)
}

impl Floor for Row {
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
            Err(Error::new(ErrorKind::Foreign, "somebody else uses the row of the floor").on(SCHEME))
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
    async fn ask(&self, statement: &str) -> Result<()> {
        self.client.query_typed(statement, &[(&&*self.name as _, Type::TEXT)]).await.map(drop).map_err(failed)
    }
}

impl Rival for Advisory {
    fn what(&self) -> &'static str {
        "pg_advisory_lock and pg_advisory_unlock"
    }

    fn take(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move { self.ask("SELECT pg_advisory_lock(hashtextextended($1, 0))").await })
    }

    fn give(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move { self.ask("SELECT pg_advisory_unlock(hashtextextended($1, 0))").await })
    }
}

/// The driver's own statements and nothing around them.
struct Statements {
    prefix: String,
    client: Client,
    session: Session,
    label: String,
    next: AtomicI64,
}

/// The two statements of a lock and its release, sent raw: what is left between this and a lock is ours.
///
/// # Errors
/// As for [`Postgres::connect`](crate::Postgres::connect).
pub async fn statements(config: Config) -> Result<Arc<dyn Floor>> {
    let (Wire(client), _) = Wire::open(config.clone()).await?;
    let (prefix, label, next) = (config.prefix.clone(), write(&Label::of_this_process())?, AtomicI64::new(1));
    let (session, _) = Session::open(config).await?;
    Ok(Arc::new(Statements { prefix, client, session, label, next }))
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
            let attempted = self
                .client
                .query_typed(
                    ATTEMPT,
                    &[
                        (&name, Type::BYTEA),
                        (&id.as_slice(), Type::BYTEA),
                        (&self.session.number, Type::INT8),
                        (&true, Type::BOOL),
                        (&claim.kind.as_str(), Type::TEXT),
                        (&None::<i64>, Type::INT8),
                        (&true, Type::BOOL),
                        (&0_i64, Type::INT8),
                        (&true, Type::BOOL),
                        (&0_i64, Type::INT8),
                        (&micros(claim.ttl), Type::INT8),
                        (&micros(claim.place_ttl()), Type::INT8),
                        (&self.label, Type::TEXT),
                        (&None::<&[u8]>, Type::BYTEA),
                        (&None::<i64>, Type::INT8),
                        (&number, Type::INT8),
                    ],
                )
                .await
                .map_err(failed)?;
            let released = self
                .client
                .query_typed(
                    RELEASE,
                    &[
                        (&name, Type::BYTEA),
                        (&id.as_slice(), Type::BYTEA),
                        (&None::<&[u8]>, Type::BYTEA),
                        (&None::<&str>, Type::TEXT),
                        (&0_i64, Type::INT8),
                        (&number, Type::INT8),
                    ],
                )
                .await
                .map_err(failed)?;
            if outcome(&attempted, "granted") && outcome(&released, "released") {
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

fn outcome(rows: &[tokio_postgres::Row], wanted: &str) -> bool {
    rows.first().and_then(|row| row.try_get::<_, &str>("outcome").ok()) == Some(wanted)
}
