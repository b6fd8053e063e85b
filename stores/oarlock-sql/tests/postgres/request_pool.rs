//! The connections for requests, when one of them or the server fails them.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver as _, End, Renewed};
use oarlock_core::error::{Applied, Retry};
use oarlock_sql::postgres::Postgres;
use oarlock_testbed::proxy::{Direction, Held, Proxy};
use tokio_postgres::NoTls;

use crate::store::{Server, claim, config, grant, renew, start, until};

/// Longer than anything here takes on a busy machine.
const BOUND: Duration = Duration::from_secs(30);

/// Ends the connections of our clients that have no liveness lock.
const END_REQUESTS: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'oarlock'
    AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')";

const LIVENESS_LOCKS: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";

/// An address where no server listens.
fn nowhere() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

async fn withdraw(store: &Postgres, bits: u128, name: &str) {
    let claim = claim(bits, name);
    store.release(&claim.resource, claim.id, &End::Withdrawn).await.unwrap();
}

/// All connections of the server are taken before the first renewal: it goes over one of those for requests.
#[tokio::test]
async fn a_renewal_needs_no_connection_of_its_own() {
    let settings = &[("max_connections", "8"), ("superuser_reserved_connections", "0"), ("max_wal_senders", "0")];
    let server = tokio::task::spawn_blocking(|| Server::start_with_or_skip(settings)).await.unwrap().unwrap();
    let Some(server) = server else { return };
    let store = Postgres::connect(config(server.addr())).await.unwrap();
    let held = claim(1, "renewed");
    grant(&store, &held).await.unwrap();
    let mut taken = Vec::new();
    while let Ok((client, connection)) = tokio_postgres::connect(&server.url(), NoTls).await {
        tokio::spawn(connection);
        taken.push(client);
    }
    assert!(!taken.is_empty());
    let renewed = tokio::time::timeout(BOUND, renew(&store, &held)).await.unwrap();
    assert!(matches!(renewed, Renewed::Alive { .. }), "{renewed:?}");
}

/// The server refuses a statement that it prepared, and would do so for ever.
#[tokio::test]
async fn a_stale_statement_is_prepared_again() {
    let Some((server, root)) = start().await else { return };
    let store = Postgres::connect(config(server.addr())).await.unwrap();
    grant(&store, &claim(1, "stale")).await.unwrap();
    withdraw(&store, 1, "stale").await;
    grant(&store, &claim(2, "stale")).await.unwrap();
    // As an update of the functions does: the reply has another column.
    let change = "DO $$ DECLARE old text := pg_get_functiondef('oarlock.release'::regproc); BEGIN
        DROP FUNCTION oarlock.release;
        EXECUTE replace(old, 'OUT others boolean', 'OUT others boolean, OUT another integer'); END $$";
    root.batch_execute(change).await.unwrap();
    let held = claim(2, "stale");
    let error = store.release(&held.resource, held.id, &End::Withdrawn).await.unwrap_err();
    assert_eq!((error.applied(), error.retry()), (Applied::No, Retry::Now), "{error}");
    withdraw(&store, 2, "stale").await;
    grant(&store, &claim(3, "stale")).await.unwrap();
}

