//! The connections for requests, when one of them or the server fails them.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver as _, End, Renewed};
use oarlock_core::error::{Applied, Retry};
use oarlock_sql::postgres::Postgres;
use oarlock_testbed::proxy::{Direction, Held, Proxy};
use tokio::task::JoinHandle;
use tokio_postgres::NoTls;
use tokio_postgres::error::SqlState;

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
    let error = tokio_postgres::connect(&server.url(), NoTls).await.err().unwrap();
    assert_eq!(error.code(), Some(&SqlState::TOO_MANY_CONNECTIONS), "{error}");
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
    let ended = root.query(END_REQUESTS, &[]).await.unwrap().len();
    assert_eq!(ended, 2, "one of each client");
    until(&root, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'oarlock'", 2).await;
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

/// The address has moved, and nothing but the session has noticed: a grant of the old server protects nothing. There,
/// what stands for the session stays open, for the client may still believe in what it held.
#[tokio::test]
async fn a_request_goes_to_the_server_of_its_session() {
    for renews in [false, true] {
        let (Some((old, root)), Some((new, theirs))) = (start().await, start().await) else { return };
        let _schema = Postgres::connect(config(new.addr())).await.unwrap();
        let door = Proxy::start(old.addr()).unwrap();
        let store = Arc::new(Postgres::connect(config(door.addr())).await.unwrap());
        for (bits, name) in [(1, "before"), (7, "one"), (8, "two")] {
            grant(&store, &claim(bits, name)).await.unwrap();
        }
        // It has spares, too.
        let busy = keep_busy(&store, &root, 4).await;
        root.batch_execute("ROLLBACK").await.unwrap();
        for request in busy {
            request.await.unwrap();
        }
        if renews {
            assert!(matches!(renew(&store, &claim(1, "before")).await, Renewed::Alive { .. }));
        }
        door.aim(new.addr());
        let end = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'";
        assert_eq!(root.query(end, &[]).await.unwrap().len(), 1);
        until(&root, LIVENESS_LOCKS, 0).await;
        // As if the network had ended it.
        root.batch_execute("UPDATE oarlock.session SET kills = oarlock.kills()").await.unwrap();
        let after = claim(2, "after");
        let arriving = async { while store.attempt(&after).await.is_err() {} };
        tokio::time::timeout(BOUND, arriving).await.unwrap();
        let several: Vec<_> = (10..18)
            .map(|bits| {
                let store = store.clone();
                tokio::spawn(async move { grant(&store, &claim(bits, &format!("own {bits}"))).await.map(drop) })
            })
            .collect();
        for request in several {
            request.await.unwrap().unwrap();
        }
        let known = "SELECT count(*) FROM oarlock.claim JOIN oarlock.session ON number = session
            WHERE id IS NOT NULL AND requests IN (SELECT pid FROM pg_stat_activity)";
        assert_eq!(theirs.query_one(known, &[]).await.unwrap().get::<_, i64>(0), 9, "the old server granted some");
        assert!(matches!(renew(&store, &after).await, Renewed::Alive { .. }));
        tokio::time::sleep(Duration::from_millis(300)).await;
        let rival = Postgres::connect(config(old.addr())).await.unwrap();
        let attempt = rival.attempt(&claim(3, "before")).await.unwrap();
        assert!(matches!(attempt, Attempt::Pending(_)), "a client that lives was taken for dead");
    }
}

/// Requests that wait for a row that another transaction has locked.
const BUSY: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%oarlock%'";

/// The backend that stands for the session besides its own.
const SECOND: &str = "SELECT requests FROM oarlock.session";

/// Lets so many requests wait, each on a connection of its own: at most two of a name.
async fn keep_busy(store: &Arc<Postgres>, root: &tokio_postgres::Client, requests: usize) -> Vec<JoinHandle<()>> {
    root.batch_execute("BEGIN; SELECT FROM oarlock.resource FOR UPDATE").await.unwrap();
    let names = ["one", "one", "two", "two"].into_iter().take(requests);
    let requests: Vec<_> = names
        .zip(3..)
        .map(|(name, bits)| {
            let store = store.clone();
            tokio::spawn(async move {
                let attempt = store.attempt(&claim(bits, name)).await.unwrap();
                assert!(matches!(attempt, Attempt::Pending(_)));
            })
        })
        .collect();
    until(root, BUSY, i64::try_from(requests.len()).unwrap()).await;
    requests
}

/// A client with three spares whose first connection has ended and cannot be opened.
async fn without_first(server: &Server, root: &tokio_postgres::Client) -> (Proxy, Arc<Postgres>, i32) {
    let door = Proxy::start(server.addr()).unwrap();
    let store = Arc::new(Postgres::connect(config(door.addr())).await.unwrap());
    for (bits, name) in [(1, "one"), (2, "two")] {
        grant(&store, &claim(bits, name)).await.unwrap();
    }
    // Known names, of which an attempt takes the short way.
    for bits in 10..15 {
        grant(&store, &claim(bits, &format!("own {bits}"))).await.unwrap();
        withdraw(&store, bits, &format!("own {bits}")).await;
    }
    let first: i32 = root.query_one(SECOND, &[]).await.unwrap().get(0);
    let busy = keep_busy(&store, root, 4).await;
    root.batch_execute("ROLLBACK").await.unwrap();
    for request in busy {
        request.await.unwrap();
    }
    door.aim(nowhere());
    root.query("SELECT pg_terminate_backend($1)", &[&first]).await.unwrap();
    until(root, &format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {first}"), 0).await;
    // The client may send one request before it sees the end of the connection.
    let _ = store.attempt(&claim(9, "one")).await;
    (door, store, first)
}

/// They also stand for the session, for as long as no other connection does.
#[tokio::test]
async fn spares_serve_while_the_first_connection_is_gone() {
    let Some((server, root)) = start().await else { return };
    let (door, store, first) = without_first(&server, &root).await;
    let spares = "SELECT pid FROM pg_stat_activity WHERE application_name = 'oarlock'
        AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')";
    let spares: Vec<i32> = root.query(spares, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(spares.len(), 3);
    for bits in 10..15 {
        grant(&store, &claim(bits, &format!("own {bits}"))).await.unwrap();
    }
    let second: i32 = root.query_one(SECOND, &[]).await.unwrap().get(0);
    assert!(second != first && spares.contains(&second), "{second} of {spares:?}");
    // Longer than an idle connection is kept, and the pause after one that could not be opened.
    tokio::time::sleep(Duration::from_secs(21)).await;
    let living = "SELECT count(*) FROM oarlock.session WHERE requests IN (SELECT pid FROM pg_stat_activity)";
    assert_eq!(root.query_one(living, &[]).await.unwrap().get::<_, i64>(0), 1, "its second backend was closed");
    door.aim(server.addr());
    let reopened = async {
        loop {
            grant(&store, &claim(20, "last")).await.unwrap();
            let second: i32 = root.query_one(SECOND, &[]).await.unwrap().get(0);
            if !spares.contains(&second) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(BOUND, reopened).await.expect("the first connection to be opened again");
}

#[tokio::test]
async fn a_request_waits_for_a_spare_where_the_first_connection_cannot_be_opened() {
    let Some((server, root)) = start().await else { return };
    let (_door, store, _) = without_first(&server, &root).await;
    let busy = keep_busy(&store, &root, 3).await;
    let asking = store.clone();
    let request = tokio::spawn(async move { grant(&asking, &claim(30, "own")).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!request.is_finished(), "{:?}", request.await);
    root.batch_execute("ROLLBACK").await.unwrap();
    request.await.unwrap().unwrap();
    for request in busy {
        request.await.unwrap();
    }
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
