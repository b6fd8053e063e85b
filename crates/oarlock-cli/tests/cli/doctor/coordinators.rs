//! etcd and ZooKeeper.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use oarlock_testbed::{Etcd, EtcdCluster, ZooKeeper, ZooKeeperEnsemble};

use super::{Found, doctor, doctor_with, words};
use crate::cli::support::PATIENCE;

/// Without what depends on the version of the server that is installed.
fn but_version(mut found: Found) -> Found {
    if found.ids.remove("etcd-version") {
        found.code = found.code.min(1);
    }
    found
}

#[test]
fn etcd() {
    let Some(alone) = Etcd::start_with_or_skip(&[("quota-backend-bytes", "4000000")]).unwrap() else { return };
    let found = but_version(doctor(&alone.url()));
    assert_eq!(found.ids, words(&["etcd-single"]), "{:#}", found.report);
    let value = "x".repeat(100_000);
    for number in 0..100 {
        if alone.ctl(&["put", &format!("k{number}"), &value]).is_err() {
            break;
        }
    }
    let found = but_version(doctor(&alone.url()));
    assert!(found.ids.contains("etcd-no-space"), "{:#}", found.report);

    let Some(cluster) = EtcdCluster::start_or_skip().unwrap() else { return };
    let found = but_version(doctor(&cluster.url()));
    assert_eq!(found.ids, words(&[]), "{:#}", found.report);
    let found = but_version(doctor(&format!("{},{}", cluster.url(), alone.addr())));
    assert!(found.ids.contains("etcd-two-clusters"), "{:#}", found.report);
    let learner = cluster.start_learner().unwrap();
    let found = but_version(doctor(&format!("{},{}", cluster.url(), learner.addr())));
    assert_eq!(found.ids, words(&["etcd-learner"]), "{:#}", found.report);
    cluster.members[1].kill().unwrap();
    // The others may be about to elect a leader.
    let mut found = but_version(doctor(&cluster.url()));
    found.ids.remove("etcd-no-leader");
    assert_eq!(found.ids, words(&["unreachable"]), "{:#}", found.report);
}

#[test]
fn zookeeper() {
    let settings = [("maxSessionTimeout", "2000"), ("4lw.commands.whitelist", "srvr")];
    let Some(server) = ZooKeeper::start_with_or_skip(&settings).unwrap() else { return };
    let found = doctor(&server.url());
    assert_eq!(found.ids, words(&["zk-standalone", "zk-session-range", "zk-words"]), "{:#}", found.report);
    let found = doctor(&format!("{}?ttl=2s", server.url()));
    assert_eq!(found.ids, words(&["zk-standalone", "zk-words"]), "{:#}", found.report);
}

/// The nodes of a server.
fn nodes(server: &ZooKeeper) -> String {
    let mut stream = TcpStream::connect(server.addr()).unwrap();
    stream.write_all(b"mntr").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.lines().find(|line| line.starts_with("zk_znode_count")).unwrap().to_owned()
}

#[test]
fn no_node_is_created() {
    let Some(server) = ZooKeeper::start_or_skip().unwrap() else { return };
    let before = nodes(&server);
    assert_eq!(doctor(&server.url()).ids, words(&["zk-standalone"]));
    assert_eq!(nodes(&server), before);
    let locks = oarlock::blocking::connect(server.url()).unwrap();
    let guard = locks.mutex("deploy/prod").lock().unwrap();
    let found = doctor_with(&server.url(), &["--max-hold", "1ms"]);
    assert_eq!(found.ids, words(&["zk-standalone", "old-hold"]), "it saw the lock: {:#}", found.report);
    guard.release().unwrap();
    // A client creates nodes of its own, also after it holds.
    locks.shutdown(Duration::from_secs(10)).unwrap();
    let before = nodes(&server);
    assert_eq!(doctor(&server.url()).ids, words(&["zk-standalone"]));
    assert_eq!(nodes(&server), before);
}

#[test]
fn an_ensemble() {
    let Some(ensemble) = ZooKeeperEnsemble::start_or_skip().unwrap() else { return };
    let found = doctor(&ensemble.url());
    assert_eq!(found.ids, words(&[]), "{:#}", found.report);
    let leader = ensemble.leader().unwrap();
    let follower = (leader + 1) % 3;
    let found = doctor(&ensemble.members[follower].url());
    assert_eq!(found.ids, words(&[]), "a follower knows how many vote: {:#}", found.report);
    ensemble.members[follower].kill().unwrap();
    // The leader notices it when the connection ends.
    let give_up = Instant::now() + PATIENCE;
    loop {
        let found = doctor(&ensemble.url());
        if found.ids == words(&["zk-unsynced", "unreachable"]) {
            return;
        }
        assert!(Instant::now() < give_up, "{:#}", found.report);
    }
}
