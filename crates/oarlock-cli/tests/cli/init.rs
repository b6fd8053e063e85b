//! What a store needs is made or printed, and a user with the fewest rights can lock with it.

use std::io::Write;
use std::process::{Command, Stdio};

use oarlock_testbed::{Flavour, Postgres, SqlServer};

use super::support::{Done, TestContext, finish};

/// Runs it on the store behind `url`.
fn on(context: &TestContext, url: &str, args: &[&str]) -> Done {
    let mut command = context.bare(args);
    command.env("OARLOCK_URL", url);
    finish(command)
}

/// What the store's own client says to `script`; `None` where it is not installed.
fn feed(program: &str, args: &[&str], script: &str) -> Option<()> {
    let client = Command::new(program).args(args).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
    let mut client = match client {
        Ok(client) => client,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: there is no {program}");
            return None;
        }
        Err(error) => panic!("{program}: {error}"),
    };
    client.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(client.wait().unwrap().success(), "{program} refused\n{script}");
    Some(())
}

#[test]
fn a_store_that_needs_nothing_says_so() {
    let context = TestContext::new();
    let done = context.run(&["init"]);
    assert_eq!((done.code, done.out.as_str()), (Some(0), ""), "{done:?}");
    assert!(done.err.contains("needs no set-up"), "{done:?}");
    assert_eq!(on(&context, "mysql://127.0.0.1", &["init"]).code, Some(78));
    assert_eq!(on(&context, "mysql://127.0.0.1:1/locks", &["init"]).code, Some(69));
}

#[test]
fn the_rights_that_locks_need_are_printed() {
    let context = TestContext::new();
    let redis = on(&context, "redis://h?prefix=team:", &["init", "--print", "--grant", "app"]);
    assert!(
        redis.out.starts_with("ACL SETUSER app on resetkeys ~team:* resetchannels &team:* -@all +hello "),
        "{redis:?}"
    );
    let redlock = on(&context, "redlock://ada:secret@a,b,c", &["init", "--print"]);
    assert!(redlock.out.starts_with("ACL SETUSER ada on resetkeys ~* ~oarlock:beside:* "), "{redlock:?}");
    let plain = on(&context, "redis://h?layout=plain", &["init", "--print"]);
    assert!(plain.out.contains(" +zadd ") && !redlock.out.contains(" +z"), "a quorum has no queue: {redlock:?}");
    let etcd = on(&context, "etcd://h/team?layout=go", &["init", "--print"]);
    let wanted = "etcdctl role add locks\n\
        etcdctl role grant-permission locks readwrite team/ --prefix=true\n\
        etcdctl role grant-permission locks readwrite oarlock:beside: --prefix=true\n\
        etcdctl user grant-role locks locks\n";
    assert_eq!(etcd.out, wanted);
    let zookeeper = on(&context, "zk://ada:secret@h/team", &["init", "--print"]);
    let wanted = "addauth digest ada:PASSWORD\ncreate /team\ncreate /team/oarlock\nsetAcl /team/oarlock auth::cr\n";
    assert_eq!(zookeeper.out, wanted);
    // Nothing is given without the tools of the store, and this says so.
    let refused = on(&context, "redis://h", &["init", "--grant", "app"]);
    assert_eq!((refused.code, refused.out.as_str()), (Some(78), ""), "{refused:?}");
    assert!(refused.err.contains("oarlock init --print"), "{refused:?}");
    assert_eq!(on(&context, "zk://h?layout=curator", &["init", "--print"]).code, Some(78));
}

#[test]
fn a_user_with_few_rights_locks_on_postgres() {
    let context = TestContext::new();
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    let (root, port) = (server.url(), server.addr().port().to_string());
    let psql = ["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-qv", "ON_ERROR_STOP=1", "postgres"];
    let Some(()) = feed("psql", &psql, "CREATE ROLE app LOGIN; CREATE ROLE other LOGIN") else { return };
    let app = root.replace("postgres@", "app@");
    assert_eq!(on(&context, &app, &["run", "x", "--", "true"]).code, Some(77), "the tables are missing");
    let done = on(&context, &root, &["init", "--grant", "app"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(on(&context, &app, &["run", "x", "--", "true"]).code, Some(0));
    let printed = on(&context, &root, &["init", "--print", "--grant", "other"]);
    feed("psql", &psql, &printed.out);
    assert_eq!(on(&context, &root.replace("postgres@", "other@"), &["run", "x", "--", "true"]).code, Some(0));
}

#[test]
fn a_user_with_few_rights_locks_on_mariadb() {
    a_user_with_few_rights_locks(Flavour::MariaDb);
}

#[test]
fn a_user_with_few_rights_locks_on_mysql() {
    a_user_with_few_rights_locks(Flavour::MySql);
}

fn a_user_with_few_rights_locks(flavour: Flavour) {
    let context = TestContext::new();
    let Some(server) = SqlServer::start_with_or_skip(flavour, &[]).unwrap() else { return };
    let (root, port) = (server.url(), server.addr().port().to_string());
    let client = ["--no-defaults", "-h127.0.0.1", "-P", &port, "-uroot", "locks"];
    let Some(()) = feed("mariadb", &client, "CREATE USER app; CREATE USER other;") else { return };
    let app = root.replace("root@", "app@");
    assert_eq!(on(&context, &app, &["run", "x", "--", "true"]).code, Some(77), "the tables are missing");
    let printed = on(&context, &root, &["init", "--print", "--grant", "app"]);
    feed("mariadb", &client, &printed.out);
    assert_eq!(on(&context, &app, &["run", "x", "--", "true"]).code, Some(0));
    let done = on(&context, &root, &["init", "--grant", "other"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(on(&context, &root.replace("root@", "other@"), &["run", "x", "--", "true"]).code, Some(0));
}
