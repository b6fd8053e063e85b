//! Tests that a service stops when it loses its lock: an operator breaks the lock while the service works. It runs on
//! every store. With the memory store of `oarlock::testing` (docs/testing.md) such a test also causes partitions,
//! failovers and clock jumps, in milliseconds.
//!
//! `cargo run -p oarlock --example stop_on_loss -- [--url URL]`

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use oarlock::{Ending, Error, ErrorKind, Locks};
use tokio::time::{sleep, timeout};

#[path = "support/url.rs"]
mod url;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const LEASE: Duration = Duration::from_secs(6);

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = url::from_args()?;
    let (ours, operator) = (oarlock::connect(&url).await?, oarlock::connect(&url).await?);
    let sent = Arc::new(AtomicU32::new(0));
    let service = tokio::spawn(service(ours, sent.clone()));
    while sent.load(Ordering::SeqCst) == 0 {
        sleep(Duration::from_millis(5)).await;
    }

    let state = operator.inspect("outbox").await?;
    let fence = state.holders.first().and_then(|holder| holder.fence).ok_or("the service holds no lock")?;
    operator.break_hold("outbox", fence, Ending::new("test", "does it stop?"), Duration::ZERO).await?;

    // Where the store sends no notification, a holder learns it at its next renewal, after a third of its lease.
    let ended = timeout(LEASE, service).await.map_err(|_| "the service works without its lock")??;
    let count = sent.load(Ordering::SeqCst);
    sleep(Duration::from_millis(100)).await;
    match ended {
        Err(error) if error.kind() == ErrorKind::Lost && sent.load(Ordering::SeqCst) == count => {
            println!("{count} messages were sent, then: {error}");
            Ok(())
        }
        other => Err(format!("the service ended with {other:?}, or continued").into()),
    }
}

/// The service under test. Without `with` (or a check between the steps) it would send for ever.
async fn service(locks: Locks, sent: Arc<AtomicU32>) -> Result<(), Error> {
    let guard = locks.mutex("outbox").ttl(LEASE).lock().await?;
    guard
        .with(|_held| async move {
            loop {
                sent.fetch_add(1, Ordering::SeqCst);
                sleep(Duration::from_millis(5)).await;
            }
        })
        .await
}
