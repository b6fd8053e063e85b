//! etcd and ZooKeeper.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use oarlock_testbed::{Etcd, EtcdCluster, ZooKeeper, ZooKeeperEnsemble};

use super::{Found, doctor, doctor_with, words};
use crate::cli::support::PATIENCE;

/// Without what depends on the version of the server that is installed, and without what all of these have in common.
fn but_version(mut found: Found) -> Found {
    found.ids.remove("etcd-no-auth");
    if found.ids.remove("etcd-version") {
        found.code = found.code.min(1);
    }
    found
}

/// What was asked of a server, and its answer.
fn fact(found: &Found, what: &str) -> String {
    let mut facts = found.report["facts"].as_array().unwrap().iter();
    let fact = facts.find(|fact| fact["what"] == what).unwrap_or_else(|| panic!("{:#}", found.report));
    fact["value"].as_str().unwrap().to_owned()
}

/// Waits until this is found, as a warning, and nothing else.
fn until(url: &str, id: &str) {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let found = but_version(doctor(url));
        if found.ids == words(&[id]) {
            return assert_eq!(found.code, 1, "{:#}", found.report);
        }
        assert!(Instant::now() < give_up, "{:#}", found.report);
    }
}

/// A member that advertises an address which is another server from here, as `localhost` is: that one gets no password,
/// and what it says is not taken for the member's.
#[test]
fn an_advertised_address_of_another_server() {
    let Some(other) = Etcd::start_with_or_skip(&[("quota-backend-bytes", "4000000")]).unwrap() else { return };
    let value = "x".repeat(100_000);
    for number in 0..100 {
        if other.ctl(&["put", &format!("k{number}"), &value]).is_err() {
            break;
        }
    }
    assert!(doctor(&other.url()).ids.contains("etcd-no-space"));
    let Some(cluster) = EtcdCluster::start_or_skip().unwrap() else { return };
    let wrong = format!("http://{}", other.addr());
    cluster.members[2].restart_with(&[("advertise-client-urls", &wrong)]).unwrap();
    let listed = cluster.members[..2].iter().map(|member| member.addr().to_string()).collect::<Vec<_>>();
    let give_up = Instant::now() + PATIENCE;
    loop {
        let found = but_version(doctor(&format!("etcd://{}", listed.join(","))));
        assert!(!found.ids.contains("etcd-no-space"), "{:#}", found.report);
        if found.ids.is_empty() && found.report["facts"].to_string().contains("which is another server from here") {
            return;
        }
        assert!(Instant::now() < give_up, "{:#}", found.report);
    }
}

#[test]
fn etcd() {
    let Some(alone) = Etcd::start_with_or_skip(&[("quota-backend-bytes", "4000000")]).unwrap() else { return };
    let found = but_version(doctor(&alone.url()));
    assert_eq!(found.ids, words(&["etcd-single"]), "{:#}", found.report);
    // Its web server tells the time to the second.
    let offset = fact(&found, "clock");
    assert!(offset.ends_with("this machine's; locks of this store do not depend on it"), "{offset}");
    let found = but_version(doctor_with(&alone.url(), &["--seen-fence", "1000000"]));
    assert_eq!(found.ids, words(&["etcd-single", "fences-repeat"]), "{:#}", found.report);
    let mut findings = found.report["findings"].as_array().unwrap().iter();
    let repeats = findings.find(|finding| finding["id"] == "fences-repeat").unwrap();
    assert_eq!(repeats["severity"], "void", "{repeats}");
    let value = "x".repeat(100_000);
    for number in 0..100 {
        if alone.ctl(&["put", &format!("k{number}"), &value]).is_err() {
            break;
        }
    }
    let found = but_version(doctor(&alone.url()));
    assert!(found.ids.contains("etcd-no-space"), "{:#}", found.report);

    let Some(cluster) = EtcdCluster::start_or_skip().unwrap() else { return };
    // Worth knowing, once for the whole cluster, and no danger by itself.
    let found = doctor(&cluster.url());
    let open = found.report["findings"].as_array().unwrap().iter().filter(|finding| finding["id"] == "etcd-no-auth");
    assert_eq!(open.map(|finding| &finding["severity"]).collect::<Vec<_>>(), ["note"], "{:#}", found.report);
    let found = but_version(found);
    assert_eq!(found.ids, words(&[]), "{:#}", found.report);
    let found = but_version(doctor(&format!("{},{}", cluster.url(), alone.addr())));
    assert!(found.ids.contains("etcd-two-clusters"), "{:#}", found.report);
    let learner = cluster.start_learner().unwrap();
    let found = but_version(doctor(&format!("{},{}", cluster.url(), learner.addr())));
    assert_eq!(found.ids, words(&["etcd-learner"]), "{:#}", found.report);
    // One of three survives no failure of that one; two survive the failure of any.
    let found = but_version(doctor(&cluster.members[0].url()));
    assert_eq!(found.ids, words(&["etcd-unlisted"]), "{:#}", found.report);
    let others: Vec<_> = cluster.members[1..].iter().map(|member| member.addr().to_string()).collect();
    let facts: Vec<_> = found.report["facts"].as_array().unwrap().iter().map(|fact| &fact["server"]).collect();
    assert!(others.iter().all(|other| facts.iter().any(|server| *server == other.as_str())), "{:#}", found.report);
    let found = but_version(doctor(&format!("etcd://{}", others.join(","))));
    assert_eq!(found.ids, words(&[]), "{:#}", found.report);
    cluster.members[1].kill().unwrap();
    // The others may be about to elect a leader.
    let mut found = but_version(doctor(&cluster.url()));
    found.ids.remove("etcd-no-leader");
    assert_eq!(found.ids, words(&["unreachable"]), "{:#}", found.report);
    cluster.members[2].kill().unwrap();
    let give_up = Instant::now() + PATIENCE;
    let url = format!("{}?connect_timeout=1s&op_timeout=1s", cluster.members[0].url());
    while !doctor(&url).ids.contains("etcd-no-leader") {
        assert!(Instant::now() < give_up, "the last member has a leader");
    }
}

