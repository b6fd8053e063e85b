//! An owner never waits for itself.

use std::sync::Arc;

use oarlock_core::{ErrorKind, Owner};

use super::cases;
use crate::context::TestContext;
use crate::failure::{Outcome, ensure, ensure_eq};

cases!("owner":
    waiting_for_oneself_is_an_error,
    owners_are_apart,
    a_reader_can_read_again [Units],
    a_reader_cannot_wait_to_write [Units],
    more_permits_are_waited_for_at_the_head_alone [Units, Order],
);

async fn waiting_for_oneself_is_an_error(context: Arc<TestContext>) -> Outcome {
    let (peer, name, owner) = (context.peer().await?, context.name()?, Owner::new());
    let lock = peer.mutex(name.as_str()).owner(&owner);
    let guard = lock.lock().await?;
    let refused = context.soon("the refusal", lock.lock()).await?;
    ensure_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::SelfDeadlock), "waiting for oneself");
    ensure!(lock.try_lock().await?.is_none(), "the owner was granted its own lock a second time");
    guard.release().await?;
    drop(context.soon("the lock again", lock.lock()).await??);
    context.soon("the lock after a drop", lock.lock()).await??.release().await?;
    Ok(())
}

async fn owners_are_apart(context: Arc<TestContext>) -> Outcome {
    let (peer, name) = (context.peer().await?, context.name()?);
    let guard = peer.mutex(name.as_str()).owner(&Owner::new()).lock().await?;
    let lock = peer.mutex(name.as_str()).owner(&Owner::new());
    let other = tokio::spawn(async move { lock.lock().await });
    peer.waits(&name, 1).await?;
    guard.release().await?;
    context.soon("the other owner", other).await???.release().await?;
    Ok(())
}

async fn a_reader_can_read_again(context: Arc<TestContext>) -> Outcome {
    let (peer, name, owner) = (context.peer().await?, context.name()?, Owner::new());
    let lock = peer.rwlock(name.as_str()).owner(&owner);
    let first = lock.read().await?;
    let second = context.soon("a second read hold", lock.read()).await??;
    // A writer that waits between the two would make the second wait for the first: that must be an error.
    let writer = peer.rwlock(name.as_str());
    if context.info.capabilities.order {
        let writer = tokio::spawn(async move { writer.write().await });
        peer.waits(&name, 1).await?;
        let refused = context.soon("the refusal", lock.read()).await?;
        ensure_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::SelfDeadlock), "behind a writer");
        drop((first, second));
        context.soon("the writer", writer).await???.release().await?;
    }
    Ok(())
}

async fn a_reader_cannot_wait_to_write(context: Arc<TestContext>) -> Outcome {
    let (peer, name, owner) = (context.peer().await?, context.name()?, Owner::new());
    let lock = peer.rwlock(name.as_str()).owner(&owner);
    let _reader = lock.read().await?;
    let refused = context.soon("the refusal", lock.write()).await?;
    ensure_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::SelfDeadlock), "an upgrade");
    Ok(())
}

/// An owner that holds permits may wait for more, but not behind a claim that may wait for those it holds.
async fn more_permits_are_waited_for_at_the_head_alone(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name, owner) = (context.peer().await?, context.peer().await?, context.name()?, Owner::new());
    let pool = peer.semaphore(name.as_str(), 3).owner(&owner);
    let (mine, theirs) = (pool.acquire(1).await?, rival.semaphore(name.as_str(), 3));
    let two = theirs.acquire(2).await?;
    // No claim waits: it is at the head of the queue, and is served when the others release.
    let waits = pool.clone();
    let more = tokio::spawn(async move { waits.acquire(1).await });
    peer.waits(&name, 1).await?;
    two.release().await?;
    let more = context.soon("the permit at the head", more).await???;
    // Three of three are wanted before it: that claim waits for this owner.
    let all = tokio::spawn(async move { theirs.acquire(3).await });
    rival.waits(&name, 1).await?;
    let refused = context.soon("the refusal", pool.acquire(1)).await?;
    ensure_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::SelfDeadlock), "behind a waiting claim");
    // With what it holds there would be four.
    let refused = context.soon("the refusal", pool.acquire(2)).await?;
    ensure_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::SelfDeadlock), "more than there are");
    drop((mine, more));
    context.soon("the claim for all", all).await???.release().await?;
    Ok(())
}
