//! A lock is handed from task to task of one process; for all others it is one lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oarlock_core::state::Ending;
use oarlock_core::{ClaimId, ErrorKind, Fence, LossReason, Mutex};
use tokio::sync::{Notify, Semaphore};

use super::cases;
use crate::context::{TestContext, within};
use crate::failure::{Failure, Outcome, ensure, ensure_eq};

cases!("cohort":
    every_holder_is_alone_and_has_a_larger_fence [Fences],
    it_is_handed_on_without_the_store [Fences, Raise],
    it_is_handed_on_no_further_than_asked [Fences],
    // On a store that is polled, the first client that asks is served: the order is not promised.
    others_are_served_in_between [Push],
    the_current_holder_learns_of_a_loss [Fences, Raise],
    waiters_that_leave_cost_nothing,
    what_must_not_be_handed_on_is_refused,
);

const SPAN: Duration = Duration::from_millis(50);

/// How many tasks wait where one hand-on is wanted.
const TASKS: u32 = 8;

fn cohort(context: &TestContext, peer: &crate::context::Peer, name: &str) -> Outcome<Mutex> {
    Ok(peer.mutex(name).wait(context.ttl() * 5 + context.pace.soon * 5).cohort(16, SPAN))
}

/// What the holders see of each other.
#[derive(Default)]
struct Room {
    occupied: AtomicBool,
    tally: std::sync::Mutex<Tally>,
}

#[derive(Default)]
struct Tally {
    visits: u32,
    last: Option<Fence>,
    by_claim: HashMap<ClaimId, u32>,
}

impl Room {
    async fn visit(&self, lock: &Mutex) -> Outcome {
        let guard = lock.lock().await?;
        ensure!(!self.occupied.swap(true, Ordering::SeqCst), "two at once");
        if let Ok(mut tally) = self.tally.lock() {
            let last = tally.last.replace(guard.fence());
            ensure!(last < Some(guard.fence()), "fence {} after {last:?}", guard.fence());
            tally.visits += 1;
            *tally.by_claim.entry(guard.id()).or_default() += 1;
        }
        tokio::task::yield_now().await;
        self.occupied.store(false, Ordering::SeqCst);
        guard.release().await?;
        Ok(())
    }
}

async fn every_holder_is_alone_and_has_a_larger_fence(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let room = Arc::new(Room::default());
    let ours = cohort(&context, &peer, name.as_str())?;
    let theirs = rival.mutex(name.as_str()).wait(context.ttl() * 5 + context.pace.soon * 5);
    let mut tasks = Vec::new();
    for lock in std::iter::repeat_n(ours, 8).chain([theirs]) {
        let room = room.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..5 {
                room.visit(&lock).await?;
            }
            Ok::<_, Failure>(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    ensure_eq!(room.tally.lock().map(|tally| tally.visits).ok(), Some(45), "visits");
    context.left_clean(&rival, &name).await
}

/// How many held it under one claim, at most, when 16 tasks wanted it.
async fn longest_cohort(context: &TestContext, hand_offs: u32) -> Outcome<Option<u32>> {
    let (peer, name) = (context.peer().await?, context.name()?);
    let room = Arc::new(Room::default());
    let lock =
        peer.mutex(name.as_str()).wait(context.ttl() * 5 + context.pace.soon * 5).cohort(hand_offs, context.ttl());
    let visits = (0..16).map(|_| {
        let (room, lock) = (room.clone(), lock.clone());
        tokio::spawn(async move { room.visit(&lock).await })
    });
    for visit in visits.collect::<Vec<_>>() {
        visit.await??;
    }
    Ok(room.tally.lock().ok().and_then(|tally| tally.by_claim.values().max().copied()))
}

async fn it_is_handed_on_without_the_store(context: Arc<TestContext>) -> Outcome {
    let longest = longest_cohort(&context, 16).await?;
    ensure!(longest > Some(1), "of 16 tasks none handed the lock on");
    Ok(())
}

async fn it_is_handed_on_no_further_than_asked(context: Arc<TestContext>) -> Outcome {
    let longest = longest_cohort(&context, 2).await?;
    ensure!(longest <= Some(3), "{longest:?} in a row, with two hand-offs");
    Ok(())
}

async fn others_are_served_in_between(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let lock = cohort(&context, &peer, name.as_str())?;
    let (stop, taken) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let (lock, stop, taken) = (lock.clone(), stop.clone(), taken.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let guard = lock.lock().await?;
                    taken.notify_one();
                    guard.release().await?;
                }
                Ok::<_, Failure>(())
            })
        })
        .collect();
    let mut served = Ok(());
    for _ in 0..3 {
        context.soon("the cohort to be busy", taken.notified()).await?;
        let turn = within(context.pace.soon + SPAN * 2, "a turn between cohorts", async {
            rival.mutex(name.as_str()).lock().await?.release().await
        });
        served = served.and(turn.await.and_then(|turn| turn.map(drop).map_err(Failure::from)));
    }
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await??;
    }
    served
}

