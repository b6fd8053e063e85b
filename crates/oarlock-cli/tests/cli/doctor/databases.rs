//! PostgreSQL, MariaDB and MySQL.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use oarlock_testbed::{Flavour, MariaDb, MySql, PgBouncer, Postgres, Proxy, SqlServer};
use rustix::process::Signal;

use super::{Healthy, doctor, doctor_with, words};
use crate::cli::support::{PATIENCE, Running, TestContext};

/// Feeds the client of a database; false where it is not installed.
fn feed(program: &str, args: &[&str], script: &str) -> bool {
    let client = Command::new(program).args(args).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
    let mut client = match client {
        Ok(client) => client,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: there is no {program}");
            return false;
        }
        Err(error) => panic!("{program}: {error}"),
    };
    client.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(client.wait().unwrap().success(), "{program} refused\n{script}");
    true
}

#[test]
fn postgres() {
    let Some(server) = Postgres::start_with_or_skip(&[("fsync", "on")]).unwrap() else { return };
    let port = server.addr().port().to_string();
    let args = ["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-qv", "ON_ERROR_STOP=1", "postgres"];
    let sql = |script: &str| feed("psql", &args, script);
    if !sql("CREATE ROLE app LOGIN; CREATE ROLE few LOGIN SUPERUSER CONNECTION LIMIT 1") {
        return;
    }
    let app = server.url().replace("postgres@", "app@");
    let healthy = Healthy::at(&server.url(), &[]);
    let found = doctor(&app);
    assert_eq!((found.code, found.ids), (1, words(&["denied"])), "it may not create: {:#}", found.report);
    sql("DO $$ BEGIN ASSERT NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'oarlock'); END $$");

    oarlock::blocking::setup::init(server.url(), None).unwrap();
    let found = doctor(&app);
    assert_eq!((found.code, found.ids), (1, words(&["denied"])), "it has no rights: {:#}", found.report);
    oarlock::blocking::setup::init(server.url(), Some("app")).unwrap();
    // What a user with the rights of locks sees is enough for all checks.
    Healthy::at(&app, &[]);
    Healthy::at(&server.url(), &[]);
    sql("DO $$ BEGIN ASSERT (SELECT count(*) FROM oarlock.session) = 0; END $$");

    for (name, value, id, code) in [
        ("synchronous_commit", "off", "postgres-async-commit", 2),
        ("default_transaction_isolation", "'serializable'", "postgres-isolation", 1),
        ("default_transaction_read_only", "on", "postgres-read-only", 1),
    ] {
        sql(&format!("ALTER DATABASE postgres SET {name} = {value}"));
        healthy.breaks(id, code);
        sql(&format!("SET default_transaction_read_only = off; ALTER DATABASE postgres RESET {name}"));
    }
    let found = doctor(&server.url().replace("postgres@", "few@"));
    assert_eq!((found.code, found.ids), (1, words(&["few-connections"])), "{:#}", found.report);
    sql("ALTER TABLE oarlock.claim SET UNLOGGED");
    healthy.breaks("postgres-unlogged", 2);
    sql("ALTER TABLE oarlock.claim SET LOGGED; UPDATE oarlock.format SET version = version + 1");
    healthy.breaks("other-format", 1);
    sql("UPDATE oarlock.format SET version = version - 1");

    let standby = Postgres::standby_of(server.addr()).unwrap();
    healthy.breaks("postgres-failover", 1);
    // Each server of the URL is asked, whichever is first.
    let both = |first: SocketAddr, second: SocketAddr| {
        doctor(&server.url().replace(&server.addr().to_string(), &format!("{first},{second}")))
    };
    for (first, second) in [(server.addr(), standby.addr()), (standby.addr(), server.addr())] {
        let found = both(first, second);
        assert_eq!((found.code, found.ids), (1, words(&["postgres-failover"])), "{:#}", found.report);
        let role = found.report["facts"].as_array().unwrap().iter().find(|fact| fact["what"] == "role").unwrap();
        assert_eq!((&role["server"], &role["value"]), (&standby.addr().to_string().into(), &"read-only".into()));
    }
    let found = both(server.addr(), "127.0.0.1:1".parse().unwrap());
    assert_eq!((found.code, found.ids), (1, words(&["postgres-failover", "unreachable"])), "{:#}", found.report);
    let found = doctor(&standby.url());
    assert!(found.ids.contains("postgres-read-only"), "{:#}", found.report);
    drop(standby);
    if let Some(other) = Postgres::start_or_skip().unwrap() {
        let found = both(server.addr(), other.addr());
        assert!(found.code == 2 && found.ids.contains("postgres-two-primaries"), "{:#}", found.report);
    }
    if let Some(pooler) = PgBouncer::in_front_of_or_skip(server.addr(), &[]).unwrap() {
        let found = doctor(&pooler.url());
        assert!(found.ids.contains("postgres-pooler"), "{:#}", found.report);
    }
    // A server that does not wait for the disk, and one more finding beside it.
    server.restart_with(&[("fsync", "off")]).unwrap();
    healthy.breaks("postgres-fsync", 2);
    sql("REVOKE USAGE ON SCHEMA oarlock FROM app");
    let found = doctor(&app);
    assert_eq!((found.code, found.ids), (2, words(&["denied", "postgres-fsync"])), "{:#}", found.report);
}

