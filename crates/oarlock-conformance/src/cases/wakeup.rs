//! Who waits is woken.

use std::sync::Arc;
use std::time::Duration;

use super::cases;
use crate::bench::{Bench, now};
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

async fn a_release_wakes_the_waiter(bench: Arc<Bench>) -> Outcome {
    let (one, two, name) = (bench.peer().await?, bench.peer().await?, bench.name()?);
    let mut slowest = Duration::ZERO;
    for _ in 0..20 {
        let guard = one.mutex(name.as_str()).ttl(LONG).lock().await?;
        let before = two.events.look(<[_]>::len);
        let lock = two.mutex(name.as_str()).ttl(LONG);
        let waiter = tokio::spawn(async move { lock.lock().await.map(|guard| (guard, now())) });
        let queued = two.events.until(|events| {
            events[before..].iter().any(|event| matches!(event.step, oarlock_core::Step::Waiting { .. }))
        });
        bench.soon("a claim to queue", queued).await?;
        let released = now();
        guard.release().await?;
        let (guard, granted) = bench.soon("the waiter", waiter).await???;
        slowest = slowest.max(granted.since(released));
        guard.release().await?;
    }
    bench.note(format!("slowest of 20 hand-overs {:.1} ms", slowest.as_secs_f64() * 1000.0));
    Ok(())
}

async fn a_drop_wakes_the_waiter(bench: Arc<Bench>) -> Outcome {
    let (one, two, name) = (bench.peer().await?, bench.peer().await?, bench.name()?);
    let guard = one.mutex(name.as_str()).ttl(LONG).lock().await?;
    let lock = two.mutex(name.as_str()).ttl(LONG);
    let waiter = tokio::spawn(async move { lock.lock().await });
    two.waits(&name, 1).await?;
    drop(guard);
    bench.soon("the waiter", waiter).await???.release().await?;
    Ok(())
}

async fn a_withdrawal_wakes_the_one_behind(bench: Arc<Bench>) -> Outcome {
    let (one, two, three) = (bench.peer().await?, bench.peer().await?, bench.peer().await?);
    let name = bench.name()?;
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
    bench.soon("the one behind", waiter).await???.release().await?;
    Ok(())
}

async fn an_observer_sees_changes(bench: Arc<Bench>) -> Outcome {
    let (one, two, name) = (bench.peer().await?, bench.peer().await?, bench.name()?);
    let mut watch = two.watch(&name).await?;
    let guard = one.mutex(name.as_str()).lock().await?;
    ensure!(bench.soon("word of a grant", watch.changed()).await?.is_some(), "the watch ended");
    let mut watch = two.watch(&name).await?;
    guard.release().await?;
    ensure!(bench.soon("word of a release", watch.changed()).await?.is_some(), "the watch ended");
    Ok(())
}

async fn a_waiter_without_hints_gets_there(bench: Arc<Bench>) -> Outcome {
    let (one, two, name) = (bench.peer().await?, bench.peer().await?, bench.name()?);
    let guard = one.mutex(name.as_str()).lock().await?;
    let lock = two.mutex(name.as_str()).spin();
    let waiter = tokio::spawn(async move { lock.lock().await });
    two.waits(&name, 1).await?;
    guard.release().await?;
    bench.soon("the spinning waiter", waiter).await???.release().await?;
    Ok(())
}
