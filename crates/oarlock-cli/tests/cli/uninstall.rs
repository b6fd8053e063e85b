//! The commands of `docs/guide/operations.md` that remove Oarlock from a store leave nothing of it there, and keep the
//! data of others; locks work again after them.

use std::collections::BTreeSet;
use std::process::Command;

use oarlock_testbed::{Etcd, MariaDb, Postgres, Redis, ZooKeeper};

use super::support::{TestContext, finish};

const PAGE: &str = include_str!("../../../../docs/guide/operations.md");

/// The block of the page with these words.
fn block(words: &str) -> &'static str {
    let section = PAGE.split_once("## Uninstall").unwrap().1;
    let mut blocks = section.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.find(|block| block.contains(words)).unwrap_or_else(|| panic!("no block of the page has {words:?}"))
}

/// Uses the store, removes it with `script`, and compares what `list` shows with what was there before. `others` puts
/// data there that must stay.
fn removes(url: Option<&str>, others: &str, script: &str, list: &str) {
    let context = TestContext::new();
    let on_store = |mut command: Command| {
        command.current_dir(context.dir.path());
        url.map(|url| command.env("OARLOCK_URL", url));
        finish(command)
    };
    let oarlock = |args: &[&str]| {
        let done = on_store(context.bare(args));
        assert_eq!(done.code, Some(0), "{args:?}: {done:?}");
    };
    let shell = |script: &str| {
        let mut command = context.session("sh");
        command.args(["-euc", script]);
        let done = on_store(command);
        assert_eq!(done.code, Some(0), "{script}: {done:?}");
        done.out
    };
    let listed = || shell(list).lines().map(str::to_owned).collect::<BTreeSet<_>>();
    shell(others);
    let before = listed();
    assert_eq!(before.is_empty(), others.is_empty(), "`{list}` shows the data of others");
    oarlock(&["init"]);
    oarlock(&["run", "un/mutex", "--", "true"]);
    oarlock(&["run", "-j", "3", "un/permits", "it's \"quoted\"", "--", "true"]);
    oarlock(&["once", "un/once", "--slot", "2026-11-17", "--", "true"]);
    assert_ne!(listed(), before, "`{list}` shows what Oarlock keeps");
    shell(script);
    assert_eq!(listed(), before, "after {script}");
    oarlock(&["run", "un/mutex", "--", "true"]);
}

#[test]
fn the_embedded_store() {
    let others = "mkdir -p ~/.local/state/other";
    removes(None, others, block("rm -r"), "find \"$HOME/.local/state\" -mindepth 1 -maxdepth 1 2> /dev/null");
}

#[test]
fn redis() {
    let Some(server) = Redis::start_or_skip().unwrap() else { return };
    let url = server.url();
    let script = block("redis-cli").replace("redis://localhost", &url);
    // A stock, a key of another program, and one whose second line is the name of that.
    let others = format!(
        "redis-cli -u {url} hset 'oarlock:stock:{{x}}' left 3; redis-cli -u {url} set user:1 x
         redis-cli -u {url} set \"$(printf 'oarlock:x\\nuser:1')\" x"
    );
    removes(Some(&url), &others, &script, &format!("redis-cli -u {url} --scan"));
}

#[test]
fn etcd() {
    let Some(server) = Etcd::start_or_skip().unwrap() else { return };
    let address = server.addr().to_string();
    let script = block("etcdctl").replace("localhost:2379", &address);
    let list = format!("etcdctl --endpoints {address} get --prefix '' --keys-only");
    let others = format!("etcdctl --endpoints {address} put user/1 x");
    removes(Some(&server.url()), &others, &script, &list);
}

#[test]
fn zookeeper() {
    if std::env::var_os("OARLOCK_LONG").is_none() {
        return println!("only in the long tier (OARLOCK_LONG=1): four programs on the JVM");
    }
    let Some(server) = ZooKeeper::start_or_skip().unwrap() else { return };
    // Debian has no script for the shell of ZooKeeper: what the script starts.
    let shell = "java -cp '/usr/share/java/*' org.apache.zookeeper.ZooKeeperMain";
    let script = block("zkCli.sh").replace("zkCli.sh", shell).replace("localhost:2181", &server.addr().to_string());
    let list = format!("{shell} -server {} ls / 2>&1 | grep '^\\['", server.addr());
    let others = format!("{shell} -server {} create /other x", server.addr());
    removes(Some(&server.url()), &others, &script, &list);
}

#[test]
fn postgres() {
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    let url = server.url();
    let script = block("psql").replace("postgres://admin@db.example/jobs", &url);
    let list = format!(
        "psql {url} -qAtc \"SELECT nspname FROM pg_namespace WHERE nspname = 'oarlock' UNION ALL
         SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'\""
    );
    let others = format!("psql {url} -qc 'CREATE TABLE oarlock_stock_item (id int)'");
    removes(Some(&url), &others, &script, &list);
}

#[test]
fn mariadb() {
    let Some(server) = MariaDb::start_or_skip().unwrap() else { return };
    let client = format!("mariadb --no-defaults -h127.0.0.1 -P{} -uroot locks", server.addr().port());
    let script = block("mariadb").replace("mariadb jobs", &client);
    let list = format!("{client} -Ne 'SHOW TABLES; SHOW PROCEDURE STATUS WHERE Db = DATABASE()'");
    let others = "CREATE TABLE oarlock_stock_item (id int); CREATE TABLE other (id int);
        CREATE PROCEDURE oarlock_stock_take() SELECT 1";
    removes(Some(&server.url()), &format!("{client} -e '{others}'"), &script, &list);
}
