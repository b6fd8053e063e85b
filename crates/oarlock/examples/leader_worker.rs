//! A worker that runs on one machine of two. The leader stops, and the other one takes over with a larger fence.
//!
//! `cargo run -p oarlock --example leader_worker -- [--url URL]`

use std::sync::Arc;
use std::time::Duration;

use oarlock::{Error, Fenced, Locks};

#[path = "support/url.rs"]
mod url;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = url::from_args()?;
    // What the workers change: it refuses a leader that was replaced.
    let shipped = Arc::new(Fenced::new(Vec::new()));
    let mut machines = Vec::new();
    for machine in ["east", "west"] {
        let (locks, shipped) = (oarlock::connect(&url).await?, shipped.clone());
        machines.push(tokio::spawn(async move { lead(&locks, machine, &shipped).await }));
    }
    for machine in machines {
        machine.await??;
    }
    let shipped = shipped.read(Clone::clone);
    println!("shipped by {shipped:?}");
    let turns = shipped.windows(2).filter(|pair| pair[0] != pair[1]).count();
    if (shipped.len(), turns) == (6, 1) { Ok(()) } else { Err("two machines led at the same time".into()) }
}

/// Waits for the leadership, works, and resigns. A service loops: after a loss it stands for election again.
async fn lead(locks: &Locks, machine: &'static str, shipped: &Fenced<Vec<&str>>) -> Result<(), Failure> {
    let leadership = locks.election("shipping").wait_forever().campaign(machine).await?;
    println!("{machine} leads with fence {}", leadership.fence());
    // The work is dropped at its next await when the leadership is lost.
    leadership
        .with(|held| async move {
            for _ in 0..3 {
                shipped
                    .change(held.fence(), |shipped| shipped.push(machine))
                    .map_err(|stale| Error::new(oarlock::ErrorKind::Lost, stale.to_string()))?;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Ok::<_, Error>(())
        })
        .await?;
    leadership.resign().await?;
    Ok(())
}
