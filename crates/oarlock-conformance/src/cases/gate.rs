//! A process shows the store one contender of a name, not a thousand.

use std::sync::Arc;

use oarlock_core::state::Waiters;

use super::cases;
use crate::bench::{Bench, within};
use crate::failure::{Failure, Outcome, ensure, ensure_eq};

cases!("gate": one_contender_for_many [Waiters], everybody_gets_through, readers_are_not_serialised [Units]);

async fn one_contender_for_many(bench: Arc<Bench>) -> Outcome {
    let (holder, crowd, name) = (bench.peer().await?, bench.peer().await?, bench.name()?);
    let guard = holder.mutex(name.as_str()).lock().await?;
    let mut tasks = Vec::new();
    for _ in 0..40 {
        let lock = crowd.mutex(name.as_str());
        tasks.push(tokio::spawn(async move { lock.lock().await?.release().await.map(drop) }));
    }
    crowd.waits(&name, 1).await?;
    let look = async {
        loop {
            let state = holder.inspect(&name).await?;
            let Waiters::Listed(waiters) = &state.waiters else { return Err(Failure::new("waiters are not listed")) };
            ensure!(waiters.len() <= 1, "the store sees {} contenders of one process", waiters.len());
            if state.waiters.count() == Some(40) {
                return Ok(());
            }
            tokio::time::sleep(bench.ttl() / 10).await;
        }
    };
    within(bench.ttl() * 2, "the count of those behind", look).await??;
    guard.release().await?;
    for task in tasks {
        within(bench.pace.soon * 5, "everybody behind the gate", task).await???;
    }
    Ok(())
}

async fn everybody_gets_through(bench: Arc<Bench>) -> Outcome {
    let (peer, name) = (bench.peer().await?, bench.name()?);
    let mut tasks = Vec::new();
    for _ in 0..100 {
        let lock = peer.mutex(name.as_str()).wait_forever();
        tasks.push(tokio::spawn(async move { lock.lock().await?.release().await.map(drop) }));
    }
    for task in tasks {
        within(bench.pace.soon * 10, "everybody behind the gate", task).await???;
    }
    bench.left_clean(&peer, &name).await
}

async fn readers_are_not_serialised(bench: Arc<Bench>) -> Outcome {
    let (peer, name) = (bench.peer().await?, bench.name()?);
    let lock = peer.semaphore(name.as_str(), 8);
    let mut guards = Vec::new();
    for _ in 0..8 {
        guards.push(bench.soon("a permit beside others", lock.acquire(1)).await??);
    }
    ensure_eq!(peer.inspect(&name).await?.holders.len(), 8, "holders");
    Ok(())
}
