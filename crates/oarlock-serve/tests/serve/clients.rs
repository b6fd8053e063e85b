//! Programs of other languages take turns with Rust under one lock.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use oarlock::state::Waiters;
use oarlock_core::clock::{BootClock, Clock as _, Moment};

use super::support::{PATIENCE, Running, Store, TOKEN, eventually, is_long};
use super::tools;

const ROUNDS: u32 = 15;

/// Adds to a file what no lock protects but ours: read, pause, write.
const WORKER: &str = r#"
import sys, time
sys.path.insert(0, sys.argv[1])
from oarlock import Busy, Client, Lost
client, path = Client(sys.argv[2]), sys.argv[3]
for _ in range(int(sys.argv[4])):
    with client.lock("count", wait=60, ttl=10, reason="python") as lock:
        lock.check()
        before = int(open(path).read())
        time.sleep(0.002)
        open(path, "w").write(str(before + 1))
"#;

/// Loses its lock: the server is gone, and the lease is short.
const LOSER: &str = r#"
import sys, time
sys.path.insert(0, sys.argv[1])
from oarlock import Busy, Client, Lost, _now
client = Client(sys.argv[2])
lock = client.lock("lost", ttl=5)
try:
    client.lock("lost")
    sys.exit("it was taken twice")
except Busy as busy:
    assert "is held by" in str(busy), busy
time.sleep(7)
lock.check()
print("renewed", flush=True)
sys.stdin.readline()
began = last = _now()
while lock.is_held:
    last = _now()
    assert last - began < 20, "it believes for ever"
    time.sleep(0.001)
try:
    lock.check()
except Lost as lost:
    print(last, flush=True)
"#;

/// Holds until it may believe no longer, and says when that was and who ended it.
const BROKEN: &str = r#"
import sys, time
sys.path.insert(0, sys.argv[1])
from oarlock import Client, Lost, _now
lock = Client(sys.argv[2], token=sys.argv[3]).lock("broken", ttl=6)
print(lock.fence, flush=True)
began = last = _now()
while lock.is_held:
    last = _now()
    assert last - began < 25, "it is renewed for ever"
    time.sleep(0.001)
print(last, flush=True)
try:
    lock.check()
except Lost as lost:
    print(lost, flush=True)
"#;

/// Is told by its stream that an operator wants the lock: the next renewal is minutes away.
const TOLD: &str = r#"
import sys, time
sys.path.insert(0, sys.argv[1])
from oarlock import Client
lock = Client(sys.argv[2], token=sys.argv[3]).lock("told", ttl=600, watch=True)
print(lock.fence, flush=True)
while not lock.ending:
    time.sleep(0.01)
print(lock.ending["why"], flush=True)
lock.check()
lock.release()
"#;

/// The same, and what the Python programs do, with the client in TypeScript.
const TYPESCRIPT: &str = r#"
import { readFileSync, writeFileSync } from "node:fs";
import { Busy, Client, Lost } from "./oarlock.MODULE";
const [url, token, path, rounds] = process.argv.slice(2);
const client = new Client(url, { token });
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
for (let round = 0; round < Number(rounds); round += 1) {
  const lock = await client.lock("count", { wait: 60, ttl: 10, reason: "typescript" });
  lock.check();
  const before = Number(readFileSync(path, "utf8"));
  await sleep(2);
  writeFileSync(path, String(before + 1));
  await lock.release();
}
const lock = await client.lock("told", { ttl: 600, watch: true });
try {
  await client.lock("told");
  throw new Error("it was taken twice");
} catch (error) {
  if (!(error instanceof Busy) || !error.message.includes("is held by")) throw error;
}
console.log(String(lock.fence));
while (!lock.ending) await sleep(10);
console.log(lock.ending.why);
lock.check();
await lock.release();
if (lock.isHeld || !lock.signal.aborted) throw new Error("it believes for ever");
try {
  lock.check();
  throw new Error("it was released");
} catch (error) {
  if (!(error instanceof Lost)) throw error;
}
const short = await client.lock("short", { ttl: 6 });
await sleep(8000);
short.check();
await short.release();
console.log("done");
"#;

/// Waits for a lock, and says what came of it.
const WAITER: &str = r#"
import sys
sys.path.insert(0, sys.argv[1])
from oarlock import Client, Error
try:
    lock = Client(sys.argv[2]).lock("held", wait=float(sys.argv[3]))
    lock.release()
    print("granted", flush=True)
except Error as error:
    print(error.code, flush=True)
"#;