#[test]
fn mariadb() {
    examine(Flavour::MariaDb);
}

#[test]
fn mysql() {
    examine(Flavour::MySql);
}

/// The client of MariaDB speaks to both.
fn feed_mysql(addr: SocketAddr, script: &str) -> bool {
    feed("mariadb", &["-h", "127.0.0.1", "-P", &addr.port().to_string(), "-u", "root", "locks"], script)
}

fn examine(flavour: Flavour) {
    let Some(server) = SqlServer::start_with_or_skip(flavour, &[]).unwrap() else { return };
    let url = server.url();
    let sql = |script: &str| feed_mysql(server.addr(), script);
    if !sql("SET GLOBAL innodb_flush_log_at_trx_commit = 1") {
        return;
    }
    Healthy::at(&url, &[]);
    assert!(sql("SELECT IF(COUNT(*) = 0, 1, (SELECT 1 UNION SELECT 2)) FROM information_schema.tables
        WHERE table_schema = DATABASE() AND table_name LIKE 'oarlock%'"));
    oarlock::blocking::setup::init(&url, None).unwrap();
    let healthy = Healthy::at(&url, &[]);
    for (broken, id, code, mended) in [
        (
            "SET GLOBAL innodb_flush_log_at_trx_commit = 0",
            "mysql-lost-commits",
            2,
            "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
        ),
        (
            "SET GLOBAL innodb_flush_log_at_trx_commit = 2",
            "mysql-power-loss",
            1,
            "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
        ),
        ("SET GLOBAL read_only = 1", "mysql-read-only", 1, "SET GLOBAL read_only = 0"),
        ("ALTER TABLE oarlock_format ENGINE = MyISAM", "mysql-engine", 2, "ALTER TABLE oarlock_format ENGINE = InnoDB"),
        (
            "UPDATE oarlock_format SET version = version + 1",
            "other-format",
            1,
            "UPDATE oarlock_format SET version = version - 1",
        ),
    ] {
        sql(broken);
        healthy.breaks(id, code);
        sql(mended);
    }
    let session = "SET @rows = (SELECT COUNT(*) FROM oarlock_session);
        SELECT IF(@rows = 0, 1, (SELECT 1 UNION SELECT 2))";
    assert!(sql(session), "it began a session");
    assert_eq!(doctor(&url).ids, words(&[]));
    // Without PROCESS a server shows only some of its threads, and says nothing.
    sql("CREATE USER app");
    oarlock::blocking::setup::init(&url, Some("app")).unwrap();
    let found = doctor(&url.replace("root@", "app@"));
    assert_eq!((found.code, found.ids), (1, words(&["cannot-tell"])), "{:#}", found.report);
}

#[test]
fn a_primary_and_its_replica() {
    for flavour in [Flavour::MariaDb, Flavour::MySql] {
        let Some(primary) = SqlServer::primary_or_skip(flavour).unwrap() else { continue };
        let durable = "SET GLOBAL innodb_flush_log_at_trx_commit = 1; SET GLOBAL sync_binlog = 1";
        if !feed_mysql(primary.addr(), durable) {
            return;
        }
        let healthy = Healthy::at(&primary.url(), &[]);
        feed_mysql(primary.addr(), "SET GLOBAL binlog_format = 'STATEMENT'");
        healthy.breaks("mysql-statements", 1);
        feed_mysql(primary.addr(), "SET GLOBAL binlog_format = 'ROW'");
        let replica = SqlServer::replica_of(flavour, primary.addr()).unwrap();
        // It follows after a moment.
        let give_up = Instant::now() + PATIENCE;
        while doctor(&primary.url()).ids.is_empty() {
            assert!(Instant::now() < give_up, "{flavour:?}: no replica follows");
        }
        healthy.breaks("mysql-failover", 1);
        feed_mysql(replica.addr(), durable);
        let found = doctor(&replica.url());
        assert_eq!((found.code, found.ids), (1, words(&["mysql-replica", "mysql-read-only"])), "{:#}", found.report);
        // Each server of the URL is asked.
        let both = format!("{},{}", replica.addr(), primary.addr());
        let both = Healthy::at(&primary.url().replace(&primary.addr().to_string(), &both), &["mysql-failover"]);
        feed_mysql(replica.addr(), "SET GLOBAL read_only = 0");
        let found = doctor(&both.url);
        assert!(found.code == 2 && found.ids.contains("mysql-two-primaries"), "{:#}", found.report);
    }
}

/// A machine that loses its network leaves its connections on the server, which hears of nothing.
fn connections_that_are_left(url: &str, addr: SocketAddr) {
    oarlock::blocking::setup::init(url, None).unwrap();
    let context = TestContext::new();
    let proxy = Proxy::start(addr).unwrap();
    let mut hold = context.bare(["hold", "left/behind", "-t", "2s"]);
    hold.env("OARLOCK_URL", proxy.url(url, addr)).stdin(Stdio::piped());
    let mut holder = Running::start(hold);
    holder.line();
    assert!(!doctor(url).ids.contains("idle-connections"), "none has been idle for an hour");
    proxy.cut();
    holder.signal(Signal::KILL);
    holder.finish();
    let give_up = Instant::now() + PATIENCE;
    let finding = loop {
        let found = doctor_with(url, &["--max-idle", "1s"]);
        let mut findings = found.report["findings"].as_array().unwrap().iter();
        if let Some(finding) = findings.find(|finding| finding["id"] == "idle-connections") {
            break finding.clone();
        }
        assert!(Instant::now() < give_up, "{:#}", found.report);
        std::thread::sleep(Duration::from_millis(200));
    };
    assert_eq!(finding["severity"], "note", "{finding}");
    assert!(finding["reason"].as_str().unwrap().contains(&addr.to_string()), "{finding}");
}

#[test]
fn connections_that_are_left_on_postgres() {
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    connections_that_are_left(&server.url(), server.addr());
}

#[test]
fn connections_that_are_left_on_mariadb_and_mysql() {
    for flavour in [Flavour::MariaDb, Flavour::MySql] {
        let Some(server) = SqlServer::start_with_or_skip(flavour, &[]).unwrap() else { continue };
        connections_that_are_left(&server.url(), server.addr());
    }
}

/// The only member of a replication group, and one that has left it.
#[test]
fn a_replication_group() {
    let Some(member) = MySql::member_of_group_or_skip().unwrap() else { return };
    let sql = |script: &str| feed_mysql(member.addr(), script);
    if !sql("SET GLOBAL innodb_flush_log_at_trx_commit = 1; SET GLOBAL sync_binlog = 1") {
        return;
    }
    let found = doctor(&member.url());
    assert_eq!((found.code, found.ids), (2, words(&["mysql-cluster", "mysql-no-majority"])), "{:#}", found.report);
    sql("SET GLOBAL group_replication_bootstrap_group = ON; START GROUP_REPLICATION");
    let healthy = Healthy::at(&member.url(), &["mysql-cluster"]);
    sql("CREATE USER app; GRANT ALL ON locks.* TO app");
    let found = doctor(&member.url().replace("root@", "app@"));
    assert_eq!(found.ids, words(&["mysql-cluster", "cannot-tell"]), "{:#}", found.report);
    sql("STOP GROUP_REPLICATION; SET GLOBAL super_read_only = 0; SET GLOBAL read_only = 0");
    let finding = healthy.breaks("mysql-no-majority", 2);
    assert!(finding["reason"].as_str().unwrap().contains("OFFLINE"), "{finding}");
}

/// One node of Galera is a cluster; one that lost the others has no majority.
#[test]
fn galera() {
    let Some(node) = MariaDb::galera_or_skip().unwrap() else { return };
    if !feed_mysql(node.addr(), "SET GLOBAL innodb_flush_log_at_trx_commit = 1") {
        return;
    }
    let found = doctor(&node.url());
    assert_eq!((found.code, found.ids), (1, words(&["mysql-cluster"])), "{:#}", found.report);
    // It joins a cluster of which it finds no other node.
    feed_mysql(node.addr(), "SET GLOBAL wsrep_cluster_address = 'gcomm://127.0.0.1:1'");
    let give_up = Instant::now() + PATIENCE;
    loop {
        let found = doctor(&node.url());
        if found.code == 2 && found.ids.contains("mysql-no-majority") {
            return;
        }
        assert!(Instant::now() < give_up, "{:#}", found.report);
    }
}

/// What a pooler does: it greets a client before it knows which connection will serve it, so that the number of the
/// connection in its greeting is its own.
fn pooler(server: SocketAddr) -> SocketAddr {
    let entrance = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = entrance.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in entrance.incoming() {
            let (mut client, mut server) = (client?, TcpStream::connect(server)?);
            // A length of three bytes, a number, the version of the protocol, the version of the server up to a zero,
            // and the number of the connection.
            let mut head = [0; 4];
            server.read_exact(&mut head)?;
            let mut greeting = vec![0; usize::from(head[0]) | usize::from(head[1]) << 8];
            server.read_exact(&mut greeting)?;
            let number = greeting.iter().position(|byte| *byte == 0).unwrap() + 1;
            greeting[number] ^= 0xff;
            client.write_all(&head)?;
            client.write_all(&greeting)?;
            let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
            std::thread::spawn(move || {
                let copied = io::copy(&mut from_client, &mut to_server);
                to_server.shutdown(Shutdown::Write).and(copied)
            });
            std::thread::spawn(move || {
                let copied = io::copy(&mut server, &mut client);
                client.shutdown(Shutdown::Write).and(copied)
            });
        }
        io::Result::Ok(())
    });
    addr
}

#[test]
fn a_pooler_of_mysql() {
    let Some(server) = MariaDb::start_or_skip().unwrap() else { return };
    if !feed_mysql(server.addr(), "SET GLOBAL innodb_flush_log_at_trx_commit = 1") {
        return;
    }
    oarlock::blocking::setup::init(server.url(), None).unwrap();
    Healthy::at(&server.url(), &[]);
    let behind = server.url().replace(&server.addr().to_string(), &pooler(server.addr()).to_string());
    let found = doctor(&behind);
    assert_eq!((found.code, found.ids), (1, words(&["mysql-pooler"])), "{:#}", found.report);
    let link = found.report["findings"][0]["store_guarantee"].as_str().unwrap();
    assert!(link.ends_with("#mysql-pooled-dead-holder"), "{link}");
}
