//! First come, first served.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use oarlock_core::state::{Query, Waiters};
use oarlock_core::{Fence, ResourceName};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::timeout;

use super::cases;
use crate::context::{TestContext, within};
use crate::failure::{Failure, Outcome, ensure, ensure_eq};

cases!("order":
    grants_follow_arrival [Order],
    every_task_has_a_place_if_it_asks_for_one [Order],
    the_tasks_of_a_process_wait_behind_its_place [Order],
    a_try_is_refused_while_others_wait [Order],
    readers_wait_behind_a_waiting_writer [Order, Units],
    a_light_claim_is_not_called_past_a_heavy_one [Order, Units],
    who_gives_up_frees_his_place [Order],
);

/// How long a claim that must not be granted is observed.
const QUIET: Duration = Duration::from_millis(50);

async fn grants_follow_arrival(context: Arc<TestContext>) -> Outcome {
    let name = context.name()?;
    let first = context.peer().await?;
    let guard = first.mutex(name.as_str()).lock().await?;
    let (served, mut order) = mpsc::unbounded_channel();
    let (mut tasks, mut peers) = (Vec::new(), Vec::new());
    for number in 0..5 {
        let peer = context.peer().await?;
        let (lock, served) = (peer.mutex(name.as_str()), served.clone());
        // One of them polls: it keeps its place, too.
        let lock = if number == 2 { lock.spin() } else { lock };
        tasks.push(tokio::spawn(async move {
            let guard = lock.lock().await?;
            let _ = served.send((number, guard.fence()));
            guard.release().await.map(drop)
        }));
        peer.waits(&name, 1).await?;
        peers.push(peer);
    }
    guard.release().await?;
    follows(&context, &mut order, &[0, 1, 2, 3, 4]).await?;
    for task in tasks {
        task.await??;
    }
    Ok(())
}

