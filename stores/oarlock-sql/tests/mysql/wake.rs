//! How a waiter learns that the claim before it has left, and what happens when that way fails.

use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable as _;
use oarlock_core::driver::{Cursor, Driver as _, End, Interest, Watch};
use oarlock_core::{Claim, ClaimId, Locks, Weight};
use oarlock_sql::mysql::MySql;
use oarlock_testbed::Flavour;
use oarlock_testbed::proxy::Proxy;

use crate::store::{claim, config, counted, grant, pending, start, until};

/// The connections of a server. MySQL has them in two tables, and the older one cannot show what is in the middle of a
/// statement with bytes.
fn connections(on: Flavour) -> &'static str {
    match on {
        Flavour::MariaDb => "information_schema.processlist",
        Flavour::MySql => "performance_schema.processlist",
    }
}

/// The connections that wait for a claim to leave.
fn listeners(on: Flavour, what: &str) -> String {
    let from = connections(on);
    format!("SELECT {what} FROM {from} WHERE info LIKE 'SELECT IF(GET_LOCK%' AND state = 'User lock'")
}

const DONE: End = End::Done { memo: None };

fn is_free(id: ClaimId) -> String {
    format!("SELECT IS_FREE_LOCK('oarlock_w_{id}')")
}

/// A claim that waits in order.
fn waiter(bits: u128, name: &str) -> Claim {
    let mut claim = claim(bits, name);
    claim.wait = true;
    claim
}

async fn turn(store: &MySql, claim: &Claim) -> Watch {
    store.watch(&Interest::Turn(claim.clone().into(), Cursor::default())).await.unwrap()
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), what).await.unwrap()
}

/// A client that looks by itself only after more than a minute, and gives up after that.
async fn patient(addr: std::net::SocketAddr) -> Locks {
    let store = MySql::connect(config(addr)).await.unwrap();
    Locks::builder(store).ttl(Duration::from_secs(240)).build().unwrap()
}

/// Each wait ends by itself after a second: what ends it sooner is the release.
async fn the_next_in_line_wakes_when_the_claim_before_it_leaves(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let (one, two) =
        (MySql::connect(config(server.addr())).await.unwrap(), MySql::connect(config(server.addr())).await.unwrap());
    let mut spans = Vec::new();
    for round in 0..5 {
        let (held, waits) = (claim(2 * round + 1, "hand-off"), waiter(2 * round + 2, "hand-off"));
        grant(&one, &held).await.unwrap();
        assert!(pending(&two, &waits).await.watched, "it has to look by itself");
        let mut turn = turn(&two, &waits).await;
        until(&mut root, &listeners(on, "COUNT(*)"), 1).await;
        one.release(&held.resource, held.id, &DONE).await.unwrap();
        let released = Instant::now();
        assert_eq!(soon(turn.changed()).await.and_then(|hint| hint.claim), Some(waits.id));
        spans.push(released.elapsed());
        grant(&two, &waits).await.unwrap();
        two.release(&waits.resource, waits.id, &DONE).await.unwrap();
        until(&mut root, &is_free(waits.id), 1).await;
    }
    spans.sort();
    // Alone, each would have had more than half of its second left. A busy machine may be late, but not in all of them.
    assert!(spans[1] < Duration::from_millis(400), "{spans:?}");
}

/// Nothing polls while the lock goes round: two attempts, one wait and one release for each grant, and one attempt more
/// after a wait that ended by itself.
async fn a_lock_that_goes_round_costs_few_statements(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let (one, two) = (patient(server.addr()).await, patient(server.addr()).await);
    let lock = |client: &Locks| client.mutex("round").fair().wait(Duration::from_secs(60));
    // Connections are opened, and statements prepared.
    for client in [&one, &two, &one, &two] {
        let guard = lock(client).lock().await.unwrap();
        let other = if std::ptr::eq(client, &raw const one) { &two } else { &one };
        let next = tokio::spawn({
            let lock = lock(other);
            async move { lock.lock().await.unwrap().release().await.unwrap() }
        });
        until(&mut root, &listeners(on, "COUNT(*)"), 1).await;
        guard.release().await.unwrap();
        soon(next).await.unwrap();
    }
    let before = counted(&mut root, "Com_stmt_execute").await;
    let rounds = [lock(&one), lock(&two)].map(|lock| {
        tokio::spawn(async move {
            for _ in 0..100 {
                lock.clone().lock().await.unwrap().release().await.unwrap();
            }
        })
    });
    for round in rounds {
        soon(round).await.unwrap();
    }
    let asked = counted(&mut root, "Com_stmt_execute").await - before;
    assert!(asked <= 200 * 5, "{asked} statements for 200 grants");
}

