//! A server and the plainest questions to the store on it.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver as _, Grant, Renewal, Renewed};
use oarlock_core::{Claim, ClaimId, Error, ResourceName};
use oarlock_sql::postgres::{Config, Postgres};
use tokio_postgres::NoTls;

pub(crate) type Server = oarlock_testbed::Postgres;

/// A server, a client of its own to look behind the scenes, and a way in; `None` where no server is installed.
pub(crate) async fn start() -> Option<(Server, tokio_postgres::Client)> {
    let server = tokio::task::spawn_blocking(Server::start_or_skip).await.unwrap().unwrap()?;
    let (root, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    Some((server, root))
}

pub(crate) fn config(addr: std::net::SocketAddr) -> Config {
    let mut config = Config::new(addr.ip().to_string(), addr.port());
    (config.user, config.database) = (Some("postgres".into()), Some("postgres".into()));
    config
}

pub(crate) fn claim(bits: u128, name: &str) -> Claim {
    Claim::new(ClaimId::from_bits(bits), ResourceName::new(name).unwrap())
}

pub(crate) async fn grant(store: &Postgres, claim: &Claim) -> Result<Grant, Error> {
    match store.attempt(claim).await? {
        Attempt::Granted(grant) => Ok(grant),
        Attempt::Pending(pending) => panic!("not granted: {pending:?}"),
    }
}

pub(crate) async fn renew(store: &Postgres, claim: &Claim) -> Renewed {
    store.renew(&[Renewal::of(Arc::new(claim.clone()))]).await.remove(0).unwrap()
}

/// Asks until `sql` answers with this number.
pub(crate) async fn until(root: &tokio_postgres::Client, sql: &str, number: i64) {
    for _ in 0..3000 {
        // Inside a transaction the server would show the same picture for ever.
        root.batch_execute("SELECT pg_stat_clear_snapshot()").await.unwrap();
        if root.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == number {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not {number}: {sql}");
}

/// Waits until a standby shows what its primary has committed.
pub(crate) async fn caught_up(primary: &tokio_postgres::Client, standby: &tokio_postgres::Client) {
    let there: String = primary.query_one("SELECT pg_current_wal_flush_lsn()::text", &[]).await.unwrap().get(0);
    until(standby, &format!("SELECT (pg_last_wal_replay_lsn() >= '{there}')::int::bigint"), 1).await;
}
