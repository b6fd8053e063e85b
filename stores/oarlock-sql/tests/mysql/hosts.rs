//! A URL with several servers, of which one takes writes: a primary and a replica that is read-only.

use std::time::{Duration, Instant};

use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use oarlock_core::driver::{Attempt, Driver as _};
use oarlock_core::{ErrorKind, Locks, Retry};
use oarlock_sql::mysql::{Config, MySql, MySqlSession, Named};
use oarlock_testbed::{Flavour, Proxy, SqlServer};

use crate::failover::{BOUND, Pair, config};
use crate::store::{claim, grant, until};

fn several(hosts: [&SqlServer; 2]) -> Config {
    let mut config = config(hosts[0].addr());
    config.others = vec![(hosts[1].addr().ip().to_string(), hosts[1].addr().port())];
    config
}

/// How many connections of locks a server has.
const CONNECTIONS: &str = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'app'";

async fn connections(root: &mut Conn) -> i64 {
    root.query_first(CONNECTIONS).await.unwrap().unwrap()
}

async fn claims(root: &mut Conn) -> i64 {
    root.query_first("SELECT COUNT(*) FROM oarlock_claim").await.unwrap().unwrap()
}

async fn a_replica_that_is_named_first_is_passed_over(on: Flavour) {
    let Some(mut pair) = Pair::start(on, "MIXED").await else { return };
    let config = several([&pair.replica, &pair.primary]);
    let store = MySql::connect(config.clone()).await.unwrap();
    grant(&store, &claim(1, "deploy")).await.unwrap();
    // A replica would grant named locks, of which the primary knows nothing.
    let session = Locks::over(MySqlSession::connect(Named::new(config.clone())).await.unwrap()).unwrap();
    let guard = session.mutex("nightly").lock().await.unwrap();
    assert!(connections(&mut pair.root).await >= 2);
    until(&mut pair.theirs, CONNECTIONS, 0).await;
    guard.release().await.unwrap();
    pair.kill().await;
    // No server takes writes now. Each is named, and why.
    let error = MySql::connect(config).await.unwrap_err();
    assert_eq!((error.kind(), error.retry()), (ErrorKind::Unreachable, Retry::Later));
    let told = error.to_string();
    for words in [format!("{}: ", pair.replica.addr()), "read-only".into(), format!("{}: ", pair.primary.addr())] {
        assert!(told.contains(&words), "{words}: {told}");
    }
}

/// Its connections stay open. An administrator may write there for ever.
async fn a_primary_that_was_demoted_is_left(on: Flavour) {
    let Some(mut pair) = Pair::start(on, "MIXED").await else { return };
    let config = several([&pair.primary, &pair.replica]);
    let mut administrator = config.clone();
    administrator.user = None;
    let stores = [MySql::connect(config.clone()).await.unwrap(), MySql::connect(administrator).await.unwrap()];
    for (number, store) in stores.iter().enumerate() {
        grant(store, &claim(1 + number as u128, &format!("before/{number}"))).await.unwrap();
    }
    let session = || async {
        let session = MySqlSession::connect(Named::new(config.clone())).await.unwrap();
        Locks::builder(session).ttl(Duration::from_secs(3)).build().unwrap()
    };
    let ours = session().await;
    let held = ours.mutex("nightly").lock().await.unwrap();
    pair.catch_up().await;
    pair.root.query_drop("SET GLOBAL read_only = 1").await.unwrap();
    pair.promote().await;
    for (number, store) in stores.iter().enumerate() {
        let start = Instant::now();
        loop {
            match store.attempt(&claim(3 + number as u128, &format!("after/{number}"))).await {
                Ok(Attempt::Granted(_)) => break,
                Ok(Attempt::Pending(pending)) => panic!("not granted: {pending:?}"),
                Err(error) => assert!(start.elapsed() < BOUND && error.retry() != Retry::Never, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert_eq!((claims(&mut pair.root).await, claims(&mut pair.theirs).await), (2, 4));
    // A named lock would be kept there for ever, and the new primary knows nothing of it.
    tokio::time::timeout(BOUND, held.lost()).await.expect("belief goes on at the old primary");
    session().await.mutex("nightly").lock().await.unwrap().release().await.unwrap();
    ours.mutex("nightly").wait(BOUND).lock().await.unwrap().release().await.unwrap();
}

/// A replica that takes writes by mistake would grant what the primary has granted.
async fn a_primary_without_a_connection_to_spare_is_not_passed_over(on: Flavour) {
    let Some(mut pair) = Pair::start(on, "MIXED").await else { return };
    pair.root.query_drop("ALTER USER app WITH MAX_USER_CONNECTIONS 1").await.unwrap();
    pair.catch_up().await;
    pair.promote().await;
    pair.theirs.query_drop("ALTER USER app WITH MAX_USER_CONNECTIONS 0").await.unwrap();
    let error = MySql::connect(several([&pair.primary, &pair.replica])).await.unwrap_err();
    assert_eq!((error.kind(), error.retry()), (ErrorKind::Unreachable, Retry::Later), "{error}");
    assert!(!error.to_string().contains("none of"), "{error}");
    assert_eq!(connections(&mut pair.theirs).await, 0);
}

/// Its machine lost power or network: nothing ends its connections.
async fn a_primary_that_is_silent_is_left_after_its_replica_was_promoted(on: Flavour) {
    let Some(mut pair) = Pair::start(on, "MIXED").await else { return };
    let far = Proxy::start(pair.primary.addr()).unwrap();
    let mut config = config(far.addr());
    config.others = vec![(pair.replica.addr().ip().to_string(), pair.replica.addr().port())];
    (config.connect_timeout, config.silence_timeout) = (Duration::from_secs(3), Duration::from_secs(2));
    let store = MySql::connect(config).await.unwrap();
    grant(&store, &claim(1, "before")).await.unwrap();
    pair.catch_up().await;
    far.cut();
    pair.promote().await;
    let start = Instant::now();
    while !matches!(store.attempt(&claim(2, "after")).await, Ok(Attempt::Granted(_))) {
        assert!(start.elapsed() < BOUND, "it stays with the silent primary");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

on_both!(
    a_primary_that_is_silent_is_left_after_its_replica_was_promoted,
    a_replica_that_is_named_first_is_passed_over,
    a_primary_that_was_demoted_is_left,
    a_primary_without_a_connection_to_spare_is_not_passed_over,
);
