//! Locks shared with programs that use the server's own: the mariadb client, and what a connection is good for.

use std::process::Command;
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable as _;
use oarlock_core::driver::{Attempt, Driver as _};
use oarlock_core::{ErrorKind, Guard, Locks, LossReason, Mutex};
use oarlock_sql::mysql::{Config, Keys, MySqlSession, Named};
use oarlock_testbed::Flavour;
use oarlock_testbed::proxy::Proxy;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::shell::Shell;
use crate::store::{Server, claim, config, start, until};

/// Longer than anything here takes on a busy machine.
const BOUND: Duration = Duration::from_secs(30);

async fn connect(config: Config) -> Locks {
    Locks::over(MySqlSession::connect(Named::new(config)).await.unwrap()).unwrap()
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

/// The plain client program.
fn plain(server: &Server) -> Shell {
    let mut command = Command::new("mariadb");
    command.args(["--no-defaults", "--protocol=tcp", "--user=root", "--batch", "--skip-column-names", "--unbuffered"]);
    command.arg(format!("--host={}", server.addr().ip())).arg(format!("--port={}", server.addr().port()));
    Shell::start(command.arg("locks"))
}

/// How many wait for a named lock.
const WAITING: &str = "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock'";

async fn locks_are_shared_with_the_plain_client(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let mut named = config(server.addr());
    named.prefix = "team:".into();
    for (config, name, key) in [(named, "nightly", "SHA2('team:nightly', 256)"), (raw(&server), "nightly", "'nightly'")]
    {
        let client = connect(config).await;
        let lock = || client.mutex(name);
        let mut plain = plain(&server);

        // They hold, and we wait.
        assert_eq!(plain.ask(&format!("SELECT GET_LOCK({key}, 0)")), "1");
        assert!(lock().try_lock().await.unwrap().is_none(), "{name}: taken from the plain client");
        let waiting = wait_for(lock());
        until(&mut root, WAITING, 1).await;
        assert_eq!(plain.ask(&format!("SELECT RELEASE_LOCK({key})")), "1");
        let guard = tokio::time::timeout(BOUND, waiting).await.unwrap().unwrap().unwrap();

        // We hold, and they wait.
        assert_eq!(plain.ask(&format!("SELECT GET_LOCK({key}, 0)")), "0", "{name}: given twice");
        plain.say(&format!("SELECT GET_LOCK({key}, 60)"));
        until(&mut root, WAITING, 1).await;
        assert!(guard.is_held());
        guard.release().await.unwrap();
        let plain = tokio::task::spawn_blocking(move || {
            assert_eq!(plain.hear(), "1");
            plain
        });
        let mut plain = tokio::time::timeout(BOUND, plain).await.unwrap().unwrap();

        // They are killed.
        let waiting = wait_for(lock());
        until(&mut root, WAITING, 1).await;
        plain.kill();
        let guard = tokio::time::timeout(BOUND, waiting).await.unwrap().unwrap().unwrap();
        guard.release().await.unwrap();
    }
}

async fn one_connection_holds_many_and_only_waiters_get_their_own(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let (ours, theirs) = (connect(raw(&server)).await, connect(raw(&server)).await);
    let connections =
        "SELECT COUNT(*) FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND db = 'locks'";
    let mut guards = Vec::new();
    for number in 0..20 {
        guards.push(ours.mutex(number.to_string()).lock().await.unwrap());
    }
    // A holder has one more connection, which listens.
    until(&mut root, connections, 3).await;
    // What this client holds is not its own a second time.
    assert!(ours.mutex("7").try_lock().await.unwrap().is_none(), "one name, twice, on one client");
    assert!(theirs.mutex("7").try_lock().await.unwrap().is_none());
    let waiting: Vec<_> = (0..3).map(|number| wait_for(theirs.mutex(number.to_string()))).collect();
    until(&mut root, WAITING, 3).await;
    // A free lock is granted at once, though other claims wait.
    let free = tokio::time::timeout(BOUND, theirs.mutex("99").lock()).await.unwrap().unwrap();
    for guard in guards {
        guard.release().await.unwrap();
    }
    for waiting in waiting {
        tokio::time::timeout(BOUND, waiting).await.unwrap().unwrap().unwrap().release().await.unwrap();
    }
    free.release().await.unwrap();
    let holder = "SELECT IFNULL(IS_USED_LOCK('1'), 0) + IFNULL(IS_USED_LOCK('99'), 0)";
    until(&mut root, holder, 0).await;
}

async fn the_end_of_a_connection_is_the_loss_of_what_it_held(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let mut config = raw(&server);
    config.session_ttl = Duration::from_secs(6);
    let client = connect(config).await;
    let guard = client.mutex("1").lock().await.unwrap();
    let holder: u64 = root.query_first("SELECT IS_USED_LOCK('1')").await.unwrap().unwrap();
    root.query_drop(format!("KILL {holder}")).await.unwrap();
    // The next renewal notices, within a third of the lease.
    let reason = tokio::time::timeout(Duration::from_secs(6), guard.lost()).await.unwrap();
    assert_eq!(reason, LossReason::Session);
    let again = tokio::time::timeout(BOUND, client.mutex("1").lock()).await.unwrap().unwrap();
    assert!(again.fence() > guard.fence());
    again.release().await.unwrap();
}

/// With leases of minutes: only a notification can be in time, and there is no server left to ask.
async fn a_holder_hears_at_once_that_the_server_went_down(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let mut config = raw(&server);
    let long = Duration::from_secs(300);
    config.session_ttl = long;
    let client = Locks::builder(MySqlSession::connect(Named::new(config)).await.unwrap()).ttl(long).build().unwrap();
    let renewed = client.mutex("renewed").lock().await.unwrap();
    let explicit = client.mutex("explicit").ttl(long).no_renewal().lock().await.unwrap();
    until(&mut root, "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User sleep'", 1).await;
    let server = tokio::task::spawn_blocking(move || {
        server.stop().unwrap();
        server
    });
    let server = server.await.unwrap();
    for guard in [&renewed, &explicit] {
        let reason = tokio::time::timeout(BOUND, guard.lost()).await.unwrap();
        assert_eq!(reason, LossReason::Session);
    }
    let server = tokio::task::spawn_blocking(move || {
        server.restart().unwrap();
        server
    });
    let _server = server.await.unwrap();
    let again = tokio::time::timeout(BOUND, client.mutex("renewed").lock()).await.unwrap().unwrap();
    again.release().await.unwrap();
}

/// The connection that waits for the end of the server is opened to the server that came after it.
async fn a_restart_before_the_watch_of_the_server_begins_is_noticed(on: Flavour) {
    let Some((server, _root)) = start(on).await else { return };
    let (proxy, late) = (Proxy::start(server.addr()).unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let mut config = raw(&server);
    (config.host, config.port) = (proxy.addr().ip().to_string(), proxy.addr().port());
    let long = Duration::from_secs(300);
    (config.session_ttl, config.connect_timeout) = (long, BOUND);
    let client = Locks::builder(MySqlSession::connect(Named::new(config)).await.unwrap()).ttl(long).build().unwrap();
    // New connections reach the server when it has restarted.
    proxy.aim(late.local_addr().unwrap());
    let guard = client.mutex("1").lock().await.unwrap();
    let (mut waiting, _) = tokio::time::timeout(BOUND, late.accept()).await.unwrap().unwrap();
    let server = tokio::task::spawn_blocking(move || {
        server.restart().unwrap();
        server
    });
    let server = server.await.unwrap();
    let mut upstream = TcpStream::connect(server.addr()).await.unwrap();
    let forward = tokio::spawn(async move { tokio::io::copy_bidirectional(&mut waiting, &mut upstream).await });
    assert_eq!(tokio::time::timeout(BOUND, guard.lost()).await.unwrap(), LossReason::Session);
    forward.abort();
}

/// A server that goes down refuses new connections before it ends the one that holds, which it still answers.
async fn a_server_that_refuses_connections_before_it_ends_others_is_noticed(on: Flavour) {
    let Some((server, _root)) = start(on).await else { return };
    let (proxy, refusing) = (Proxy::start(server.addr()).unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let mut config = raw(&server);
    (config.host, config.port) = (proxy.addr().ip().to_string(), proxy.addr().port());
    let long = Duration::from_secs(300);
    config.session_ttl = long;
    let client = Locks::builder(MySqlSession::connect(Named::new(config)).await.unwrap()).ttl(long).build().unwrap();
    proxy.aim(refusing.local_addr().unwrap());
    let guard = client.mutex("1").lock().await.unwrap();
    for _ in 0..4 {
        drop(tokio::time::timeout(BOUND, refusing.accept()).await.unwrap().unwrap());
    }
    assert!(guard.is_held());
    let refuses = tokio::spawn(async move { while refusing.accept().await.is_ok() {} });
    let restarts = tokio::task::spawn_blocking(move || server.restart().map(|()| server));
    assert_eq!(tokio::time::timeout(BOUND, guard.lost()).await.unwrap(), LossReason::Session);
    let _server = restarts.await.unwrap().unwrap();
    refuses.abort();
}

/// A process that is stopped or cut off does not hold for ever.
async fn the_server_ends_a_silent_session_and_not_before_its_lease(on: Flavour) {
    let Some((server, _root)) = start(on).await else { return };
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

/// Locks that need no order share a connection, and one that the server refuses must not cost the others theirs.
async fn a_name_that_is_refused_costs_no_other(on: Flavour) {
    let Some((server, _root)) = start(on).await else { return };
    let (client, rival) = (connect(raw(&server)).await, connect(raw(&server)).await);
    let held = client.mutex("1").lock().await.unwrap();
    let error = client.mutex("x".repeat(300)).try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
    assert!(rival.mutex("1").try_lock().await.unwrap().is_none(), "two hold it");
    assert!(held.is_held(), "{:?}", held.loss());
    held.release().await.unwrap();
}

/// Otherwise the server might grant a lock to a client that is gone, and keep it from all others until the wait ends.
async fn a_client_that_goes_does_not_go_on_waiting(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    root.query_drop("DO GET_LOCK('1', 0)").await.unwrap();
    for close in [false, true] {
        let store = MySqlSession::connect(Named::new(raw(&server))).await.unwrap();
        let mut waits = claim(1, "1");
        waits.wait = true;
        assert!(matches!(store.attempt(&waits).await.unwrap(), Attempt::Pending(_)));
        until(&mut root, WAITING, 1).await;
        let gone = Instant::now();
        if close {
            store.close().await.unwrap();
        } else {
            drop(store);
        }
        until(&mut root, WAITING, 0).await;
        // The server looks every second or so, and the wait itself would go on for a minute.
        assert!(gone.elapsed() < Duration::from_secs(10), "it waits for {:?}", gone.elapsed());
    }
}

async fn what_they_cannot_do_is_refused(on: Flavour) {
    let Some((server, _root)) = start(on).await else { return };
    let client = connect(raw(&server)).await;
    let unsupported = |error: oarlock_core::Error| assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    unsupported(client.mutex("1").fair().lock().await.unwrap_err());
    unsupported(client.rwlock("1").read().await.unwrap_err());
    unsupported(client.list().await.unwrap_err());
    let error = client.mutex("x".repeat(300)).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
}

on_both!(
    locks_are_shared_with_the_plain_client,
    one_connection_holds_many_and_only_waiters_get_their_own,
    the_end_of_a_connection_is_the_loss_of_what_it_held,
    a_holder_hears_at_once_that_the_server_went_down,
    a_restart_before_the_watch_of_the_server_begins_is_noticed,
    a_server_that_refuses_connections_before_it_ends_others_is_noticed,
    the_server_ends_a_silent_session_and_not_before_its_lease,
    a_name_that_is_refused_costs_no_other,
    a_client_that_goes_does_not_go_on_waiting,
    what_they_cannot_do_is_refused,
);
