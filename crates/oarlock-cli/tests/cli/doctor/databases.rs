//! PostgreSQL and MariaDB.

use std::io::Write as _;
use std::process::{Command, Stdio};

use oarlock_testbed::{Flavour, PgBouncer, Postgres, SqlServer};

use super::{Healthy, doctor, words};

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
    let found = doctor(&standby.url());
    assert!(found.ids.contains("postgres-read-only"), "{:#}", found.report);
    drop(standby);
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
    let Some(server) = SqlServer::start_with_or_skip(Flavour::MariaDb, &[]).unwrap() else { return };
    let port = server.addr().port().to_string();
    let url = server.url();
    let database = url.rsplit_once('/').unwrap().1.to_owned();
    let user = url.split_once("://").unwrap().1.split_once('@').unwrap().0.to_owned();
    let args = ["-h", "127.0.0.1", "-P", &port, "-u", &user, &database];
    let sql = |script: &str| feed("mariadb", &args, script);
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