/// The same with the client in TypeScript.
const TYPESCRIPT_WAITER: &str = r#"
import { Client, OarlockError } from "./oarlock.MODULE";
const [url, wait] = process.argv.slice(2);
try {
  const lock = await new Client(url).lock("held", { wait: Number(wait) });
  await lock.release();
  console.log("granted");
} catch (error) {
  if (!(error instanceof OarlockError)) throw error;
  console.log(error.code);
}
process.exit(0);
"#;

/// Tries to take a lock, or waits for it, and says what came of it and after how many seconds.
const TRY: &str = r#"
import sys, time
sys.path.insert(0, sys.argv[1])
from oarlock import Client, Error
began, told = time.monotonic(), "granted"
try:
    Client(sys.argv[2]).lock("held", wait=float(sys.argv[3]))
except Error as error:
    told = error.code
except OSError:
    told = "no server"
print(told, time.monotonic() - began, flush=True)
"#;

/// The same with the client in TypeScript.
const TYPESCRIPT_TRY: &str = r#"
import { Client, OarlockError } from "./oarlock.MODULE";
const [url, wait] = process.argv.slice(2);
const began = performance.now();
let told = "granted";
try {
  await new Client(url).lock("held", { wait: Number(wait) });
} catch (error) {
  told = error instanceof OarlockError ? error.code : "no server";
}
console.log(told, (performance.now() - began) / 1000);
process.exit(0);
"#;

/// The clock by which the client believes.
fn boot_seconds() -> f64 {
    BootClock.now().since(Moment::ZERO).as_secs_f64()
}

fn python(script: &str) -> tokio::process::Command {
    let mut command = tokio::process::Command::new("python3");
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../clients"].iter().collect();
    command.args(["-B", "-c", script]).arg(folder).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    command
}

#[tokio::test]
async fn python_and_rust_take_turns() {
    for store in Store::all() {
        let (server, locks) = (Running::start(&store).await, store.connect().await);
        let dir = tempfile::TempDir::new().unwrap();
        let (path, url) = (dir.path().join("count"), format!("http://{}", server.address));
        std::fs::write(&path, "0").unwrap();
        let workers: Vec<_> =
            (0..2).map(|_| python(WORKER).arg(&url).arg(&path).arg(ROUNDS.to_string()).spawn().unwrap()).collect();
        for _ in 0..ROUNDS {
            let guard = locks.mutex("count").wait(PATIENCE).lock().await.unwrap();
            let before: u32 = std::fs::read_to_string(&path).unwrap().parse().unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
            std::fs::write(&path, (before + 1).to_string()).unwrap();
            guard.release().await.unwrap();
        }
        for worker in workers {
            let done = tokio::time::timeout(2 * PATIENCE, worker.wait_with_output()).await.expect("it ends").unwrap();
            assert!(done.status.success(), "{done:?}");
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), (3 * ROUNDS).to_string(), "every one counted");
        server.stop().await;
    }
}

#[tokio::test]
async fn a_python_client_renews_and_notices_that_it_can_no_longer() {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    let store = Store::local();
    let server = Running::start(&store).await;
    let mut client = python(LOSER).arg(format!("http://{}", server.address)).spawn().unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    let mut next = async || tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("a line in time").unwrap();
    assert_eq!(next().await.as_deref(), Some("renewed"));
    server.kill().await;
    client.stdin.take().unwrap().write_all(b"\n").await.unwrap();
    // Its belief ends before the store grants the lock to another.
    let locks = store.connect().await;
    let _guard = locks.mutex("lost").wait(PATIENCE).lock().await.unwrap();
    let granted = boot_seconds();
    let believed: f64 = next().await.expect("it notices").parse().unwrap();
    assert!(believed < granted, "believed until {believed}, and another was granted at {granted}");
    tokio::time::timeout(PATIENCE, client.wait()).await.expect("it ends").unwrap();
}

/// An operator's grace is shorter than what the client was told that it may believe.
#[tokio::test]
async fn a_break_waits_for_the_belief_of_a_python_client() {
    use tokio::io::{AsyncBufReadExt as _, BufReader};
    for store in Store::all() {
        let (server, locks) = (Running::guarded(&store).await, store.connect().await);
        let mut client = python(BROKEN).arg(format!("http://{}", server.address)).arg(TOKEN).spawn().unwrap();
        let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
        let mut next = async || {
            let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("a line in time");
            line.unwrap().expect("a line")
        };
        let path = format!("/v1/locks/broken?fence={}&grace_ms=200&reason=stuck", next().await);
        let broken = server.send("DELETE", &path, "").await.json();
        // A lease of etcd is 10 s or longer.
        assert!(broken["ends_in_ms"].as_u64().unwrap() <= 10_000, "{broken}");
        let other = locks.mutex("broken").wait(PATIENCE).lock().await.unwrap();
        let granted = boot_seconds();
        let believed: f64 = next().await.parse().unwrap();
        assert!(believed < granted, "believed until {believed}, and another was granted at {granted}");
        let words = next().await;
        assert!(words.contains("stuck") && words.contains("token from 127.0.0.1"), "{words}");
        tokio::time::timeout(PATIENCE, client.wait()).await.expect("it ends").unwrap();
        drop(other);
        server.stop().await;
    }
}

