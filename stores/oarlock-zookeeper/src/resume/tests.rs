//! What is promised by an answer, and what a session waits for.

use std::time::Duration;

use oarlock_core::ErrorKind;
use oarlock_testbed::Proxy;

use super::*;
use crate::route::Route;

const SESSION: Duration = Duration::from_secs(4);

/// An answer may be read late: by then the session may be on a server that gives it less.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_read_after_its_connection_has_ended_gives_no_belief() {
    let Some(server) = oarlock_testbed::ZooKeeper::start_or_skip().unwrap() else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let config = Config::new([proxy.addr().to_string()]).session_timeout(SESSION);
    let route = Route::open(config).await.unwrap();
    let session = route.session().await.unwrap();
    let given = session.lease(Duration::MAX).unwrap();
    assert_eq!(given.ttl, SESSION * 3 / 4);
    let ended = session.connection.end();
    proxy.refuse();
    tokio::time::timeout(SESSION * 2, ended).await.unwrap();
    let late = session.lease(Duration::MAX).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Unreachable);
    assert!(session.lease_since_proof(Duration::MAX).is_err());
}

/// The session goes to a server when no belief is longer than what an answer of that server gives.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_fits_a_server_when_belief_has_run_down_to_what_it_gives() {
    let Some(server) = oarlock_testbed::ZooKeeper::start_or_skip().unwrap() else { return };
    let config = Config::new([server.addr().to_string()]).session_timeout(SESSION);
    let (_connection, life) = begin(&config, &Servers::of(&config.hosts)).await.unwrap();
    assert!(life.fits(Duration::ZERO), "nothing was promised");
    let now = BootClock.now();
    life.promise(now + SESSION * 3 / 4);
    life.promise(now);
    assert!(life.fits(SESSION) && !life.fits(SESSION / 2) && !life.fits(Duration::ZERO));
}

/// A server that accepts connections and sends nothing costs a good part of the session: the one that was just lost
/// comes last.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_on_where_no_server_has_failed() {
    let Some(server) = oarlock_testbed::ZooKeeper::start_or_skip().unwrap() else { return };
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hosts = [server.addr(), silent.local_addr().unwrap()];
    let config = Config::new(hosts.map(|host| host.to_string())).session_timeout(SESSION);
    let servers = Servers::of(&config.hosts);
    let (mut connection, life) = begin(&config, &servers).await.unwrap();
    // By chance it would go well once in 2^10 runs.
    for _ in 0..10 {
        connection.stop()();
        connection.end().await;
        servers.joined(hosts[1]);
        let start = BootClock.now();
        connection = resume(&config, &servers, &life).await.unwrap();
        assert!(BootClock.now().since(start) < patience(SESSION), "the silent server was asked");
    }
}

/// A request that is under way and never polled does not keep the store from being closed.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_not_polled_does_not_keep_a_store_open() {
    let Some(server) = oarlock_testbed::ZooKeeper::start_or_skip().unwrap() else { return };
    let route = Route::open(Config::new([server.addr().to_string()]).session_timeout(SESSION)).await.unwrap();
    let session = route.session().await.unwrap();
    let asked = session.poll("/oarlock");
    tokio::time::timeout(SESSION, route.close()).await.expect("the store waits for the request");
    tokio::time::timeout(SESSION, session.connection.end()).await.expect("the connection is still there");
    let error = tokio::time::timeout(SESSION, asked).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
}
