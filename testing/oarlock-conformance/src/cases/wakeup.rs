//! Who waits is woken.

use std::sync::Arc;
use std::time::Duration;

use super::cases;
use crate::context::{TestContext, now};
use crate::failure::{Outcome, ensure};

cases!("wakeup":
    a_release_wakes_the_waiter [Push],
    a_drop_wakes_the_waiter [Push],
    a_withdrawal_wakes_the_one_behind [Push, Order],
    an_observer_sees_changes [Push],
    a_waiter_without_hints_gets_there,
);

/// Longer than every bound here, and so are the pauses between polls: only a hint can be in time.
const LONG: Duration = Duration::from_secs(60);

async fn a_release_wakes_the_waiter(context: Arc<TestContext>) -> Outcome {
    let (one, two, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let mut slowest = Duration::ZERO;
    for _ in 0..20 {
        let guard = one.mutex(name.as_str()).ttl(LONG).lock().await?;
        let before = two.events.read(<[_]>::len);
        let lock = two.mutex(name.as_str()).ttl(LONG);
        let waiter = tokio::spawn(async move { lock.lock().await.map(|guard| (guard, now())) });
        let queued = two.events.until(|events| {
            events[before..].iter().any(|event| matches!(event.step, oarlock_core::Step::Waiting { .. }))
        });
        context.soon("a claim to queue", queued).await?;
        let released = now();
        guard.release().await?;
        let (guard, granted) = context.soon("the waiter", waiter).await???;
        slowest = slowest.max(granted.since(released));
        guard.release().await?;
    }
    context.note(format!("slowest of 20 hand-overs {:.1} ms", slowest.as_secs_f64() * 1000.0));
    Ok(())
}

async fn a_drop_wakes_the_waiter(context: Arc<TestContext>) -> Outcome {
    let (one, two, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let guard = one.mutex(name.as_str()).ttl(LONG).lock().await?;
    let lock = two.mutex(name.as_str()).ttl(LONG);
    let waiter = tokio::spawn(async move { lock.lock().await });
    two.waits(&name, 1).await?;
    drop(guard);
    context.soon("the waiter", waiter).await???.release().await?;
    Ok(())
}

async fn a_withdrawal_wakes_the_one_behind(context: Arc<TestContext>) -> Outcome {
    let (one, two, three) = (context.peer().await?, context.peer().await?, context.peer().await?);
    let name = context.name()?;
    let guard = one.mutex(name.as_str()).ttl(LONG).lock().await?;
    let lock = two.mutex(name.as_str()).ttl(LONG);
    let head = tokio::spawn(async move { lock.lock().await });
    two.waits(&name, 1).await?;
    let lock = three.mutex(name.as_str()).ttl(LONG);
    let waiter = tokio::spawn(async move { lock.lock().await });
    three.waits(&name, 1).await?;
    head.abort();
    let _ = head.await;
    guard.release().await?;
    context.soon("the one behind", waiter).await???.release().await?;
    Ok(())
}

async fn an_observer_sees_changes(context: Arc<TestContext>) -> Outcome {
    let (one, two, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let mut watch = two.watch(&name).await?;
    let guard = one.mutex(name.as_str()).lock().await?;
    ensure!(context.soon("the notification of a grant", watch.changed()).await?.is_some(), "the watch ended");
    let mut watch = two.watch(&name).await?;
    guard.release().await?;
    ensure!(context.soon("the notification of a release", watch.changed()).await?.is_some(), "the watch ended");
    Ok(())
}

async fn a_waiter_without_hints_gets_there(context: Arc<TestContext>) -> Outcome {
    let (one, two, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let guard = one.mutex(name.as_str()).lock().await?;
    let lock = two.mutex(name.as_str()).spin();
    let waiter = tokio::spawn(async move { lock.lock().await });
    two.waits(&name, 1).await?;
    guard.release().await?;
    context.soon("the spinning waiter", waiter).await???.release().await?;
    Ok(())
}
