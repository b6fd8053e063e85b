//! Loads with contention: several contenders ask for one name, give it back as soon as they have it, and ask again.

use std::sync::Arc;
use std::time::Duration;

use oarlock::driver::clock::{BootClock, Clock};
use oarlock::{Guard, Mutex};
use tokio::task::coop::consume_budget;

use crate::baseline::Rival;
use crate::grants::{Grant, Window};
use crate::targets::Stop;

/// One of several.
#[derive(Clone)]
pub enum Contender {
    /// A lock of Oarlock.
    Ours(Mutex),
    /// The baseline of the store.
    Baseline(Arc<dyn Rival>),
}

/// Takes and gives from the start of the window to its end, and says what it was granted.
///
/// A contender that waits at the end goes on waiting: no wait is cut short, and so none looks shorter than it was.
///
/// # Errors
/// The first that the lock or the baseline returns.
pub async fn contend(number: u32, contender: Contender, window: Window, stop: Stop) -> oarlock::Result<Vec<Grant>> {
    let mut grants = Vec::new();
    tokio::time::sleep(Duration::from_nanos(window.start.saturating_sub(now()))).await;
    loop {
        consume_budget().await;
        let asked = now();
        if asked >= window.end || stop.is_set() {
            if let Contender::Baseline(rival) = contender {
                rival.leave().await?;
            }
            return Ok(grants);
        }
        let (fence, granted, ended) = match &contender {
            Contender::Ours(lock) => {
                let guard = lock.lock().await?;
                let granted = now();
                let (fence, ended) = (guard.fence().get(), believed_until(&guard));
                guard.release().await?;
                (fence, granted, ended)
            }
            Contender::Baseline(rival) => {
                rival.clone().take().await?;
                let granted = now();
                rival.clone().give().await?;
                (0, granted, granted)
            }
        };
        grants.push(Grant { contender: number, fence, asked, granted, ended });
    }
}

/// Until now, unless it was lost already.
fn believed_until(guard: &Guard) -> u64 {
    let now = now();
    if guard.is_held() { now } else { now.min(guard.ends_at().as_nanos()) }
}

/// The clock that all processes of a machine share, in nanoseconds.
#[must_use]
pub fn now() -> u64 {
    BootClock.now().as_nanos()
}
