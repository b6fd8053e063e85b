//! Many tasks that contend for one name, and the history of what they believed.

use std::num::NonZeroU32;
use std::time::Duration;

use oarlock_core::{Limit, Locks, Weight};

use crate::context::{Peer, TestContext, now, within};
use crate::failure::{Failure, Outcome};
use crate::history::{History, Hold, Rules};

/// The kind of lock that they contend for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lock {
    Mutex,
    Spin,
    ReadWrite,
    Semaphore { permits: u32 },
}

/// The number of contenders, and how often each one holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contention {
    pub(crate) peers: usize,
    /// Tasks of each peer.
    pub(crate) tasks: usize,
    /// Holds of each task.
    pub(crate) rounds: usize,
    pub(crate) lock: Lock,
    /// How long each hold lasts.
    pub(crate) stay: Duration,
}

impl Contention {
    /// Runs the contenders and checks the history.
    pub(crate) async fn run(self, context: &TestContext, rules: &Rules) -> Outcome {
        let name = context.name()?;
        let mut tasks = Vec::new();
        let mut peers = Vec::new();
        for _ in 0..self.peers {
            let peer: Peer = context.peer().await?;
            for _ in 0..self.tasks {
                let (client, name) = (peer.client.clone(), name.as_str().to_owned());
                let owner = tasks.len() as u64;
                tasks.push(tokio::spawn(async move { self.contend(&client, &name, owner).await }));
            }
            peers.push(peer);
        }
        let mut history = History::new();
        for task in tasks {
            history.merge(within(context.pace.soon * 30, "a contender", task).await???);
        }
        let verdict = history.check(rules);
        if !verdict.is_ok() {
            return Err(Failure::new(verdict.to_string()));
        }
        context.left_clean(&peers[0], &name).await
    }

    async fn contend(self, client: &Locks, name: &str, owner: u64) -> oarlock_core::Result<History> {
        let mut random = fastrand::Rng::new();
        let mut history = History::new();
        for _ in 0..self.rounds {
            let asked = now();
            let (guard, weight, capacity) = match self.lock {
                Lock::Mutex => (client.mutex(name).wait_forever().lock().await?, Weight::All, None),
                Lock::Spin => (client.mutex(name).spin().wait_forever().lock().await?, Weight::All, None),
                Lock::ReadWrite => {
                    let lock = client.rwlock(name).wait_forever();
                    if random.u32(0..3) == 0 {
                        (lock.write().await?.into_guard(), Weight::All, Some(Limit::Unlimited))
                    } else {
                        (lock.read().await?, Weight::ONE, Some(Limit::Unlimited))
                    }
                }
                Lock::Semaphore { permits } => {
                    let lock = client.semaphore(name, permits).wait_forever();
                    let units = random.u32(1..=permits);
                    let guard = lock.acquire(units).await?;
                    let units = NonZeroU32::new(units).unwrap_or(NonZeroU32::MIN);
                    (guard, Weight::Units(units), NonZeroU32::new(permits).map(Limit::Units))
                }
            };
            let granted = now();
            tokio::time::sleep(self.stay).await;
            let lost = guard.loss().is_some();
            let ended = if lost { granted } else { now() };
            let (resource, fence) = (name.to_owned(), guard.fence());
            guard.release().await?;
            let queued = None;
            history.hold(Hold { resource, owner, weight, capacity, fence, asked, granted, ended, queued });
        }
        Ok(history)
    }
}
