//! What a worker takes locks with, and one lock in its hand: Oarlock's, or that of another library.

use std::time::Duration;

use oarlock_core::clock::Moment;
use oarlock_core::{ErrorKind, Guard, Locks};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::peer::{Peer, PeerHold, Taken};
use super::{EXPIRED, Job, name_in_store, now};
use crate::judge::TOLD_WITHIN;
use crate::record::LockKind;

pub(super) enum Source {
    Oarlock(Locks),
    Peer(Box<Peer>),
}

pub(super) enum Hold {
    Oarlock(Watched),
    Peer(PeerHold),
}

/// A lock whose loss is heard of by the token of its guard alone. The guard itself is not asked before that whether it is
/// held, or why it was lost: the question would end belief, and hide that nothing else does.
pub(super) struct Watched {
    guard: Guard,
    token: CancellationToken,
    /// Ends when the token is cancelled, with the time.
    told: JoinHandle<Moment>,
}

impl From<Guard> for Watched {
    fn from(guard: Guard) -> Self {
        let token = guard.token();
        let heard = token.clone();
        // From the beginning, as a program does that waits for the loss.
        let told = tokio::spawn(async move {
            heard.cancelled().await;
            now()
        });
        Self { guard, token, told }
    }
}

/// Why there is no hold, in a word; and whether the store did not answer.
pub(super) struct Refused {
    pub(super) why: String,
    pub(super) busy: bool,
}

impl Source {
    pub(super) async fn take(&mut self, run: &str, ttl: Duration, job: &Job) -> Result<Hold, Refused> {
        let name = name_in_store(run, &job.lock.name);
        let locks = match self {
            Self::Oarlock(locks) => locks,
            Self::Peer(peer) => {
                return match peer.acquire(&name, ttl, job.wait).await {
                    Taken::Held { fence } => Ok(Hold::Peer(PeerHold::new(fence))),
                    Taken::Busy => Err(Refused { why: "Busy".to_owned(), busy: true }),
                    Taken::Failed(why) => Err(Refused { why: format!("Unreachable: {why}"), busy: false }),
                };
            }
        };
        let taken = match (job.lock.kind, job.units) {
            (LockKind::Mutex, _) => locks.mutex(name).wait(job.wait).lock().await,
            (LockKind::ReadWrite, Some(_)) => locks.rwlock(name).wait(job.wait).read().await,
            (LockKind::ReadWrite, None) => {
                locks.rwlock(name).wait(job.wait).write().await.map(oarlock_core::WriteGuard::into_guard)
            }
            (LockKind::Semaphore(permits), units) => {
                locks.semaphore(name, permits).wait(job.wait).acquire(units.unwrap_or(permits)).await
            }
        };
        taken.map(|guard| Hold::Oarlock(guard.into())).map_err(|error| {
            let busy = error.kind() == ErrorKind::Busy;
            Refused { why: format!("{:?}: {error}", error.kind()), busy }
        })
    }

    /// Gives a lock back.
    pub(super) async fn release(&mut self, hold: Hold) {
        // Its outcome is the store's business; what is left is looked for at the end.
        match (self, hold) {
            (_, Hold::Oarlock(watched)) => drop(watched.guard.release().await),
            (Self::Peer(peer), Hold::Peer(_)) => drop(peer.release().await),
            (Self::Oarlock(_), Hold::Peer(_)) => {}
        }
    }

    /// Asks another library whether it still holds; Oarlock knows without asking.
    pub(super) async fn look(&mut self, hold: &mut Hold) {
        if let (Self::Peer(peer), Hold::Peer(hold)) = (self, hold) {
            hold.ask(peer).await;
        }
    }

    pub(super) async fn close(&self) -> oarlock_core::Result<()> {
        match self {
            Self::Oarlock(locks) => locks.shutdown(Duration::from_secs(2)).await,
            Self::Peer(_) => Ok(()),
        }
    }
}

impl Hold {
    /// Zero where the library has none.
    pub(super) fn fence(&self) -> u64 {
        match self {
            Self::Oarlock(watched) => watched.guard.fence().get(),
            Self::Peer(hold) => hold.fence.unwrap_or(0),
        }
    }

    pub(super) fn is_held(&self) -> bool {
        match self {
            Self::Oarlock(watched) => !watched.token.is_cancelled() && now() < watched.guard.ends_at(),
            Self::Peer(hold) => hold.lost.is_none(),
        }
    }

    /// When belief ends by itself; of another library, until when it is known to have believed.
    pub(super) fn ends_at(&self) -> Moment {
        match self {
            Self::Oarlock(watched) => watched.guard.ends_at(),
            Self::Peer(hold) => hold.believed,
        }
    }

    /// Why the lock was lost. To be asked when its holder was told.
    pub(super) fn loss(&self) -> Option<String> {
        match self {
            Self::Oarlock(watched) => {
                Some(watched.guard.loss().map_or_else(|| EXPIRED.to_owned(), |why| why.to_string()))
            }
            Self::Peer(hold) => hold.lost.clone(),
        }
    }

    /// Waits for `span`, or until the lock is lost.
    pub(super) async fn stay(&self, span: Duration) {
        match self {
            Self::Oarlock(watched) => {
                let _ = tokio::time::timeout(span, watched.token.cancelled()).await;
            }
            Self::Peer(_) => tokio::time::sleep(span).await,
        }
    }

    /// When the holder of a lost lock heard of it. Belief ends by the clock alone, but a program that waits for the loss
    /// goes on until it is told. A library that is asked tells nothing by itself.
    pub(super) async fn told(&mut self) -> Option<Moment> {
        let Self::Oarlock(watched) = self else { return None };
        // Later is late enough to be judged.
        let told = tokio::time::timeout(TOLD_WITHIN * 2, &mut watched.told).await;
        Some(told.ok().and_then(Result::ok).unwrap_or_else(now))
    }

    /// Until when another library may have believed. Oarlock's belief ends at a known moment.
    pub(super) fn perhaps(&self) -> Option<Moment> {
        match self {
            Self::Oarlock(_) => None,
            Self::Peer(hold) => Some(hold.perhaps()),
        }
    }

    /// The end of belief if it has passed, else now.
    pub(super) fn believed_until(&self) -> Moment {
        now().min(self.ends_at())
    }
}
