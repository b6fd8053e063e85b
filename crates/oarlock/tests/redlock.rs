//! `redlock:` from a URL to real servers, encrypted and not.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::time::Duration;

use oarlock::ErrorKind;
use oarlock_testbed::server::{Program, RedisProgram, RedisTlsProgram, Server, redis_command};

/// So many servers, or none if they are not installed.
fn servers<P: Program>(count: usize) -> Vec<Server<P>> {
    (0..count).map_while(|_| Server::start_or_skip().unwrap()).collect()
}

fn hosts<P: Program>(servers: &[Server<P>]) -> String {
    servers.iter().map(|server| server.addr().to_string()).collect::<Vec<_>>().join(",")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_url_is_a_lock_on_a_majority() {
    let servers = servers::<RedisProgram>(3);
    if servers.is_empty() {
        return;
    }
    let url = format!("redlock://{}?connect_timeout=1s", hosts(&servers));
    let (one, other) = (oarlock::connect(&url).await.unwrap(), oarlock::connect(&url).await.unwrap());
    servers[0].kill().unwrap();
    let guard = one.mutex("deploy").lock().await.unwrap();
    assert!(other.mutex("deploy").try_lock().await.unwrap().is_none());
    let first = guard.fence();
    guard.release().await.unwrap();
    let guard = other.mutex("deploy").lock().await.unwrap();
    assert!(guard.fence() > first, "fence {} after {first}", guard.fence());
    guard.release().await.unwrap();
    servers[1].kill().unwrap();
    let alone = oarlock::connect(&url).await.unwrap_err();
    assert_eq!(alone.kind(), ErrorKind::Unreachable, "{alone}");
    one.shutdown(Duration::from_secs(1)).await.unwrap();
}

/// A server that becomes a replica while a client runs votes no more. A client that needs its vote to start is told of
/// it: the list of servers is wrong, and would be more wrong after the next failover.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_has_no_vote() {
    let servers = servers::<RedisProgram>(3);
    if servers.is_empty() {
        return;
    }
    let (url, master) = (format!("redlock://{}", hosts(&servers)), servers[1].addr());
    let locks = oarlock::connect(&*url).await.unwrap();
    locks.mutex("deploy").lock().await.unwrap().release().await.unwrap();
    let follow = ["REPLICAOF", &master.ip().to_string(), &master.port().to_string()];
    redis_command(servers[0].addr(), &follow).unwrap();
    let guard = locks.mutex("deploy").wait(Duration::from_secs(10)).lock().await.unwrap();
    guard.release().await.unwrap();
    // With the other two, a client would not wait for the answer of this one.
    servers[2].kill().unwrap();
    let refused = oarlock::connect(&*url).await.unwrap_err();
    let named = format!("{} is a replica", servers[0].addr());
    assert!(refused.kind() == ErrorKind::Config && refused.to_string().contains(&named), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encrypted_majority_is_one_too() {
    let servers = servers::<RedisTlsProgram>(3);
    if servers.is_empty() {
        return;
    }
    // Each has an authority of its own: a file with all three is what this client trusts.
    let folder = tempfile::tempdir().unwrap();
    let (ca, trusted) =
        (folder.path().join("ca.pem"), servers.iter().map(|server| std::fs::read(server.ca()).unwrap()));
    std::fs::write(&ca, trusted.collect::<Vec<_>>().concat()).unwrap();
    let url = format!("redlocks://{}?ca={}", hosts(&servers), ca.display());
    let (one, other) = (oarlock::connect(&url).await.unwrap(), oarlock::connect(&url).await.unwrap());
    let guard = one.mutex("deploy").lock().await.unwrap();
    assert!(other.mutex("deploy").try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
    let other_authority = format!("redlocks://{}?ca={}", hosts(&servers), servers[0].other_ca().display());
    let error = oarlock::connect(&other_authority).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}
