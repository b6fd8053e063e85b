//! Tests between processes, for every store: a real process is killed or stopped.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use oarlock::driver::clock::{BootClock, Clock};
use tokio::task::JoinSet;

use crate::lock_process::{LockProcess, Report};

/// The bound for everything that should happen at once.
const SOON: Duration = Duration::from_secs(5);

/// SIGKILL of a holder: the next waiter is granted within `bound`. Returns how long it took.
///
/// # Errors
/// The step that failed.
pub async fn after_a_killed_holder_the_next_waiter_holds(
    url: &str,
    name: &str,
    ttl: Duration,
    bound: Duration,
) -> Result<Duration> {
    let mut holder = LockProcess::spawn(url, name, ttl)?;
    let (first, _) = holder.holds(SOON).await?;
    let mut next = LockProcess::spawn(url, name, ttl)?;
    next.waits(SOON).await?;
    let killed = BootClock.now();
    holder.kill()?;
    let (second, at) = next.holds(bound).await?;
    ensure!(second > first, "fence {second} after {first}");
    next.release()?;
    ensure!(matches!(next.next(SOON).await?, Report::Released { .. }), "it did not release");
    Ok(at.since(killed))
}

/// SIGKILL of the first of two waiters: the second is granted within `bound` of the release. Returns how long it took.
///
/// # Errors
/// The step that failed.
pub async fn a_killed_waiter_is_skipped(url: &str, name: &str, ttl: Duration, bound: Duration) -> Result<Duration> {
    let mut holder = LockProcess::spawn(url, name, ttl)?;
    holder.holds(SOON).await?;
    let mut dead = LockProcess::spawn(url, name, ttl)?;
    dead.waits(SOON).await?;
    let mut next = LockProcess::spawn(url, name, ttl)?;
    next.waits(SOON).await?;
    dead.kill()?;
    holder.release()?;
    let Report::Released { at: released } = holder.next(SOON).await? else { bail!("it did not release") };
    let (_, at) = next.holds(bound).await?;
    Ok(at.since(released))
}

/// SIGSTOP of `many` waiters at the head of the queue, then a release: the waiter behind them is granted within
/// `bound`. Returns how long after the release that was.
///
/// # Errors
/// The step that failed.
pub async fn stopped_waiters_are_skipped(
    url: &str,
    name: &str,
    ttl: Duration,
    many: usize,
    bound: Duration,
) -> Result<Duration> {
    let mut holder = LockProcess::spawn(url, name, ttl)?;
    let (first, _) = holder.holds(SOON).await?;
    // Each reports that it waits once it has its place in the queue, so they wait in the order in which they were
    // started.
    let mut stopped = Vec::new();
    for _ in 0..many {
        let mut waiter = LockProcess::spawn(url, name, ttl)?;
        waiter.waits(SOON).await?;
        stopped.push(waiter);
    }
    let mut next = LockProcess::spawn(url, name, ttl)?;
    next.waits(SOON).await?;
    for waiter in &stopped {
        waiter.stop()?;
    }
    holder.release()?;
    let Report::Released { at: released } = holder.next(SOON).await? else { bail!("it did not release") };
    let (fence, at) = next.holds(bound).await?;
    ensure!(fence > first, "fence {fence} after {first}");
    next.release()?;
    // They go on, and each gets its turn. The pause costs them their places; fences still rise.
    let mut going = JoinSet::new();
    for mut waiter in stopped {
        waiter.cont()?;
        going.spawn(async move {
            // One that was granted the lock while it was stopped lost it meanwhile.
            let fence = match waiter.next(bound).await? {
                Report::Held { fence, .. } => fence,
                other => bail!("expected it to hold, but it reported {other:?}"),
            };
            waiter.release()?;
            ensure!(matches!(waiter.next(SOON).await?, Report::Released { .. }), "it did not release");
            Ok(fence)
        });
    }
    let mut fences = vec![fence];
    while let Some(done) = going.join_next().await {
        fences.push(done??);
    }
    fences.sort_unstable();
    fences.dedup();
    ensure!(fences.len() == many + 1, "{} grants have a fence of their own, of {}", fences.len(), many + 1);
    Ok(at.since(released))
}

/// The times of a stopped holder and its rival.
#[derive(Clone, Copy, Debug)]
pub struct Stopped {
    /// From the stop to the rival's grant.
    pub taken_over_after: Duration,
    /// From the wake-up to the holder's report that it lost the lock.
    pub noticed_after: Duration,
}

/// SIGSTOP of a holder for longer than its lease: the rival is granted after the lease, with a larger fence, and the
/// woken holder reports its loss at once.
///
/// # Errors
/// The step that failed.
pub async fn a_stopped_holder_loses(url: &str, name: &str, ttl: Duration, bound: Duration) -> Result<Stopped> {
    let mut holder = LockProcess::spawn(url, name, ttl)?;
    let (first, _) = holder.holds(SOON).await?;
    let mut rival = LockProcess::spawn(url, name, ttl)?;
    rival.waits(SOON).await?;
    let stopped = BootClock.now();
    holder.stop()?;
    let taken = rival.holds(ttl + bound).await;
    let woken = BootClock.now();
    // In any case it must not stay stopped.
    holder.cont()?;
    let (second, at) = taken?;
    ensure!(second > first, "fence {second} after {first}");
    let said = holder.next(SOON).await?;
    let Report::Lost { at: noticed, .. } = said else { bail!("the woken holder reported {said:?}") };
    let noticed_after = noticed.since(woken);
    ensure!(noticed_after < ttl, "it took the woken holder {noticed_after:?} to notice");
    rival.release()?;
    ensure!(matches!(rival.next(SOON).await?, Report::Released { .. }), "the rival lost it to the woken holder");
    Ok(Stopped { taken_over_after: at.since(stopped), noticed_after })
}
