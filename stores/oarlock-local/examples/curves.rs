//! What grows with waiters, with names used so far and with processes: one row for each number.
//!
//! `cargo run --release -p oarlock-local --example curves -- [numbers…]`

use std::path::Path;
use std::time::{Duration, Instant};

use oarlock_core::driver::{Attempt, Driver as _, End, Renewal};
use oarlock_core::state::Query;
use oarlock_core::{Claim, ClaimId, ResourceName};
use oarlock_local::{Config, Local};

type Failure = Box<dyn std::error::Error>;

/// How often each step is measured.
const TIMES: usize = 101;

fn main() -> Result<(), Failure> {
    let asked: Vec<u32> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let asked = if asked.is_empty() { vec![10, 100, 1_000, 10_000] } else { asked };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!(
        "| n | pair, n names used | pair, n sessions open | open | list | renewal, n waiters | refused try | hand-off |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for number in asked {
        let spans = runtime.block_on(row(number))?;
        let cells: Vec<_> = spans.iter().map(|span| shown(*span)).collect();
        println!("| {number} | {} |", cells.join(" | "));
    }
    Ok(())
}

async fn row(number: u32) -> Result<Vec<Option<Duration>>, Failure> {
    let dir = tempfile::tempdir()?;
    let store = open(dir.path()).await?;
    for used in 0..number {
        pair(&store, &format!("used {used}")).await?;
    }
    let names = median(async || pair(&store, "x").await).await?;
    let list = median(async || Ok(store.inspect(&Query::live()).await?)).await?;
    let sessions = with_sessions(&store, dir.path(), number).await?;

    let holder = claim(1, "queue")?;
    let Attempt::Granted(_) = store.attempt(&holder).await? else { return Err("not granted".into()) };
    let mut waiters = Vec::new();
    for at in 0..number {
        let mut waiter = claim(u128::from(at) + 2, "queue")?;
        waiter.wait = true;
        store.attempt(&waiter).await?;
        waiters.push(waiter);
        if at % 250 == 0 {
            keep(&store, &waiters).await?;
        }
    }
    keep(&store, &waiters).await?;
    let renewal = Renewal::of(std::sync::Arc::new(holder.clone()));
    let renewed = median(async || Ok(store.renew(std::slice::from_ref(&renewal)).await.remove(0)?)).await?;
    let stranger = claim(u128::MAX, "queue")?;
    let refused = median(async || Ok(store.attempt(&stranger).await?)).await?;
    keep(&store, &waiters).await?;
    let mut held = holder;
    let mut next = waiters.into_iter();
    let handed = median(async || {
        store.release(&held.resource, held.id, &End::Done { memo: None }).await?;
        let Some(waiter) = next.next() else { return Err("none waits".into()) };
        let Attempt::Granted(_) = store.attempt(&waiter).await? else { return Err("not its turn".into()) };
        held = waiter;
        Ok(())
    })
    .await
    .ok();
    let (sessions, opened) = sessions.unzip();
    Ok(vec![Some(names), sessions, opened, Some(list), Some(renewed), Some(refused), handed])
}

/// A waiter that is not renewed loses its place.
async fn keep(store: &Local, waiters: &[Claim]) -> Result<(), Failure> {
    let batch: Vec<_> = waiters.iter().map(|waiter| Renewal::of(std::sync::Arc::new(waiter.clone()))).collect();
    store.renew(&batch).await.into_iter().try_for_each(|renewed| renewed.map(drop))?;
    Ok(())
}

/// Beside so many open stores: a pair, and opening one more. Each has three descriptors, so thousands may be refused.
async fn with_sessions(store: &Local, dir: &Path, number: u32) -> Result<Option<(Duration, Duration)>, Failure> {
    let mut others = Vec::new();
    for _ in 0..number {
        match open(dir).await {
            Ok(other) => others.push(other),
            Err(_) => return Ok(None),
        }
    }
    let pairs = median(async || pair(store, "x").await).await?;
    let opened = median(async || Ok(open(dir).await?)).await?;
    Ok(Some((pairs, opened)))
}

async fn open(dir: &Path) -> Result<Local, Failure> {
    Ok(Local::open(Config::new(dir)).await?)
}

fn claim(id: u128, name: &str) -> Result<Claim, Failure> {
    let mut claim = Claim::new(ClaimId::from_bits(id), ResourceName::new(name)?);
    claim.ttl = Duration::from_secs(600);
    Ok(claim)
}

async fn pair(store: &Local, name: &str) -> Result<(), Failure> {
    let claim = claim(1, name)?;
    let Attempt::Granted(_) = store.attempt(&claim).await? else { return Err("not granted".into()) };
    store.release(&claim.resource, claim.id, &End::Done { memo: None }).await?;
    Ok(())
}

async fn median<T>(mut step: impl AsyncFnMut() -> Result<T, Failure>) -> Result<Duration, Failure> {
    let mut spans = Vec::new();
    for _ in 0..TIMES {
        let start = Instant::now();
        match step().await {
            Ok(_) => spans.push(start.elapsed()),
            Err(error) if spans.is_empty() => return Err(error),
            Err(_) => break,
        }
    }
    spans.sort_unstable();
    spans.get(spans.len() / 2).copied().ok_or_else(|| "nothing was measured".into())
}

fn shown(span: Option<Duration>) -> String {
    match span {
        None => "–".to_owned(),
        Some(span) if span < Duration::from_millis(1) => format!("{:.0} µs", span.as_secs_f64() * 1e6),
        Some(span) => format!("{:.1} ms", span.as_secs_f64() * 1e3),
    }
}
