//! Programs of other languages take turns with Rust under one lock.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use oarlock_core::clock::{BootClock, Clock as _, Moment};

use super::support::{PATIENCE, Running, Store, TOKEN, is_long};
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
        assert!(broken["ends_in_ms"].as_u64().unwrap() <= 6000, "{broken}");
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
async fn typescript(dir: &std::path::Path) -> Option<tokio::process::Command> {
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
    std::fs::write(dir.join("program.mjs"), TYPESCRIPT.replace("MODULE", module)).unwrap();
    node.arg(dir.join("program.mjs"));
    Some(node)
}

/// Programs in Python, Java, Go and TypeScript, with plain HTTP or a client of ours, and one in Rust.
#[tokio::test]
async fn programs_of_five_languages_take_turns() {
    for store in Store::all() {
        let (server, locks) = (Running::start(&store).await, store.connect().await);
        let dir = tempfile::TempDir::new().unwrap();
        let (path, url) = (dir.path().join("count"), format!("http://{}", server.address));
        std::fs::write(&path, "0").unwrap();
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
        let script = typescript(dir.path())
            .await
            .map(|mut node| Program::start(node.args([&url, TOKEN]).arg(&path).arg(ROUNDS.to_string())));
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
