//! Runs the statements of `docs/guide/fences.md` on real servers, as they are on the page: the write of a holder is
//! accepted, the late write of an older one is refused. The SQL of other pages is run, or compared with that page:
//! `docs/guide/questions.md`, `docs/guide/migrate/redisson.zh.md`, `docs/guide/migrate/advisory.md`,
//! `docs/backends/postgres.md`, `docs/backends/mysql.md`.

#![cfg(all(feature = "postgres", feature = "mysql"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use oarlock::fenced::TOO_LATE_SQLSTATE;
use oarlock_testbed::server::{EtcdProgram, MariaDbProgram, PostgresProgram, RedisProgram, Server, redis_command};
use rusqlite::Connection;

const PAGE: &str = include_str!("../../../docs/guide/fences.md");
const QUESTIONS: &str = include_str!("../../../docs/guide/questions.md");
const REDISSON: &str = include_str!("../../../docs/guide/migrate/redisson.zh.md");
const ADVISORY: &str = include_str!("../../../docs/guide/migrate/advisory.md");
const POSTGRES: &str = include_str!("../../../docs/backends/postgres.md");
const MYSQL: &str = include_str!("../../../docs/backends/mysql.md");
const TABLE: &str = "CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL);
ALTER TABLE account ADD COLUMN fence BIGINT NOT NULL DEFAULT 0;
INSERT INTO account (id, balance) VALUES (7, 100);\n";

/// The code block of the page that contains these words.
fn block(words: &str) -> &'static str {
    block_of(PAGE, words)
}

fn block_of(page: &'static str, words: &str) -> &'static str {
    let mut blocks = page.split("```").skip(1).step_by(2).filter(|block| block.contains(words));
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

/// Without comments, and with one space between two words.
fn plain(sql: &str) -> String {
    let code = sql.lines().map(|line| line.split("--").next().unwrap());
    code.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

#[test]
fn other_pages_have_the_same_statements() {
    assert_eq!(plain(block_of(QUESTIONS, "SET balance")).trim_end_matches(';'), statement("PostgreSQL"));
    assert_eq!(plain(block_of(REDISSON, "SET balance")), statement("MySQL, MariaDB, SQLite"));
    for (page, words) in [(POSTGRES, "SELECT oarlock.check"), (MYSQL, "CALL oarlock_check")] {
        assert_eq!(plain(block_of(page, words)), plain(block(words)));
    }
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

    let rights = psql(&format!("CREATE ROLE app;{}", block_of(POSTGRES, "GRANT USAGE")));
    assert!(rights.status.success() && text(&rights).matches("GRANT\n").count() == 3, "{}", text(&rights));
    let locks = oarlock::connect(server.url()).await.unwrap();
    let guard = locks.mutex("balance/7").lock().await.unwrap();
    let listed = text(&psql(block_of(POSTGRES, "FROM oarlock.resource")));
    assert!(listed.contains("balance/7") && listed.contains(&guard.fence().to_string()), "{listed}");
    guard.release().await.unwrap();

    let advisory = text(&psql(block_of(ADVISORY, "pg_advisory_lock")));
    assert!(advisory.contains("pg_advisory_unlock") && advisory.lines().any(|line| line == " t"), "{advisory}");
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

/// An object with conditional writes, as S3 has them: its version, the fence in its metadata, its text.
#[derive(Default)]
struct Object {
    version: u32,
    fence: u64,
    text: String,
    /// Another holder writes with this fence after the next reading.
    overtaken_by: Option<u64>,
}

impl Object {
    /// Serves one request on a connection.
    fn serve(&mut self, stream: TcpStream) {
        let mut reader = BufReader::new(stream);
        let mut lines = Vec::new();
        while lines.last().is_none_or(|line: &String| !line.is_empty()) {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            lines.push(line.trim_end().to_owned());
        }
        let header = |name: &str| {
            let mut named = lines.iter().filter_map(|line| line.split_once(": "));
            named.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
        };
        let mut body = vec![0; header("Content-Length").map_or(0, |length| length.parse().unwrap())];
        reader.read_exact(&mut body).unwrap();
        let is_same = header("If-Match").is_none_or(|tag| tag == format!("\"{}\"", self.version));
        let status = match lines[0].split(' ').next().unwrap() {
            "PUT" if is_same => {
                let fence = header("x-amz-meta-fence").unwrap().parse().unwrap();
                self.write(fence, String::from_utf8(body).unwrap());
                "200 OK"
            }
            "PUT" => "412 Precondition Failed",
            _ => "200 OK",
        };
        let (version, fence) = (self.version, self.fence);
        if let Some(fence) = self.overtaken_by.take() {
            self.write(fence, format!("written with {fence}"));
        }
        let answer = format!(
            "HTTP/1.1 {status}\r\nETag: \"{version}\"\r\nx-amz-meta-fence: {fence}\r\nContent-Length: 0\r\n\
             Connection: close\r\n\r\n"
        );
        reader.get_mut().write_all(answer.as_bytes()).unwrap();
    }

    fn write(&mut self, fence: u64, text: String) {
        (self.version, self.fence, self.text) = (self.version + 1, fence, text);
    }
}

#[test]
fn object_store() {
    if let Err(error) = Command::new("curl").arg("--version").output() {
        assert!(std::env::var_os("CI").is_none(), "curl: {error}");
        return println!("skipped: curl: {error}");
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/state.json", listener.local_addr().unwrap());
    let object = Arc::new(Mutex::new(Object::default()));
    let store = object.clone();
    // Four writers read, and three of them write.
    let server = std::thread::spawn(move || {
        listener.incoming().take(7).for_each(|stream| store.lock().unwrap().serve(stream.unwrap()));
    });
    let folder = tempfile::tempdir().unwrap();
    let write = |fence: u64| {
        std::fs::write(folder.path().join("state.json"), format!("written with {fence}")).unwrap();
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(block("x-amz-meta-fence")).current_dir(folder.path());
        let output = shell.env("OBJECT", &url).env("OARLOCK_FENCE", fence.to_string()).output().unwrap();
        (output.status.code().unwrap(), object.lock().unwrap().text.clone(), text(&output))
    };
    for (fence, code, stored) in [(41, 0, 41), (42, 0, 42), (41, 76, 42)] {
        let (ended, text, said) = write(fence);
        assert_eq!((ended, &*text), (code, &*format!("written with {stored}")), "fence {fence}: {said}");
    }
    // It has read, then another holder writes: the condition of its own write fails.
    object.lock().unwrap().overtaken_by = Some(44);
    let (ended, text, said) = write(43);
    assert_eq!((ended, &*text), (22, "written with 44"), "{said}");
    server.join().unwrap();
    // No object store: it does not write without a condition.
    let (ended, _, said) = write(45);
    assert!(ended != 0 && said.contains("cannot read the object"), "{ended}: {said}");
}
