//! What the engine costs on top of its driver, for one uncontended acquire and release over the memory store.
//!
//! `cargo run --release -p oarlock-core --example engine_cost`
//!
//! All rows are measured in one run, in turns, so that their ratios mean something on a noisy machine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oarlock_core::driver::End;
use oarlock_core::{Claim, ClaimId, DynDriver, Locks, Memory, ResourceName, Result};

const ROUNDS: usize = 40;
const PAIRS: u32 = 5_000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let name = ResourceName::new("bench")?;
    let driver: Arc<dyn DynDriver> = Arc::new(Memory::new());
    let client = Locks::over(Memory::new())?;
    let spawning = Locks::over(Memory::new())?;
    let mut rows = [
        ("the driver alone (two boxed calls)", Vec::new()),
        ("the engine (mutex, lock, release)", Vec::new()),
        ("the engine, with a spawn per attempt", Vec::new()),
    ];
    for round in 0..ROUNDS {
        rows[0].1.push(alone(&driver, &name, round).await?);
        rows[1].1.push(engine(&client).await?);
        rows[2].1.push(with_spawn(&spawning).await?);
    }
    println!("| one uncontended pair | median ns | best ns |\n|---|---|---|");
    for (what, mut times) in rows {
        times.sort_unstable();
        println!("| {what} | {} | {} |", times[times.len() / 2].as_nanos(), times[0].as_nanos());
    }
    Ok(())
}

async fn alone(driver: &Arc<dyn DynDriver>, name: &ResourceName, round: usize) -> Result<Duration> {
    let started = Instant::now();
    for pair in 0..PAIRS {
        let id = ClaimId::from_bits(((round as u128) << 64) | u128::from(pair));
        driver.clone().attempt(Arc::new(Claim::new(id, name.clone()))).await?;
        driver.clone().release(name.clone(), id, End::Done { memo: None }).await?;
    }
    Ok(started.elapsed() / PAIRS)
}

async fn engine(client: &Locks) -> Result<Duration> {
    let mutex = client.mutex("bench");
    let started = Instant::now();
    for _ in 0..PAIRS {
        mutex.lock().await?.release().await?;
    }
    Ok(started.elapsed() / PAIRS)
}

/// What the other way to never cut an attempt off would cost: a task for each.
async fn with_spawn(client: &Locks) -> Result<Duration> {
    let mutex = client.mutex("bench");
    let started = Instant::now();
    for _ in 0..PAIRS {
        let mutex = mutex.clone();
        let guard = tokio::spawn(async move { mutex.lock().await }).await;
        guard
            .map_err(|error| oarlock_core::Error::new(oarlock_core::ErrorKind::Internal, error.to_string()))??
            .release()
            .await?;
    }
    Ok(started.elapsed() / PAIRS)
}
