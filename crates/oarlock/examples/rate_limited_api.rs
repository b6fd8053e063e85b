//! An API allows three requests at a time for all machines together; a semaphore counts them.
//!
//! `cargo run -p oarlock --example rate_limited_api -- [--url URL]`

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use oarlock::{Locks, Result};

#[path = "support/url.rs"]
mod url;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const LIMIT: u32 = 3;
static NOW: AtomicU32 = AtomicU32::new(0);
static MOST: AtomicU32 = AtomicU32::new(0);

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = url::from_args()?;
    let mut callers = Vec::new();
    for _machine in 0..4 {
        let locks = oarlock::connect(&url).await?;
        callers.extend((0..3).map(|_| tokio::spawn(call(locks.clone()))));
    }
    for caller in callers {
        caller.await??;
    }
    let most = MOST.load(Ordering::SeqCst);
    println!("12 requests, at most {most} at a time");
    if (1..=LIMIT).contains(&most) { Ok(()) } else { Err("the limit was exceeded".into()) }
}

/// One request, with a permit. `with` drops the request if the permit is lost.
async fn call(locks: Locks) -> Result<()> {
    let permit = locks.semaphore("payment-api", LIMIT).acquire(1).await?;
    permit.with(|_held| request()).await?;
    permit.release().await?;
    Ok(())
}

/// In place of the API: counts the requests that it serves at the same time.
async fn request() -> Result<()> {
    MOST.fetch_max(NOW.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(20)).await;
    NOW.fetch_sub(1, Ordering::SeqCst);
    Ok(())
}
