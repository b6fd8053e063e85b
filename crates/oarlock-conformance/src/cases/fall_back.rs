//! The store may fall back to an earlier state: a restart from a snapshot, a failover to a replica that is behind.
//!
//! No lock can prevent that the store then gives away what it no longer knows to be held. Each client must be told at its next
//! renewal, and fences must go on rising, so that the protected side can refuse the earlier holder.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::End;
use oarlock_core::{Guard, ResourceName};

use super::cases;
use crate::bench::{Bench, Peer, within};
use crate::failure::{Outcome, ensure};

cases!("fall_back": belief_follows_the_store [FallBack, Fences]);

/// Long enough for a failover: belief must end because of what the store says, not because the store was away.
const TTL: Duration = Duration::from_secs(12);

/// One fall-back, because it is dear on some stores, and three names: a holder that the store then knows as a waiter, one
/// that it does not know at all, and a waiter that it has forgotten.
async fn belief_follows_the_store(bench: Arc<Bench>) -> Outcome {
    let peer = bench.peer().await?;
    let (waited, fresh, queued) = (bench.name()?, bench.name()?, bench.name()?);
    let earlier = bench.raw().await?;
    let mut first = earlier.claim(&waited);
    first.ttl = TTL;
    earlier.granted(&first).await?;
    let (lock, done) = (peer.mutex(waited.as_str()).ttl(TTL), End::Done { memo: None });
    let second = tokio::spawn(async move { lock.lock().await });
    peer.waits(&waited, 1).await?;
    let mut ahead = earlier.claim(&queued);
    ahead.ttl = TTL;
    earlier.granted(&ahead).await?;

    within(bench.pace.soon * 10, "the store to remember", bench.fixture.remember()).await??;
    earlier.release(&waited, first.id, done.clone()).await?;
    let was_waiter = within(bench.pace.soon * 2, "its turn", second).await???;
    let was_unknown = peer.mutex(fresh.as_str()).ttl(TTL).lock().await?;
    let lock = peer.mutex(queued.as_str()).ttl(TTL).wait(TTL * 4);
    let forgotten = tokio::spawn(async move { lock.lock().await });
    peer.waits(&queued, 1).await?;
    within(bench.pace.soon * 15, "the store to fall back", bench.fixture.fall_back()).await??;

    let rival = bench.peer().await?;
    let before = bench.raw().await?;
    told(&bench, &was_waiter).await?;
    told(&bench, &was_unknown).await?;
    // The holders of then know nothing of it, and release once more.
    before.release(&waited, first.id, done.clone()).await?;
    before.release(&queued, ahead.id, done).await?;
    passed_on(&bench, &was_waiter, &waited, &rival).await?;
    passed_on(&bench, &was_unknown, &fresh, &rival).await?;
    let place = within(TTL + bench.pace.soon, "a forgotten waiter to be served", forgotten).await???;
    place.release().await?;
    Ok(())
}

async fn told(bench: &Bench, earlier: &Guard) -> Outcome {
    let told = within(TTL / 3 + bench.pace.soon * 2, "a holder to be told that the store fell back", earlier.lost());
    bench.note(format!("told: {:?}", told.await?));
    ensure!(!earlier.is_held(), "told, and yet believed");
    Ok(())
}

/// The next holder has a larger fence.
async fn passed_on(bench: &Bench, earlier: &Guard, name: &ResourceName, rival: &Peer) -> Outcome {
    let lock = rival.mutex(name.as_str()).wait(TTL * 2);
    let theirs = within(TTL + bench.pace.soon * 2, "the next holder", lock.lock()).await??;
    ensure!(theirs.fence() > earlier.fence(), "fence {} after {}", theirs.fence(), earlier.fence());
    theirs.release().await?;
    Ok(())
}
