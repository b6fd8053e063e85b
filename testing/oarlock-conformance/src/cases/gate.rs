//! A process shows the store one contender of a name, not a thousand.

use std::sync::Arc;

use oarlock_core::Claim;
use oarlock_core::state::Waiters;

use super::cases;
use crate::context::{TestContext, within};
use crate::failure::{Failure, Outcome, ensure, ensure_eq};

cases!("gate": one_contender_for_many [Waiters], every_task_gets_through, readers_are_not_serialised [Units]);

async fn one_contender_for_many(context: Arc<TestContext>) -> Outcome {
    let (holder, contender, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let guard = holder.mutex(name.as_str()).lock().await?;
    let mut tasks = Vec::new();
    for _ in 0..40 {
        let lock = contender.mutex(name.as_str());
        tasks.push(tokio::spawn(async move { lock.lock().await?.release().await.map(drop) }));
    }
    contender.waits(&name, 1).await?;
    let poll = async {
        loop {
            let state = holder.inspect(&name).await?;
            let Waiters::Listed(waiters) = &state.waiters else { return Err(Failure::new("waiters are not listed")) };
            ensure!(waiters.len() <= 1, "the store sees {} contenders of one process", waiters.len());
            if state.waiters.count() == Some(40) {
                return Ok(());
            }
            tokio::time::sleep(context.ttl() / 10).await;
        }
    };
    // The store learns of those that came later with the next renewal of the first.
    within(Claim::MAX_WAITER_TTL, "the count of those behind", poll).await??;
    guard.release().await?;
    for task in tasks {
        within(context.pace.soon * 5, "the tasks behind the gate", task).await???;
    }
    Ok(())
}

async fn every_task_gets_through(context: Arc<TestContext>) -> Outcome {
    let (peer, name) = (context.peer().await?, context.name()?);
    let mut tasks = Vec::new();
    for _ in 0..100 {
        let lock = peer.mutex(name.as_str()).wait_forever();
        tasks.push(tokio::spawn(async move { lock.lock().await?.release().await.map(drop) }));
    }
    for task in tasks {
        within(context.pace.soon * 10, "the tasks behind the gate", task).await???;
    }
    context.left_clean(&peer, &name).await
}

async fn readers_are_not_serialised(context: Arc<TestContext>) -> Outcome {
    let (peer, name) = (context.peer().await?, context.name()?);
    let lock = peer.semaphore(name.as_str(), 8);
    let mut guards = Vec::new();
    for _ in 0..8 {
        guards.push(context.soon("a permit beside others", lock.acquire(1)).await??);
    }
    ensure_eq!(peer.inspect(&name).await?.holders.len(), 8, "holders");
    Ok(())
}
