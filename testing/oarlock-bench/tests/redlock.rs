//! The baseline of `redlock:` on real servers.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use oarlock_testbed::server::{RedisProgram, Server};

#[tokio::test(flavor = "multi_thread")]
async fn a_pair_needs_a_majority() {
    let servers: Vec<Server<RedisProgram>> = (0..3).map_while(|_| Server::start_or_skip().unwrap()).collect();
    if servers.is_empty() {
        return;
    }
    let hosts: Vec<_> = servers.iter().map(|server| server.addr().to_string()).collect();
    let url = oarlock::url::parse(&format!("redlock://{}?connect_timeout=1s", hosts.join(","))).unwrap();
    servers[0].kill().unwrap();
    let baseline = oarlock_bench::open_baseline(&url).await.unwrap().expect("it has a baseline");
    assert!(baseline.what().contains("majority"), "{}", baseline.what());
    for _ in 0..10 {
        baseline.clone().pair("deploy".into()).await.unwrap();
    }
    servers[1].kill().unwrap();
    assert!(baseline.pair("deploy".into()).await.is_err(), "one of three is no majority");
}