async fn all_readers_wake_when_the_writer_leaves(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let writer = MySql::connect(config(server.addr())).await.unwrap();
    let held = claim(1, "shared");
    grant(&writer, &held).await.unwrap();
    let mut readers = Vec::new();
    for bits in 2..5 {
        let store = MySql::connect(config(server.addr())).await.unwrap();
        let mut reader = waiter(bits, "shared");
        reader.weight = Weight::ONE;
        reader.capacity = oarlock_core::Capacity::Stored(oarlock_core::Limit::Unlimited);
        assert!(pending(&store, &reader).await.watched);
        let turn = turn(&store, &reader).await;
        readers.push((store, reader, turn));
    }
    until(&mut root, &listeners(on, "COUNT(*)"), 3).await;
    writer.release(&held.resource, held.id, &DONE).await.unwrap();
    let released = Instant::now();
    for (_, _, turn) in &mut readers {
        soon(turn.changed()).await.unwrap();
    }
    // One that kept the lock would let the others wait for their second.
    let span = released.elapsed();
    assert!(span < Duration::from_millis(600), "{span:?}");
    until(&mut root, &is_free(held.id), 1).await;
}

async fn a_waiter_whose_listener_is_killed_is_served_all_the_same(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let (one, two) = (patient(server.addr()).await, patient(server.addr()).await);
    let guard = one.mutex("killed").lock().await.unwrap();
    let waiting = two.mutex("killed").fair().wait(Duration::from_secs(60));
    let waiting = tokio::spawn(async move { waiting.lock().await });
    until(&mut root, &listeners(on, "COUNT(*)"), 1).await;
    let listener: u64 = root.query_first(listeners(on, "id")).await.unwrap().unwrap();
    // Between two waits there is nothing to kill.
    root.query_drop(format!("KILL {listener}")).await.unwrap();
    until(&mut root, &format!("SELECT COUNT(*) FROM {} WHERE id = {listener}", connections(on)), 0).await;
    // There will be another.
    until(&mut root, &listeners(on, "COUNT(*)"), 1).await;
    guard.release().await.unwrap();
    soon(waiting).await.unwrap().unwrap().release().await.unwrap();
}

/// A claim whose connection was killed has no lock that others could wait for: they look by themselves.
async fn a_claim_whose_connection_was_killed_is_waited_for_all_the_same(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let (one, two) =
        (MySql::connect(config(server.addr())).await.unwrap(), MySql::connect(config(server.addr())).await.unwrap());
    let (held, waits) = (claim(1, "lost"), waiter(2, "lost"));
    grant(&one, &held).await.unwrap();
    assert!(pending(&two, &waits).await.watched);
    let mut turn = turn(&two, &waits).await;
    let connection: Option<Option<u64>> =
        root.query_first(format!("SELECT IS_USED_LOCK('oarlock_w_{}')", held.id)).await.unwrap();
    root.query_drop(format!("KILL {}", connection.flatten().unwrap())).await.unwrap();
    let mut watched = true;
    for _ in 0..5 {
        soon(turn.changed()).await.unwrap();
        watched = pending(&two, &waits).await.watched;
        if !watched {
            break;
        }
    }
    assert!(!watched, "it waits for a lock that no connection holds");
    // The first one may find the connection dead.
    let _ = one.release(&held.resource, held.id, &DONE).await;
    one.release(&held.resource, held.id, &DONE).await.unwrap();
    grant(&two, &waits).await.unwrap();
}

/// With leases of four minutes.
async fn a_dead_waiter_at_the_head_is_in_the_way_of_no_other(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let (one, dies, last) = (patient(server.addr()).await, patient(proxy.addr()).await, patient(server.addr()).await);
    let guard = one.mutex("head").lock().await.unwrap();
    let lock = |client: &Locks| client.mutex("head").fair().wait(Duration::from_secs(60));
    let waiting = [lock(&dies), lock(&last)];
    let [head, next] = waiting.map(|lock| async move { lock.lock().await });
    let head = tokio::spawn(head);
    until(&mut root, "SELECT COUNT(*) FROM oarlock_claim WHERE fence IS NULL", 1).await;
    let next = tokio::spawn(next);
    until(&mut root, "SELECT COUNT(*) FROM oarlock_claim WHERE fence IS NULL", 2).await;
    // What the kernel does to the connections of a dead process.
    proxy.refuse();
    until(&mut root, "SELECT COUNT(*) FROM oarlock_claim WHERE fence IS NULL", 1).await;
    guard.release().await.unwrap();
    soon(next).await.unwrap().unwrap().release().await.unwrap();
    head.abort();
}

