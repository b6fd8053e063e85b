//! Redis, Sentinel and Redlock.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use oarlock_testbed::proxy::Direction;
use oarlock_testbed::server::{MASTER, redis_command};
use oarlock_testbed::{Proxy, Redis, RedisClock, RedisCluster, RedisSentinel};

use super::{Healthy, doctor, words};
use crate::cli::support::PATIENCE;

/// A replica need not wait for others.
const DURABLE: &[(&str, &str)] = &[("appendfsync", "always"), ("repl-diskless-sync-delay", "0")];

fn tell(addr: SocketAddr, words: &[&str]) -> String {
    redis_command(addr, words).unwrap()
}

fn set(addr: SocketAddr, name: &str, value: &str) {
    tell(addr, &["CONFIG", "SET", name, value]);
}

/// A number that the server says of itself.
fn number(addr: SocketAddr, name: &str) -> u64 {
    let info = tell(addr, &["INFO"]);
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or_default()
}

/// Asks until the answer, or the refusal, is what is wanted.
fn until(addr: SocketAddr, words: &[&str], wanted: impl Fn(&str) -> bool) {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let said = redis_command(addr, words).unwrap_or_else(|refused| refused.to_string());
        if wanted(&said) {
            return;
        }
        assert!(Instant::now() < give_up, "{words:?}: {said}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn one_server() {
    let Some(server) = Redis::start_with_or_skip(DURABLE).unwrap() else { return };
    let addr = server.addr();
    // So that eviction is judged here, and not refused by the driver.
    let healthy = Healthy::at(&format!("{}?allow_eviction=yes", server.url()), &[]);

    set(addr, "appendfsync", "everysec");
    healthy.breaks("redis-power-loss", 1);
    set(addr, "appendfsync", "always");

    // Connections of clients that lost their power stay for ever.
    set(addr, "tcp-keepalive", "0");
    healthy.breaks("redis-keepalive", 1);
    set(addr, "tcp-keepalive", "300");

    set(addr, "maxmemory-policy", "allkeys-lru");
    assert_eq!(doctor(&healthy.url).code, 0, "without a limit nothing is evicted");
    set(addr, "maxmemory", "100mb");
    let finding = healthy.breaks("redis-eviction", 2);
    assert!(finding["reason"].as_str().unwrap().contains("allkeys-lru"), "{finding}");
    assert!(doctor(&server.url()).ids.contains("refused"), "the driver refuses it");
    set(addr, "maxmemory-policy", "noeviction");

    set(addr, "maxmemory", &(number(addr, "used_memory") * 21 / 20).to_string());
    healthy.breaks("redis-memory", 1);
    set(addr, "maxmemory", "0");

    let idle: Vec<_> = (0..100).map(|_| TcpStream::connect(addr).unwrap()).collect();
    until(addr, &["INFO", "clients"], |_| number(addr, "connected_clients") >= 100);
    set(addr, "maxclients", "110");
    healthy.breaks("few-connections", 1);
    drop(idle);
    set(addr, "maxclients", "1000");
    until(addr, &["INFO", "clients"], |_| number(addr, "connected_clients") < 50);

    tell(addr, &["ACL", "SETUSER", "app", "on", ">sesame", "~*", "&*", "+@all", "-info", "-config"]);
    let url = healthy.url.replace("redis://", "redis://app:sesame@");
    let found = doctor(&url);
    assert_eq!((found.code, &found.ids), (1, &words(&["cannot-tell"])), "{:#}", found.report);

    let proxy = Proxy::start(addr).unwrap();
    proxy.delay(Direction::ToClient, Duration::from_millis(300));
    let found = doctor(&proxy.url(&healthy.url, addr));
    assert!(found.is_slow && found.ids.is_empty(), "{:#}", found.report);

    let Some(replica) = Redis::start_with_or_skip(DURABLE).unwrap() else { return };
    tell(replica.addr(), &["REPLICAOF", "127.0.0.1", &addr.port().to_string()]);
    until(addr, &["INFO", "replication"], |said| said.contains("state=online"));
    healthy.breaks("redis-replica-lag", 1);
    let confirmed = format!("{}&min_replicas=1", healthy.url);
    assert_eq!(doctor(&confirmed).ids, words(&[]), "a replica has each grant");
    let found = doctor(&replica.url());
    assert!(found.code == 2 && found.ids.contains("redis-replica"), "{:#}", found.report);
    tell(replica.addr(), &["REPLICAOF", "NO", "ONE"]);

    set(addr, "appendonly", "no");
    healthy.breaks("redis-no-persistence", 2);
    server.kill().unwrap();
    assert_eq!(doctor(&server.url()).ids, words(&["unreachable"]));
}

/// A snapshot that fails stops all writes, if the server is told to take snapshots.
#[test]
fn a_disk_that_fails() {
    let Some(server) = Redis::start_with_or_skip(DURABLE).unwrap() else { return };
    let addr = server.addr();
    let healthy = Healthy::at(&server.url(), &[]);
    let dir = tell(addr, &["CONFIG", "GET", "dir"]);
    let dir = dir.lines().find(|line| line.starts_with('/')).unwrap();
    std::fs::create_dir(format!("{dir}/dump.rdb")).unwrap();
    set(addr, "save", "3600 1");
    tell(addr, &["BGSAVE"]);
    until(addr, &["INFO", "persistence"], |said| said.contains("rdb_last_bgsave_status:err"));
    healthy.breaks("redis-disk", 1);
}

/// A server that starts reads its data first. This one takes a while for each key.
#[test]
fn a_server_that_reads_its_data() {
    let slow = [("enable-debug-command", "yes"), ("loading-process-events-interval-bytes", "1024")];
    let Some(server) = Redis::start_with_or_skip(&[DURABLE, &slow].concat()).unwrap() else { return };
    let addr = server.addr();
    let fill = "for i = 1, 20000 do redis.call('SET', 'key:' .. i, string.rep('x', 100)) end";
    tell(addr, &["EVAL", fill, "0"]);
    set(addr, "key-load-delay", "10000");
    let reads = std::thread::spawn(move || redis_command(addr, &["DEBUG", "RELOAD"]));
    until(addr, &["INFO", "persistence"], |said| said.contains("loading:1"));
    let found = doctor(&server.url());
    assert!(found.ids.contains("redis-loading"), "{:#}", found.report);
    set(addr, "key-load-delay", "0");
    drop(reads.join().unwrap());
}

#[test]
fn independent_servers() {
    let Some(one) = Redis::start_with_or_skip(DURABLE).unwrap() else { return };
    let more: Vec<_> = (0..3).map(|_| Redis::start_with(DURABLE).unwrap()).collect();
    let (a, b, c, d) = (one.addr(), more[0].addr(), more[1].addr(), more[2].addr());
    let healthy = Healthy::at(&format!("redlock://{a},{b},{c}"), &[]);

    let found = doctor(&format!("redlock://{a},{b},{c},{d}"));
    assert_eq!((found.code, found.ids), (1, words(&["redlock-even"])), "{:#}", found.report);
    let found = doctor(&format!("redlock://{a},localhost:{},{b}", a.port()));
    assert_eq!((found.code, found.ids), (2, words(&["redlock-same-server"])), "{:#}", found.report);
    let found = doctor(&format!("redlock://{a},127.0.0.1:1,{c}?connect_timeout=1s"));
    assert_eq!((found.code, found.ids), (1, words(&["unreachable"])), "{:#}", found.report);
    let found = doctor(&format!("redlock://{a},127.0.0.1:1,127.0.0.1:2?connect_timeout=1s"));
    assert_eq!((found.code, found.ids), (2, words(&["unreachable", "redlock-no-majority"])), "{:#}", found.report);

    tell(b, &["REPLICAOF", "127.0.0.1", &a.port().to_string()]);
    until(a, &["INFO", "replication"], |said| said.contains("state=online"));
    let found = doctor(&healthy.url);
    assert_eq!((found.code, found.ids), (2, words(&["redlock-replicas", "redis-replica"])), "{:#}", found.report);

    let Some(clocked) = RedisClock::start_with_or_skip(DURABLE).unwrap() else { return };
    let url = format!("redlock://{a},{c},{}", clocked.addr());
    clocked.set_clock(10_000_000).unwrap();
    let found = doctor(&url);
    assert_eq!((found.code, found.ids), (1, words(&["clock-offset"])), "{:#}", found.report);
    clocked.set_clock(-120_000_000).unwrap();
    let found = doctor(&url);
    assert_eq!((found.code, found.ids), (2, words(&["clock-offset", "redlock-clocks"])), "{:#}", found.report);
}

#[test]
fn sentinels() {
    let Some(servers) = RedisSentinel::start_or_skip().unwrap() else { return };
    set(servers.machines[0].server.addr(), "appendfsync", "always");
    let url = servers.url();
    let found = doctor(&url);
    assert_eq!((found.code, found.ids), (2, words(&["redis-failover"])), "{:#}", found.report);
    set(servers.machines[0].server.addr(), "min-replicas-to-write", "1");
    let found = doctor(&url);
    assert_eq!((found.code, found.ids), (1, words(&["redis-replica-lag"])), "{:#}", found.report);

    // Any replica may take over: all of them must have a grant.
    for (count, id) in [(1, "redis-replica-lag"), (3, "redis-too-few-replicas")] {
        let found = doctor(&format!("{url}?min_replicas={count}"));
        assert_eq!((found.code, found.ids), (1, words(&[id])), "{:#}", found.report);
    }
    let healthy = Healthy::at(&format!("{url}?min_replicas=2"), &[]);
    for sentinel in &servers.sentinels {
        tell(sentinel.addr(), &["SENTINEL", "SET", MASTER, "quorum", "1"]);
    }
    healthy.breaks("sentinel-quorum", 1);
    for sentinel in &servers.sentinels {
        tell(sentinel.addr(), &["SENTINEL", "SET", MASTER, "quorum", "3"]);
    }
    servers.sentinels[2].kill().unwrap();
    until(servers.sentinels[0].addr(), &["SENTINEL", "CKQUORUM", MASTER], |said| said.contains("NOQUORUM"));
    let found = doctor(&healthy.url);
    assert_eq!((found.code, found.ids), (1, words(&["sentinel-unable", "unreachable"])), "{:#}", found.report);

    // Two that forgot the third.
    let two = &servers.sentinels[..2];
    for sentinel in two {
        tell(sentinel.addr(), &["SENTINEL", "SET", MASTER, "quorum", "2"]);
        tell(sentinel.addr(), &["SENTINEL", "RESET", MASTER]);
    }
    for sentinel in two {
        until(sentinel.addr(), &["SENTINEL", "MASTER", MASTER], |said| {
            said.contains("num-slaves\n2\n") && said.contains("num-other-sentinels\n1\n")
        });
    }
    let url = format!("redis+sentinel://{},{}/{MASTER}?min_replicas=2", two[0].addr(), two[1].addr());
    let found = doctor(&url);
    assert_eq!((found.code, found.ids), (1, words(&["sentinel-count"])), "{:#}", found.report);

    // One that watches another master of the same name.
    let Some(other) = Redis::start_with_or_skip(DURABLE).unwrap() else { return };
    tell(two[1].addr(), &["SENTINEL", "REMOVE", MASTER]);
    tell(two[1].addr(), &["SENTINEL", "MONITOR", MASTER, "127.0.0.1", &other.addr().port().to_string(), "2"]);
    let found = doctor(&url);
    assert!(found.code == 2 && found.ids.contains("sentinel-disagree"), "{:#}", found.report);
}

#[test]
fn a_cluster() {
    let Some(servers) = RedisCluster::start_or_skip().unwrap() else { return };
    for node in servers.masters.iter().chain(&servers.replicas) {
        set(node.addr(), "appendfsync", "always");
    }
    let found = doctor(&servers.url());
    assert_eq!((found.code, found.ids), (2, words(&["redis-failover"])), "{:#}", found.report);
    let healthy = Healthy::at(&format!("{}?min_replicas=1", servers.url()), &[]);
    servers.replicas[0].kill().unwrap();
    until(servers.masters[0].addr(), &["CLUSTER", "NODES"], |said| said.contains("slave,fail "));
    let found = doctor(&healthy.url);
    assert_eq!(found.ids, words(&["cluster-no-replica", "redis-too-few-replicas"]), "{:#}", found.report);
    tell(servers.masters[0].addr(), &["CLUSTER", "DELSLOTS", "0"]);
    until(servers.masters[0].addr(), &["CLUSTER", "INFO"], |said| said.contains("cluster_state:fail"));
    let found = doctor(&healthy.url);
    assert!(found.ids.contains("cluster-down"), "{:#}", found.report);
}

#[test]
fn a_cluster_of_two_masters() {
    let Some(servers) = RedisCluster::start_of_or_skip(2).unwrap() else { return };
    for node in servers.masters.iter().chain(&servers.replicas) {
        set(node.addr(), "appendfsync", "always");
    }
    let found = doctor(&format!("{}?min_replicas=1", servers.url()));
    assert_eq!((found.code, found.ids), (1, words(&["cluster-masters"])), "{:#}", found.report);
}
