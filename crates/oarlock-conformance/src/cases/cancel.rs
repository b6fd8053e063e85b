//! A caller may walk away at any moment; nothing is left behind.

use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use oarlock_core::ResourceName;

use super::cases;
use crate::bench::{Bench, Peer};
use crate::failure::{Outcome, ensure};
use crate::wire::Wire;

cases!("cancel":
    at_every_await_of_a_free_lock,
    at_every_await_of_a_queue,
    at_every_await_of_a_hand_over,
    at_every_await_of_a_release,
    at_every_await_of_a_downgrade [Units],
    a_thousand_who_walk_away,
);

/// A peer whose requests, once sent, arrive whatever becomes of their sender.
pub(super) struct Sender {
    peer: Peer,
    wire: Arc<Wire>,
}

impl Sender {
    pub(super) async fn new(bench: &Bench) -> Outcome<Self> {
        let connection = bench.connection().await?;
        let wire = Arc::new(Wire::new(connection.driver(), Duration::from_millis(2)));
        Ok(Self { peer: bench.peer_over(wire.clone(), connection)?, wire })
    }

    /// Nothing is left of `name`, not even by what was still on its way.
    pub(super) async fn left_clean(&self, bench: &Bench, rival: &Peer, name: &ResourceName) -> Outcome {
        bench.soon("the last request to arrive", self.wire.quiet()).await?;
        bench.left_clean(rival, name).await
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

async fn at_every_await_of_a_free_lock(bench: Arc<Bench>) -> Outcome {
    let (peer, rival) = (Sender::new(&bench).await?, bench.peer().await?);
    for polls in 0.. {
        let name = bench.name()?;
        let lock = peer.mutex(name.as_str()).ttl(LONG);
        let (output, _) = dropped_at(lock.lock(), polls, bench.pace.soon).await;
        let done = output.is_some();
        drop(output.transpose()?);
        peer.left_clean(&bench, &rival, &name).await?;
        if done {
            ensure!(polls > 1, "the lock was had without a single await to be dropped at");
            break;
        }
    }
    Ok(())
}

/// Longer than every bound here: whatever is only ended by its lease fails the case.
pub(super) const LONG: Duration = Duration::from_secs(60);

async fn at_every_await_of_a_queue(bench: Arc<Bench>) -> Outcome {
    let (peer, rival) = (Sender::new(&bench).await?, bench.peer().await?);
    for fair in [false, bench.info.capabilities.order] {
        for polls in 0.. {
            let name = bench.name()?;
            let guard = rival.mutex(name.as_str()).lock().await?;
            let mut lock = peer.mutex(name.as_str()).ttl(LONG);
            if fair {
                lock = lock.fair();
            }
            let (output, idle) = dropped_at(lock.lock(), polls, IDLE).await;
            ensure!(output.is_none(), "a held lock was granted");
            guard.release().await?;
            peer.left_clean(&bench, &rival, &name).await?;
            if idle {
                break;
            }
        }
    }
    Ok(())
}

async fn at_every_await_of_a_hand_over(bench: Arc<Bench>) -> Outcome {
    let (peer, rival) = (Sender::new(&bench).await?, bench.peer().await?);
    for polls in 0.. {
        let name = bench.name()?;
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
        let (output, _) = dropped_at(waiting, polls, bench.pace.soon).await;
        release.await??;
        let done = output.is_some();
        drop(output.transpose()?);
        peer.left_clean(&bench, &rival, &name).await?;
        if done {
            break;
        }
    }
    Ok(())
}

async fn at_every_await_of_a_release(bench: Arc<Bench>) -> Outcome {
    let (peer, rival) = (Sender::new(&bench).await?, bench.peer().await?);
    for polls in 0.. {
        let name = bench.name()?;
        let guard = peer.mutex(name.as_str()).ttl(LONG).lock().await?;
        let (output, _) = dropped_at(guard.release(), polls, bench.pace.soon).await;
        let done = output.is_some();
        output.transpose()?;
        peer.left_clean(&bench, &rival, &name).await?;
        if done {
            break;
        }
    }
    Ok(())
}

async fn at_every_await_of_a_downgrade(bench: Arc<Bench>) -> Outcome {
    let (peer, rival) = (Sender::new(&bench).await?, bench.peer().await?);
    for polls in 0.. {
        let name = bench.name()?;
        let guard = peer.rwlock(name.as_str()).ttl(LONG).write().await?;
        let (output, _) = dropped_at(guard.downgrade(), polls, bench.pace.soon).await;
        let done = output.is_some();
        drop(output.transpose()?);
        peer.left_clean(&bench, &rival, &name).await?;
        if done {
            break;
        }
    }
    Ok(())
}

async fn a_thousand_who_walk_away(bench: Arc<Bench>) -> Outcome {
    let (peer, rival, name) = (Sender::new(&bench).await?, bench.peer().await?, bench.name()?);
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
    peer.left_clean(&bench, &rival, &name).await
}