async fn every_task_has_a_place_if_it_asks_for_one(context: Arc<TestContext>) -> Outcome {
    let name = context.name()?;
    let first = context.peer().await?;
    let guard = first.mutex(name.as_str()).lock().await?;
    let (served, mut order) = mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    // Two of them share a connection: the order must hold within a client, too.
    let peers = [Arc::new(context.peer().await?), Arc::new(context.peer().await?), Arc::new(context.peer().await?)];
    for number in 0..6 {
        let peer = peers[number % 3].clone();
        let (lock, served) = (peer.mutex(name.as_str()).fair(), served.clone());
        tasks.push(tokio::spawn(async move {
            let guard = lock.lock().await?;
            let _ = served.send((number, guard.fence()));
            guard.release().await.map(drop)
        }));
        peer.waits(&name, number / 3 + 1).await?;
    }
    guard.release().await?;
    follows(&context, &mut order, &[0, 1, 2, 3, 4, 5]).await?;
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// One process has many tasks, another has one: shares are equal for each process.
async fn the_tasks_of_a_process_wait_behind_its_place(context: Arc<TestContext>) -> Outcome {
    let name = context.name()?;
    let (first, many, one) = (context.peer().await?, context.peer().await?, context.peer().await?);
    let guard = first.mutex(name.as_str()).lock().await?;
    let (served, mut order) = mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for (number, peer) in [(0, &many), (1, &one), (2, &many)] {
        let (lock, served) = (peer.mutex(name.as_str()), served.clone());
        let task = async move {
            let guard = lock.lock().await?;
            let _ = served.send((number, guard.fence()));
            guard.release().await.map(drop)
        };
        let mut task = Box::pin(task);
        // The first poll puts it into the gate, behind the task that came before.
        let pending = poll_fn(|context| Poll::Ready(task.as_mut().poll(context).is_pending())).await;
        ensure!(pending, "a task was granted what is held");
        tasks.push(tokio::spawn(task));
        if number < 2 {
            peer.waits(&name, 1).await?;
        }
    }
    if let Some(waiting) = waiters(&context, &name).await? {
        ensure_eq!(waiting, 2, "places in the queue of two processes");
    }
    guard.release().await?;
    follows(&context, &mut order, &[0, 1, 2]).await?;
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// How many places the store's queue has; `None` where it does not show them.
async fn waiters(context: &TestContext, name: &ResourceName) -> Outcome<Option<usize>> {
    let raw = context.raw().await?;
    let page = raw.driver.clone().inspect(Query::name(name.clone())).await?;
    Ok(page.resources.first().and_then(|state| match &state.waiters {
        Waiters::Listed(waiters) => Some(waiters.len()),
        _ => None,
    }))
}

async fn follows(context: &TestContext, order: &mut UnboundedReceiver<(usize, Fence)>, expected: &[usize]) -> Outcome {
    let mut fences = Vec::new();
    for expected in expected {
        let next = within(context.pace.soon * 2, "the next in the queue", order.recv()).await?;
        let (number, fence) = next.ok_or_else(|| Failure::new("a waiter failed"))?;
        ensure_eq!(number, *expected, "who was served");
        fences.push(fence);
    }
    ensure!(fences.is_sorted_by(|a, b| a < b), "fences do not follow the order of grants: {fences:?}");
    Ok(())
}

async fn a_try_is_refused_while_others_wait(context: Arc<TestContext>) -> Outcome {
    let name = context.name()?;
    let (one, two, three) = (context.peer().await?, context.peer().await?, context.peer().await?);
    let guard = one.mutex(name.as_str()).lock().await?;
    let lock = two.mutex(name.as_str());
    let waiter = tokio::spawn(async move { lock.lock().await });
    two.waits(&name, 1).await?;
    guard.release().await?;
    // Whether or not the waiter has taken its turn by now, no claim may come before it.
    ensure!(three.mutex(name.as_str()).try_lock().await?.is_none(), "a try passed a claim that waits");
    context.soon("the waiter", waiter).await???.release().await?;
    Ok(())
}

async fn readers_wait_behind_a_waiting_writer(context: Arc<TestContext>) -> Outcome {
    let name = context.name()?;
    let (one, two, three) = (context.peer().await?, context.peer().await?, context.peer().await?);
    let reader = one.rwlock(name.as_str()).read().await?;
    let lock = two.rwlock(name.as_str());
    let writer = tokio::spawn(async move { lock.write().await });
    two.waits(&name, 1).await?;
    let late = three.rwlock(name.as_str());
    ensure!(late.try_read().await?.is_none(), "a reader passed a waiting writer");
    reader.release().await?;
    let writer = context.soon("the writer", writer).await???;
    let reader = tokio::spawn(async move { late.read().await });
    three.waits(&name, 1).await?;
    writer.release().await?;
    context.soon("the reader after the writer", reader).await???.release().await?;
    Ok(())
}

/// A release makes room for the light claim, and none for the heavy one before it.
async fn a_light_claim_is_not_called_past_a_heavy_one(context: Arc<TestContext>) -> Outcome {
    let name = context.name()?;
    let holder = context.peer().await?;
    let permits = holder.semaphore(name.as_str(), 4);
    let (two, last) = (permits.acquire(2).await?, permits.acquire(2).await?);
    let (served, mut order) = mpsc::unbounded_channel();
    let (mut tasks, mut peers) = (Vec::new(), Vec::new());
    for (number, weight) in [(0, 4), (1, 1)] {
        let peer = context.peer().await?;
        let (lock, served) = (peer.semaphore(name.as_str(), 4), served.clone());
        tasks.push(tokio::spawn(async move {
            let guard = lock.acquire(weight).await?;
            let _ = served.send((number, guard.fence()));
            guard.release().await.map(drop)
        }));
        peer.waits(&name, 1).await?;
        peers.push(peer);
    }
    // Nothing happens where the rule is kept: there is no event to wait for.
    ensure!(timeout(QUIET, order.recv()).await.is_err(), "a claim was granted what is held");
    two.release().await?;
    ensure!(timeout(QUIET, order.recv()).await.is_err(), "a light claim was granted before the heavy one");
    last.release().await?;
    follows(&context, &mut order, &[0, 1]).await?;
    for task in tasks {
        task.await??;
    }
    Ok(())
}

async fn who_gives_up_frees_his_place(context: Arc<TestContext>) -> Outcome {
    let name = context.name()?;
    let (one, two, three) = (context.peer().await?, context.peer().await?, context.peer().await?);
    let guard = one.mutex(name.as_str()).lock().await?;
    let patient = three.mutex(name.as_str());
    let brief = two.mutex(name.as_str()).wait(Duration::from_millis(150));
    let gave_up = tokio::spawn(async move { brief.lock().await });
    two.waits(&name, 1).await?;
    let waiter = tokio::spawn(async move { patient.lock().await });
    three.waits(&name, 1).await?;
    let refused = within(context.pace.soon, "the end of a bounded wait", gave_up).await??;
    ensure!(refused.is_err(), "a bounded wait was granted what is held");
    guard.release().await?;
    context.soon("the one behind who gave up", waiter).await???.release().await?;
    Ok(())
}
