//! What only a real server can show: lost replies on the wire, ended sessions, rights, formats, old rows.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests, also outside test functions")]

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver as _, End, Gone, Interest, Renewal, Renewed};
use oarlock_core::error::Applied;
use oarlock_core::state::Query;
use oarlock_core::{Claim, ClaimId, Client, Error, ErrorKind, LossReason, ResourceName, Tether};
use oarlock_postgres::{Config, Postgres};
use oarlock_testbed::proxy::{Proxy, Then};
use tokio_postgres::NoTls;

type Server = oarlock_testbed::Postgres;

/// A server, a client of its own to look behind the scenes, and a way in; `None` where no server is installed.
async fn start() -> Option<(Server, tokio_postgres::Client)> {
    let server = tokio::task::spawn_blocking(Server::start_or_skip).await.unwrap().unwrap()?;
    let (root, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    Some((server, root))
}

fn config(addr: std::net::SocketAddr) -> Config {
    let mut config = Config::new(addr.ip().to_string(), addr.port());
    (config.user, config.database) = (Some("postgres".into()), Some("postgres".into()));
    config
}

fn claim(bits: u128, name: &str) -> Claim {
    Claim::new(ClaimId::from_bits(bits), ResourceName::new(name).unwrap())
}

async fn grant(store: &Postgres, claim: &Claim) -> Result<oarlock_core::driver::Grant, Error> {
    match store.attempt(claim).await? {
        Attempt::Granted(grant) => Ok(grant),
        Attempt::Pending(pending) => panic!("not granted: {pending:?}"),
    }
}

async fn renew(store: &Postgres, claim: &Claim) -> Renewed {
    store.renew(&[Renewal::of(Arc::new(claim.clone()))]).await.remove(0).unwrap()
}

#[tokio::test]
async fn a_reply_lost_on_the_wire_takes_no_second_place() {
    let Some((server, root)) = start().await else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let store = Postgres::connect(config(proxy.addr())).await.unwrap();
    let claim = claim(1, "wire");
    let dropped = proxy.drop_next_reply(Then::Close);
    let error = grant(&store, &claim).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unreachable, Applied::Unknown), "{error}");
    assert!(dropped.wait().await.is_some());
    let row = root.query_one("SELECT fence FROM oarlock.claim", &[]).await.unwrap();
    let fence: i64 = row.get(0);
    let again = grant(&store, &claim).await.unwrap();
    assert_eq!(again.fence.get(), u64::try_from(fence).unwrap(), "the retry got another fence");

    let dropped = proxy.drop_next_reply(Then::Close);
    let end = End::Done { memo: None };
    assert!(store.release(&claim.resource, claim.id, &end).await.is_err());
    assert!(dropped.wait().await.is_some());
    assert!(grant(&store, &self::claim(2, "wire")).await.unwrap().fence > again.fence);
}

#[tokio::test]
async fn the_end_of_a_session_is_the_loss_of_what_is_tethered_to_it() {
    let Some((server, root)) = start().await else { return };
    let store = Postgres::connect(config(server.addr())).await.unwrap();
    let (held, mut kept) = (claim(1, "held"), claim(2, "kept"));
    kept.tether = Tether::Lease;
    grant(&store, &held).await.unwrap();
    grant(&store, &kept).await.unwrap();
    let mut mailbox = store.watch(&Interest::Mailbox).await.unwrap();
    // The one that does not wait for requests: it has the beacon.
    let beacons = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'";
    assert_eq!(root.query(beacons, &[]).await.unwrap().len(), 1);
    let told = tokio::time::timeout(Duration::from_secs(2), mailbox.changed()).await;
    assert!(told.is_ok_and(|hint| hint.is_some()), "the mailbox did not tell");
    assert!(mailbox.changed().await.is_none(), "the mailbox did not end");
    assert_eq!(renew(&store, &held).await, Renewed::Gone(Gone::Session));
    assert!(matches!(renew(&store, &kept).await, Renewed::Alive { .. }));
    // With a new session it is still gone, as long as nobody claims it anew.
    store.watch(&Interest::Mailbox).await.unwrap();
    assert_eq!(renew(&store, &held).await, Renewed::Gone(Gone::Session));
    // Who comes next need not wait for the lease.
    grant(&store, &claim(3, "held")).await.unwrap();
    assert_eq!(renew(&store, &held).await, Renewed::Gone(Gone::Unknown));
}

