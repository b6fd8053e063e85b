//! What a grant costs with N claims in the store's queue: calls of the store, time of the server, memory, time of a hand-off.
//!
//! `cargo run --release -p oarlock-bench --all-features --example queue -- STORE… [2,10,100,1000,10000]`. A store is
//! redis, postgres, mariadb, mysql, etcd, zookeeper or local. Every size gets a new server. All claims are of this
//! process, each with a position of its own (`.fair()`); they belong to 50 clients.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use oarlock::Locks;
use oarlock::driver::{
    Attempt, BoxFuture, Claim, ClaimId, DynDriver, End, Info, Interest, Page, Query, Release, Renewal, Renewed,
    ResourceName, Watch,
};
use oarlock::state::Waiters;
use oarlock_testbed::server::{Program, Server};
use oarlock_testbed::{Etcd, MariaDb, MySql, Postgres, Redis, ZooKeeper};
use tokio::task::JoinSet;

const CLIENTS: usize = 50;
const NAME: &str = "queue";
const TTL: Duration = Duration::from_secs(30);

/// How long claims may take to join the queue.
const JOIN_FOR: Duration = Duration::from_secs(150);

/// How long grants are counted, and how many at most.
const COUNT_FOR: Duration = Duration::from_secs(6);
const MOST_GRANTS: u64 = 20_000;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let (mut stores, mut sizes) = (Vec::new(), vec![2, 10, 100, 1000, 10_000]);
    for word in std::env::args().skip(1) {
        if word.starts_with(|first: char| first.is_ascii_digit()) {
            sizes = word.split(',').map(str::parse).collect::<Result<_, _>>()?;
        } else {
            stores.push(word);
        }
    }
    ensure!(!stores.is_empty(), "name a store: redis, postgres, mariadb, mysql, etcd, zookeeper or local");
    println!(
        "| store | claims | calls/grant | renewals/s | hand-off p50 | p99 | server, CPU a grant | client, CPU a grant | memory of the server for each claim | joined after |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for store in &stores {
        for size in &sizes {
            let row = match store.as_str() {
                "redis" => on(&Redis::start()?, *size).await?,
                "postgres" => on(&Postgres::start_with(&[("max_connections", "600")])?, *size).await?,
                "mariadb" => on(&MariaDb::start_with(&[("max-connections", "1000")])?, *size).await?,
                "mysql" => on(&MySql::start_with(&[("max-connections", "1000")])?, *size).await?,
                "etcd" => on(&Etcd::start()?, *size).await?,
                "zookeeper" => on(&ZooKeeper::start_with(&[("maxClientCnxns", "0")])?, *size).await?,
                "local" => {
                    let folder = std::env::temp_dir().join(format!("oarlock-queue-{}-{size}", std::process::id()));
                    let row = row(&format!("local:{}", folder.display()), *size, || Ok(Usage::default())).await;
                    // A release that is still under way may write meanwhile. What then stays is one small folder.
                    for _ in 0..10 {
                        if std::fs::remove_dir_all(&folder).is_ok() {
                            break;
                        }
                    }
                    row?
                }
                other => bail!("there is no store {other} here"),
            };
            println!("| {store} | {size} | {row} |");
        }
    }
    Ok(())
}

async fn on<P: Program>(server: &Server<P>, size: usize) -> Result<String> {
    row(&server.url(), size, || Usage::of(&server.pids()?)).await
}

/// What processes have used.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    cpu: Duration,
    memory_kb: u64,
}

impl Usage {
    fn of(pids: &[u32]) -> Result<Self> {
        let mut sum = Self::default();
        for pid in pids {
            // A backend may have ended since it was listed; its parent has counted it.
            let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
            let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { continue };
            let rest = stat.rsplit_once(')').context("the name of a process")?.1;
            // User and system time, its own and that of children that have ended, in ticks of 10 ms.
            let ticks: u64 =
                rest.split_whitespace().skip(11).take(4).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
            sum.cpu += Duration::from_millis(10 * ticks);
            let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
            sum.memory_kb += line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0);
        }
        Ok(sum)
    }
}

/// Requests of all clients.
#[derive(Debug, Default)]
struct Requests {
    asked: AtomicU64,
    renewed: AtomicU64,
}

/// A driver whose requests are counted.
struct Counted(Arc<dyn DynDriver>, Arc<Requests>);

impl Counted {
    fn count(&self) -> Arc<dyn DynDriver> {
        self.1.asked.fetch_add(1, Relaxed);
        self.0.clone()
    }
}

impl DynDriver for Counted {
    fn info(&self) -> Info {
        self.0.info()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>) -> BoxFuture<oarlock::Result<Attempt>> {
        self.count().attempt(claim)
    }

    fn renew(self: Arc<Self>, batch: Vec<Renewal>) -> BoxFuture<Vec<oarlock::Result<Renewed>>> {
        self.1.renewed.fetch_add(batch.len() as u64, Relaxed);
        self.0.clone().renew(batch)
    }

