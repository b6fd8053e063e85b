//! Clients, guards and runtimes can be dropped in any order.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use oarlock_core::{ErrorKind, Locks, Runtime};

use super::cases;
use crate::context::{TestContext, now};
use crate::failure::{Failure, Outcome, ensure, ensure_eq};

cases!("close":
    a_shutdown_flushes_what_was_dropped,
    a_shutdown_ends_belief_in_what_it_frees,
    a_driver_ends_belief_before_it_closes_anything,
    a_shut_client_refuses,
    a_guard_can_be_dropped_outside_a_runtime,
    a_guard_can_outlive_its_runtime,
    an_engine_on_its_own_thread_survives_a_blocked_runtime,
    a_guard_outlives_its_client,
);

/// Longer than every bound here: a claim that only its lease ends fails the case.
const LONG: Duration = Duration::from_secs(60);

async fn a_shutdown_flushes_what_was_dropped(context: Arc<TestContext>) -> Outcome {
    let (peer, rival) = (context.peer().await?, context.peer().await?);
    let mut names = Vec::new();
    for _ in 0..20 {
        let name = context.name()?;
        drop(peer.mutex(name.as_str()).ttl(LONG).lock().await?);
        names.push(name);
    }
    peer.shutdown(context.pace.soon).await?;
    for name in names {
        let guard = rival.mutex(name.as_str()).try_lock().await?;
        ensure!(guard.is_some(), "a dropped guard was not flushed");
    }
    Ok(())
}

/// Stores that free a client's claims when it closes can grant them to another at once.
async fn a_shutdown_ends_belief_in_what_it_frees(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let guard = peer.mutex(name.as_str()).lock().await?;
    let lock = rival.mutex(name.as_str());
    let waiter = tokio::spawn(async move { lock.lock().await.map(|guard| (guard, now())) });
    rival.waits(&name, 1).await?;
    peer.shutdown(context.pace.soon).await?;
    let (theirs, _) = crate::context::within(context.lease_ends_within(), "the next holder", waiter).await???;
    ensure!(!guard.is_held(), "still believed while another holds it");
    drop(guard);
    theirs.release().await?;
    Ok(())
}

/// Another client over the same driver is told by nothing else.
async fn a_driver_ends_belief_before_it_closes_anything(context: Arc<TestContext>) -> Outcome {
    let (raw, rival, name) = (context.raw().await?, context.peer().await?, context.name()?);
    let mut claim = raw.claim(&name);
    claim.ttl = LONG;
    let Some(session) = raw.granted(&claim).await?.ends_with else {
        // A claim that lives by its lease alone survives.
        raw.driver.clone().close().await?;
        let theirs = rival.mutex(name.as_str()).try_lock().await?;
        ensure!(theirs.is_none(), "the lock was freed, and its holder was told of no end");
        return Ok(());
    };
    ensure!(!session.has_ended(), "ended before it was closed");
    let mut closing = raw.driver.clone().close();
    // Only once: what it does first is done then.
    let begun = poll_fn(|cx| Poll::Ready(closing.as_mut().poll(cx))).await;
    ensure!(session.has_ended(), "the store may know of the end, and belief lasts");
    match begun {
        Poll::Ready(closed) => closed?,
        Poll::Pending => closing.await?,
    }
    Ok(())
}

async fn a_shut_client_refuses(context: Arc<TestContext>) -> Outcome {
    let (peer, name) = (context.peer().await?, context.name()?);
    peer.shutdown(context.pace.soon).await?;
    let refused = peer.mutex(name.as_str()).lock().await;
    ensure_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::Closed), "a lock after the shutdown");
    ensure_eq!(
        peer.inspect(&name).await.err().map(|e| e.kind()),
        Some(ErrorKind::Closed),
        "an inspection after the shutdown"
    );
    peer.shutdown(context.pace.soon).await?;
    Ok(())
}

async fn a_guard_can_be_dropped_outside_a_runtime(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let guard = peer.mutex(name.as_str()).ttl(LONG).lock().await?;
    let dropped = std::thread::spawn(move || drop(guard)).join();
    ensure!(dropped.is_ok(), "a drop outside a runtime panicked");
    context.left_clean(&rival, &name).await
}

async fn a_guard_can_outlive_its_runtime(context: Arc<TestContext>) -> Outcome {
    let fixture = context.fixture.clone();
    let (name, ttl) = (context.name()?, context.ttl());
    let lock_name = name.clone();
    let ended = std::thread::spawn(move || -> Outcome {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let guard = runtime.block_on(async {
            let connection = fixture.connect().await?;
            let client = Locks::builder_over(connection.driver()).ttl(ttl).build()?;
            client.mutex(lock_name.as_str()).lock().await
        })?;
        runtime.shutdown_timeout(Duration::from_secs(1));
        drop(guard);
        Ok(())
    });
    let ended = tokio::task::spawn_blocking(move || ended.join()).await?;
    ended.map_err(|_| Failure::new("a guard dropped after its runtime panicked"))??;
    // No task is left to release it, so its lease ends it.
    let rival = context.peer().await?;
    let lock = rival.mutex(name.as_str()).wait(context.lease_ends_within());
    lock.lock().await?.release().await?;
    Ok(())
}

async fn an_engine_on_its_own_thread_survives_a_blocked_runtime(context: Arc<TestContext>) -> Outcome {
    let fixture = context.fixture.clone();
    let (name, ttl) = (context.name()?, context.ttl());
    let rival = context.peer().await?;
    let lock_name = name.clone();
    let blocked = tokio::task::spawn_blocking(move || -> Outcome<bool> {
        // One thread, which the caller blocks for three leases.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let runtime = Runtime::own_thread()?;
            let connection = runtime.run(async move { fixture.connect().await }).await??;
            let client = Locks::builder_over(connection.driver()).runtime(runtime).ttl(ttl).build()?;
            let guard = client.mutex(lock_name.as_str()).lock().await?;
            std::thread::sleep(ttl * 3);
            let held = guard.is_held();
            guard.release().await?;
            client.shutdown(Duration::from_secs(1)).await?;
            Ok(held)
        })
    });
    ensure!(blocked.await??, "a blocked runtime lost a lock that another thread should have kept");
    context.left_clean(&rival, &name).await
}

async fn a_guard_outlives_its_client(context: Arc<TestContext>) -> Outcome {
    let (connection, rival, name) = (context.connection().await?, context.peer().await?, context.name()?);
    let guard = {
        let client = Locks::builder_over(connection.driver()).ttl(context.ttl()).build()?;
        client.mutex(name.as_str()).lock().await?
    };
    tokio::time::sleep(context.ttl() * 2).await;
    ensure!(guard.is_held(), "lost when its client was dropped: {:?}", guard.loss());
    drop(guard);
    context.left_clean(&rival, &name).await
}
