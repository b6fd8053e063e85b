//! One process of a load.

use std::io::{BufRead as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use oarlock::Locks;

/// The lease of all locks.
pub(super) const TTL: Duration = Duration::from_secs(30);

/// No claim waits longer.
const PATIENCE: Duration = Duration::from_secs(1800);

/// So many locks are taken or released at a time by one process.
const AT_ONCE: usize = 256;

/// The names of the churn.
pub(super) const NAMES: u32 = 1000;
const TASKS: usize = 8;

/// The words for a process that takes so many locks, says so, and releases them when told to.
pub(super) fn hold(url: &str, name: &str, count: usize) -> Vec<String> {
    ["hold", url, name, &count.to_string()].map(str::to_owned).to_vec()
}

/// The words for one with so many claims for one lock.
pub(super) fn wait(url: &str, name: &str, count: usize) -> Vec<String> {
    ["wait", url, name, &count.to_string()].map(str::to_owned).to_vec()
}

/// The words for one that takes and releases locks for so many seconds.
pub(super) fn churn(url: &str, name: &str, seconds: u64) -> Vec<String> {
    ["churn", url, name, &seconds.to_string()].map(str::to_owned).to_vec()
}

/// Does what the words say.
pub(crate) fn work(words: &[String]) -> anyhow::Result<()> {
    let [what, url, name, number] = words else { bail!("a process of a load has four words") };
    let number: u64 = number.parse()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let locks = oarlock::builder(url).ttl(TTL).connect().await?;
        match what.as_str() {
            "hold" => holding(&locks, name, usize::try_from(number)?).await?,
            "wait" => waiting(&locks, name, usize::try_from(number)?).await?,
            "churn" => churning(&locks, name, Duration::from_secs(number)).await?,
            other => bail!("no load is called {other}"),
        }
        locks.shutdown(Duration::from_secs(30)).await?;
        Ok(())
    })
}

fn say(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

/// Waits for a word of the process that measures; it is gone if there is none.
async fn ordered() -> anyhow::Result<()> {
    let read = || std::io::stdin().lock().lines().next().transpose();
    tokio::task::spawn_blocking(read).await??.context("no order came")?;
    Ok(())
}

async fn holding(locks: &Locks, name: &str, count: usize) -> anyhow::Result<()> {
    let mut guards = Vec::with_capacity(count);
    let mut taken = 0;
    while taken < count {
        let batch = AT_ONCE.min(count - taken);
        let tasks: Vec<_> = (taken..taken + batch)
            .map(|number| {
                let name = if count == 1 { name.to_owned() } else { format!("{name}/{number}") };
                let lock = locks.mutex(name).wait(PATIENCE);
                tokio::spawn(async move { lock.lock().await })
            })
            .collect();
        for task in tasks {
            guards.push(task.await??);
        }
        taken += batch;
    }
    say("held")?;
    ordered().await?;
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    while !guards.is_empty() {
        let rest = guards.split_off(guards.len().saturating_sub(AT_ONCE));
        let tasks: Vec<_> = rest.into_iter().map(|guard| tokio::spawn(guard.release())).collect();
        for task in tasks {
            task.await??;
        }
    }
    say(&lost.to_string())?;
    // What is measured now must not be gone yet.
    ordered().await.or(Ok(()))
}

async fn waiting(locks: &Locks, name: &str, count: usize) -> anyhow::Result<()> {
    let start = Instant::now();
    let longest = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..count)
        .map(|_| {
            let (lock, longest) = (locks.mutex(name).fair().wait(PATIENCE), longest.clone());
            tokio::spawn(async move {
                let guard = lock.lock().await?;
                longest.fetch_max(u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
                guard.release().await
            })
        })
        .collect();
    let mut served = 0;
    for task in tasks {
        task.await??;
        served += 1;
    }
    say(&format!("{served} {}", longest.load(Ordering::Relaxed)))
}

async fn churning(locks: &Locks, name: &str, span: Duration) -> anyhow::Result<()> {
    let start = Instant::now();
    // The same tasks in both parts would hide one that is never given up.
    let early = churn_until(locks, name, start + span / 10).await?;
    say(&format!("{early} {}", running()))?;
    ordered().await?;
    let late = churn_until(locks, name, start + span).await?;
    say(&format!("{} {}", early + late, running()))?;
    // What is measured now must not be gone yet.
    ordered().await.or(Ok(()))
}

/// The tasks of this process.
fn running() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

async fn churn_until(locks: &Locks, name: &str, end: Instant) -> anyhow::Result<u64> {
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (locks, name) = (locks.clone(), name.to_owned());
            tokio::spawn(async move {
                let mut pairs = 0_u64;
                while Instant::now() < end {
                    let number = fastrand::u32(0..NAMES);
                    locks.mutex(format!("{name}/{number}")).wait(PATIENCE).lock().await?.release().await?;
                    pairs += 1;
                }
                Ok::<_, oarlock::Error>(pairs)
            })
        })
        .collect();
    let mut pairs = 0;
    for task in tasks {
        pairs += task.await??;
    }
    Ok(pairs)
}
