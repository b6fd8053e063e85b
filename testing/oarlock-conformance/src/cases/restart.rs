//! The server restarts.

use std::sync::Arc;

use super::cases;
use crate::context::{TestContext, within};
use crate::failure::{Outcome, ensure};

cases!("restart": fences_still_rise [Restart, Fences], holders_keep_it_or_learn_of_the_loss [Restart]);

async fn fences_still_rise(context: Arc<TestContext>) -> Outcome {
    let (peer, name) = (context.peer().await?, context.name()?);
    let guard = peer.mutex(name.as_str()).lock().await?;
    let fence = guard.fence();
    guard.release().await?;
    context.fixture.restart().await?;
    let after = context.peer().await?;
    let guard =
        within(context.lease_ends_within(), "the lock after a restart", after.mutex(name.as_str()).lock()).await??;
    ensure!(guard.fence() > fence, "fence {} after {fence}", guard.fence());
    guard.release().await?;
    Ok(())
}

async fn holders_keep_it_or_learn_of_the_loss(context: Arc<TestContext>) -> Outcome {
    let (peer, name) = (context.peer().await?, context.name()?);
    let guard = peer.mutex(name.as_str()).lock().await?;
    context.fixture.restart().await?;
    let rival = context.peer().await?;
    let lock = rival.mutex(name.as_str());
    // The store decides whether the claim survives. No client may believe wrongly.
    for _ in 0..20 {
        let theirs = lock.try_lock().await;
        if let Ok(Some(_)) = theirs {
            ensure!(!guard.is_held(), "still believed while another holds it");
            return Ok(());
        }
        tokio::time::sleep(context.ttl() / 8).await;
    }
    ensure!(guard.is_held(), "lost, but no other client can have it");
    guard.release().await?;
    context.left_clean(&rival, &name).await
}
