//! Short schedules for flaws that a storm does not show: too much happens in it.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::{Ending, ResourceName, Result};

use super::BrokenStore;
use super::journal::Journal;
use super::storm::{Contender, PATIENCE, TTL, believed_until, now, stayed};
use crate::record::{FaultKind, What};

/// Long enough that a busy machine sees what happens within a part of it.
pub(super) const LONG_TTL: Duration = Duration::from_millis(1500);

/// A waiter that looks again after a part of its lease would hide that it was not notified.
const LONGER_THAN_ANY_WAIT: Duration = Duration::from_secs(60);

/// A claim that waits for so long for a free lock starves, where nothing is broken.
const STARVES: Duration = Duration::from_secs(4);

/// The locks of the scenes.
pub(super) const LOCKS: [&str; 8] =
    ["free", "asked again", "cut off", "ended", "paused", "killed", "ghost", FAILED_OVER];

const FAILED_OVER: &str = "failed over";

/// What a correct lock does where nothing is broken.
///
/// # Errors
/// Any error that the store returns.
pub(super) async fn calm(broken: &BrokenStore, journal: &Arc<Journal>) -> Result<()> {
    // A waiter asks the store again and again within its lease.
    let free = a_lock_is_free(broken, journal, "free", LONGER_THAN_ANY_WAIT, TTL);
    let again = a_lock_is_free(broken, journal, "asked again", LONG_TTL, LONG_TTL);
    let (free, again) = tokio::join!(free, again);
    free?;
    again
}

/// All of them, at once.
///
/// # Errors
/// Any error that the store returns.
pub(super) async fn all(broken: &BrokenStore, journal: &Arc<Journal>) -> Result<()> {
    let (cut, told, stopped, killed, ghost, failed_over) = tokio::join!(
        a_holder_is_cut_off(broken, journal),
        a_hold_is_ended(broken, journal),
        a_holder_is_stopped(broken, journal),
        a_holder_is_killed(broken, journal),
        a_waiter_is_killed(broken, journal),
        a_server_is_failed_over(broken, journal),
    );
    cut?;
    told?;
    stopped?;
    killed?;
    ghost?;
    failed_over
}

/// Waits for a lock and gives it back.
async fn follow(contender: &mut Contender, name: &str, wait: Duration) {
    if let Some(guard) = contender.lock(name, wait).await {
        contender.ended(believed_until(&guard), &guard);
        // A broken store may refuse what it should not.
        let _ = guard.release().await;
    }
}