#[tokio::test]
async fn a_holder_whose_session_is_terminated_is_told_at_once() {
    let Some((server, root)) = start().await else { return };
    let client = Client::new(Postgres::connect(config(server.addr())).await.unwrap()).unwrap();
    let guard = client.mutex("told").unwrap().lock().await.unwrap();
    // The watchdog arms the mailbox in the background.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let beacons = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'";
    root.query(beacons, &[]).await.unwrap();
    let reason = tokio::time::timeout(Duration::from_secs(2), guard.lost()).await.unwrap();
    assert_eq!(reason, LossReason::Session);
    client.mutex("told").unwrap().lock().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_holder_survives_the_end_of_the_other_connection() {
    let Some((server, root)) = start().await else { return };
    let client = Client::builder(Postgres::connect(config(server.addr())).await.unwrap());
    let client = client.ttl(Duration::from_millis(900)).build().unwrap();
    let guard = client.mutex("survives").unwrap().lock().await.unwrap();
    let requests = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'oarlock'
        AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')";
    assert_eq!(root.query(requests, &[]).await.unwrap().len(), 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(guard.is_held(), "{:?}", guard.loss());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn many_clients_can_make_the_tables_at_once() {
    let Some((server, root)) = start().await else { return };
    let connecting: Vec<_> = (0..12).map(|_| tokio::spawn(Postgres::connect(config(server.addr())))).collect();
    for connected in connecting {
        connected.await.unwrap().unwrap();
    }
    root.batch_execute("UPDATE oarlock.format SET version = 2").await.unwrap();
    let error = Postgres::connect(config(server.addr())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NewerFormat, "{error}");
}

#[tokio::test]
async fn few_rights_are_enough_and_missing_ones_are_named() {
    let Some((server, root)) = start().await else { return };
    root.batch_execute("CREATE ROLE app LOGIN").await.unwrap();
    let mut app = config(server.addr());
    app.user = Some("app".into());
    let error = Postgres::connect(app.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");

    Postgres::connect(config(server.addr())).await.unwrap();
    let rights = "GRANT USAGE ON SCHEMA oarlock TO app; GRANT SELECT ON oarlock.format TO app;
        GRANT SELECT, INSERT, UPDATE, DELETE ON oarlock.resource, oarlock.claim TO app";
    root.batch_execute(rights).await.unwrap();
    let store = Postgres::connect(app).await.unwrap();
    let claim = claim(1, "rights");
    grant(&store, &claim).await.unwrap();
    assert!(matches!(renew(&store, &claim).await, Renewed::Alive { .. }));
    assert_eq!(store.inspect(&Query::live()).await.unwrap().resources.len(), 1);
    store.watch(&Interest::Resource(claim.resource.clone())).await.unwrap();
    store.release(&claim.resource, claim.id, &End::Withdrawn).await.unwrap();

    root.batch_execute("ALTER ROLE app SET default_transaction_isolation = 'serializable'").await.unwrap();
    let mut strict = config(server.addr());
    strict.user = Some("app".into());
    let error = Postgres::connect(strict).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

#[tokio::test]
async fn names_that_nobody_uses_are_forgotten_after_a_day() {
    let Some((server, root)) = start().await else { return };
    let store = Postgres::connect(config(server.addr())).await.unwrap();
    let mut waits = claim(0, "in use");
    waits.ttl = Duration::from_secs(100 * 3600);
    grant(&store, &waits).await.unwrap();
    for bits in 1..=50 {
        let claim = claim(bits, &format!("old {bits}"));
        grant(&store, &claim).await.unwrap();
        store.release(&claim.resource, claim.id, &End::Withdrawn).await.unwrap();
    }
    root.batch_execute("UPDATE oarlock.resource SET used = used - interval '25 hours'").await.unwrap();
    for bits in 100..160 {
        grant(&store, &claim(bits, &format!("new {bits}"))).await.unwrap();
    }
    let left = "SELECT count(*) FILTER (WHERE name LIKE 'old%'), count(*) FILTER (WHERE name = 'in use'), count(*)
        FROM (SELECT convert_from(name, 'UTF8') AS name FROM oarlock.resource) AS names";
    let row = root.query_one(left, &[]).await.unwrap();
    let (old, in_use, all): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    assert!(old < 25, "{old} of 50 old names are left");
    assert_eq!((in_use, all - old), (1, 61), "a name in use was forgotten");
}
