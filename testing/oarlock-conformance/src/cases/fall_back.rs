//! The store may fall back to an earlier state: a restart from a snapshot, a failover to a replica that is behind.
//!
//! No lock can prevent that the store then grants a lock whose holder it has forgotten. Each client must learn of it at
//! its next renewal, and fences must go on rising, so that the protected resource can refuse the earlier holder.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::End;
use oarlock_core::{Guard, ResourceName};

use super::cases;
use crate::context::{Peer, TestContext, within};
use crate::failure::{Outcome, ensure};

cases!("fall_back": belief_follows_the_store [FallBack, Fences]);

/// Long enough for a failover: belief must end because of an answer of the store, not because the store was
/// unreachable.
const TTL: Duration = Duration::from_secs(12);

/// One fall-back, because it takes long on some stores, and three names: a holder that the store then knows as a
/// waiter, one that it does not know at all, and a waiter that it has forgotten.
async fn belief_follows_the_store(context: Arc<TestContext>) -> Outcome {
    let peer = context.peer().await?;
    let (waited, fresh, queued) = (context.name()?, context.name()?, context.name()?);
    let earlier = context.raw().await?;
    let mut first = earlier.claim(&waited);
    first.ttl = TTL;
    earlier.granted(&first).await?;
    let (lock, done) = (peer.mutex(waited.as_str()).ttl(TTL), End::Done { memo: None });
    let second = tokio::spawn(async move { lock.lock().await });
    peer.waits(&waited, 1).await?;
    let mut ahead = earlier.claim(&queued);
    ahead.ttl = TTL;
    earlier.granted(&ahead).await?;

    within(context.pace.soon * 10, "the store to remember", context.fixture.remember()).await??;
    earlier.release(&waited, first.id, done.clone()).await?;
    let was_waiter = within(context.pace.soon * 2, "its turn", second).await???;
    let was_unknown = peer.mutex(fresh.as_str()).ttl(TTL).lock().await?;
    let lock = peer.mutex(queued.as_str()).ttl(TTL).wait(TTL * 4);
    let forgotten = tokio::spawn(async move { lock.lock().await });
    peer.waits(&queued, 1).await?;
    within(context.pace.soon * 15, "the store to fall back", context.fixture.fall_back()).await??;

    let rival = context.peer().await?;
    let before = context.raw().await?;
    learns_of_the_loss(&context, &was_waiter).await?;
    learns_of_the_loss(&context, &was_unknown).await?;
    // The earlier holders do not know of the fall-back and release once more.
    before.release(&waited, first.id, done.clone()).await?;
    before.release(&queued, ahead.id, done).await?;
    passed_on(&context, &was_waiter, &waited, &rival).await?;
    passed_on(&context, &was_unknown, &fresh, &rival).await?;
    let place = within(TTL + context.pace.soon, "a forgotten waiter to be served", forgotten).await???;
    place.release().await?;
    Ok(())
}

async fn learns_of_the_loss(context: &TestContext, earlier: &Guard) -> Outcome {
    let loss = within(TTL / 3 + context.pace.soon * 2, "a holder to learn that the store fell back", earlier.lost());
    context.note(format!("loss: {:?}", loss.await?));
    ensure!(!earlier.is_held(), "lost, but still believed");
    Ok(())
}

/// The next holder has a larger fence.
async fn passed_on(context: &TestContext, earlier: &Guard, name: &ResourceName, rival: &Peer) -> Outcome {
    let lock = rival.mutex(name.as_str()).wait(TTL * 2);
    let theirs = within(TTL + context.pace.soon * 2, "the next holder", lock.lock()).await??;
    ensure!(theirs.fence() > earlier.fence(), "fence {} after {}", theirs.fence(), earlier.fence());
    theirs.release().await?;
    Ok(())
}
