//! A request that took effect, and an answer that never came.

use std::sync::Arc;

use oarlock_core::event::Step;
use oarlock_core::memory::Verb;

use super::cases;
use crate::bench::{Bench, within};
use crate::failure::{Outcome, ensure, ensure_eq};

cases!("lost_reply":
    of_a_granted_attempt [DropReply],
    of_a_refused_try [DropReply],
    of_a_queued_attempt [DropReply],
    of_a_renewal [DropReply],
    of_a_release [DropReply],
);

async fn of_a_granted_attempt(bench: Arc<Bench>) -> Outcome {
    let (peer, rival, name) = (bench.peer().await?, bench.peer().await?, bench.name()?);
    peer.connection.drop_reply(Verb::Attempt).await?;
    let guard = bench.soon("the retry", peer.mutex(name.as_str()).lock()).await??;
    let state = rival.inspect(&name).await?;
    ensure_eq!(state.holders.len(), 1, "holders after a retry");
    let shown = bench.info.capabilities.records.then(|| guard.fence());
    ensure_eq!(state.holders[0].fence, shown, "the fence in the store");
    guard.release().await?;
    bench.left_clean(&rival, &name).await
}

async fn of_a_refused_try(bench: Arc<Bench>) -> Outcome {
    let (peer, rival, name) = (bench.peer().await?, bench.peer().await?, bench.name()?);
    peer.connection.drop_reply(Verb::Attempt).await?;
    // A try does not wait, so it may fail; but then it must not hold what it does not know of.
    let answer = within(bench.pace.soon * 2, "a try", peer.mutex(name.as_str()).try_lock()).await?;
    if let Ok(Some(guard)) = answer {
        guard.release().await?;
    }
    bench.left_clean(&rival, &name).await
}

async fn of_a_queued_attempt(bench: Arc<Bench>) -> Outcome {
    let (peer, rival, name) = (bench.peer().await?, bench.peer().await?, bench.name()?);
    let guard = rival.mutex(name.as_str()).lock().await?;
    peer.connection.drop_reply(Verb::Attempt).await?;
    let lock = peer.mutex(name.as_str());
    let waiter = tokio::spawn(async move { lock.lock().await });
    peer.waits(&name, 1).await?;
    let waiting = rival.inspect(&name).await?.waiters.count();
    ensure!(waiting.is_none_or(|count| count == 1), "{waiting:?} wait instead of one");
    guard.release().await?;
    bench.soon("the waiter", waiter).await???.release().await?;
    bench.left_clean(&rival, &name).await
}

async fn of_a_renewal(bench: Arc<Bench>) -> Outcome {
    let (peer, rival, name) = (bench.peer().await?, bench.peer().await?, bench.name()?);
    let guard = peer.mutex(name.as_str()).lock().await?;
    peer.connection.drop_reply(Verb::Renew).await?;
    let recovered = peer.events.until(|events| {
        let suspect = events.iter().position(|event| matches!(event.step, Step::Suspect { .. }));
        suspect.is_some_and(|at| events[at..].iter().any(|event| matches!(event.step, Step::Recovered)))
    });
    within(bench.lease_ends_within(), "a renewal after the lost one", recovered).await?;
    ensure!(guard.is_held(), "lost after one lost reply: {:?}", guard.loss());
    ensure!(rival.mutex(name.as_str()).try_lock().await?.is_none(), "given to another after one lost reply");
    guard.release().await?;
    bench.left_clean(&rival, &name).await
}

async fn of_a_release(bench: Arc<Bench>) -> Outcome {
    let (peer, rival, name) = (bench.peer().await?, bench.peer().await?, bench.name()?);
    let guard = peer.mutex(name.as_str()).lock().await?;
    peer.connection.drop_reply(Verb::Release).await?;
    // It may say that it does not know; the lock must be free soon either way.
    let _ = within(bench.pace.soon * 2, "a release", guard.release()).await?;
    let guard = bench.soon("the next holder", rival.mutex(name.as_str()).lock()).await??;
    tokio::time::sleep(bench.ttl() / 2).await;
    ensure!(guard.is_held(), "a repeated release freed the next holder: {:?}", guard.loss());
    guard.release().await?;
    bench.left_clean(&rival, &name).await
}
