//! What it costs that many wait for one lock in one process.
//!
//! `cargo run --release -p oarlock-core --example waiters`
//!
//! Shows memory per waiter, processor time while they wait, and the cost of one hand-off, for 10 to 10,000 waiters.

use std::time::{Duration, Instant};

use oarlock_core::{Locks, Memory, ResourceName, Result};
use tokio::task::JoinSet;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    println!(
        "| a place for each | waiters | bytes per waiter | CPU while waiting 2 s | µs per hand-off |\n|---|---|---|---|---|"
    );
    for fair in [false, true] {
        for waiters in [10, 100, 1_000, 10_000] {
            row(fair, waiters).await?;
        }
    }
    Ok(())
}

async fn row(fair: bool, waiters: usize) -> Result<()> {
    let client = Locks::over(Memory::new())?;
    let mutex = client.mutex("contended").wait_forever();
    let mutex = if fair { mutex.fair() } else { mutex };
    let holder = mutex.lock().await?;
    let memory_before = resident_bytes();
    let mut tasks = JoinSet::new();
    for _ in 0..waiters {
        let mutex = mutex.clone();
        tasks.spawn(async move { mutex.lock().await?.release().await });
    }
    stand_in_line(&client, waiters).await?;
    let memory = resident_bytes().saturating_sub(memory_before) / waiters;
    let busy_before = cpu_time();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let busy = cpu_time().saturating_sub(busy_before);

    let started = Instant::now();
    holder.release().await?;
    while let Some(done) = tasks.join_next().await {
        done.map_err(|error| oarlock_core::Error::new(oarlock_core::ErrorKind::Internal, error.to_string()))??;
    }
    let each = started.elapsed().as_nanos() as f64 / 1000.0 / waiters as f64;
    let order = if fair { "task" } else { "process" };
    println!("| {order} | {waiters} | {memory} | {:.1} ms | {each:.1} |", busy.as_secs_f64() * 1000.0);
    Ok(())
}

/// Waits until all of them are seen in the store: themselves, or as those behind the one that stands for its process,
/// which tells their number with its next renewal.
async fn stand_in_line(client: &Locks, waiters: usize) -> Result<()> {
    let name = ResourceName::new("contended")?;
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let state = client.inspect(&name).await?;
        if state.waiters.count() == Some(waiters) {
            break;
        }
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    Ok(())
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * rustix::param::page_size()
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
