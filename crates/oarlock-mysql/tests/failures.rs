//! What the end of a connection proves, what it does not, and what is left after a failure in the middle.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests, also outside test functions")]

#[path = "shared/store.rs"]
mod store;

use std::sync::Arc;
use std::time::Duration;

use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use oarlock_core::capabilities::Liveness;
use oarlock_core::driver::{Driver as _, End, Released, Renewal, Renewed};
use oarlock_core::error::{Applied, Retry};
use oarlock_core::state::{Query, Waiters};
use oarlock_core::{Client, Error, Tether};
use oarlock_mysql::MySql;
use oarlock_testbed::proxy::Proxy;

use self::store::{Server, claim, config, grant, pending, raw, renew, start, until};

/// The connections that hold a named lock of the only session, the beacon first.
async fn witnesses(root: &mut Conn) -> Vec<u64> {
    let session: String = root.query_first("SELECT LOWER(HEX(number)) FROM oarlock_session").await.unwrap().unwrap();
    let mut held = Vec::new();
    for witness in 0..16 {
        let owner = format!("SELECT IS_USED_LOCK('oarlock_{session}_{witness}')");
        held.extend(root.query_first::<Option<u64>, _>(owner).await.unwrap().flatten());
    }
    held
}

#[tokio::test]
async fn a_beacon_that_is_killed_frees_nothing_and_is_lit_again() {
    let Some((server, mut root)) = start().await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    assert_eq!(store.info().capabilities.liveness, Liveness::LeaseAndProcess);
    let held = claim(1, "held");
    grant(&store, &held).await.unwrap();
    let before = witnesses(&mut root).await;
    root.query_drop(format!("KILL {}", before[0])).await.unwrap();
    until(&mut root, &format!("SELECT COUNT(*) FROM information_schema.processlist WHERE id = {}", before[0]), 0).await;
    let rival = MySql::connect(config(server.addr())).await.unwrap();
    // Only the beacon is gone: also whoever does not count who was killed must see that the client lives.
    root.query_drop(FORGET_KILLS).await.unwrap();
    pending(&rival, &claim(2, "held")).await;
    // The first renewal finds the connection dead, the next one makes a new one.
    let _ = renew(&store, &held).await;
    assert!(matches!(renew(&store, &held).await.unwrap(), Renewed::Alive { .. }));
    let session = "SELECT LOWER(HEX(number)) FROM oarlock_session WHERE number IN (SELECT session FROM oarlock_claim)";
    let session: String = root.query_first(session).await.unwrap().unwrap();
    let lit = format!("SELECT IS_USED_LOCK('oarlock_{session}_0') IS NOT NULL");
    assert_eq!(root.query_first::<i64, _>(lit).await.unwrap(), Some(1), "the beacon is not lit again");
}

/// Lets what follows not depend on who was killed.
const FORGET_KILLS: &str = "UPDATE oarlock_session SET kills = (
    SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'COM_KILL')";

