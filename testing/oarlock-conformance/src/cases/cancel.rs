//! A caller can drop its future at any moment; nothing is left behind.

use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use oarlock_core::ResourceName;

use super::cases;
use crate::context::{Peer, TestContext};
use crate::delayed::DelayedDriver;
use crate::failure::{Outcome, ensure};

cases!("cancel":
    at_every_await_of_a_free_lock,
    at_every_await_of_a_queue,
    at_every_await_of_a_hand_over,
    at_every_await_of_a_release,
    at_every_await_of_a_downgrade [Units],
    a_thousand_cancelled_waiters,
);

/// A peer whose requests arrive once they are sent, also if their future is dropped.
pub(super) struct Sender {
    peer: Peer,
    delayed: Arc<DelayedDriver>,
}

impl Sender {
    pub(super) async fn new(context: &TestContext) -> Outcome<Self> {
        let connection = context.connection().await?;
        let delayed = Arc::new(DelayedDriver::new(connection.driver(), Duration::from_millis(2)));
        Ok(Self { peer: context.peer_over(delayed.clone(), connection)?, delayed })
    }

    /// Nothing is left of `name`, not even by what was still on its way.
    pub(super) async fn left_clean(&self, context: &TestContext, rival: &Peer, name: &ResourceName) -> Outcome {
        context.soon("the last request to arrive", self.delayed.quiet()).await?;
        context.left_clean(rival, name).await
    }
}

impl Deref for Sender {
    type Target = Peer;

    fn deref(&self) -> &Peer {
        &self.peer
    }
}

/// Polls `future` at most `polls` times and then drops it; `None` if it was not done by then. A future that nothing
/// wakes for `idle` is dropped, too, and `true` says so: it has no further await to be dropped at.
pub(super) async fn dropped_at<F: Future>(future: F, polls: usize, idle: Duration) -> (Option<F::Output>, bool) {
    let mut future = pin!(future);
    let mut left = polls;
    let polled = std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            // The last poll is over: go before anything wakes us.
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    });
    tokio::time::timeout(idle, polled).await.map_or((None, true), |output| (output, false))
}

const IDLE: Duration = Duration::from_millis(40);

async fn at_every_await_of_a_free_lock(context: Arc<TestContext>) -> Outcome {
    let (peer, rival) = (Sender::new(&context).await?, context.peer().await?);
    for polls in 0.. {
        let name = context.name()?;
        let lock = peer.mutex(name.as_str()).ttl(LONG);
        let (output, _) = dropped_at(lock.lock(), polls, context.pace.soon).await;
        let done = output.is_some();
        drop(output.transpose()?);
        peer.left_clean(&context, &rival, &name).await?;
        if done {
            ensure!(polls > 1, "the lock was had without a single await to be dropped at");
            break;
        }
    }
    Ok(())
}

/// Longer than every bound here: a claim that only its lease ends fails the case.
pub(super) const LONG: Duration = Duration::from_secs(60);

async fn at_every_await_of_a_queue(context: Arc<TestContext>) -> Outcome {
    let (peer, rival) = (Sender::new(&context).await?, context.peer().await?);
    for fair in [false, context.info.capabilities.order] {
        for polls in 0.. {
            let name = context.name()?;
            let guard = rival.mutex(name.as_str()).lock().await?;
            let mut lock = peer.mutex(name.as_str()).ttl(LONG);
            if fair {
                lock = lock.fair();
            }
            let (output, idle) = dropped_at(lock.lock(), polls, IDLE).await;
            ensure!(output.is_none(), "a held lock was granted");
            guard.release().await?;
            peer.left_clean(&context, &rival, &name).await?;
            if idle {
                break;
            }
        }
    }
    Ok(())
}

async fn at_every_await_of_a_hand_over(context: Arc<TestContext>) -> Outcome {
    let (peer, rival) = (Sender::new(&context).await?, context.peer().await?);
    for polls in 0.. {
        let name = context.name()?;
        let guard = rival.mutex(name.as_str()).lock().await?;
        let lock = peer.mutex(name.as_str()).ttl(LONG);
        let mut waiting = Box::pin(lock.lock());
        // Let it queue, then hand over while it is being dropped.
        let queued = tokio::select! {
            queued = peer.waits(&name, 1) => queued,
            _ = &mut waiting => Ok(()),
        };
        queued?;
        let release = tokio::spawn(guard.release());
        let (output, _) = dropped_at(waiting, polls, context.pace.soon).await;
        release.await??;
        let done = output.is_some();
        drop(output.transpose()?);
        peer.left_clean(&context, &rival, &name).await?;
        if done {
            break;
        }
    }
    Ok(())
}

async fn at_every_await_of_a_release(context: Arc<TestContext>) -> Outcome {
    let (peer, rival) = (Sender::new(&context).await?, context.peer().await?);
    for polls in 0.. {
        let name = context.name()?;
        let guard = peer.mutex(name.as_str()).ttl(LONG).lock().await?;
        let (output, _) = dropped_at(guard.release(), polls, context.pace.soon).await;
        let done = output.is_some();
        output.transpose()?;
        peer.left_clean(&context, &rival, &name).await?;
        if done {
            break;
        }
    }
    Ok(())
}

async fn at_every_await_of_a_downgrade(context: Arc<TestContext>) -> Outcome {
    let (peer, rival) = (Sender::new(&context).await?, context.peer().await?);
    for polls in 0.. {
        let name = context.name()?;
        let guard = peer.rwlock(name.as_str()).ttl(LONG).write().await?;
        let (output, _) = dropped_at(guard.downgrade(), polls, context.pace.soon).await;
        let done = output.is_some();
        drop(output.transpose()?);
        peer.left_clean(&context, &rival, &name).await?;
        if done {
            break;
        }
    }
    Ok(())
}

async fn a_thousand_cancelled_waiters(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (Sender::new(&context).await?, context.peer().await?, context.name()?);
    let guard = rival.mutex(name.as_str()).lock().await?;
    let mut tasks = Vec::new();
    for _ in 0..1000 {
        let lock = peer.mutex(name.as_str()).ttl(LONG);
        tasks.push(tokio::spawn(async move { lock.lock().await.map(drop) }));
    }
    peer.waits(&name, 1).await?;
    for task in &tasks {
        task.abort();
    }
    for task in tasks {
        let _ = task.await;
    }
    guard.release().await?;
    peer.left_clean(&context, &rival, &name).await
}
