//! Locks shared with programs that use the server's own: psql, and what a connection is good for.

use std::process::Command;
use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver as _};
use oarlock_core::state::Query;
use oarlock_core::{ErrorKind, Guard, Locks, LossReason, Mutex, Owner, ResourceName};
use oarlock_sql::postgres::{Advisory, Config, Keys, PostgresSession, TransactionLock};
use oarlock_testbed::PgBouncer;
use oarlock_testbed::proxy::{Proxy, Then};
use tokio::task::JoinHandle;

use crate::shell::Shell;
use crate::store::{Server, claim, config, start, until};

/// Longer than anything here takes on a busy machine.
const BOUND: Duration = Duration::from_secs(30);

async fn connect(config: Config) -> Locks {
    Locks::over(PostgresSession::connect(Advisory::new(config)).await.unwrap()).unwrap()
}

fn raw(server: &Server) -> Config {
    let mut config = config(server.addr());
    config.keys = Keys::Raw;
    config
}

/// Waits in a task of its own.
fn wait_for(lock: Mutex) -> JoinHandle<oarlock_core::Result<Guard>> {
    tokio::spawn(async move { lock.wait(BOUND).lock().await })
}

fn psql(server: &Server) -> Shell {
    Shell::start(Command::new("psql").args(["-X", "-q", "-A", "-t"]).arg(server.url()))
}

/// How many wait for an advisory lock.
const WAITING: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_are_shared_with_psql() {
    let Some((server, root)) = start().await else { return };
    let hashed = "('x' || left(encode(sha256('team:nightly'), 'hex'), 16))::bit(64)::bigint";
    let mut named = config(server.addr());
    named.prefix = "team:".into();
    for (config, name, key) in [(named, "nightly", hashed), (raw(&server), "42", "42"), (raw(&server), "7,-1", "7, -1")]
    {
        let client = connect(config).await;
        let lock = || client.mutex(name);
        let mut psql = psql(&server);

        // They hold, and we wait.
        assert_eq!(psql.ask(&format!("SELECT 'held' FROM pg_advisory_lock({key})")), "held");
        assert!(lock().try_lock().await.unwrap().is_none(), "{name}: taken from psql");
        let waiting = wait_for(lock());
        until(&root, WAITING, 1).await;
        assert_eq!(psql.ask(&format!("SELECT pg_advisory_unlock({key})")), "t");
        let guard = tokio::time::timeout(BOUND, waiting).await.unwrap().unwrap().unwrap();

        // We hold, and they wait.
        assert_eq!(psql.ask(&format!("SELECT pg_try_advisory_lock({key})")), "f", "{name}: given twice");
        psql.say(&format!("SELECT 'held' FROM pg_advisory_lock({key})"));
        until(&root, WAITING, 1).await;
        assert!(guard.is_held());
        guard.release().await.unwrap();
        let psql = tokio::task::spawn_blocking(move || {
            assert_eq!(psql.hear(), "held");
            psql
        });
        let mut psql = tokio::time::timeout(BOUND, psql).await.unwrap().unwrap();

        // They are killed.
        let waiting = wait_for(lock());
        until(&root, WAITING, 1).await;
        psql.kill();
        let guard = tokio::time::timeout(BOUND, waiting).await.unwrap().unwrap().unwrap();
        guard.release().await.unwrap();
    }
}