#[tokio::test]
async fn a_dead_process_frees_what_it_held_and_where_it_waited() {
    let Some((server, _root)) = start().await else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let (store, rival) =
        (MySql::connect(config(proxy.addr())).await.unwrap(), MySql::connect(config(server.addr())).await.unwrap());
    let (held, mut kept, mut waits) = (claim(1, "held"), claim(2, "kept"), claim(3, "queue"));
    kept.tether = Tether::Lease;
    (waits.fair, waits.wait) = (true, true);
    let first = grant(&store, &held).await.unwrap();
    grant(&store, &kept).await.unwrap();
    let holder = claim(4, "queue");
    grant(&rival, &holder).await.unwrap();
    pending(&store, &waits).await;
    // What the kernel does to the connections of a dead process.
    proxy.refuse();
    let mut second = claim(5, "held");
    for _ in 0..200 {
        second.wait = true;
        if let oarlock_core::driver::Attempt::Granted(grant) = rival.attempt(&second).await.unwrap() {
            assert!(grant.fence > first.fence);
            rival.release(&holder.resource, holder.id, &End::Done { memo: None }).await.unwrap();
            let mut behind = claim(6, "queue");
            behind.fair = true;
            self::grant(&rival, &behind).await.unwrap();
            pending(&rival, &claim(7, "kept")).await;
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("a dead process still holds its lock after two seconds");
}

/// Whether this is not the long tier, which is said.
fn is_short() -> bool {
    let short = std::env::var_os("OARLOCK_LONG").is_none();
    if short {
        println!("only in the long tier (OARLOCK_LONG=1)");
    }
    short
}

/// Cuts a holder off, lets `disaster` befall the server, and expects that nothing but its lease counts.
async fn survives_while_cut_off(disaster: impl FnOnce(&Server) + Send + 'static, kill: bool) {
    let Some((server, mut root)) = start().await else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let store = MySql::connect(config(proxy.addr())).await.unwrap();
    let held = claim(1, "held");
    grant(&store, &held).await.unwrap();
    proxy.cut();
    if kill {
        for connection in witnesses(&mut root).await {
            root.query_drop(format!("KILL {connection}")).await.unwrap();
        }
        let ours = "SELECT COUNT(*) FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND db = 'locks'";
        until(&mut root, ours, 0).await;
    }
    let server = tokio::task::spawn_blocking(move || {
        disaster(&server);
        server
    });
    let server = server.await.unwrap();
    let rival = MySql::connect(config(server.addr())).await.unwrap();
    let left = pending(&rival, &claim(2, "held")).await.recheck_after.unwrap();
    let page = rival.inspect(&Query::live()).await.unwrap();
    assert_eq!(page.resources.first().map(|state| state.holders.len()), Some(1), "a holder that blocks is not shown");
    assert!(left > Duration::ZERO && left <= held.ttl, "{left:?}");
}

#[tokio::test]
async fn a_restart_is_not_the_death_of_a_holder_that_is_cut_off() {
    survives_while_cut_off(|server| server.restart().unwrap(), false).await;
}

#[tokio::test]
async fn a_crash_of_the_server_is_not_the_death_of_a_holder_that_is_cut_off() {
    if is_short() {
        return;
    }
    survives_while_cut_off(
        |server| {
            server.kill().unwrap();
            server.restart().unwrap();
        },
        false,
    )
    .await;
}

#[tokio::test]
async fn an_administrator_who_ends_all_connections_does_not_kill_a_holder_that_is_cut_off() {
    survives_while_cut_off(|_| {}, true).await;
}

#[tokio::test]
async fn a_holder_survives_a_restart_of_the_server() {
    if is_short() {
        return;
    }
    let Some((server, _root)) = start().await else { return };
    let client = Client::builder(MySql::connect(config(server.addr())).await.unwrap());
    let client = client.ttl(Duration::from_secs(6)).build().unwrap();
    let guard = client.mutex("survives").unwrap().lock().await.unwrap();
    let fence = guard.fence();
    let server = tokio::task::spawn_blocking(move || {
        server.restart().unwrap();
        server
    });
    let server = server.await.unwrap();
    let rival = MySql::connect(config(server.addr())).await.unwrap();
    pending(&rival, &claim(1, "survives")).await;
    // Longer than the lease had left: it is renewed on a new connection.
    tokio::time::sleep(Duration::from_secs(5)).await;
    pending(&rival, &claim(1, "survives")).await;
    assert!(guard.is_held(), "{:?}", guard.loss());
    guard.release().await.unwrap();
    assert!(grant(&rival, &claim(1, "survives")).await.unwrap().fence > fence);
}

/// Somebody who keeps the row of a name locked.
async fn locker(server: &Server, name: &str) -> Conn {
    let mut conn = raw(server.addr()).await;
    conn.query_drop("START TRANSACTION").await.unwrap();
    let lock = format!("SELECT number FROM oarlock_resource WHERE name = '{name}' FOR UPDATE");
    assert!(conn.query_first::<i64, _>(lock).await.unwrap().is_some());
    conn
}

/// The connection that is in the middle of `verb`, where it waits for the row of a name.
async fn in_the_middle_of(root: &mut Conn, verb: &str) -> u64 {
    let waiting = "SELECT id FROM information_schema.processlist WHERE command = 'Execute' AND time_ms > 20
        AND info LIKE '%FROM oarlock_resource WHERE name%FOR UPDATE%'";
    for _ in 0..500 {
        if let Some(connection) = root.query_first(waiting).await.unwrap() {
            return connection;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nobody is in the middle of {verb}");
}

#[tokio::test]
async fn a_connection_killed_in_the_middle_of_a_verb_leaves_nothing_half_done() {
    let Some((server, mut root)) = start().await else { return };
    for kill in ["KILL", "KILL QUERY"] {
        let name = kill.to_lowercase();
        let store = Arc::new(MySql::connect(config(server.addr())).await.unwrap());
        let (old, held) = (claim(1, &name), claim(2, &name));
        let before = grant(&store, &old).await.unwrap().fence;
        store.release(&old.resource, old.id, &End::Withdrawn).await.unwrap();

        // attempt
        let mut lock = locker(&server, &name).await;
        let (asking, wanted) = (store.clone(), held.clone());
        let verb = tokio::spawn(async move { grant(&asking, &wanted).await });
        let middle = in_the_middle_of(&mut root, "attempt").await;
        root.query_drop(format!("{kill} {middle}")).await.unwrap();
        doubtful(&verb.await.unwrap().unwrap_err());
        lock.query_drop("ROLLBACK").await.unwrap();
        let fence = grant(&store, &held).await.unwrap().fence;
        assert!(fence > before);
        assert_eq!(grant(&store, &held).await.unwrap().fence, fence);

        // renew
        lock.query_drop("START TRANSACTION").await.unwrap();
        lock.query_drop(format!("SELECT 1 FROM oarlock_resource WHERE name = '{name}' FOR UPDATE")).await.unwrap();
        let (asking, wanted) = (store.clone(), held.clone());
        let verb = tokio::spawn(async move { renew(&asking, &wanted).await });
        let middle = in_the_middle_of(&mut root, "renew").await;
        root.query_drop(format!("{kill} {middle}")).await.unwrap();
        doubtful(&verb.await.unwrap().unwrap_err());
        lock.query_drop("ROLLBACK").await.unwrap();
        let renewed = renew(&store, &held).await.unwrap();
        assert!(matches!(renewed, Renewed::Alive { fence: Some(same), .. } if same == fence), "{renewed:?}");

        // release
        lock.query_drop("START TRANSACTION").await.unwrap();
        lock.query_drop(format!("SELECT 1 FROM oarlock_resource WHERE name = '{name}' FOR UPDATE")).await.unwrap();
        let (asking, wanted) = (store.clone(), held.clone());
        let end = End::Done { memo: None };
        let verb = tokio::spawn(async move { asking.release(&wanted.resource, wanted.id, &end).await });
        let middle = in_the_middle_of(&mut root, "release").await;
        root.query_drop(format!("{kill} {middle}")).await.unwrap();
        doubtful(&verb.await.unwrap().unwrap_err());
        lock.query_drop("ROLLBACK").await.unwrap();
        let end = End::Done { memo: None };
        assert_eq!(store.release(&held.resource, held.id, &end).await.unwrap().outcome, Released::Released);
        assert!(grant(&store, &claim(3, &name)).await.unwrap().fence > fence);
        // Nothing that was interrupted keeps a row locked.
        until(&mut root, "SELECT COUNT(*) FROM information_schema.innodb_trx", 0).await;
    }
}

fn doubtful(error: &Error) {
    assert_eq!((error.applied(), error.retry()), (Applied::Unknown, Retry::Later), "{error}");
}

#[tokio::test]
async fn whoever_loses_a_deadlock_had_no_effect_and_may_try_again_at_once() {
    let Some((server, mut root)) = start().await else { return };
    let store = Arc::new(MySql::connect(config(server.addr())).await.unwrap());
    let (one, two) = (claim(1, "a"), claim(2, "b"));
    grant(&store, &one).await.unwrap();
    let fence = grant(&store, &two).await.unwrap().fence;
    let mut stranger = locker(&server, "b").await;
    // The server gives up whoever has changed less.
    stranger.query_drop("CREATE TEMPORARY TABLE heavy (number INT PRIMARY KEY) ENGINE = InnoDB").await.unwrap();
    stranger.query_drop("INSERT INTO heavy SELECT seq FROM seq_1_to_1000").await.unwrap();
    let (asking, batch) = (store.clone(), [one.clone(), two.clone()].map(|claim| Renewal::of(Arc::new(claim))));
    let verb = tokio::spawn(async move { asking.renew(&batch).await });
    in_the_middle_of(&mut root, "renew").await;
    let closing = "SELECT number FROM oarlock_resource WHERE name = 'a' FOR UPDATE";
    let closing = tokio::time::timeout(Duration::from_secs(5), stranger.query_first::<i64, _>(closing));
    assert!(closing.await.unwrap().unwrap().is_some());
    for answer in verb.await.unwrap() {
        let error = answer.unwrap_err();
        assert_eq!((error.applied(), error.retry()), (Applied::No, Retry::Now), "{error}");
    }
    stranger.query_drop("ROLLBACK").await.unwrap();
    let renewed = renew(&store, &two).await.unwrap();
    assert!(matches!(renewed, Renewed::Alive { fence: Some(same), .. } if same == fence), "{renewed:?}");
}

#[tokio::test]
async fn a_statement_that_took_too_long_leaves_no_row_locked() {
    let Some((server, mut root)) = start().await else { return };
    let first = MySql::connect(config(server.addr())).await.unwrap();
    let old = claim(1, "slow");
    let fence = grant(&first, &old).await.unwrap().fence;
    root.query_drop("SET GLOBAL max_statement_time = 0.2").await.unwrap();
    let store = MySql::connect(config(server.addr())).await.unwrap();
    root.query_drop("SET GLOBAL max_statement_time = 0").await.unwrap();
    let mut lock = locker(&server, "slow").await;
    let mut waits = claim(2, "slow");
    waits.wait = true;
    let error = store.attempt(&waits).await.unwrap_err();
    doubtful(&error);
    lock.query_drop("ROLLBACK").await.unwrap();
    until(&mut root, "SELECT COUNT(*) FROM information_schema.innodb_trx", 0).await;
    pending(&store, &waits).await;
    let page = store.inspect(&Query::live()).await.unwrap();
    assert!(matches!(&page.resources[0].waiters, Waiters::Listed(waiters) if waiters.len() == 1), "{page:?}");
    first.release(&old.resource, old.id, &End::Done { memo: None }).await.unwrap();
    assert!(grant(&store, &waits).await.unwrap().fence > fence);
}