/// The number of a member.
fn id(member: &Etcd, name: &str) -> String {
    let listed = member.ctl(&["member", "list"]).unwrap();
    let line = listed.lines().find(|line| line.contains(&format!(", {name}, "))).unwrap_or_else(|| panic!("{listed}"));
    line.split(',').next().unwrap().to_owned()
}

#[test]
fn an_even_number_of_members() {
    let Some(cluster) = EtcdCluster::start_or_skip().unwrap() else { return };
    let members = &cluster.members;
    members[0].ctl(&["member", "remove", &id(&members[0], "m2")]).unwrap();
    // The one that is removed may have led: then the others elect a leader first.
    members[2].kill().unwrap();
    until(&format!("etcd://{},{}", members[0].addr(), members[1].addr()), "etcd-even");
}

/// The alarm that a member raises when it finds that its data differs.
#[test]
fn a_corrupt_member() {
    let Some(server) = Etcd::start_or_skip().unwrap() else { return };
    let alarm = format!(
        "{{\"action\":\"ACTIVATE\",\"alarm\":\"CORRUPT\",\"memberID\":\"{}\"}}",
        u64::from_str_radix(&id(&server, "alone"), 16).unwrap()
    );
    let mut stream = TcpStream::connect(server.addr()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!("POST /v3/maintenance/alarm HTTP/1.0\r\nContent-Length: {}\r\n\r\n", alarm.len());
    stream.write_all((head + &alarm).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("200 OK"), "{answer}");
    let found = doctor(&server.url());
    assert!(found.code == 2 && found.ids.contains("etcd-corrupt"), "{:#}", found.report);
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
    let found = doctor(&server.url());
    assert_eq!(found.ids, words(&["zk-standalone"]), "{:#}", found.report);
    assert!(fact(&found, "clock").starts_with("cannot be measured"), "only by a write: {:#}", found.report);
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
            break;
        }
        assert!(Instant::now() < give_up, "{:#}", found.report);
    }
    // The last one has no majority, and says so.
    ensemble.members[leader].kill().unwrap();
    let last = &ensemble.members[(leader + 2) % 3];
    let give_up = Instant::now() + PATIENCE;
    loop {
        let found = doctor(&format!("{}?connect_timeout=1s", last.url()));
        if found.ids.contains("zk-not-serving") {
            return;
        }
        assert!(Instant::now() < give_up, "{:#}", found.report);
    }
}

#[test]
fn an_even_ensemble() {
    let Some(ensemble) = ZooKeeperEnsemble::start_of_or_skip(2).unwrap() else { return };
    // A follower that has just started does not keep up yet.
    until(&ensemble.url(), "zk-even");
}

/// One user, one role: what authentication is off for is over.
#[test]
fn etcd_with_authentication() {
    let Some(server) = Etcd::start_or_skip().unwrap() else { return };
    for words in [&["user", "add", "root:secret"][..], &["user", "grant-role", "root", "root"], &["auth", "enable"]] {
        server.ctl(words).unwrap();
    }
    let found = doctor(&server.url().replace("etcd://", "etcd://root:secret@"));
    assert!(!found.ids.contains("etcd-no-auth"), "{:#}", found.report);
    assert_eq!(but_version(found).ids, words(&["etcd-single"]));
}
