//! A URL with several servers, of which one takes writes: a primary and its streaming standby.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use oarlock_core::driver::{Attempt, Driver as _};
use oarlock_core::{Claim, ErrorKind, Locks, Retry};
use oarlock_sql::postgres::{Advisory, Config, Postgres, PostgresSession};
use tokio::task::spawn_blocking;
use tokio_postgres::{Client, NoTls};

use crate::store::{Server, caught_up, claim, config, grant, start, until};

/// Longer than anything here takes on a busy machine.
const BOUND: Duration = Duration::from_secs(30);

async fn pair() -> Option<(Server, Client, Server, Client)> {
    let (primary, root) = start().await?;
    let addr = primary.addr();
    let standby = spawn_blocking(move || Server::standby_of(addr)).await.unwrap().unwrap();
    let (theirs, connection) = tokio_postgres::connect(&standby.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    Some((primary, root, standby, theirs))
}

fn several(hosts: [SocketAddr; 2]) -> Config {
    let mut config = config(hosts[0]);
    config.others = vec![(hosts[1].ip().to_string(), hosts[1].port())];
    config
}

/// How many connections of locks a server has.
const CONNECTIONS: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'oarlock'";

async fn number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// Attempts until it is granted.
async fn granted_in_time(store: &Postgres, claim: &Claim) {
    let start = Instant::now();
    loop {
        match store.attempt(claim).await {
            Ok(Attempt::Granted(_)) => return,
            Ok(Attempt::Pending(pending)) => panic!("not granted: {pending:?}"),
            Err(error) => assert!(start.elapsed() < BOUND && error.retry() != Retry::Never, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_is_named_first_is_passed_over_until_it_is_promoted() {
    let Some((primary, root, standby, theirs)) = pair().await else { return };
    let config = several([standby.addr(), primary.addr()]);
    let store = Postgres::connect(config.clone()).await.unwrap();
    grant(&store, &claim(1, "deploy")).await.unwrap();
    // A standby would grant advisory locks, of which the primary knows nothing.
    let session = Locks::over(PostgresSession::connect(Advisory::new(config.clone())).await.unwrap()).unwrap();
    let guard = session.mutex("nightly").lock().await.unwrap();
    let advisory = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    assert!(number(&root, CONNECTIONS).await >= 2 && number(&root, advisory).await >= 1);
    until(&theirs, CONNECTIONS, 0).await;
    assert_eq!(number(&theirs, advisory).await, 0);
    guard.release().await.unwrap();

    caught_up(&root, &theirs).await;
    drop(root);
    let dead = spawn_blocking(move || primary.kill().map(|()| primary)).await.unwrap().unwrap();
    // No server takes writes now. Each is named, and why.
    let error = Postgres::connect(config).await.unwrap_err();
    assert_eq!((error.kind(), error.retry()), (ErrorKind::Unreachable, Retry::Later));
    let told = error.to_string();
    for words in [format!("{}: ", standby.addr()), "read-only".into(), format!("{}: ", dead.addr())] {
        assert!(told.contains(&words), "{words}: {told}");
    }
    theirs.batch_execute("SELECT pg_promote()").await.unwrap();
    granted_in_time(&store, &claim(2, "after")).await;
    assert!(matches!(store.attempt(&claim(3, "deploy")).await, Ok(Attempt::Pending(_))), "the standby has the claim");
}

/// Its connections stay open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_becomes_read_only_is_left() {
    let Some((primary, root, standby, theirs)) = pair().await else { return };
    let config = several([primary.addr(), standby.addr()]);
    let store = Postgres::connect(config.clone()).await.unwrap();
    grant(&store, &claim(1, "before")).await.unwrap();
    let session = || async {
        let session = PostgresSession::connect(Advisory::new(config.clone())).await.unwrap();
        Locks::builder(session).ttl(Duration::from_secs(3)).build().unwrap()
    };
    let ours = session().await;
    let held = ours.mutex("nightly").lock().await.unwrap();
    caught_up(&root, &theirs).await;
    root.batch_execute("ALTER SYSTEM SET default_transaction_read_only = on").await.unwrap();
    root.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    theirs.batch_execute("SELECT pg_promote()").await.unwrap();
    until(&theirs, "SELECT (NOT pg_is_in_recovery())::int::bigint", 1).await;
    until(&root, "SELECT (current_setting('transaction_read_only') = 'on')::int::bigint", 1).await;
    granted_in_time(&store, &claim(2, "after")).await;
    assert_eq!(number(&theirs, "SELECT count(*) FROM oarlock.claim").await, 2);
    assert_eq!(number(&root, "SELECT count(*) FROM oarlock.claim").await, 1);
    // An advisory lock would be kept there for ever, and the new primary knows nothing of it.
    tokio::time::timeout(BOUND, held.lost()).await.expect("belief goes on at the old primary");
    session().await.mutex("nightly").lock().await.unwrap().release().await.unwrap();
    ours.mutex("nightly").wait(BOUND).lock().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_server_leaves_time_for_the_next() {
    let Some((primary, _root)) = start().await else { return };
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = several([silent.local_addr().unwrap(), primary.addr()]);
    config.connect_timeout = Duration::from_secs(12);
    let store = Postgres::connect(config).await.unwrap();
    grant(&store, &claim(1, "deploy")).await.unwrap();
}