/// The lines of a program that runs.
struct Program {
    child: tokio::process::Child,
    lines: tokio::io::Lines<tokio::io::BufReader<tokio::process::ChildStdout>>,
}

impl Program {
    fn start(command: &mut tokio::process::Command) -> Self {
        use tokio::io::AsyncBufReadExt as _;
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let lines = tokio::io::BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    async fn line(&mut self) -> String {
        let line = tokio::time::timeout(2 * PATIENCE, self.lines.next_line()).await.expect("a line in time");
        line.unwrap().expect("a line")
    }

    async fn end(mut self) {
        let status = tokio::time::timeout(2 * PATIENCE, self.child.wait()).await.expect("it ends").unwrap();
        assert!(status.success(), "{status}");
    }
}

/// Breaks what a program holds under the name "told", whose fence it prints, and expects it to be told.
async fn breaks_what_it_holds(server: &Running, program: &mut Program) {
    let path = format!("/v1/locks/told?fence={}&grace_ms=60000&reason=maintenance", program.line().await);
    assert_eq!(server.send("DELETE", &path, "").await.json()["outcome"], "asked");
    assert_eq!(program.line().await, "maintenance");
}

#[tokio::test]
async fn a_python_client_follows_the_stream_of_its_lease() {
    for store in Store::all() {
        let server = Running::guarded(&store).await;
        let mut client = Program::start(python(TOLD).arg(format!("http://{}", server.address)).arg(TOKEN));
        breaks_what_it_holds(&server, &mut client).await;
        client.end().await;
        server.stop().await;
    }
}

/// How the client in TypeScript is run: by a Node that erases types itself, or compiled in a long run.
async fn typescript(dir: &std::path::Path, program: &str) -> Option<tokio::process::Command> {
    let file: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../clients/oarlock.ts"].iter().collect();
    let mut node = tokio::process::Command::new("node");
    let erases = tokio::process::Command::new("node").args(["--experimental-strip-types", "-e", "0"]).output().await;
    let Ok(erases) = erases else {
        tools::skip("there is no node on this machine");
        return None;
    };
    let module = if erases.status.success() {
        std::fs::copy(file, dir.join("oarlock.ts")).unwrap();
        node.arg("--experimental-strip-types");
        "ts"
    } else if is_long() {
        tools::compile_typescript(&file, dir).await?;
        std::fs::rename(dir.join("oarlock.js"), dir.join("oarlock.mjs")).unwrap();
        "mjs"
    } else {
        eprintln!("skipped: this node runs no TypeScript, and it is compiled in a long run only (OARLOCK_LONG=1)");
        return None;
    };
    std::fs::write(dir.join("program.mjs"), program.replace("MODULE", module)).unwrap();
    node.arg(dir.join("program.mjs"));
    Some(node)
}

/// Waits until so many wait for "count". Each says which process it is: the wait-for graph knows it by that.
async fn identify_themselves(locks: &oarlock::Locks, count: usize) {
    let wait = async {
        loop {
            let waiters = locks.inspect("count").await.unwrap().waiters;
            if waiters.count() == Some(count) {
                break waiters;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // A compiler may run first.
    let waiters = tokio::time::timeout(6 * PATIENCE, wait).await.expect("all wait");
    let Waiters::Listed(waiters) = waiters else { panic!("not listed: {waiters:?}") };
    let labels: Vec<_> = waiters.iter().map(|waiter| &waiter.label).collect();
    assert!(labels.iter().all(|label| label.pid > 0 && label.host != "127.0.0.1"), "{labels:?}");
}

/// Programs in Python, Java, Go and TypeScript, with plain HTTP or a client of ours, and one in Rust.
#[tokio::test]
async fn programs_of_five_languages_take_turns() {
    for store in Store::all() {
        let (server, locks) = (Running::start(&store).await, store.connect().await);
        let dir = tempfile::TempDir::new().unwrap();
        let (path, url) = (dir.path().join("count"), format!("http://{}", server.address));
        std::fs::write(&path, "0").unwrap();
        let guard = locks.mutex("count").lock().await.unwrap();
        let programs: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/programs"].iter().collect();
        let mut commands = vec![python(WORKER)];
        let mut java = tokio::process::Command::new("java");
        java.arg(programs.join("Turns.java"));
        commands.push(java);
        if is_long() {
            // Its compiler takes long when it has nothing in its cache.
            let mut go = tokio::process::Command::new("go");
            go.arg("run").arg(programs.join("turns.go")).current_dir(dir.path());
            commands.push(go);
        }
        let mut workers = Vec::new();
        for mut command in commands {
            command.arg(&url).arg(&path).arg(ROUNDS.to_string()).stdin(Stdio::null()).stdout(Stdio::piped());
            match command.stderr(Stdio::piped()).kill_on_drop(true).spawn() {
                Ok(worker) => workers.push(worker),
                Err(error) => tools::skip(&format!("{command:?}: {error}")),
            }
        }
        let script = typescript(dir.path(), TYPESCRIPT)
            .await
            .map(|mut node| Program::start(node.args([&url, TOKEN]).arg(&path).arg(ROUNDS.to_string())));
        identify_themselves(&locks, workers.len() + usize::from(script.is_some())).await;
        guard.release().await.unwrap();
        let mut expected = ROUNDS;
        for _ in 0..ROUNDS {
            let guard = locks.mutex("count").wait(PATIENCE).lock().await.unwrap();
            let before: u32 = std::fs::read_to_string(&path).unwrap().parse().unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
            std::fs::write(&path, (before + 1).to_string()).unwrap();
            guard.release().await.unwrap();
        }
        if let Some(mut script) = script {
            // This server has no tokens, so that an operator breaks it with the library.
            let fence = oarlock::Fence::new(script.line().await.parse().unwrap());
            let ending = oarlock::Ending::new("ops", "maintenance");
            locks.break_hold("told", fence, ending, Duration::from_secs(60)).await.unwrap();
            assert_eq!(script.line().await, "maintenance");
            assert_eq!(script.line().await, "done");
            script.end().await;
            // It renewed in time, and not at the last moment.
            let metrics = server.send("GET", "/metrics", "").await.text;
            let late =
                metrics.lines().find(|line| line.contains("lease_margin_ratio_bucket") && line.contains("\"0.1\""));
            assert!(late.is_some_and(|line| line.ends_with(" 0")), "{late:?}");
            expected += ROUNDS;
        }
        for worker in workers {
            let done = tokio::time::timeout(6 * PATIENCE, worker.wait_with_output()).await.expect("it ends").unwrap();
            assert!(done.status.success(), "{done:?}");
            expected += ROUNDS;
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected.to_string(), "every one counted");
        server.stop().await;
    }
}

/// Programs that wait, with the clients in Python and TypeScript: their command without the URL and the wait.
async fn waiters(dir: &std::path::Path) -> Vec<tokio::process::Command> {
    [Some(python(WAITER)), typescript(dir, TYPESCRIPT_WAITER).await].into_iter().flatten().collect()
}

/// A server that is started anew in order answers those who wait: their clients wait on at the next one.
#[tokio::test]
async fn a_client_that_waits_survives_a_restart_of_its_server() {
    let (store, dir) = (Store::local(), tempfile::TempDir::new().unwrap());
    let locks = store.connect().await;
    for mut command in waiters(dir.path()).await {
        let server = Running::start(&store).await;
        let guard = locks.mutex("held").lock().await.unwrap();
        let mut waiter = Program::start(command.arg(format!("http://{}", server.address)).arg("60"));
        let waiting = async |wanted| locks.inspect("held").await.unwrap().waiters.count() == Some(wanted);
        eventually("it waits", || waiting(1)).await;
        let mut config = oarlock_serve::Config::default();
        (config.listen, config.audit) = (server.address, Some("/dev/null".into()));
        server.stop().await;
        eventually("the first server has withdrawn its claim", || waiting(0)).await;
        let server = Running::over(store.connect().await, config).await;
        eventually("it waits again", || waiting(1)).await;
        guard.release().await.unwrap();
        assert_eq!(waiter.line().await, "granted");
        waiter.end().await;
        server.stop().await;
    }
}

/// Answers one request after another, and returns what was asked: the key and the body of each.
async fn answers(listener: tokio::net::TcpListener, answers: Vec<(u16, serde_json::Value)>) -> Vec<(String, String)> {
    use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
    let mut asked = Vec::new();
    for (status, body) in answers {
        let mut stream = BufReader::new(listener.accept().await.unwrap().0);
        let (mut key, mut length, mut line) = (String::new(), 0, String::from("first"));
        while !line.trim().is_empty() {
            line.clear();
            stream.read_line(&mut line).await.unwrap();
            match line.trim().to_ascii_lowercase().split_once(": ") {
                Some(("idempotency-key", value)) => value.clone_into(&mut key),
                Some(("content-length", value)) => length = value.parse().unwrap(),
                _ => {}
            }
        }
        let mut sent = vec![0; length];
        stream.read_exact(&mut sent).await.unwrap();
        asked.push((key, String::from_utf8(sent).unwrap()));
        let body = body.to_string();
        let head = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes()).await.unwrap();
    }
    asked
}

#[tokio::test]
async fn a_client_waits_on_while_a_server_ends_or_has_no_store_and_no_longer_than_it_was_asked_to() {
    let dir = tempfile::TempDir::new().unwrap();
    let problem = |code: &str| match code {
        "" => (502, serde_json::json!("Bad Gateway")),
        code => (503, serde_json::json!({ "code": code, "detail": "not now" })),
    };
    let granted = serde_json::json!({ "lease": "l", "fence": "7", "believe_ms": 30_000, "renew_in_ms": 10_000 });
    for (wait, told, refused) in [
        ("20", "granted", vec!["unreachable", "closing"]),
        // A proxy whose server does not answer.
        ("20", "granted", vec!["", "unreachable", ""]),
        ("20", "granted", vec!["too-many-requests"]),
        ("0", "closing", vec!["closing"]),
        ("20", "config", vec!["config"]),
    ] {
        for mut command in waiters(dir.path()).await {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            let mut all: Vec<_> = refused.iter().map(|code| problem(code)).collect();
            if told == "granted" {
                all.extend([(201, granted.clone()), (200, serde_json::json!({}))]);
            }
            let server = tokio::spawn(answers(listener, all));
            let mut waiter = Program::start(command.arg(url).arg(wait));
            assert_eq!(waiter.line().await, told, "{refused:?}");
            waiter.end().await;
            let asked = tokio::time::timeout(PATIENCE, server).await.expect("all were asked for").unwrap();
            let waits: Vec<u64> = asked
                .iter()
                .filter_map(|(_, body)| serde_json::from_str::<serde_json::Value>(body).unwrap()["wait_ms"].as_u64())
                .collect();
            assert!(waits.is_sorted_by(|one, next| one > next), "what is left of the wait: {waits:?}");
        }
    }
}

/// What a program says that tries to take a lock there, and how long it took.
async fn tries(mut command: tokio::process::Command, address: std::net::SocketAddr, wait: &str) -> (String, f64) {
    let mut program = Program::start(command.arg(format!("http://{address}")).arg(wait));
    let line = program.line().await;
    program.end().await;
    let (told, seconds) = line.rsplit_once(' ').expect("what came of it, and when");
    (told.to_owned(), seconds.parse().unwrap())
}

/// A try ends at once where nothing was sent, and soon where an answer is missing: not after a whole lease.
#[tokio::test]
async fn a_client_gives_up_with_its_wait_where_no_server_answers() {
    let dir = tempfile::TempDir::new().unwrap();
    let listen = async || tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refusing = listen().await.local_addr().unwrap();
    let (proxy, silent) = (listen().await, listen().await);
    let (proxied, unanswered) = (proxy.local_addr().unwrap(), silent.local_addr().unwrap());
    let all = vec![(502, serde_json::json!("Bad Gateway")); 1000];
    let proxy = tokio::spawn(answers(proxy, all));
    let programs = [Some(python(TRY)), typescript(dir.path(), TYPESCRIPT_TRY).await];
    for command in programs.into_iter().flatten() {
        let again = || {
            let mut same = tokio::process::Command::new(command.as_std().get_program());
            same.args(command.as_std().get_args()).kill_on_drop(true);
            same
        };
        let ((told, seconds), waited, missing, silence) = tokio::join!(
            tries(again(), refusing, "0"),
            tries(again(), refusing, "2"),
            tries(again(), proxied, "0"),
            tries(again(), unanswered, "0"),
        );
        assert!(told == "no server" && seconds < 2.0, "a try: {told} after {seconds} s");
        assert!(waited.0 == "no server" && (2.0..5.0).contains(&waited.1), "a wait: {waited:?}");
        assert!(missing.0 == "no-answer" && (4.0..12.0).contains(&missing.1), "behind a proxy: {missing:?}");
        assert!(silence.0 == "no server" && (4.0..15.0).contains(&silence.1), "without an answer: {silence:?}");
    }
    proxy.abort();
}
