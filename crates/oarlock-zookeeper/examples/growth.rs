//! What grows with waiters, names and clients: milliseconds for each step, in a server of its own.
//!
//! `cargo run --release -p oarlock-zookeeper --example growth [10,100,1000]`

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use oarlock_core::driver::{Attempt, Driver as _, End, Interest, Renewal, Renewed};
use oarlock_core::{Claim, ClaimId, ResourceName};
use oarlock_zookeeper::{Config, ZooKeeper};

/// Hand-overs and pairs that are timed; the median counts.
const TURNS: usize = 15;

struct Bed(oarlock_testbed::ZooKeeper);

impl Bed {
    async fn open(&self) -> Result<ZooKeeper> {
        Ok(ZooKeeper::open(Config::new([self.0.addr().to_string()])).await?)
    }
}

fn claim(id: usize, name: &str) -> Result<Arc<Claim>> {
    let mut claim = Claim::new(ClaimId::from_bits(id as u128 + 1), ResourceName::new(name)?);
    (claim.wait, claim.ttl) = (true, Duration::from_secs(60));
    Ok(Arc::new(claim))
}

async fn holds(store: &ZooKeeper, claim: &Claim) -> Result<()> {
    ensure!(matches!(store.attempt(claim).await?, Attempt::Granted(_)), "not granted");
    Ok(())
}

async fn leaves(store: &ZooKeeper, claim: &Claim) -> Result<()> {
    store.release(&claim.resource, claim.id, &End::Done { memo: None }).await?;
    Ok(())
}

/// Renews all of these in batches of the size that the engine uses, and says how long that took.
async fn renewed(store: &ZooKeeper, claims: &[Arc<Claim>]) -> Result<Duration> {
    let start = Instant::now();
    for part in claims.chunks(1024) {
        let batch: Vec<_> = part.iter().cloned().map(Renewal::of).collect();
        for answer in store.renew(&batch).await {
            ensure!(matches!(answer?, Renewed::Alive { .. }), "gone");
        }
    }
    Ok(start.elapsed())
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1000.0)
}

async fn pair(store: &ZooKeeper) -> Result<f64> {
    let mut times = Vec::new();
    for turn in 0..TURNS {
        let (start, claim) = (Instant::now(), claim(1_000_000 + turn, "pair")?);
        holds(store, &claim).await?;
        leaves(store, &claim).await?;
        times.push(start.elapsed());
    }
    Ok(median(times))
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let sizes = std::env::args().nth(1).unwrap_or_else(|| "10,100,1000".into());
    for size in sizes.split(',') {
        let size: usize = size.parse()?;
        let bed = Bed(oarlock_testbed::ZooKeeper::start()?);
        let (one, other) = (bed.open().await?, bed.open().await?);

        let line: Vec<_> = (0..size + TURNS + 1).map(|id| claim(id, "line")).collect::<Result<_>>()?;
        holds(&one, &line[0]).await?;
        let start = Instant::now();
        for claim in &line[1..=size] {
            one.attempt(claim).await?;
        }
        let arrival = start.elapsed().as_secs_f64() * 1000.0 / size as f64;
        let start = Instant::now();
        one.attempt(line.get(size).context("none")?).await?;
        let look = start.elapsed().as_secs_f64() * 1000.0;
        let renewal = renewed(&one, &line[..=size]).await?.as_secs_f64() * 1000.0;
        let mut hands = Vec::new();
        for turn in 0..TURNS.min(size) {
            // As many wait as before.
            one.attempt(&line[size + 1 + turn]).await?;
            let start = Instant::now();
            leaves(&one, &line[turn]).await?;
            holds(&one, &line[turn + 1]).await?;
            hands.push(start.elapsed());
        }
        println!(
            "{size} waiters on one name: one more comes in {arrival:.2} ms, looks again in {look:.2} ms, hand-over {:.2} ms, all renewed in {renewal:.1} ms",
            median(hands)
        );
        for claim in &line {
            leaves(&one, claim).await?;
        }

        let names: Vec<_> = (0..size).map(|id| claim(2_000_000 + id, &format!("name-{id}"))).collect::<Result<_>>()?;
        for claim in &names {
            holds(&one, claim).await?;
        }
        let renewal = renewed(&one, &names).await?.as_secs_f64() * 1000.0;
        println!("{size} names held: a pair beside them {:.2} ms, all renewed in {renewal:.1} ms", pair(&other).await?);
        for claim in &names {
            leaves(&one, claim).await?;
        }
        println!("{size} names used before: a pair {:.2} ms", pair(&other).await?);

        let mut clients = Vec::new();
        for _ in 0..size {
            let client = bed.open().await?;
            let mailbox = client.watch(&Interest::Mailbox).await?;
            clients.push((client, mailbox));
        }
        println!("{size} idle clients: a pair of another {:.2} ms", pair(&other).await?);
        drop(clients);
        one.close().await?;
        other.close().await?;
    }
    Ok(())
}
