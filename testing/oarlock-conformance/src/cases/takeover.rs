//! The next one goes on when a holder dies.

use std::sync::Arc;

use oarlock_core::Weight;

use super::cases;
use crate::context::{TestContext, now, within};
use crate::failure::{Failure, Outcome, ensure};
use crate::history::{History, Hold, Rules};

cases!("takeover":
    a_killed_holder_is_followed [Kill],
    every_lock_of_a_killed_session_is_freed [Kill],
    a_lease_survives_its_session [Kill, OutlivesProcess],
);

async fn a_killed_holder_is_followed(context: Arc<TestContext>) -> Outcome {
    let name = context.name()?;
    let mut history = History::new();
    let mut holder = context.peer().await?;
    let mut asked = now();
    let mut guard = holder.mutex(name.as_str()).lock().await?;
    for owner in 0..3 {
        let granted = now();
        let next = context.peer().await?;
        let (lock, asks) = (next.mutex(name.as_str()), now());
        let waiter = tokio::spawn(async move { lock.lock().await });
        next.waits(&name, 1).await?;
        let died = now();
        holder.connection.kill().await?;
        let resource = name.to_string();
        history.death(&resource, died);
        let (weight, fence) = (Weight::All, guard.fence());
        let (capacity, queued) = (None, None);
        history.hold(Hold { resource, owner, weight, capacity, fence, asked, granted, ended: died, queued });
        let bound = context.death_noticed_within() * 2;
        (holder, asked, guard) = (next, asks, within(bound, "the next holder", waiter).await???);
    }
    let (resource, ended, granted) = (name.to_string(), now(), now());
    let (weight, fence, capacity, queued) = (Weight::All, guard.fence(), None, None);
    history.hold(Hold { resource, owner: 3, weight, capacity, fence, asked, granted, ended, queued });
    guard.release().await?;
    let rules = Rules::new().takeover_within(context.death_noticed_within()).least_takeovers(3).least_holds(4);
    let verdict = history.check(&rules);
    context.note(verdict.to_string());
    if verdict.is_ok() { Ok(()) } else { Err(Failure::new(verdict.to_string())) }
}

async fn every_lock_of_a_killed_session_is_freed(context: Arc<TestContext>) -> Outcome {
    let (dead, rival) = (context.peer().await?, context.peer().await?);
    let mut locks = Vec::new();
    for _ in 0..10 {
        let name = context.name()?;
        locks.push((name.clone(), dead.mutex(name.as_str()).lock().await?));
    }
    dead.connection.kill().await?;
    let bound = context.death_noticed_within();
    for (name, guard) in locks {
        let theirs = within(bound, "a lock of the dead", rival.mutex(name.as_str()).lock()).await??;
        ensure!(theirs.fence() > guard.fence(), "the next fence is not larger");
        theirs.release().await?;
    }
    Ok(())
}

async fn a_lease_survives_its_session(context: Arc<TestContext>) -> Outcome {
    let (dead, rival, name) = (context.raw().await?, context.raw().await?, context.name()?);
    let mut claim = dead.claim(&name);
    claim.lifetime = oarlock_core::Lifetime::Lease;
    claim.ttl = context.ttl() * 20;
    let grant = dead.granted(&claim).await?;
    dead.connection.kill().await?;
    tokio::time::sleep(context.ttl()).await;
    rival.pending(&rival.claim(&name)).await.map_err(|_| Failure::new("it ended with its session"))?;
    // A client that knows the claim can go on with it, as after a hand-over.
    ensure!(rival.granted(&claim).await?.fence == grant.fence, "a hand-over changed the fence");
    rival.release(&name, claim.id, oarlock_core::driver::End::Done { memo: None }).await?;
    Ok(())
}
