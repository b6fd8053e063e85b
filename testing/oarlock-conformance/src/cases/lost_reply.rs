//! A request that took effect, and an answer that never came.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oarlock_core::event::Step;
use oarlock_core::memory::Verb;

use super::cases;
use crate::context::{TestContext, within};
use crate::failure::{Outcome, ensure, ensure_eq};

cases!("lost_reply":
    of_a_granted_attempt [DropReply],
    of_a_refused_try [DropReply],
    of_a_queued_attempt [DropReply],
    of_a_renewal [DropReply],
    of_a_release [DropReply],
    of_releases_that_carry_the_next_claim [DropReply],
);

async fn of_a_granted_attempt(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    peer.connection.drop_reply(Verb::Attempt).await?;
    let guard = context.soon("the retry", peer.mutex(name.as_str()).lock()).await??;
    let state = rival.inspect(&name).await?;
    ensure_eq!(state.holders.len(), 1, "holders after a retry");
    let shown = context.info.capabilities.records.then(|| guard.fence());
    ensure_eq!(state.holders[0].fence, shown, "the fence in the store");
    guard.release().await?;
    context.left_clean(&rival, &name).await
}

async fn of_a_refused_try(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    peer.connection.drop_reply(Verb::Attempt).await?;
    // A try does not wait, so it may fail; but then it must not hold what it does not know of.
    let answer = within(context.pace.soon * 2, "a try", peer.mutex(name.as_str()).try_lock()).await?;
    if let Ok(Some(guard)) = answer {
        guard.release().await?;
    }
    context.left_clean(&rival, &name).await
}

async fn of_a_queued_attempt(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let guard = rival.mutex(name.as_str()).lock().await?;
    peer.connection.drop_reply(Verb::Attempt).await?;
    let lock = peer.mutex(name.as_str());
    let waiter = tokio::spawn(async move { lock.lock().await });
    peer.waits(&name, 1).await?;
    let waiting = rival.inspect(&name).await?.waiters.count();
    ensure!(waiting.is_none_or(|count| count == 1), "{waiting:?} wait instead of one");
    guard.release().await?;
    context.soon("the waiter", waiter).await???.release().await?;
    context.left_clean(&rival, &name).await
}

async fn of_a_renewal(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let guard = peer.mutex(name.as_str()).lock().await?;
    peer.connection.drop_reply(Verb::Renew).await?;
    let recovered = peer.events.until(|events| {
        let suspect = events.iter().position(|event| matches!(event.step, Step::Suspect { .. }));
        suspect.is_some_and(|at| events[at..].iter().any(|event| matches!(event.step, Step::Recovered)))
    });
    within(context.lease_ends_within(), "a renewal after the lost one", recovered).await?;
    ensure!(guard.is_held(), "lost after one lost reply: {:?}", guard.loss());
    ensure!(rival.mutex(name.as_str()).try_lock().await?.is_none(), "given to another after one lost reply");
    guard.release().await?;
    context.left_clean(&rival, &name).await
}

async fn of_a_release(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let guard = peer.mutex(name.as_str()).lock().await?;
    peer.connection.drop_reply(Verb::Release).await?;
    // It may say that it does not know; the lock must be free soon either way.
    let _ = within(context.pace.soon * 2, "a release", guard.release()).await?;
    let guard = context.soon("the next holder", rival.mutex(name.as_str()).lock()).await??;
    tokio::time::sleep(context.ttl() / 2).await;
    ensure!(guard.is_held(), "a repeated release freed the next holder: {:?}", guard.loss());
    guard.release().await?;
    context.left_clean(&rival, &name).await
}

/// Two tasks of one process hold the lock for so short a time that, where the store can do that, a release carries the
/// claim of the other task.
async fn of_releases_that_carry_the_next_claim(context: Arc<TestContext>) -> Outcome {
    const ROUNDS: usize = 12;
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let last = Arc::new(AtomicU64::new(0));
    let holders = Arc::new(AtomicU64::new(0));
    // One is lost however fast the store is.
    peer.connection.drop_reply(Verb::Release).await?;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let (lock, last, holders) = (peer.mutex(name.as_str()), last.clone(), holders.clone());
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                let guard = lock.lock().await?;
                let others = holders.fetch_add(1, Ordering::SeqCst);
                ensure_eq!(others, 0, "holders beside this one");
                let (before, fence) = (last.load(Ordering::SeqCst), guard.fence().get());
                ensure!(fence > before, "fence {fence} after {before}");
                last.store(fence, Ordering::SeqCst);
                holders.fetch_sub(1, Ordering::SeqCst);
                // It may say that it does not know.
                let _ = guard.release().await;
            }
            Ok::<_, crate::failure::Failure>(())
        });
    }
    let all = async {
        loop {
            tokio::select! {
                done = tasks.join_next() => match done {
                    Some(done) => done??,
                    None => return Ok::<_, crate::failure::Failure>(()),
                },
                () = tokio::time::sleep(Duration::from_millis(7)) => peer.connection.drop_reply(Verb::Release).await?,
            }
        }
    };
    within(context.pace.soon * 4, "two tasks whose answers are lost", all).await??;
    context.left_clean(&rival, &name).await
}