async fn the_current_holder_learns_of_a_loss(context: Arc<TestContext>) -> Outcome {
    let (peer, operator, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let lock = peer.mutex(name.as_str()).wait(context.ttl() * 10).cohort(16, context.ttl() * 4);
    let first = lock.lock().await?;
    let asked = Arc::new(Semaphore::new(0));
    let waiting: Vec<_> = (0..TASKS)
        .map(|_| {
            let (lock, asked) = (lock.clone(), asked.clone());
            tokio::spawn(async move {
                let (mut locking, mut news) = (std::pin::pin!(lock.lock()), true);
                // After the first poll it waits: in the store's queue, or to be handed the lock.
                std::future::poll_fn(|context| {
                    let answer = locking.as_mut().poll(context);
                    asked.add_permits(usize::from(std::mem::take(&mut news)));
                    answer
                })
                .await
            })
        })
        .collect();
    peer.waits(&name, 1).await?;
    let _all = context.soon("all of them to wait", asked.acquire_many(TASKS)).await??;
    // A task in the store's queue takes the lock for all, and hands it on to the next; unless the store reserved no
    // fences in time, which makes its lock an ordinary one. Then the next task does so.
    first.release().await?;
    let (mut guard, mut rest) = next_of(waiting).await?;
    let mut before = guard.held();
    for _ in 2..TASKS {
        before = guard.held();
        guard.release().await?;
        (guard, rest) = next_of(rest).await?;
        if guard.id() == before.id() {
            break;
        }
    }
    ensure_eq!(guard.id(), before.id(), "it was not handed on: the claim");
    ensure!(guard.is_held() && !before.is_held(), "the belief of the last holder is not over");
    let shown: Option<Fence> = operator.inspect(&name).await?.holders.first().and_then(|holder| holder.fence);
    let ending = Ending::new("ops", "");
    operator
        .break_hold(&name, shown.ok_or_else(|| Failure::new("no fence shown"))?, ending.clone(), Duration::ZERO)
        .await?;
    let reason = within(context.lease_ends_within(), "the loss", guard.lost()).await?;
    ensure_eq!(reason, LossReason::Broken(ending), "the reason");
    drop(guard);
    let (last, _) = next_of(rest).await?;
    ensure!(last.fence() > before.fence(), "the next fence is not larger");
    Ok(())
}

type Holder = tokio::task::JoinHandle<oarlock_core::Result<oarlock_core::Guard>>;

/// Whichever of them holds it next, and the others.
async fn next_of(mut waiting: Vec<Holder>) -> Outcome<(oarlock_core::Guard, Vec<Holder>)> {
    let (guard, at) = std::future::poll_fn(|context| {
        for (at, holder) in waiting.iter_mut().enumerate() {
            if let std::task::Poll::Ready(guard) = Future::poll(std::pin::Pin::new(holder), context) {
                return std::task::Poll::Ready((guard, at));
            }
        }
        std::task::Poll::Pending
    })
    .await;
    drop(waiting.remove(at));
    Ok((guard??, waiting))
}

async fn waiters_that_leave_cost_nothing(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let lock = cohort(&context, &peer, name.as_str())?;
    let first = lock.lock().await?;
    let leaving: Vec<_> = (0..8)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.lock().await })
        })
        .collect();
    peer.waits(&name, 1).await?;
    drop(first);
    for task in &leaving {
        task.abort();
        tokio::task::yield_now().await;
    }
    for task in leaving {
        // Whether it was too late to leave or not, its guard is dropped.
        drop(task.await);
    }
    context.left_clean(&rival, &name).await
}

async fn what_must_not_be_handed_on_is_refused(context: Arc<TestContext>) -> Outcome {
    let (peer, name) = (context.peer().await?, context.name()?);
    let lock = cohort(&context, &peer, name.as_str())?;
    for refused in [lock.clone().fair(), lock.clone().ttl(context.ttl()).no_renewal(), lock.max_hold(context.ttl())] {
        let error = refused.lock().await.map(drop).map_err(|error| error.kind());
        ensure_eq!(error, Err(ErrorKind::InvalidClaim), "a lock that must not be handed on");
    }
    Ok(())
}
