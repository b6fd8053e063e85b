//! The server may go and come back.

use std::sync::Arc;

use super::cases;
use crate::bench::{Bench, within};
use crate::failure::{Outcome, ensure};

cases!("restart": fences_still_rise [Restart, Fences], holders_keep_it_or_are_told [Restart]);

async fn fences_still_rise(bench: Arc<Bench>) -> Outcome {
    let (peer, name) = (bench.peer().await?, bench.name()?);
    let guard = peer.mutex(name.as_str()).lock().await?;
    let fence = guard.fence();
    guard.release().await?;
    bench.fixture.restart().await?;
    let after = bench.peer().await?;
    let guard =
        within(bench.lease_ends_within(), "the lock after a restart", after.mutex(name.as_str()).lock()).await??;
    ensure!(guard.fence() > fence, "fence {} after {fence}", guard.fence());
    guard.release().await?;
    Ok(())
}

async fn holders_keep_it_or_are_told(bench: Arc<Bench>) -> Outcome {
    let (peer, name) = (bench.peer().await?, bench.name()?);
    let guard = peer.mutex(name.as_str()).lock().await?;
    bench.fixture.restart().await?;
    let rival = bench.peer().await?;
    let lock = rival.mutex(name.as_str());
    // Whether it survives is the store's affair; that nobody believes wrongly is ours.
    for _ in 0..20 {
        let theirs = lock.try_lock().await;
        if let Ok(Some(_)) = theirs {
            ensure!(!guard.is_held(), "still believed while another holds it");
            return Ok(());
        }
        tokio::time::sleep(bench.ttl() / 8).await;
    }
    ensure!(guard.is_held(), "lost, and yet nobody else can have it");
    guard.release().await?;
    bench.left_clean(&rival, &name).await
}
