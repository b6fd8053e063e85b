//! Measures what a cohort gains and what it costs other clients: 128 tasks of one client and one other client take one
//! lock, with and without a cohort, in turns, in one run.
//!
//! `cargo run --release -p oarlock --features redis --example cohort -- [--url URL]`

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use oarlock::{Fenced, Mutex};

#[path = "support/url.rs"]
mod url;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const TASKS: usize = 128;
/// How long a round takes.
const SECONDS: u64 = 1;
const HAND_OFFS: u32 = 64;
const SPAN: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Tally {
    taken: AtomicU64,
    theirs: AtomicU64,
    longest_wait_us: AtomicU64,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = url::from_args()?;
    let (us, them) = (oarlock::connect(&url).await?, oarlock::connect(&url).await?);
    let name = format!("cohort/{}", std::process::id());
    let (with, without) = (Tally::default(), Tally::default());
    for _ in 0..3 {
        round(us.mutex(&name), them.mutex(&name), &without).await?;
        round(us.mutex(&name).cohort(HAND_OFFS, SPAN), them.mutex(&name), &with).await?;
    }
    let per_second = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64 / (3 * SECONDS) as f64;
    for (what, tally) in [("without", &without), ("with", &with)] {
        let wait = tally.longest_wait_us.load(Ordering::Relaxed) as f64 / 1000.0;
        let (ours, theirs) = (per_second(&tally.taken), per_second(&tally.theirs));
        println!("{what}: {ours:.0} a second here, {theirs:.0} in the other client, which waited {wait:.1} ms at most");
    }
    println!("ratio: {:.2}", per_second(&with.taken) / per_second(&without.taken));
    Ok(())
}

/// All clients take turns for a second; the data that they change refuses a smaller fence.
async fn round(ours: Mutex, theirs: Mutex, tally: &Tally) -> Result<(), Failure> {
    let data = Arc::new(Fenced::new(0_u64));
    let until = Instant::now() + Duration::from_secs(SECONDS);
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (lock, data) = (ours.clone(), data.clone());
            tokio::spawn(async move {
                let mut taken = 0;
                while Instant::now() < until {
                    let guard = lock.lock().await?;
                    data.change(guard.fence(), |count| *count += 1)?;
                    guard.release().await?;
                    taken += 1;
                }
                Ok::<_, Failure>(taken)
            })
        })
        .collect();
    while Instant::now() < until {
        let started = Instant::now();
        let guard = theirs.lock().await?;
        let waited = u64::try_from(started.elapsed().as_micros())?;
        tally.longest_wait_us.fetch_max(waited, Ordering::Relaxed);
        data.change(guard.fence(), |count| *count += 1)?;
        guard.release().await?;
        tally.theirs.fetch_add(1, Ordering::Relaxed);
    }
    for task in tasks {
        tally.taken.fetch_add(task.await??, Ordering::Relaxed);
    }
    Ok(())
}
