//! Three short schedules for flaws that a storm does not show: too much happens in it.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::clock::Moment;
use oarlock_core::{Ending, ErrorKind, Fence, Guard, Result, Weight};

use super::BrokenStore;
use super::storm::{Contender, now, stayed};
use crate::history::{History, Hold};

/// Long enough that a busy machine sees what happens within a part of it.
const TTL: Duration = Duration::from_millis(1500);

/// No waiter waits longer.
const PATIENCE: Duration = Duration::from_secs(6);

/// All of them, at once.
///
/// # Errors
/// What the store says.
pub(super) async fn all(broken: Arc<BrokenStore>) -> Result<History> {
    let (cut, told, woken) =
        tokio::join!(a_holder_is_cut_off(&broken), a_hold_is_ended(&broken), a_lock_is_free(&broken));
    let mut history = cut?;
    history.merge(told?);
    history.merge(woken?);
    Ok(history)
}

/// The owners of a schedule: the first holder, and the next one.
const FIRST: u64 = 1000;
const NEXT: u64 = 1001;

struct Times {
    asked: Moment,
    granted: Moment,
    ended: Moment,
}

fn hold(resource: &str, owner: u64, fence: Fence, Times { asked, granted, ended }: Times) -> Hold {
    let resource = resource.to_owned();
    Hold { resource, owner, weight: Weight::All, capacity: None, fence, asked, granted, ended, queued: None }
}

async fn next(contender: &Contender, name: &str) -> Result<(Guard, Moment, Moment)> {
    let asked = now();
    let guard = contender.client.mutex(name).wait(PATIENCE).lock().await?;
    Ok((guard, asked, now()))
}

/// A holder that has not waited is cut off, and believes no longer than its store.
async fn a_holder_is_cut_off(broken: &BrokenStore) -> Result<History> {
    const NAME: &str = "cut off";
    let (first, second) = (Contender::with_ttl(broken, TTL)?, Contender::with_ttl(broken, TTL)?);
    let mut history = History::new();
    let (guard, asked, granted) = next(&first, NAME).await?;
    first.kit.cut();
    let (ended, taken) = tokio::join!(stayed(&guard, TTL * 3), next(&second, NAME));
    first.kit.heal();
    history.hold(hold(NAME, FIRST, guard.fence(), Times { asked, granted, ended }));
    // A lock that never ends is found elsewhere.
    if let Ok((guard, asked, granted)) = taken {
        history.hold(hold(NAME, NEXT, guard.fence(), Times { asked, granted, ended: now() }));
        let _ = guard.release().await;
    }
    Ok(history)
}

/// An operator ends a hold, and the next one is granted the lock: the old holder is told within its lease. What it believes
/// after that counts as a hold.
async fn a_hold_is_ended(broken: &BrokenStore) -> Result<History> {
    const NAME: &str = "ended";
    let (first, second) = (Contender::with_ttl(broken, TTL)?, Contender::with_ttl(broken, TTL)?);
    let mut history = History::new();
    let (guard, ..) = next(&first, NAME).await?;
    let ending = Ending::new("an operator", "a broken lock is tried");
    for holder in second.client.inspect(NAME).await?.holders {
        second.client.break_claim(NAME, holder.id, ending.clone(), Duration::ZERO).await?;
    }
    let told_by = now() + TTL + TTL / 2;
    if let Ok((taken, asked, granted)) = next(&second, NAME).await {
        let rest = told_by.since(now());
        tokio::time::sleep(rest).await;
        let still = guard.is_held().then(now);
        tokio::time::sleep(TTL / 4).await;
        if let Some(still) = still {
            let times = Times { asked: still, granted: still, ended: now() };
            history.hold(hold(NAME, FIRST, guard.fence(), times));
        }
        history.hold(hold(NAME, NEXT, taken.fence(), Times { asked, granted, ended: now() }));
        let _ = taken.release().await;
    }
    Ok(history)
}

/// A holder releases while another one waits, and no third one asks.
async fn a_lock_is_free(broken: &BrokenStore) -> Result<History> {
    const NAME: &str = "free";
    // A long lease: a waiter that looks again when it ends would hide that it was not notified.
    let (first, second) = (Contender::with_ttl(broken, TTL * 8)?, Contender::with_ttl(broken, TTL * 8)?);
    let mut history = History::new();
    let (guard, asked, granted) = next(&first, NAME).await?;
    let freed = async {
        // It waits, or has given up.
        let give_up = now() + PATIENCE;
        while now() < give_up && first.client.inspect(NAME).await?.waiters.count().unwrap_or(0) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let ended = now();
        history.hold(hold(NAME, FIRST, guard.fence(), Times { asked, granted, ended }));
        let _ = guard.release().await;
        Ok::<_, oarlock_core::Error>(())
    };
    let asked = now();
    let (freed, taken) = tokio::join!(freed, next(&second, NAME));
    freed?;
    match taken {
        Ok((guard, asked, granted)) => {
            history.hold(hold(NAME, NEXT, guard.fence(), Times { asked, granted, ended: now() }));
            let _ = guard.release().await;
        }
        Err(error) if error.kind() == ErrorKind::Busy => history.waited(NAME, asked, now()),
        Err(error) => return Err(error),
    }
    Ok(history)
}
