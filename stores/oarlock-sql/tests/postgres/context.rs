//! A primary, the standby that is to take its place, and the address of whichever serves.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use oarlock_sql::postgres::Config;
use oarlock_testbed::Postgres;
use oarlock_testbed::proxy::Proxy;
use tokio::task::spawn_blocking;
use tokio_postgres::{Client, NoTls};

pub(crate) struct TestContext {
    /// Where clients and poolers come in.
    door: Proxy,
    server: Mutex<Arc<Postgres>>,
    /// A standby that receives nothing more, and the line to its primary.
    behind: Mutex<Option<(Postgres, Proxy)>>,
}

impl TestContext {
    pub(crate) fn start_or_skip() -> anyhow::Result<Option<Arc<Self>>> {
        let Some(server) = Postgres::start_or_skip()? else { return Ok(None) };
        let (door, server) = (Proxy::start(server.addr())?, Mutex::new(Arc::new(server)));
        Ok(Some(Arc::new(Self { door, server, behind: Mutex::new(None) })))
    }

    /// Makes the role `app`. With `schema` it has the rights that leases need, and otherwise none.
    #[allow(dead_code, reason = "behind a pooler all clients are one role")]
    pub(crate) fn with_role(&self, schema: bool) -> anyhow::Result<&'static str> {
        let server = self.server();
        tokio::runtime::Runtime::new()?.block_on(async {
            let root = connect(&server).await?;
            root.batch_execute("CREATE ROLE app LOGIN").await?;
            if schema {
                let mut config = Config::new(server.addr().ip().to_string(), server.addr().port());
                (config.user, config.database) = (Some("postgres".into()), Some("postgres".into()));
                oarlock_sql::postgres::init(config, Some("app")).await?;
            }
            Ok("app")
        })
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.door.addr()
    }

    pub(crate) fn server(&self) -> Arc<Postgres> {
        lock(&self.server).clone()
    }

    /// Makes a standby, and cuts it off once it has all that was committed so far.
    pub(crate) async fn remember(&self) -> anyhow::Result<()> {
        let primary = self.server();
        let line = Proxy::start(primary.addr())?;
        let addr = line.addr();
        let standby = spawn_blocking(move || Postgres::standby_of(addr)).await??;
        let (ours, theirs) = (connect(&primary).await?, connect(&standby).await?);
        let there: String = ours.query_one("SELECT pg_current_wal_flush_lsn()::text", &[]).await?.get(0);
        until(&theirs, &format!("SELECT pg_last_wal_replay_lsn() >= '{there}'")).await?;
        // Not only paused: a promotion applies all that was received.
        line.cut();
        *lock(&self.behind) = Some((standby, line));
        Ok(())
    }

    /// Kills the primary, and lets the standby serve where it did: until a pooler at `entrance` has noticed, too.
    pub(crate) async fn fall_back(&self, entrance: SocketAddr) -> anyhow::Result<()> {
        let (standby, line) = lock(&self.behind).take().context("nothing was remembered")?;
        let primary = self.server();
        spawn_blocking(move || primary.kill()).await??;
        drop(line);
        let theirs = connect(&standby).await?;
        theirs.batch_execute("SELECT pg_promote()").await?;
        until(&theirs, "SELECT NOT pg_is_in_recovery()").await?;
        self.door.aim(standby.addr());
        *lock(&self.server) = Arc::new(standby);
        let url = format!("postgres://postgres@{entrance}/postgres");
        for _ in 0..500 {
            if let Ok((client, connection)) = tokio_postgres::connect(&url, NoTls).await {
                tokio::spawn(connection);
                if client.batch_execute("SELECT 1").await.is_ok() {
                    return Ok(());
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("no way in after a failover")
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn connect(server: &Postgres) -> anyhow::Result<Client> {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Asks until `sql` answers with yes.
async fn until(client: &Client, sql: &str) -> anyhow::Result<()> {
    for _ in 0..2000 {
        if client.query_one(sql, &[]).await?.get::<_, Option<bool>>(0) == Some(true) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    bail!("not so after 20 s: {sql}")
}
