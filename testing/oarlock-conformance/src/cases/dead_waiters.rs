//! A dead waiter holds up the queue only for a while.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::Lifetime;

use super::cases;
use crate::context::{TestContext, within};
use crate::failure::{Failure, Outcome, ensure};

cases!("dead_waiters":
    a_dead_head_is_passed [Order, Leases],
    several_dead_are_passed [Order, Leases],
    a_dead_waiter_with_a_long_lease_is_passed [Order, Leases],
    a_killed_waiter_is_passed [Order, Kill],
    the_dead_are_not_shown [Leases, Waiters],
);

async fn passed(context: &TestContext, dead: usize, ttl: Duration, bound: Duration) -> Outcome {
    let (one, two, ghosts) = (context.peer().await?, context.peer().await?, context.raw().await?);
    let name = context.name()?;
    let guard = one.mutex(name.as_str()).lock().await?;
    for _ in 0..dead {
        let mut ghost = ghosts.claim(&name);
        (ghost.wait, ghost.lifetime, ghost.ttl) = (true, Lifetime::Lease, ttl);
        ghosts.pending(&ghost).await?;
    }
    let lock = two.mutex(name.as_str());
    let waiter = tokio::spawn(async move { lock.lock().await });
    two.waits(&name, 1).await?;
    guard.release().await?;
    within(bound, "the one behind the dead", waiter).await???.release().await?;
    Ok(())
}

async fn a_dead_head_is_passed(context: Arc<TestContext>) -> Outcome {
    passed(&context, 1, context.ttl(), context.place_ends_within()).await
}

async fn several_dead_are_passed(context: Arc<TestContext>) -> Outcome {
    passed(&context, 4, context.ttl(), context.place_ends_within()).await
}

/// Its place would live for ten seconds, but when its turn comes it must answer within two.
async fn a_dead_waiter_with_a_long_lease_is_passed(context: Arc<TestContext>) -> Outcome {
    passed(&context, 1, Duration::from_secs(600), context.place_ends_within()).await
}

async fn a_killed_waiter_is_passed(context: Arc<TestContext>) -> Outcome {
    let (one, dead, three) = (context.peer().await?, context.peer().await?, context.peer().await?);
    let name = context.name()?;
    let guard = one.mutex(name.as_str()).lock().await?;
    let lock = dead.mutex(name.as_str());
    let ghost = tokio::spawn(async move { lock.lock().await });
    dead.waits(&name, 1).await?;
    let lock = three.mutex(name.as_str());
    let waiter = tokio::spawn(async move { lock.lock().await });
    three.waits(&name, 1).await?;
    dead.connection.kill().await?;
    guard.release().await?;
    let bound = context.death_noticed_within().max(context.place_ends_within());
    within(bound, "the one behind the killed", waiter).await???.release().await?;
    ghost.abort();
    Ok(())
}

async fn the_dead_are_not_shown(context: Arc<TestContext>) -> Outcome {
    let (peer, ghosts, name) = (context.peer().await?, context.raw().await?, context.name()?);
    let guard = peer.mutex(name.as_str()).lock().await?;
    let mut ghost = ghosts.claim(&name);
    (ghost.wait, ghost.lifetime) = (true, Lifetime::Lease);
    ghosts.pending(&ghost).await?;
    ensure!(peer.inspect(&name).await?.waiters.count() == Some(1), "a waiter is not shown");
    tokio::time::sleep(context.ttl() + context.ttl() / 4).await;
    let left = peer.inspect(&name).await?.waiters.count();
    if left != Some(0) {
        return Err(Failure::new(format!("{left:?} dead waiters are shown")));
    }
    guard.release().await?;
    Ok(())
}