async fn many_waiters_for_many_names_have_few_connections(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let one = Locks::over(MySql::connect(config(server.addr())).await.unwrap()).unwrap();
    root.query_drop("CREATE USER app IDENTIFIED BY 'secret'; GRANT ALL ON locks.* TO app").await.unwrap();
    let mut app = config(server.addr()).password("secret");
    app.user = Some("app".into());
    let many = Locks::over(MySql::connect(app).await.unwrap()).unwrap();
    let mut guards = Vec::new();
    let mut waiting = Vec::new();
    for name in 0..30 {
        let name = format!("name {name}");
        guards.push(one.mutex(&name).lock().await.unwrap());
        for _ in 0..5 {
            let lock = many.mutex(&name).fair().wait(Duration::from_secs(60));
            waiting.push(tokio::spawn(async move { lock.lock().await?.release().await }));
        }
    }
    until(&mut root, "SELECT COUNT(*) FROM oarlock_claim WHERE fence IS NULL", 150).await;
    until(&mut root, &listeners(on, "COUNT(*)"), 4).await;
    let connections = |what: &str| format!("SELECT {what} FROM {} WHERE user = 'app'", connections(on));
    for _ in 0..20 {
        let connections: i64 = root.query_first(connections("COUNT(*)")).await.unwrap().unwrap();
        assert!(connections <= 10, "{connections} connections");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
    for waiting in waiting {
        soon(waiting).await.unwrap().unwrap();
    }
    // Those that are not needed are closed; one stays.
    until(&mut root, &connections("COUNT(*) <= 7"), 1).await;
}

/// The connection that has the lock is in the middle of something else when the claim leaves.
async fn a_connection_that_is_busy_releases_the_lock_afterwards(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    let (held, stuck) = (claim(1, "held"), claim(2, "stuck"));
    grant(&store, &stuck).await.unwrap();
    store.release(&stuck.resource, stuck.id, &DONE).await.unwrap();
    grant(&store, &held).await.unwrap();
    let rival = MySql::connect(config(server.addr())).await.unwrap();
    let waits = waiter(3, "held");
    pending(&rival, &waits).await;
    root.query_drop("START TRANSACTION").await.unwrap();
    root.query_drop("SELECT * FROM oarlock_resource WHERE name = 'stuck' FOR UPDATE").await.unwrap();
    let attempt = async {
        grant(&store, &stuck).await.unwrap();
    };
    let release = async {
        let mut look = crate::store::raw(server.addr()).await;
        until(&mut look, "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'", 1).await;
        store.release(&held.resource, held.id, &DONE).await.unwrap();
        let is_free: Option<i64> = look.query_first(is_free(held.id)).await.unwrap();
        assert_eq!(is_free, Some(0), "the lock was on another connection");
        root.query_drop("ROLLBACK").await.unwrap();
        look
    };
    let ((), mut look) = soon(async { tokio::join!(attempt, release) }).await;
    until(&mut look, &is_free(held.id), 1).await;
    grant(&rival, &waits).await.unwrap();
}

async fn a_writer_that_becomes_a_reader_wakes_readers(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    let mut held = claim(1, "downgraded");
    grant(&store, &held).await.unwrap();
    until(&mut root, &is_free(held.id), 0).await;
    held.weight = Weight::ONE;
    grant(&store, &held).await.unwrap();
    until(&mut root, &is_free(held.id), 1).await;
}

on_both!(
    the_next_in_line_wakes_when_the_claim_before_it_leaves,
    a_lock_that_goes_round_costs_few_statements,
    all_readers_wake_when_the_writer_leaves,
    a_waiter_whose_listener_is_killed_is_served_all_the_same,
    a_claim_whose_connection_was_killed_is_waited_for_all_the_same,
    a_dead_waiter_at_the_head_is_in_the_way_of_no_other,
    many_waiters_for_many_names_have_few_connections,
    a_connection_that_is_busy_releases_the_lock_afterwards,
    a_writer_that_becomes_a_reader_wakes_readers,
);
