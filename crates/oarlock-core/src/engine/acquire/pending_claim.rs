//! A claim before its grant: it leaves nothing in the store when it is dropped.

use std::sync::Arc;

use tokio::sync::Notify as Wakeup;

use crate::claim::Claim;
use crate::clock::Moment;
use crate::driver::{Attempt, BoxFuture, End, Release};
use crate::engine::gate::Pass;
use crate::engine::{Core, Orphan, answer_within};
use crate::error::{Applied, Error, Result};
use crate::event::Step;

/// A claim that is not granted yet. Dropping it, at any moment, removes it from the store.
pub(super) struct PendingClaim {
    core: Arc<Core>,
    pub(super) claim: Arc<Claim>,
    pub(super) wakeup: Arc<Wakeup>,
    /// The attempt in flight. It is owned here so that the reaper can finish it.
    in_flight: Option<BoxFuture<Result<Attempt>>>,
    releasing: Option<BoxFuture<Result<Release>>>,
    pub(super) sent: Moment,
    stage: Stage,
    /// An attempt may have taken effect although its answer was lost.
    doubtful: bool,
}

/// What the store may know of a claim.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing of it is in the store.
    Absent,
    /// An attempt was sent: the store may have it.
    Sent,
    /// It waits in the store's queue, and the watchdog keeps it alive.
    Queued,
    /// The reaper has it. The next attempt needs a new claim.
    Abandoned,
}

impl PendingClaim {
    pub(super) fn new(core: &Arc<Core>, claim: impl Into<Arc<Claim>>) -> Self {
        Self {
            core: core.clone(),
            claim: claim.into(),
            wakeup: Arc::default(),
            in_flight: None,
            releasing: None,
            sent: Moment::ZERO,
            stage: Stage::Absent,
            doubtful: false,
        }
    }

    /// A claim whose first attempt was sent with the release of another.
    pub(super) fn carried(
        core: &Arc<Core>,
        claim: Arc<Claim>,
        sent: Moment,
        attempt: BoxFuture<Result<Attempt>>,
    ) -> Self {
        let mut carried = Self::new(core, claim);
        (carried.in_flight, carried.sent, carried.stage) = (Some(attempt), sent, Stage::Sent);
        carried
    }

    /// Makes one attempt. Without an answer in time the claim is abandoned, because it may still be granted.
    pub(super) async fn attempt(&mut self, end: Moment) -> Result<Attempt> {
        if self.stage == Stage::Absent {
            self.stage = Stage::Sent;
        }
        let request = match &mut self.in_flight {
            Some(carried) => carried,
            none => {
                self.sent = self.core.clock.now();
                none.insert(self.core.driver.clone().attempt(self.claim.clone()))
            }
        };
        let patience = self.core.op_timeout.min(end.since(self.sent));
        match answer_within(patience, request).await {
            Some(answer) => {
                self.in_flight = None;
                self.doubtful |= answer.as_ref().is_err_and(|error| error.applied() == Applied::Unknown);
                answer
            }
            None => {
                self.abandon();
                Err(self.core.late(patience).during("attempt").about(&self.claim.resource))
            }
        }
    }

    pub(super) fn queue(&mut self, ahead: Option<u32>, pass: Option<&Pass>) {
        if self.stage != Stage::Queued {
            self.stage = Stage::Queued;
            let queue = pass.map(Pass::queue);
            self.core.watchdog.wait(self.claim.clone(), self.wakeup.clone(), queue, self.sent);
        }
        self.core.observers.emit(&self.claim, || Step::Waiting { ahead });
    }

    /// Nothing is left to clean up: a guard has the claim, or the store refused it.
    pub(super) fn settle(&mut self) {
        // The watchdog knows only claims that waited.
        if self.stage == Stage::Queued {
            self.core.watchdog.forget(self.claim.id);
        }
        self.stage = Stage::Absent;
    }

    /// Leaves the queue and waits for the store's answer, so that the next inspection does not show the claim.
    pub(super) async fn withdraw(&mut self, end: Moment) {
        if !matches!(self.stage, Stage::Sent | Stage::Queued) {
            return;
        }
        self.core.watchdog.forget(self.claim.id);
        let request = self.releasing.insert(self.core.release(&self.claim, End::Withdrawn));
        let patience = self.core.op_timeout.min(end.since(self.core.clock.now()));
        let Some(answer) = answer_within(patience, request).await else { return };
        self.releasing = None;
        if answer.is_ok() {
            self.stage = Stage::Absent;
            self.core.observers.emit(&self.claim, || Step::Withdrawn);
        }
    }

    /// Returns `error` after noting whether the store can still have the claim.
    pub(super) fn fail(&mut self, error: Error) -> Error {
        // An earlier attempt of this claim may have been granted, whatever the last one answered.
        if error.applied() == Applied::No && !self.doubtful && self.stage == Stage::Sent {
            self.stage = Stage::Absent;
        }
        error
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.stage == Stage::Abandoned
    }

    /// Hands the claim to the reaper, with the attempt that is in flight.
    pub(super) fn abandon(&mut self) {
        self.core.watchdog.forget(self.claim.id);
        self.stage = Stage::Abandoned;
        Orphan {
            claim: self.claim.clone(),
            attempt: self.in_flight.take(),
            release: self.releasing.take(),
            end: End::Withdrawn,
            held_for: None,
        }
        .reap(&self.core);
    }
}

impl Drop for PendingClaim {
    fn drop(&mut self) {
        if matches!(self.stage, Stage::Sent | Stage::Queued) {
            self.abandon();
        }
    }
}
