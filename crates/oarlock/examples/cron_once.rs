//! Cron starts a job on three machines at the same time; one of them runs it.
//!
//! `cargo run -p oarlock --example cron_once -- [--url URL]`

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oarlock::{Error, Locks, Slot};

#[path = "support/url.rs"]
mod url;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = url::from_args()?;
    // A slot of one second. A job of every minute divides by 60.
    let slot = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs().to_string();
    let mut machines = Vec::new();
    for machine in 1..=3 {
        machines.push(tokio::spawn(cron_job(oarlock::connect(&url).await?, slot.clone(), machine)));
    }
    let mut runs = 0;
    for machine in machines {
        runs += u32::from(machine.await??);
    }
    if runs == 1 { Ok(()) } else { Err(format!("slot {slot} ran {runs} times").into()) }
}

/// What cron starts. A crash after the slot was taken skips the slot; with `.at_least_once()` another machine runs it.
async fn cron_job(locks: Locks, slot: String, machine: u32) -> Result<bool, Error> {
    let outcome = locks
        .once("nightly-report")
        .run(&slot, |held| async move {
            println!("machine {machine} writes the report, fence {}", held.fence());
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok::<_, Error>(())
        })
        .await?;
    println!("machine {machine}: {}", if outcome == Slot::Ran(()) { "done" } else { "another machine did it" });
    Ok(outcome == Slot::Ran(()))
}