/// Waits until a claim waits for this lock, or for a while.
async fn until_waited(contender: &Contender, name: &str) -> Result<()> {
    let give_up = now() + PATIENCE;
    while now() < give_up && contender.client.inspect(name).await?.waiters.count().unwrap_or(0) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// A holder releases while another one waits, and no third one asks.
async fn a_lock_is_free(
    broken: &BrokenStore,
    journal: &Arc<Journal>,
    name: &str,
    ttl: Duration,
    held: Duration,
) -> Result<()> {
    let mut first = Contender::with_ttl(broken, journal, ttl)?;
    let mut second = Contender::with_ttl(broken, journal, ttl)?;
    let Some(guard) = first.lock(name, PATIENCE).await else { return Ok(()) };
    let freed = async {
        until_waited(&first, name).await?;
        let ended = stayed(&guard, held).await;
        first.ended(ended, &guard);
        let _ = guard.release().await;
        Ok(())
    };
    let (freed, ()) = tokio::join!(freed, follow(&mut second, name, STARVES));
    first.done();
    second.done();
    freed
}

/// A holder that has not waited is cut off, and believes no longer than its store.
async fn a_holder_is_cut_off(broken: &BrokenStore, journal: &Arc<Journal>) -> Result<()> {
    const NAME: &str = "cut off";
    let mut first = Contender::with_ttl(broken, journal, LONG_TTL)?;
    let mut second = Contender::with_ttl(broken, journal, LONG_TTL)?;
    let Some(guard) = first.lock(NAME, PATIENCE).await else { return Ok(()) };
    let fault = journal.fault(FaultKind::Cut, first.w);
    first.kit.cut();
    let (ended, ()) = tokio::join!(stayed(&guard, LONG_TTL * 3), follow(&mut second, NAME, LONG_TTL * 4));
    first.ended(ended, &guard);
    first.kit.heal();
    journal.ended(fault);
    first.done();
    second.done();
    Ok(())
}

/// An operator ends a hold, and the next one is granted the lock: the old holder is told within its lease. What it
/// believes after that counts as a hold.
async fn a_hold_is_ended(broken: &BrokenStore, journal: &Arc<Journal>) -> Result<()> {
    const NAME: &str = "ended";
    let mut first = Contender::with_ttl(broken, journal, LONG_TTL)?;
    let mut second = Contender::with_ttl(broken, journal, LONG_TTL)?;
    let Ok(guard) = first.client.mutex(NAME).wait(PATIENCE).lock().await else { return Ok(()) };
    let ending = Ending::new("an operator", "a broken lock is tried");
    for holder in second.client.inspect(NAME).await?.holders {
        second.client.break_claim(NAME, holder.id, ending.clone(), Duration::ZERO).await?;
    }
    let told_by = now() + LONG_TTL + LONG_TTL / 2;
    if let Some(taken) = second.lock(NAME, PATIENCE * 2).await {
        tokio::time::sleep(told_by.since(now())).await;
        let still = guard.is_held();
        if still {
            first.asks(NAME, None);
            journal.granted(first.w, first.op, &guard);
        }
        tokio::time::sleep(LONG_TTL / 4).await;
        if still {
            first.ended(believed_until(&guard), &guard);
        }
        second.ended(believed_until(&taken), &taken);
        let _ = taken.release().await;
    }
    first.done();
    second.done();
    Ok(())
}

/// Kleppmann's picture: a holder has read, does not run for longer than its lease, and writes when the next holder has
/// written. A task cannot be stopped like a process: nothing of it reaches the store, and it looks at nothing.
async fn a_holder_is_stopped(broken: &BrokenStore, journal: &Arc<Journal>) -> Result<()> {
    const NAME: &str = "paused";
    let mut first = Contender::with_ttl(broken, journal, TTL)?;
    let mut second = Contender::with_ttl(broken, journal, TTL)?;
    let Some(guard) = first.lock(NAME, PATIENCE).await else { return Ok(()) };
    let read = journal.read(first.w, first.op, NAME, guard.fence());
    let fault = journal.fault(FaultKind::Pause, first.w);
    first.kit.cut();
    let next = async {
        let Some(guard) = second.lock(NAME, PATIENCE).await else { return };
        let read = journal.read(second.w, second.op, NAME, guard.fence());
        journal.write(second.w, second.op, NAME, guard.fence(), read);
        second.ended(believed_until(&guard), &guard);
        let _ = guard.release().await;
    };
    let (ended, ()) = tokio::join!(stayed(&guard, PATIENCE), next);
    journal.write(first.w, first.op, NAME, guard.fence(), read);
    first.ended(ended, &guard);
    first.kit.heal();
    journal.ended(fault);
    first.done();
    second.done();
    Ok(())
}

async fn a_holder_is_killed(broken: &BrokenStore, journal: &Arc<Journal>) -> Result<()> {
    const NAME: &str = "killed";
    let mut first = Contender::with_ttl(broken, journal, TTL)?;
    let mut second = Contender::with_ttl(broken, journal, TTL)?;
    let Some(guard) = first.lock(NAME, PATIENCE).await else { return Ok(()) };
    let killed = async {
        until_waited(&first, NAME).await?;
        let fault = journal.fault(FaultKind::Kill, first.w);
        first.died(believed_until(&guard));
        journal.ended(fault);
        drop(guard);
        Ok(())
    };
    let (killed, ()) = tokio::join!(killed, follow(&mut second, NAME, PATIENCE));
    second.done();
    killed
}

/// Another server takes over between two holds. Nothing is to be seen of it where fences outlive their server.
async fn a_server_is_failed_over(broken: &BrokenStore, journal: &Arc<Journal>) -> Result<()> {
    let mut first = Contender::with_ttl(broken, journal, LONG_TTL)?;
    let mut second = Contender::with_ttl(broken, journal, LONG_TTL)?;
    for _ in 0..4 {
        follow(&mut first, FAILED_OVER, PATIENCE).await;
    }
    if broken.fail_over(&ResourceName::new(FAILED_OVER)?) {
        let fault = journal.fault(FaultKind::Command, first.w);
        journal.ended(fault);
    }
    follow(&mut second, FAILED_OVER, PATIENCE).await;
    first.done();
    second.done();
    Ok(())
}

/// The next in the queue is dead when the holder releases.
async fn a_waiter_is_killed(broken: &BrokenStore, journal: &Arc<Journal>) -> Result<()> {
    const NAME: &str = "ghost";
    let mut first = Contender::with_ttl(broken, journal, TTL)?;
    let mut ghost = Contender::with_ttl(broken, journal, TTL)?;
    let mut second = Contender::with_ttl(broken, journal, TTL)?;
    let Some(guard) = first.lock(NAME, PATIENCE).await else { return Ok(()) };
    ghost.asks(NAME, None);
    ghost.leave_ghost(NAME).await?;
    let fault = journal.fault(FaultKind::KillWaiter, ghost.w);
    journal.add(What::Died { w: ghost.w, why: "killed".to_owned() });
    journal.ended(fault);
    let freed = async {
        tokio::time::sleep(TTL / 4).await;
        first.ended(believed_until(&guard), &guard);
        let _ = guard.release().await;
    };
    tokio::join!(freed, follow(&mut second, NAME, PATIENCE));
    first.done();
    second.done();
    Ok(())
}
