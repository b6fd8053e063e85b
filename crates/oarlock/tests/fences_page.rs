//! Runs the statements of `docs/guide/fences.md` on real servers, as they are on the page: the write of a holder is
//! accepted, the late write of an older one is refused.

#![cfg(all(feature = "postgres", feature = "mysql"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use oarlock::fenced::TOO_LATE_SQLSTATE;
use oarlock_testbed::server::{EtcdProgram, MariaDbProgram, PostgresProgram, RedisProgram, Server, redis_command};
use rusqlite::Connection;

const PAGE: &str = include_str!("../../../docs/guide/fences.md");
const TABLE: &str = "CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL);
ALTER TABLE account ADD COLUMN fence BIGINT NOT NULL DEFAULT 0;
INSERT INTO account (id, balance) VALUES (7, 100);\n";

/// The code block of the page that contains these words.
fn block(words: &str) -> &'static str {
    let mut blocks = PAGE.split("```").skip(1).step_by(2).filter(|block| block.contains(words));
    let found = blocks.next().unwrap_or_else(|| panic!("no block of the page has {words:?}"));
    found.split_once('\n').unwrap().1
}

/// The statement in the row of the page's table that begins with this cell.
fn statement(database: &str) -> &'static str {
    let row = PAGE.lines().find_map(|line| line.strip_prefix(&*format!("| {database} | `")));
    row.and_then(|row| row.strip_suffix("` |")).unwrap_or_else(|| panic!("no row of the page for {database:?}"))
}

/// Runs a client program with this input.
fn client(program: &str, arguments: &[&str], input: &str) -> Output {
    let mut client = Command::new(program);
    client.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = client.spawn().unwrap_or_else(|error| panic!("{program}: {error}"));
    client.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    client.wait_with_output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn sqlite() {
    let database = Connection::open_in_memory().unwrap();
    assert!(TABLE.contains(block("ADD COLUMN fence").trim()), "the page adds another column");
    database.execute_batch(TABLE).unwrap();
    let update = |fence: i64| database.execute(statement("MySQL, MariaDB, SQLite"), [fence * 10, fence, 7, fence]);
    assert_eq!([update(41), update(42), update(42), update(41)].map(Result::unwrap), [1, 1, 1, 0]);
    let insert =
        |id, fence: i64| database.execute(statement("SQLite, a row that may not exist"), [fence * 10, fence, id]);
    assert_eq!([insert(8, 41), insert(8, 42), insert(8, 41), insert(7, 41)].map(Result::unwrap), [1, 1, 0, 0]);
    let record = |fence: i64| database.execute(block("SET fence = ?"), [fence, 7, fence]);
    assert_eq!([record(43), update(42), update(43), record(42)].map(Result::unwrap), [1, 0, 1, 0]);
}

#[test]
fn redis() {
    let Some(server) = Server::<RedisProgram>::start_or_skip().unwrap() else { return };
    let script = block("redis.call('HGET'");
    let write = |fence| redis_command(server.addr(), &["EVAL", script, "1", "balance", fence, fence]).unwrap();
    assert_eq!(["41", "42", "42", "41"].map(write), ["1", "1", "1", "0"]);
    assert_eq!(redis_command(server.addr(), &["HGET", "balance", "value"]).unwrap(), "42");
}

#[test]
fn etcd() {
    let Some(server) = Server::<EtcdProgram>::start_or_skip().unwrap() else { return };
    let write = || {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(block("etcdctl txn")).env("ETCDCTL_API", "3");
        text(&shell.env("ETCDCTL_ENDPOINTS", format!("http://{}", server.addr())).output().unwrap())
    };
    for (last, answer) in [(0, "SUCCESS"), (41, "SUCCESS"), (42, "SUCCESS"), (43, "FAILURE")] {
        server.ctl(&["put", "balance/fence", &format!("{last:016}")]).unwrap();
        let said = write();
        assert!(said.starts_with(answer), "fence 42 after {last}: {said}");
    }
}

#[tokio::test]
async fn postgres() {
    let Some(server) = Server::<PostgresProgram>::start_or_skip().unwrap() else { return };
    oarlock::setup::init(&*server.url(), None).await.unwrap();
    let psql =
        |input: &str| client("psql", &["-X", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose", &server.url()], input);
    let (update, insert) = (statement("PostgreSQL"), statement("PostgreSQL, a row that may not exist"));
    let said = text(&psql(&format!(
        "{TABLE}PREPARE upd AS {update};PREPARE ins AS {insert};
        EXECUTE upd(410, 41, 7);EXECUTE upd(420, 42, 7);EXECUTE upd(410, 41, 7);
        EXECUTE ins(410, 41, 8);EXECUTE ins(420, 42, 8);EXECUTE ins(410, 41, 8);\n"
    )));
    let changes: Vec<_> =
        said.lines().filter(|line| line.starts_with("UPDATE") || line.starts_with("INSERT")).collect();
    let expected = ["INSERT 0 1", "UPDATE 1", "UPDATE 1", "UPDATE 0", "INSERT 0 1", "INSERT 0 1", "INSERT 0 0"];
    assert_eq!(changes, expected, "{said}");

    let written = psql(block("SELECT oarlock.check"));
    assert!(written.status.success() && text(&written).contains("UPDATE 1"), "{}", text(&written));
    psql("SELECT oarlock.check('balance/7', 1794758298817435);");
    let late = psql(block("SELECT oarlock.check"));
    assert!(!late.status.success() && text(&late).contains(TOO_LATE_SQLSTATE), "{}", text(&late));
}

#[tokio::test]
async fn mariadb() {
    let Some(server) = Server::<MariaDbProgram>::start_or_skip().unwrap() else { return };
    let url = server.url();
    oarlock::setup::init(&*url, None).await.unwrap();
    let (port, database) = (server.addr().port().to_string(), url.rsplit('/').next().unwrap());
    let sql = |input: &str| {
        client("mariadb", &["--no-defaults", "-vv", "-h127.0.0.1", "-P", &port, "-uroot", database], input)
    };
    let update = statement("MySQL, MariaDB, SQLite");
    let said = text(&sql(&format!(
        "{TABLE}PREPARE upd FROM '{update}';
        EXECUTE upd USING 420, 42, 7, 42;EXECUTE upd USING 410, 41, 7, 41;\n"
    )));
    assert!(said.contains("Rows matched: 1  Changed: 1") && said.contains("Rows matched: 0  Changed: 0"), "{said}");

    let written = sql(block("CALL oarlock_check"));
    assert!(written.status.success(), "{}", text(&written));
    sql("CALL oarlock_check('balance/7', 1794758298817435);");
    let late = sql(block("CALL oarlock_check"));
    assert!(!late.status.success() && text(&late).contains(TOO_LATE_SQLSTATE), "{}", text(&late));
}
