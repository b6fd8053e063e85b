//! Every step of every lock, as one stream: tracing, metrics, audit and dashboards are observers of it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::belief::LossReason;
use crate::claim::{ClaimId, Fence, Kind, ResourceName};
use crate::driver::Released;
use crate::error::Error;
use crate::state::Ending;

/// What happened to a claim.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Step {
    /// It is asked for.
    Requested,
    /// It waits.
    Waiting {
        /// How many stand before it, where the store tells.
        ahead: Option<u32>,
    },
    /// The store did not answer; the engine tries again.
    Retrying {
        /// What the store said.
        error: Error,
    },
    /// It lost its place and took a new one.
    Requeued,
    /// It holds.
    Granted {
        /// Its fence.
        fence: Fence,
        /// How long it took.
        waited: Duration,
    },
    /// It gave up waiting, or its caller did.
    Withdrawn,
    /// It was renewed.
    Renewed,
    /// A renewal failed: finish soon.
    Suspect {
        /// What the store said.
        error: Error,
    },
    /// A renewal worked again.
    Recovered,
    /// Somebody asked for its end.
    Ending {
        /// Who and why.
        ending: Ending,
        /// How long it still has.
        left: Duration,
    },
    /// It is no longer held.
    Lost {
        /// Why.
        reason: LossReason,
    },
    /// It was let go.
    Released {
        /// What the store said.
        outcome: Released,
        /// How long it was held.
        held_for: Duration,
    },
    /// Letting it go failed; its lease ends it.
    ReleaseFailed {
        /// What the store said.
        error: Error,
    },
}

/// One step of one claim.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LockEvent {
    /// The resource.
    pub resource: ResourceName,
    /// The claim.
    pub claim: ClaimId,
    /// What its user calls it.
    pub kind: Kind,
    /// What happened.
    pub step: Step,
}

/// Somebody who is told of every step, in order, on the thread where it happens: be quick. A panic in it is not passed on.
pub trait Observer: Send + Sync + 'static {
    /// Something happened.
    fn observe(&self, event: &LockEvent);
}

impl<F: Fn(&LockEvent) + Send + Sync + 'static> Observer for F {
    fn observe(&self, event: &LockEvent) {
        self(event);
    }
}

/// The observers of a client.
#[derive(Clone, Default)]
pub(crate) struct Observers(Arc<[Arc<dyn Observer>]>);

impl Observers {
    pub(crate) fn new(observers: Vec<Arc<dyn Observer>>) -> Self {
        Self(observers.into())
    }

    pub(crate) fn emit(&self, claim: &crate::claim::Claim, step: impl FnOnce() -> Step) {
        if self.0.is_empty() {
            return;
        }
        let resource = claim.resource.clone();
        let event = LockEvent { resource, claim: claim.id, kind: claim.kind, step: step() };
        for observer in self.0.iter() {
            // Whoever only looks must not be able to stop renewals or lose a lock on its way to the next holder.
            let _ = catch_unwind(AssertUnwindSafe(|| observer.observe(&event)));
        }
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} observers", self.0.len())
    }
}

/// An observer that writes every step to [`tracing`]: losses as warnings, the rest as debug events.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trace;

impl Observer for Trace {
    fn observe(&self, event: &LockEvent) {
        let LockEvent { resource, claim, kind, step } = event;
        match step {
            Step::Suspect { .. } | Step::Lost { .. } | Step::ReleaseFailed { .. } | Step::Ending { .. } => {
                tracing::warn!(target: "oarlock", %resource, %claim, %kind, ?step);
            }
            _ => tracing::debug!(target: "oarlock", %resource, %claim, %kind, ?step),
        }
    }
}
