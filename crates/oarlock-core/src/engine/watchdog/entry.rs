//! The claims that the watchdog keeps alive.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use crate::belief::{BeliefCell, LossReason};
use crate::claim::{Claim, ClaimId, Fence};
use crate::clock::Moment;
use crate::driver::{Renewed, SessionEnd};
use crate::engine::backoff::Backoff;
use crate::engine::gate::NameQueue;
use crate::error::{Error, Result};
use crate::state::{Ending, Memo};

/// All entries of a client.
#[derive(Default)]
pub(super) struct Entries {
    pub(super) by_id: HashMap<ClaimId, Entry>,
    pub(super) by_time: BTreeSet<(Moment, ClaimId)>,
    /// How many of them wait.
    pub(super) waiters: usize,
    pub(super) started: bool,
    /// How many publications there were.
    pub(super) publication: u64,
    /// The queues of this process in which a claim may wait for too long.
    pub(super) queues: Vec<Arc<NameQueue>>,
    /// The sessions whose end a task waits for.
    pub(super) sessions: Vec<SessionEnd>,
}

/// One claim that the watchdog keeps alive.
pub(super) struct Entry {
    pub(super) claim: Arc<Claim>,
    pub(super) role: Role,
    /// The fence of the grant that its holder believes in; `None` for a waiter.
    pub(super) fence: Option<Fence>,
    /// When to check it next.
    pub(super) check_at: Moment,
    /// The lease that the store gave last: it may differ from the one asked for.
    pub(super) ttl: Duration,
    /// When to renew it; `None` while a renewal is in flight, and if it is not renewed.
    pub(super) renew_at: Option<Moment>,
    /// False for an explicit lease: checking it must not extend it.
    pub(super) renews: bool,
    /// A hint came while a renewal or a probe was in flight, whose answer may be older than the hint.
    pub(super) recheck: bool,
    /// A probe is in flight, or will be repeated because it was not answered.
    pub(super) probing: bool,
    /// The store has removed it from the queue, and it has not queued again yet.
    pub(super) evicted: bool,
    /// Sent with each renewal until one succeeds.
    pub(super) publication: Option<Publication>,
    pub(super) errors: Backoff,
}

/// A change that a holder publishes with a renewal.
pub(super) struct Publication {
    /// Identifies the renewals that carry it: a late answer to an earlier renewal does not confirm it.
    pub(super) number: u64,
    pub(super) memo: Option<Memo>,
    /// How long the store must remember the memo at least.
    pub(super) keep: Duration,
    pub(super) done: oneshot::Sender<Result<()>>,
}

#[derive(Clone)]
pub(super) enum Role {
    Holder(Arc<BeliefCell>),
    Waiter {
        /// Notified when it should attempt again.
        wakeup: Arc<Notify>,
        /// The tasks of this process that wait behind it, for inspections.
        queue: Option<Arc<NameQueue>>,
    },
}

impl Role {
    pub(super) fn belief(&self) -> Option<&Arc<BeliefCell>> {
        match self {
            Self::Holder(belief) => Some(belief),
            Self::Waiter { .. } => None,
        }
    }
}

impl Entries {
    /// Adds an entry for a claim that has none.
    pub(super) fn insert(&mut self, id: ClaimId, entry: Entry) {
        self.by_time.insert((entry.check_at, id));
        self.waiters += usize::from(entry.role.belief().is_none());
        self.by_id.insert(id, entry);
    }

    pub(super) fn remove(&mut self, id: ClaimId) -> Option<Entry> {
        let entry = self.by_id.remove(&id)?;
        self.by_time.remove(&(entry.check_at, id));
        self.waiters -= usize::from(entry.role.belief().is_none());
        Some(entry)
    }
}

impl Entry {
    /// The earlier of its renewal and the end of belief.
    pub(super) fn next_check(&self) -> Moment {
        let renewal = self.renew_at.unwrap_or(Moment::NEVER);
        match &self.role {
            Role::Holder(belief) => renewal.min(belief.deadline()),
            Role::Waiter { .. } => renewal,
        }
    }

    /// The lease that a late answer would endanger. For a waiter it is the requested one: its position in the queue may
    /// end soon.
    pub(super) fn patient_for(&self) -> Duration {
        match self.role {
            Role::Holder(_) => self.ttl,
            Role::Waiter { .. } => self.claim.ttl,
        }
    }

    /// Whether the store keeps this claim alive under another grant than its holder believes in: after a failover to an
    /// older state the claim waits again, or was granted again. Other claims may have held the lock in between.
    pub(super) fn is_of_another_grant(&self, answer: &Result<Renewed>) -> bool {
        matches!(answer, Ok(Renewed::Alive { fence, .. }) if self.fence.is_some() && *fence != self.fence)
    }

    /// Reports the publication as done, if it is the one that this answer confirms.
    pub(super) fn tell(&mut self, number: Option<u64>, ending: Option<&Ending>) {
        if let Some(publication) =
            self.publication.take_if(|publication| number == Some(publication.number) || ending.is_some())
        {
            // A store need not take publications of a hold that was asked to end. The receiver may be gone.
            let _ = publication.done.send(match ending {
                None => Ok(()),
                Some(ending) => Err(Error::lost(LossReason::Broken(ending.clone()))),
            });
        }
    }

    /// What is to be renewed now.
    pub(super) fn to_renew(&self) -> Due {
        let publication = self.publication.as_ref();
        let memo = publication.and_then(|publication| publication.memo.clone());
        let keep = publication.map(|publication| publication.keep).unwrap_or_default();
        let publication = publication.map(|publication| publication.number);
        let (held, failed) = (self.role.belief().is_some(), !self.errors.is_fresh());
        Due { claim: self.as_seen_now(), lease: self.patient_for(), memo, keep, held, publication, failed }
    }

    pub(super) fn as_seen_now(&self) -> Arc<Claim> {
        match &self.role {
            Role::Waiter { queue: Some(queue), .. } => {
                Arc::new(Claim { behind: queue.behind(), ..Claim::clone(&self.claim) })
            }
            Role::Waiter { .. } | Role::Holder(_) => self.claim.clone(),
        }
    }
}

/// A claim to be renewed.
pub(super) struct Due {
    pub(super) claim: Arc<Claim>,
    /// The lease that its answer must not outlast.
    pub(super) lease: Duration,
    pub(super) memo: Option<Memo>,
    /// How long the store must remember the memo at least.
    pub(super) keep: Duration,
    /// Whether it holds.
    pub(super) held: bool,
    /// The number of the publication that it carries.
    pub(super) publication: Option<u64>,
    /// Whether the last try failed.
    pub(super) failed: bool,
}
