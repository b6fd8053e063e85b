//! Lock events: one stream of every step of every lock, for tracing, metrics, audit and dashboards.

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
    /// It was requested.
    Requested,
    /// It waits.
    #[non_exhaustive]
    Waiting {
        /// How many claims are before it, if the store tells.
        ahead: Option<u32>,
    },
    /// The store did not answer; the engine tries again.
    #[non_exhaustive]
    Retrying {
        /// The error of the store.
        error: Error,
    },
    /// The store removed it from the queue, and it queues again.
    Requeued,
    /// It holds.
    #[non_exhaustive]
    Granted {
        /// Its fence.
        fence: Fence,
        /// How long it took.
        waited: Duration,
    },
    /// It gave up waiting, or its caller dropped it.
    Withdrawn,
    /// It was renewed.
    Renewed,
    /// A renewal began much later than it was planned: the runtime of this client was too busy to run it, or the
    /// process was suspended. If that happens often, give the client a thread of its own
    /// ([`own_thread`](crate::LocksBuilder::own_thread)) or longer leases.
    #[non_exhaustive]
    Late {
        /// How much later.
        by: Duration,
    },
    /// A renewal failed: finish soon.
    #[non_exhaustive]
    Suspect {
        /// The error of the store.
        error: Error,
    },
    /// A renewal succeeded again.
    Recovered,
    /// An operator or another program asked for its end.
    #[non_exhaustive]
    Ending {
        /// Who and why.
        ending: Ending,
        /// How long it still has.
        left: Duration,
    },
    /// It is no longer held.
    #[non_exhaustive]
    Lost {
        /// Why.
        reason: LossReason,
    },
    /// It was released.
    #[non_exhaustive]
    Released {
        /// The answer of the store.
        outcome: Released,
        /// How long it was held.
        held_for: Duration,
    },
    /// The release failed; its lease ends it.
    #[non_exhaustive]
    ReleaseFailed {
        /// The error of the store.
        error: Error,
    },
}

/// One step of one claim.
///
/// # Examples
/// ```
/// # use oarlock_core::{LockEvent, Step};
/// # mod oarlock {
/// #     use std::sync::Arc;
/// #     use oarlock_core::{DynDriver, LocksBuilder, Memory, driver::Opener};
/// #     pub fn builder(_: &str) -> LocksBuilder {
/// #         LocksBuilder::of(Opener::new(|| Box::pin(async { Ok(Arc::new(Memory::new()) as Arc<dyn DynDriver>) })))
/// #     }
/// # }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// let locks = oarlock::builder("redis://localhost")
///     .observer(|event: &LockEvent| {
///         if let Step::Lost { reason, .. } = &event.step {
///             eprintln!("{} was lost: {reason}", event.resource);
///         }
///     })
///     .connect()
///     .await?;
/// # locks.mutex("report").lock().await?.release().await?;
/// # Ok(()) }
/// ```
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

/// Receives every lock event of a client, in order, on the thread where it happens: it must not block. A panic in it is
/// caught.
///
/// # Examples
/// ```
/// # use std::sync::{Arc, atomic::{AtomicUsize, Ordering}};
/// # use oarlock_core::{LockEvent, Step};
/// # mod oarlock {
/// #     use std::sync::Arc;
/// #     use oarlock_core::{DynDriver, LocksBuilder, Memory, driver::Opener};
/// #     pub fn builder(_: &str) -> LocksBuilder {
/// #         LocksBuilder::of(Opener::new(|| Box::pin(async { Ok(Arc::new(Memory::new()) as Arc<dyn DynDriver>) })))
/// #     }
/// # }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// let grants = Arc::new(AtomicUsize::new(0));
/// let counter = grants.clone();
/// let observer = move |event: &LockEvent| {
///     if let Step::Granted { .. } = event.step {
///         counter.fetch_add(1, Ordering::Relaxed);
///     }
/// };
/// let locks = oarlock::builder("redis://localhost").observer(observer).connect().await?;
/// locks.mutex("report").lock().await?.release().await?;
/// assert_eq!(grants.load(Ordering::Relaxed), 1);
/// # Ok(()) }
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Called for each event.
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
            // An observer must not be able to stop renewals, or to lose a lock that is being handed on.
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
            Step::Late { .. }
            | Step::Suspect { .. }
            | Step::Lost { .. }
            | Step::ReleaseFailed { .. }
            | Step::Ending { .. } => {
                tracing::warn!(target: "oarlock", %resource, %claim, %kind, ?step);
            }
            _ => tracing::debug!(target: "oarlock", %resource, %claim, %kind, ?step),
        }
    }
}