    fn release(self: Arc<Self>, resource: ResourceName, id: ClaimId, end: End) -> BoxFuture<oarlock::Result<Release>> {
        self.count().release(resource, id, end)
    }

    fn release_and_attempt(
        self: Arc<Self>,
        resource: ResourceName,
        id: ClaimId,
        end: End,
        next: Arc<Claim>,
    ) -> BoxFuture<(oarlock::Result<Release>, oarlock::Result<Attempt>)> {
        self.count().release_and_attempt(resource, id, end, next)
    }

    fn watch(self: Arc<Self>, interest: Interest) -> BoxFuture<oarlock::Result<Watch>> {
        self.count().watch(interest)
    }

    fn inspect(self: Arc<Self>, query: Query) -> BoxFuture<oarlock::Result<Page>> {
        self.0.clone().inspect(query)
    }

    fn close(self: Arc<Self>) -> BoxFuture<oarlock::Result<()>> {
        self.0.clone().close()
    }
}

/// What the tasks have seen.
#[derive(Debug, Default)]
struct Seen {
    released: Mutex<Option<Instant>>,
    hand_offs: Mutex<Vec<Duration>>,
    grants: AtomicU64,
    is_over: AtomicBool,
}

async fn take_and_release(locks: Locks, seen: Arc<Seen>) -> oarlock::Result<()> {
    while !seen.is_over.load(Relaxed) {
        let guard = locks.mutex(NAME).fair().wait_forever().lock().await?;
        let now = Instant::now();
        if let Some(released) = seen.released.lock().unwrap_or_else(PoisonError::into_inner).replace(now) {
            seen.hand_offs.lock().unwrap_or_else(PoisonError::into_inner).push(now - released);
        }
        seen.grants.fetch_add(1, Relaxed);
        guard.release().await?;
    }
    Ok(())
}

async fn row(url: &str, size: usize, usage: impl Fn() -> Result<Usage>) -> Result<String> {
    let requests = Arc::new(Requests::default());
    let client = async || {
        let driver = Counted(oarlock::driver::open(url).await?, requests.clone());
        Locks::builder_over(Arc::new(driver)).ttl(TTL).max_waiters(size).build()
    };
    let first = client().await?;
    let holder = first.mutex(NAME).lock().await?;
    let before = usage()?;
    let (seen, mut tasks, start) = (Arc::new(Seen::default()), JoinSet::new(), Instant::now());
    let mut clients = Vec::new();
    for _ in 0..CLIENTS.min(size) {
        clients.push(client().await?);
    }
    for number in 0..size {
        tasks.spawn(take_and_release(clients[number % clients.len()].clone(), seen.clone()));
    }
    loop {
        // A server that is busy with those that arrive may not answer in time.
        let waiting = match first.inspect(NAME).await.map(|state| state.waiters) {
            Ok(Waiters::Listed(waiters)) => waiters.len(),
            Ok(_) => bail!("this store does not list waiters"),
            Err(_) => 0,
        };
        if waiting >= size {
            break;
        }
        if start.elapsed() > JOIN_FOR {
            tasks.abort_all();
            return Ok(format!("{waiting} joined within {} s | | | | | | | |", JOIN_FOR.as_secs()));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let joined = start.elapsed();
    let full = usage()?;
    let own = Usage::of(&[std::process::id()])?;
    let at = |count: &AtomicU64| count.load(Relaxed);
    let (asked, renewed, start) = (at(&requests.asked), at(&requests.renewed), Instant::now());
    *seen.released.lock().unwrap_or_else(PoisonError::into_inner) = None;
    holder.release().await?;
    while start.elapsed() < COUNT_FOR && at(&seen.grants) < MOST_GRANTS {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let grants = at(&seen.grants).max(1);
    let (span, after, own_after) = (start.elapsed(), usage()?, Usage::of(&[std::process::id()])?);
    let (asked, renewed) = (at(&requests.asked) - asked, at(&requests.renewed) - renewed);
    seen.is_over.store(true, Relaxed);
    tasks.abort_all();
    let mut times = std::mem::take(&mut *seen.hand_offs.lock().unwrap_or_else(PoisonError::into_inner));
    times.sort_unstable();
    let part = |of: usize| times.get(times.len() * of / 100).copied().unwrap_or_default();
    let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / grants as f64;
    Ok(format!(
        "{:.1} | {:.0} | {:.0?} | {:.0?} | {:.0} µs | {:.0} µs | {:.1} kB | {:.1} s",
        asked as f64 / grants as f64,
        renewed as f64 / span.as_secs_f64(),
        part(50),
        part(99),
        each(after.cpu.saturating_sub(full.cpu)),
        each(own_after.cpu.saturating_sub(own.cpu)),
        full.memory_kb.saturating_sub(before.memory_kb) as f64 / size as f64,
        joined.as_secs_f64(),
    ))
}
