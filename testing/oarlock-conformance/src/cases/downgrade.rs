//! A writer becomes a reader without a release.

use std::sync::Arc;

use oarlock_core::Kind;

use super::cases;
use crate::context::TestContext;
use crate::failure::{Outcome, ensure, ensure_eq};

cases!("downgrade":
    it_keeps_the_fence_and_lets_readers_in [Units],
    no_writer_slips_in_between [Units, Order],
    the_lighter_hold_is_renewed [Units],
);

async fn it_keeps_the_fence_and_lets_readers_in(context: Arc<TestContext>) -> Outcome {
    let (one, two, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let (ours, theirs) = (one.rwlock(name.as_str()), two.rwlock(name.as_str()));
    let writer = ours.write().await?;
    let fence = writer.fence();
    ensure!(theirs.try_read().await?.is_none(), "a reader came in beside a writer");
    let reader = writer.downgrade().await?;
    ensure_eq!(reader.fence(), fence, "the fence after a downgrade");
    ensure_eq!(reader.kind(), Kind::Read, "the kind after a downgrade");
    let other = theirs.try_read().await?;
    ensure!(other.is_some(), "no reader beside a downgraded writer");
    ensure!(theirs.try_write().await?.is_none(), "a writer beside readers");
    reader.release().await?;
    Ok(())
}

async fn no_writer_slips_in_between(context: Arc<TestContext>) -> Outcome {
    let (one, two, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let lock = two.rwlock(name.as_str());
    let writer = one.rwlock(name.as_str()).write().await?;
    let rival = tokio::spawn(async move { lock.write().await });
    two.waits(&name, 1).await?;
    let reader = writer.downgrade().await?;
    tokio::time::sleep(context.ttl() / 2).await;
    ensure!(reader.is_held() && !rival.is_finished(), "a writer slipped in during a downgrade");
    reader.release().await?;
    context.soon("the waiting writer", rival).await???.release().await?;
    Ok(())
}

async fn the_lighter_hold_is_renewed(context: Arc<TestContext>) -> Outcome {
    let (peer, name) = (context.peer().await?, context.name()?);
    let reader = peer.rwlock(name.as_str()).write().await?.downgrade().await?;
    tokio::time::sleep(context.ttl() * 2).await;
    ensure!(reader.is_held(), "lost after its downgrade: {:?}", reader.loss());
    let state = peer.inspect(&name).await?;
    ensure_eq!(state.holders.len(), 1, "holders");
    ensure_eq!(state.holders[0].weight, oarlock_core::Weight::ONE, "the weight shown");
    reader.release().await?;
    Ok(())
}
