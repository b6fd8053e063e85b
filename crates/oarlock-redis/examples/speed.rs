//! How long an uncontended lock and its release take through the engine, beside the same scripts with the same arguments
//! sent raw on a connection of the same kind: one pair after the other, and 64 tasks on names of their own.
//!
//! `cargo run --release -p oarlock-redis --example speed -- [pairs]` starts a server for it.

use std::time::{Duration, Instant};

use oarlock_core::Locks;
use oarlock_redis::{Address, Config, Redis};
use redis::aio::MultiplexedConnection;
use redis::{Script, Value};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const TASKS: usize = 64;

macro_rules! script {
    ($($file:literal),+) => {
        concat!("local PUBLISH, NUMSUB = 'PUBLISH', 'NUMSUB'\n", $(include_str!(concat!("../src/scripts/native/", $file, ".lua"))),+)
    };
}

/// The scripts, and a connection to send them on.
#[derive(Clone)]
struct Raw {
    connection: MultiplexedConnection,
    attempt: String,
    release: String,
}

impl Raw {
    async fn new(url: &str) -> Result<Self, Failure> {
        let mut connection =
            redis::Client::open(format!("{url}?protocol=resp3"))?.get_multiplexed_async_connection().await?;
        let attempt = Script::new(script!("load", "attempt.free", "attempt.behind", "hand", "rule", "attempt"));
        let release = Script::new(script!("load", "release.alone", "hand", "release.next", "rule", "release"));
        let (attempt, release) =
            (attempt.load_async(&mut connection).await?, release.load_async(&mut connection).await?);
        Ok(Self { connection, attempt, release })
    }

    async fn pair(&mut self, name: &str, id: u128) -> Result<(), Failure> {
        let (key, index, id) = (format!("oarlock:{{00}}:{name}"), "oarlock:{00}", format!("{id:032x}"));
        let mut attempt = redis::cmd("EVALSHA");
        attempt.arg(&self.attempt).arg(2).arg(&key).arg(index).arg("oarlock:mail:").arg(&id).arg("0".repeat(32));
        attempt.arg("mutex").arg(0).arg(0).arg(1).arg(0).arg(30_000_000).arg(10_000_000).arg("any").arg(1);
        attempt
            .arg(r#"{"host":"machine","pid":12345,"user":"somebody"}"#)
            .arg("")
            .arg("")
            .arg(1_234_567_890_123_456_u64);
        let _: Value = attempt.query_async(&mut self.connection).await?;
        let mut release = redis::cmd("EVALSHA");
        release.arg(&self.release).arg(2).arg(&key).arg(index).arg("oarlock:mail:").arg(&id).arg("done").arg("");
        let answer: (String, i64) = release.query_async(&mut self.connection).await?;
        if answer.0 == "released" { Ok(()) } else { Err("not released".into()) }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let pairs: usize = std::env::args().nth(1).map_or(Ok(20_000), |pairs| pairs.parse())?;
    let server = oarlock_testbed::Redis::start_with(&[("appendonly", "no")])?;
    let addr = server.addr();
    let store = Redis::open(Config::new(Address::Tcp(addr.ip().to_string(), addr.port()))).await?;
    let client = Locks::over(store)?;
    let mut raw = Raw::new(&server.url()).await?;
    // In turn, so that whatever else the machine does meets both.
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    let lock = client.mutex("pair");
    for round in 0..20 {
        for pair in 0..pairs / 20 {
            let start = Instant::now();
            raw.pair("raw", (round * pairs + pair) as u128).await?;
            bare.push(start.elapsed());
        }
        for _ in 0..pairs / 20 {
            let start = Instant::now();
            lock.lock().await?.release().await?;
            ours.push(start.elapsed());
        }
    }
    let (bare, ours) = (report("the same scripts, raw", bare), report("oarlock", ours));
    println!("speed of a pair, of the same scripts raw: {:.2}", bare / ours);

    let (mut bare, mut ours) = (0.0, 0.0);
    for _ in 0..6 {
        bare += many(pairs, |task| {
            let mut raw = raw.clone();
            async move {
                for pair in 0..pairs / TASKS {
                    raw.pair(&format!("raw/{task}"), pair as u128).await?;
                }
                Ok(())
            }
        })
        .await?;
        ours += many(pairs, |task| {
            let lock = client.mutex(format!("own/{task}"));
            async move {
                for _ in 0..pairs / TASKS {
                    lock.lock().await?.release().await?;
                }
                Ok(())
            }
        })
        .await?;
    }
    println!("{TASKS} tasks on names of their own: raw {:.0} pairs/s, oarlock {:.0} pairs/s", bare / 6.0, ours / 6.0);
    println!("speed of {TASKS} tasks, of the same scripts raw: {:.2}", ours / bare);
    client.shutdown(Duration::from_secs(1)).await?;
    Ok(())
}

/// Pairs a second of all tasks together.
async fn many<F>(pairs: usize, task: impl Fn(usize) -> F) -> Result<f64, Failure>
where
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let start = Instant::now();
    let tasks: Vec<_> = (0..TASKS).map(|number| tokio::spawn(task(number))).collect();
    for task in tasks {
        task.await??;
    }
    Ok((pairs / TASKS * TASKS) as f64 / start.elapsed().as_secs_f64())
}

/// Prints the spread, and gives the median in microseconds.
fn report(what: &str, mut spans: Vec<Duration>) -> f64 {
    spans.sort_unstable();
    let at =
        |part: usize| spans.get(spans.len().saturating_sub(1) * part / 1000).map_or(0.0, |s| s.as_secs_f64() * 1e6);
    println!("{what}: p50 {:.1} µs, p99 {:.1} µs, p99.9 {:.1} µs", at(500), at(990), at(999));
    at(500)
}
