//! A claim that is renewed does not end.

use std::sync::Arc;

use oarlock_core::event::Step;

use super::cases;
use crate::context::TestContext;
use crate::failure::{Outcome, ensure, ensure_eq};

cases!("renewal":
    a_holder_outlives_many_leases,
    a_waiter_keeps_its_place [Order],
    many_locks_are_kept_by_one_client,
    a_calm_run_has_no_alarms,
);

async fn a_holder_outlives_many_leases(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let guard = peer.mutex(name.as_str()).lock().await?;
    let lock = rival.mutex(name.as_str());
    for _ in 0..14 {
        tokio::time::sleep(context.ttl() / 4).await;
        ensure!(guard.is_held(), "lost: {:?}", guard.loss());
        ensure!(lock.try_lock().await?.is_none(), "given to another while it is renewed");
    }
    let state = rival.inspect(&name).await?;
    ensure_eq!(state.holders.len(), 1, "holders");
    let shown = context.info.capabilities.records.then(|| guard.fence());
    ensure_eq!(state.holders[0].fence, shown, "the fence after renewals");
    guard.release().await?;
    Ok(())
}

async fn a_waiter_keeps_its_place(context: Arc<TestContext>) -> Outcome {
    let (one, two, three) = (context.peer().await?, context.peer().await?, context.peer().await?);
    let name = context.name()?;
    let guard = one.mutex(name.as_str()).lock().await?;
    let (first, second) = (two.mutex(name.as_str()), three.mutex(name.as_str()));
    let first = tokio::spawn(async move { first.lock().await });
    two.waits(&name, 1).await?;
    let second = tokio::spawn(async move { second.lock().await });
    three.waits(&name, 1).await?;
    tokio::time::sleep(context.ttl() * 3).await;
    let requeued = two.events.read(|events| events.iter().any(|event| matches!(event.step, Step::Requeued)));
    ensure!(!requeued, "a waiter that was renewed lost its place");
    guard.release().await?;
    let guard = context.soon("the first waiter", first).await???;
    ensure!(!second.is_finished(), "the second was served before the first released");
    guard.release().await?;
    context.soon("the second waiter", second).await???.release().await?;
    Ok(())
}

async fn many_locks_are_kept_by_one_client(context: Arc<TestContext>) -> Outcome {
    let peer = context.peer().await?;
    let mut guards = Vec::new();
    for _ in 0..30 {
        guards.push(peer.mutex(context.name()?.as_str()).lock().await?);
    }
    tokio::time::sleep(context.ttl() * 2).await;
    for guard in guards {
        ensure!(guard.is_held(), "lost among many: {:?}", guard.loss());
        guard.release().await?;
    }
    Ok(())
}

async fn a_calm_run_has_no_alarms(context: Arc<TestContext>) -> Outcome {
    let (peer, name) = (context.peer().await?, context.name()?);
    let guard = peer.mutex(name.as_str()).ttl(context.ttl() * 2).lock().await?;
    tokio::time::sleep(context.ttl() * 4).await;
    guard.release().await?;
    let alarm = |step: &Step| matches!(step, Step::Suspect { .. } | Step::Lost { .. } | Step::ReleaseFailed { .. });
    let alarms =
        peer.events.read(|events| events.iter().filter(|event| alarm(&event.step)).cloned().collect::<Vec<_>>());
    ensure!(alarms.is_empty(), "alarms without a cause: {alarms:?}");
    let renewed = peer.events.read(|events| events.iter().filter(|e| matches!(e.step, Step::Renewed)).count());
    ensure!(renewed >= 3, "only {renewed} renewals in two leases");
    Ok(())
}
