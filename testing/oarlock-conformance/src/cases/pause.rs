//! The server may stop for a while without ending.

use std::sync::Arc;

use super::cases;
use crate::context::{TestContext, within};
use crate::failure::{Outcome, ensure};

cases!("pause": belief_does_not_wait_for_the_server [Pause, Fences], a_short_stop_costs_nothing [Pause]);

async fn belief_does_not_wait_for_the_server(context: Arc<TestContext>) -> Outcome {
    let (peer, name) = (context.peer().await?, context.name()?);
    let guard = peer.mutex(name.as_str()).lock().await?;
    context.fixture.pause().await?;
    let lost = within(context.lease_ends_within(), "the end of belief", guard.lost()).await;
    context.fixture.resume().await?;
    lost?;
    let rival = context.peer().await?;
    let lock = rival.mutex(name.as_str());
    let theirs = within(context.lease_ends_within(), "the next holder", lock.lock()).await??;
    ensure!(theirs.fence() > guard.fence(), "fence {} after {}", theirs.fence(), guard.fence());
    theirs.release().await?;
    Ok(())
}

async fn a_short_stop_costs_nothing(context: Arc<TestContext>) -> Outcome {
    let (peer, name) = (context.peer().await?, context.name()?);
    let guard = peer.mutex(name.as_str()).lock().await?;
    context.fixture.pause().await?;
    tokio::time::sleep(context.ttl() / 8).await;
    context.fixture.resume().await?;
    tokio::time::sleep(context.ttl() * 2).await;
    ensure!(guard.is_held(), "lost, although the server was back in time: {:?}", guard.loss());
    guard.release().await?;
    Ok(())
}
