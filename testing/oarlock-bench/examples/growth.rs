//! What grows with waiters, names and clients: milliseconds for each step.
//!
//! `cargo run --release -p oarlock-bench --features etcd,zookeeper --example growth -- URL [10,100,1000]`. The server
//! should be one that was just started: names that were used before are among what is measured.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use oarlock::driver::{Attempt, Claim, ClaimId, DynDriver, End, Interest, Renewal, Renewed, ResourceName};

/// Arrivals, hand-overs, polls and pairs that are timed; the median counts.
const TURNS: usize = 15;

/// Claims that wait are renewed after so many arrivals.
const RENEW_AFTER: usize = 1000;

/// The most clients at a time.
const MOST_CLIENTS: usize = 1000;

type Store = Arc<dyn DynDriver>;

fn claim(id: usize, name: &str) -> Result<Arc<Claim>> {
    let mut claim = Claim::new(ClaimId::from_bits(id as u128 + 1), ResourceName::new(name)?);
    (claim.wait, claim.ttl) = (true, Duration::from_secs(60));
    Ok(Arc::new(claim))
}

async fn holds(store: &Store, claim: &Arc<Claim>) -> Result<()> {
    ensure!(matches!(store.clone().attempt(claim.clone()).await?, Attempt::Granted(_)), "not granted");
    Ok(())
}

async fn leaves(store: &Store, claim: &Claim) -> Result<()> {
    store.clone().release(claim.resource.clone(), claim.id, End::Done { memo: None }).await?;
    Ok(())
}

/// Renews all of these in batches of the size that the engine uses, and says how long that took.
async fn renewed(store: &Store, claims: &[Arc<Claim>]) -> Result<Duration> {
    let start = Instant::now();
    for part in claims.chunks(1024) {
        let batch: Vec<_> = part.iter().cloned().map(Renewal::of).collect();
        for answer in store.clone().renew(batch).await {
            ensure!(matches!(answer?, Renewed::Alive { .. }), "gone");
        }
    }
    Ok(start.elapsed())
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1000.0)
}

async fn pair(store: &Store) -> Result<f64> {
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
    let mut args = std::env::args().skip(1);
    let url = oarlock::url::parse(&args.next().context("usage: growth URL [SIZE,…]")?)?;
    let sizes = args.next().unwrap_or_else(|| "10,100,1000".into());
    let open = || url.store().open(url.clone());
    for size in sizes.split(',') {
        let size: usize = size.parse()?;
        let (one, other) = (open().await?, open().await?);

        let queue: Vec<_> = (0..size + TURNS + 1).map(|id| claim(id, "queue")).collect::<Result<_>>()?;
        holds(&one, &queue[0]).await?;
        let mut arrivals = Vec::new();
        for (at, claim) in queue.iter().enumerate().take(size + 1).skip(1) {
            let start = Instant::now();
            one.clone().attempt(claim.clone()).await?;
            arrivals.push(start.elapsed());
            if at % RENEW_AFTER == 0 {
                renewed(&one, &queue[..=at]).await?;
            }
        }
        let arrival = median(arrivals.split_off(size.saturating_sub(TURNS)));
        let mut polls = Vec::new();
        for claim in queue[1..=size].iter().rev().take(TURNS) {
            let start = Instant::now();
            one.clone().attempt(claim.clone()).await?;
            polls.push(start.elapsed());
        }
        let poll = median(polls);
        let renewal = renewed(&one, &queue[..=size]).await?.as_secs_f64() * 1000.0;
        let mut hands = Vec::new();
        for turn in 0..TURNS.min(size) {
            // As many wait as before.
            one.clone().attempt(queue[size + 1 + turn].clone()).await?;
            let start = Instant::now();
            leaves(&one, &queue[turn]).await?;
            holds(&one, &queue[turn + 1]).await?;
            hands.push(start.elapsed());
        }
        println!(
            "{size} waiters on one name: one more arrives in {arrival:.2} ms, polls in {poll:.2} ms, hand-over {:.2} ms, all renewed in {renewal:.1} ms",
            median(hands)
        );
        for claim in &queue {
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

        let (mut clients, size) = (Vec::new(), size.min(MOST_CLIENTS));
        for _ in 0..size {
            let client = open().await?;
            let mailbox = client.clone().watch(Interest::Mailbox).await?;
            clients.push((client, mailbox));
        }
        println!("{size} idle clients: a pair of another {:.2} ms", pair(&other).await?);
        drop(clients);
        one.close().await?;
        other.close().await?;
    }
    Ok(())
}