/// A long answer that its caller does not read stops no other request on the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_not_read_stops_no_other() {
    let Some((server, root)) = start().await else { return };
    // So many waiters would need as many connections.
    let crowd = "CREATE SCHEMA crowd; CREATE VIEW crowd.pg_locks AS
            SELECT locks.* FROM pg_catalog.pg_locks AS locks, generate_series(1, 100000);
        CREATE ROLE crowded LOGIN SUPERUSER; ALTER ROLE crowded SET search_path = crowd, pg_catalog";
    root.batch_execute(crowd).await.unwrap();
    let mut config = raw(&server);
    config.user = Some("crowded".into());
    let store = PostgresSession::connect(Advisory::new(config)).await.unwrap();
    let attempt = |bits, name| {
        let (store, claim) = (&store, claim(bits, name));
        async move { tokio::time::timeout(BOUND / 6, store.attempt(&claim)).await }
    };
    assert!(matches!(attempt(1, "42").await, Ok(Ok(Attempt::Granted(_)))));
    let query = Query::name(ResourceName::new("42").unwrap());
    let mut unread = std::pin::pin!(store.inspect(&query));
    // It is sent, and its caller does something else.
    let sent = std::future::poll_fn(|context| std::task::Poll::Ready(unread.as_mut().poll(context).is_pending()));
    assert!(sent.await, "answered already: nothing is tested");
    let other = attempt(2, "43").await;
    assert!(matches!(other, Ok(Ok(Attempt::Granted(_)))), "stopped by the other: {other:?}");
    let page = tokio::time::timeout(BOUND, unread).await.unwrap().unwrap();
    assert_eq!(page.resources[0].holders.len(), 100_000, "the answer was short: nothing is tested");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_holds_many_and_only_waiters_get_their_own() {
    let Some((server, root)) = start().await else { return };
    let (ours, theirs) = (connect(raw(&server)).await, connect(raw(&server)).await);
    let connections = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'oarlock'";
    let mut guards = Vec::new();
    for number in 0..50 {
        guards.push(ours.mutex(number.to_string()).lock().await.unwrap());
    }
    until(&root, connections, 2).await;
    // What this client holds is not its own a second time.
    assert!(ours.mutex("7").try_lock().await.unwrap().is_none(), "one name, twice, on one client");
    assert!(theirs.mutex("7").try_lock().await.unwrap().is_none());
    let waiting: Vec<_> = (0..3).map(|number| wait_for(theirs.mutex(number.to_string()))).collect();
    until(&root, WAITING, 3).await;
    // A free lock is granted at once, though other claims wait.
    let free = tokio::time::timeout(BOUND, theirs.mutex("99").lock()).await.unwrap().unwrap();
    for guard in guards {
        guard.release().await.unwrap();
    }
    for waiting in waiting {
        tokio::time::timeout(BOUND, waiting).await.unwrap().unwrap().unwrap().release().await.unwrap();
    }
    free.release().await.unwrap();
    until(&root, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'", 0).await;
}

#[tokio::test]
async fn the_end_of_a_connection_is_the_loss_of_what_it_held() {
    let Some((server, root)) = start().await else { return };
    let client = connect(raw(&server)).await;
    let guards = [client.mutex("1").lock().await.unwrap(), client.mutex("2").lock().await.unwrap()];
    // The watchdog arms the mailbox in the background.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let ended = root.query("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'", &[]).await;
    assert!(!ended.unwrap().is_empty());
    for guard in &guards {
        let reason = tokio::time::timeout(Duration::from_secs(5), guard.lost()).await.unwrap();
        assert_eq!(reason, LossReason::Session);
    }
    let again = tokio::time::timeout(BOUND, client.mutex("1").lock()).await.unwrap().unwrap();
    assert!(again.fence() > guards[0].fence());
    again.release().await.unwrap();
}

/// Both are renewed together, and only one of them can be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_connection_costs_no_hold_on_another() {
    let Some((server, root)) = start().await else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let mut config = raw(&server);
    (config.host, config.port) = (proxy.addr().ip().to_string(), proxy.addr().port());
    config.session_ttl = Duration::from_secs(6);
    let (client, rival) = (connect(config).await, connect(raw(&server)).await);
    let theirs = rival.mutex("2").lock().await.unwrap();
    let first = client.mutex("1").lock().await.unwrap();
    // A claim that waits does so on a connection of its own, and holds there.
    let second = wait_for(client.mutex("2"));
    until(&root, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted", 1).await;
    theirs.release().await.unwrap();
    let second = tokio::time::timeout(BOUND, second).await.unwrap().unwrap().unwrap();
    let dropped = proxy.drop_next_reply(Then::Silence);
    assert!(tokio::time::timeout(BOUND, dropped.wait()).await.unwrap().is_some());
    let two_leases = tokio::time::Instant::now() + Duration::from_secs(12);
    let lost = async {
        tokio::select! {
            _ = first.lost() => &second,
            _ = second.lost() => &first,
        }
    };
    let other = tokio::time::timeout(BOUND, lost).await.unwrap();
    assert!(tokio::time::timeout_at(two_leases, other.lost()).await.is_err(), "the other one was lost, too");
    assert!(other.is_held());
}

/// A process that is stopped or cut off does not hold for ever.
#[tokio::test]
async fn the_server_ends_a_silent_session_and_not_before_its_lease() {
    let Some((server, _root)) = start().await else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let mut config = raw(&server);
    (config.host, config.port) = (proxy.addr().ip().to_string(), proxy.addr().port());
    config.session_ttl = Duration::from_secs(2);
    let client = connect(config).await;
    let guard = client.mutex("1").lock().await.unwrap();
    proxy.cut();
    let rival = connect(raw(&server)).await;
    let theirs = wait_for(rival.mutex("1"));
    let theirs = tokio::time::timeout(BOUND, theirs).await.unwrap().unwrap().unwrap();
    assert!(!guard.is_held(), "two believe");
    theirs.release().await.unwrap();
}

#[tokio::test]
async fn what_they_cannot_do_is_refused() {
    let Some((server, _root)) = start().await else { return };
    let client = connect(raw(&server)).await;
    let unsupported = |error: oarlock_core::Error| assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    unsupported(client.mutex("1").fair().lock().await.unwrap_err());
    unsupported(client.rwlock("1").read().await.unwrap_err());
    unsupported(client.semaphore("1", 3).acquire(1).await.unwrap_err());
    unsupported(client.list().await.unwrap_err());
    let error = client.mutex("nightly").lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
    // An owner counts its holds on this side of the server.
    let lock = client.mutex("1").reentrant(&Owner::new());
    let (outer, inner) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    drop(inner);
    assert!(outer.is_held());

    let addr = server.addr();
    let pooler = tokio::task::spawn_blocking(move || PgBouncer::in_front_of_or_skip(addr, &[]));
    let Some(pooler) = pooler.await.unwrap().unwrap() else { return };
    let behind = PostgresSession::connect(Advisory::new(config(pooler.addr()))).await;
    unsupported(behind.unwrap_err());
}

/// The program of `docs/backends/postgres.md`.
async fn change(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    let lock = TransactionLock::new(Keys::Named, "oarlock:", "balance/7")?;
    let transaction = client.transaction().await?;
    transaction.batch_execute(&lock.wait()).await?; // or lock.attempt(): one boolean
    transaction.execute("UPDATE account SET balance = balance - 1 WHERE id = 7", &[]).await?;
    transaction.commit().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_changes_nothing_while_a_session_holds_its_lock() {
    let Some((server, root)) = start().await else { return };
    root.batch_execute("CREATE TABLE account (id INT, balance INT); INSERT INTO account VALUES (7, 100)")
        .await
        .unwrap();
    let (mut theirs, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    theirs.batch_execute("SET lock_timeout = '50ms'").await.unwrap();
    let mut prefixed = config(server.addr());
    prefixed.prefix = "oarlock:".into();
    let guard = connect(prefixed).await.mutex("balance/7").lock().await.unwrap();
    change(&mut theirs).await.unwrap_err();
    guard.release().await.unwrap();
    change(&mut theirs).await.unwrap();
    let balance: i32 = root.query_one("SELECT balance FROM account", &[]).await.unwrap().get(0);
    assert_eq!(balance, 99);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_of_a_transaction_ends_with_it() {
    let Some((server, root)) = start().await else { return };
    let mut named = config(server.addr());
    named.prefix = "team:".into();
    let client = connect(named).await;
    let lock = TransactionLock::new(Keys::Named, "team:", "nightly").unwrap();
    let (other, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let free = || async { other.query_one(&lock.attempt(), &[]).await.unwrap().get::<_, bool>(0) };
    for end in ["COMMIT", "ROLLBACK", "ROLLBACK TO before"] {
        root.batch_execute(&format!("BEGIN; SAVEPOINT before; {}", lock.wait())).await.unwrap();
        assert!(!free().await, "two transactions have it");
        assert!(client.mutex("nightly").try_lock().await.unwrap().is_none(), "a session has it too");
        root.batch_execute(end).await.unwrap();
        assert!(free().await, "{end} did not end it");
        root.batch_execute("COMMIT").await.unwrap();
    }
    // And the other way round.
    let guard = client.mutex("nightly").lock().await.unwrap();
    assert!(!free().await, "a transaction has what a session holds");
    let bounded = format!("BEGIN; SET LOCAL lock_timeout = '50ms'; {}", lock.wait());
    assert!(root.batch_execute(&bounded).await.is_err());
    root.batch_execute("ROLLBACK").await.unwrap();
    guard.release().await.unwrap();
    root.batch_execute(&format!("BEGIN; {}; COMMIT", lock.wait())).await.unwrap();
}
