//! First come, first served, where that was asked for.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::cases;
use crate::bench::{Bench, within};
use crate::failure::{Failure, Outcome, ensure, ensure_eq};

cases!("order":
    grants_follow_arrival [Fair],
    an_unfair_claim_queues_behind_fair_ones [Fair],
    readers_wait_behind_a_waiting_writer [Fair, Units],
    who_gives_up_frees_his_place [Fair],
);

async fn grants_follow_arrival(bench: Arc<Bench>) -> Outcome {
    let name = bench.name()?;
    let first = bench.peer().await?;
    let guard = first.mutex(name.as_str())?.fair().lock().await?;
    let (served, mut order) = mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    // Two of them share a connection: the order must hold within a client, too.
    let peers = [Arc::new(bench.peer().await?), Arc::new(bench.peer().await?), Arc::new(bench.peer().await?)];
    for number in 0..6 {
        let peer = peers[number % 3].clone();
        let (lock, served) = (peer.mutex(name.as_str())?.fair(), served.clone());
        tasks.push(tokio::spawn(async move {
            let guard = lock.lock().await?;
            let _ = served.send((number, guard.fence()));
            guard.release().await.map(drop)
        }));
        peer.waits(&name, number / 3 + 1).await?;
    }
    guard.release().await?;
    let mut fences = Vec::new();
    for expected in 0..6 {
        let next = within(bench.pace.soon * 2, "the next in the queue", order.recv()).await?;
        let (number, fence) = next.ok_or_else(|| Failure::new("a waiter failed"))?;
        ensure_eq!(number, expected, "who was served");
        fences.push(fence);
    }
    ensure!(fences.is_sorted_by(|a, b| a < b), "fences do not follow the order of grants: {fences:?}");
    for task in tasks {
        task.await??;
    }
    Ok(())
}

async fn an_unfair_claim_queues_behind_fair_ones(bench: Arc<Bench>) -> Outcome {
    let name = bench.name()?;
    let (one, two, three) = (bench.peer().await?, bench.peer().await?, bench.peer().await?);
    let guard = one.mutex(name.as_str())?.lock().await?;
    let fair = two.mutex(name.as_str())?.fair();
    let waiter = tokio::spawn(async move { fair.lock().await });
    two.waits(&name, 1).await?;
    guard.release().await?;
    // Whether or not the waiter has taken its turn by now, nobody may come before it.
    ensure!(three.mutex(name.as_str())?.try_lock().await?.is_none(), "an unfair claim passed a fair one");
    bench.soon("the fair waiter", waiter).await???.release().await?;
    Ok(())
}

async fn readers_wait_behind_a_waiting_writer(bench: Arc<Bench>) -> Outcome {
    let name = bench.name()?;
    let (one, two, three) = (bench.peer().await?, bench.peer().await?, bench.peer().await?);
    let reader = one.rwlock(name.as_str())?.read().await?;
    let lock = two.rwlock(name.as_str())?;
    let writer = tokio::spawn(async move { lock.write().await });
    two.waits(&name, 1).await?;
    let late = three.rwlock(name.as_str())?;
    ensure!(late.try_read().await?.is_none(), "a reader passed a waiting writer");
    reader.release().await?;
    let writer = bench.soon("the writer", writer).await???;
    let reader = tokio::spawn(async move { late.read().await });
    three.waits(&name, 1).await?;
    writer.release().await?;
    bench.soon("the reader after the writer", reader).await???.release().await?;
    Ok(())
}

async fn who_gives_up_frees_his_place(bench: Arc<Bench>) -> Outcome {
    let name = bench.name()?;
    let (one, two, three) = (bench.peer().await?, bench.peer().await?, bench.peer().await?);
    let guard = one.mutex(name.as_str())?.fair().lock().await?;
    let patient = three.mutex(name.as_str())?.fair();
    let brief = two.mutex(name.as_str())?.fair().wait(Duration::from_millis(150));
    let gave_up = tokio::spawn(async move { brief.lock().await });
    two.waits(&name, 1).await?;
    let waiter = tokio::spawn(async move { patient.lock().await });
    three.waits(&name, 1).await?;
    let refused = within(bench.pace.soon, "the end of a bounded wait", gave_up).await??;
    ensure!(refused.is_err(), "a bounded wait was granted what is held");
    guard.release().await?;
    bench.soon("the one behind who gave up", waiter).await???.release().await?;
    Ok(())
}
