//! etcd and ZooKeeper.

use oarlock_testbed::{Etcd, EtcdCluster, ZooKeeper};

use super::{Found, doctor, words};

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
    let found = but_version(doctor(&cluster.url()));
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