/// An attempt had no effect; the claim waits in the queue since the attempt before.
#[tokio::test]
async fn a_waiter_listens_after_an_attempt_that_had_no_effect() {
    let Some((server, root)) = start().await else { return };
    let door = Proxy::start(server.addr()).unwrap();
    let (holder, store) = (config(server.addr()), config(door.addr()));
    let (holder, store) = (Postgres::connect(holder).await.unwrap(), Postgres::connect(store).await.unwrap());
    let mut waits = claim(2, "queue");
    waits.wait = true;
    grant(&holder, &claim(1, "queue")).await.unwrap();
    assert!(matches!(store.attempt(&waits).await.unwrap(), Attempt::Pending(_)));
    door.aim(nowhere());
    root.query(END_REQUESTS, &[]).await.unwrap();
    let refused = async {
        loop {
            let error = store.attempt(&waits).await.unwrap_err();
            if error.applied() == Applied::No {
                break;
            }
        }
    };
    tokio::time::timeout(BOUND, refused).await.unwrap();
    door.aim(server.addr());
    // Longer than a client listens that has no claim.
    tokio::time::sleep(Duration::from_secs(11)).await;
    until(&root, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN oarlock_%'", 2).await;
}

/// The address has moved, and nothing but the session has noticed: a grant of the old server protects nothing.
#[tokio::test]
async fn a_request_goes_to_the_server_of_its_session() {
    let (Some((old, root)), Some((new, theirs))) = (start().await, start().await) else { return };
    let _schema = Postgres::connect(config(new.addr())).await.unwrap();
    let door = Proxy::start(old.addr()).unwrap();
    let store = Postgres::connect(config(door.addr())).await.unwrap();
    grant(&store, &claim(1, "before")).await.unwrap();
    assert!(matches!(renew(&store, &claim(1, "before")).await, Renewed::Alive { .. }));
    door.aim(new.addr());
    let end = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'";
    assert_eq!(root.query(end, &[]).await.unwrap().len(), 1);
    until(&root, LIVENESS_LOCKS, 0).await;
    let after = claim(2, "after");
    let arriving = async { while store.attempt(&after).await.is_err() {} };
    tokio::time::timeout(BOUND, arriving).await.unwrap();
    let known = "SELECT count(*) FROM oarlock.claim JOIN oarlock.session ON number = session
        WHERE id IS NOT NULL AND requests IN (SELECT pid FROM pg_stat_activity)";
    assert_eq!(theirs.query_one(known, &[]).await.unwrap().get::<_, i64>(0), 1, "the old server granted it");
    assert!(matches!(renew(&store, &after).await, Renewed::Alive { .. }));
}

/// The first connection is gone and cannot be opened again: spares serve, and stand for the session.
#[tokio::test]
async fn spares_serve_while_the_first_connection_is_gone() {
    let Some((server, root)) = start().await else { return };
    let door = Proxy::start(server.addr()).unwrap();
    let store = Arc::new(Postgres::connect(config(door.addr())).await.unwrap());
    for (bits, name) in [(1, "one"), (2, "two")] {
        grant(&store, &claim(bits, name)).await.unwrap();
    }
    let first: i32 = root.query_one("SELECT requests FROM oarlock.session", &[]).await.unwrap().get(0);
    // Four requests at once need four connections.
    root.batch_execute("BEGIN; SELECT FROM oarlock.resource FOR UPDATE").await.unwrap();
    let busy: Vec<_> = [(3, "one"), (4, "one"), (5, "two"), (6, "two")]
        .map(|(bits, name)| {
            let store = store.clone();
            tokio::spawn(async move { store.attempt(&claim(bits, name)).await })
        })
        .into();
    until(&root, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%oarlock%'", 4)
        .await;
    root.batch_execute("ROLLBACK").await.unwrap();
    for request in busy {
        assert!(matches!(request.await.unwrap().unwrap(), Attempt::Pending(_)));
    }
    door.aim(nowhere());
    root.query("SELECT pg_terminate_backend($1)", &[&first]).await.unwrap();
    until(&root, &format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {first}"), 0).await;
    let mut refused = 0;
    for bits in 10..15 {
        let served = tokio::time::timeout(BOUND, grant(&store, &claim(bits, &format!("own {bits}")))).await.unwrap();
        refused += usize::from(served.is_err());
    }
    // The client may have sent one before it saw the end of the connection.
    assert!(refused <= 1, "{refused} of 5 failed");
    let stands = format!(
        "SELECT count(*) FROM oarlock.session WHERE requests <> {first} AND requests IN (SELECT pid FROM pg_stat_activity)"
    );
    until(&root, &stands, 1).await;
    // And the first one is opened as soon as that is possible.
    door.aim(server.addr());
    grant(&store, &claim(20, "last")).await.unwrap();
}

/// Its claims must end for the client before another client sees the liveness lock released.
#[tokio::test]
async fn a_session_that_does_not_answer_keeps_its_liveness_lock() {
    let Some((server, root)) = start().await else { return };
    let door = Proxy::start(server.addr()).unwrap();
    let mut config = config(door.addr());
    config.silence_timeout = Duration::from_secs(1);
    let store = Postgres::connect(config).await.unwrap();
    // The next request is that to listen. Its answer comes too late.
    door.cut_one_way(Direction::ToClient);
    tokio::time::timeout(BOUND, store.attempt(&claim(1, "silent"))).await.unwrap().unwrap_err();
    door.heal(Held::Deliver).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(root.query_one(LIVENESS_LOCKS, &[]).await.unwrap().get::<_, i64>(0), 1, "it was released");
    // The next session is another one.
    grant(&store, &claim(1, "silent")).await.unwrap();
    assert_eq!(root.query_one(LIVENESS_LOCKS, &[]).await.unwrap().get::<_, i64>(0), 2);
}
