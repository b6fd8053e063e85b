//! Metrics (feature `metrics`) and spans (feature `tracing`) of the locks of a client. Without these features every type
//! here is empty, and every method does nothing.
//!
//! A recorder and a subscriber are the user's code: where a panic in them could stop renewals or lose a lock, it is
//! caught.

#![cfg_attr(
    not(all(feature = "metrics", feature = "tracing")),
    allow(
        unused_imports,
        unused_variables,
        dead_code,
        clippy::unused_self,
        reason = "a part of it is for the other feature"
    )
)]

#[cfg(any(feature = "metrics", feature = "tracing"))]
mod deferred;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "tracing")]
mod spans;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::belief::LossReason;
use crate::claim::{Claim, Fence};
use crate::clock::{Clock, Moment};
use crate::error::Result;

/// What all metrics and spans of a client have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Telemetry {
    /// The scheme of the store.
    backend: &'static str,
    /// Whether lock names are labels of metrics.
    names: bool,
}

/// One acquisition, from the request to its outcome.
pub(crate) struct Acquisition {
    #[cfg(feature = "metrics")]
    waiting: metrics::Waiting,
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

/// One hold, from its grant to its end.
#[derive(Debug)]
pub(crate) struct Hold {
    #[cfg(feature = "metrics")]
    series: metrics::Series,
    #[cfg(feature = "tracing")]
    span: tracing::Span,
    began: Moment,
    /// How it ends, unless it is lost.
    end: &'static str,
}

/// The hold that a belief is about. It is empty until the acquisition is over.
#[derive(Debug, Default)]
pub(crate) struct HoldCell(#[cfg(any(feature = "metrics", feature = "tracing"))] Mutex<Option<Hold>>);

/// How a renewal ended for a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenewalOutcome {
    /// The lease was extended.
    Ok,
    /// The store no longer has the claim.
    Gone,
    /// The store returned an error, or no answer in time.
    Error,
}

impl RenewalOutcome {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Gone => "gone",
            Self::Error => "error",
        }
    }
}

impl Telemetry {
    pub(crate) fn new(backend: &'static str, names: bool) -> Self {
        Self { backend, names }
    }

    /// An acquisition begins.
    pub(crate) fn acquisition(self, claim: &Claim, clock: &std::sync::Arc<dyn Clock>) -> Acquisition {
        Acquisition {
            #[cfg(feature = "metrics")]
            waiting: metrics::Waiting::begin(metrics::Series::new(self, claim), clock.clone()),
            #[cfg(feature = "tracing")]
            span: spans::wait(self.backend, claim),
        }
    }

    /// A hold begins. Its span is a child of the caller's, not of the acquisition's.
    pub(crate) fn hold(self, claim: &Claim, fence: Fence, now: Moment) -> Hold {
        Hold {
            #[cfg(feature = "metrics")]
            series: metrics::Series::new(self, claim).held(),
            #[cfg(feature = "tracing")]
            span: spans::hold(self.backend, claim, fence),
            began: now,
            end: "released",
        }
    }

    /// A renewal of this claim began this much later than it was planned. Its hold may have ended by that.
    pub(crate) fn late(self, claim: &Claim, by: Duration) {
        safely(|| {
            #[cfg(feature = "metrics")]
            metrics::late(self.backend, by);
            #[cfg(feature = "tracing")]
            spans::late(self.backend, claim, by);
        });
    }

    /// The store renewed a hold (`Ok`) or did not, after `took`; `left` of its `lease` was left then.
    pub(crate) fn renewed(
        self,
        hold: &HoldCell,
        outcome: RenewalOutcome,
        took: Duration,
        left: Duration,
        lease: Duration,
    ) {
        safely(|| {
            #[cfg(feature = "metrics")]
            metrics::renewed(self.backend, outcome, took, left, lease);
            #[cfg(feature = "tracing")]
            if let Some(span) = hold.span() {
                spans::renewed(&span, outcome, took, left);
            }
        });
    }

    /// Runs a release of this hold in a span of its own.
    pub(crate) async fn releasing<T>(self, claim: &Claim, release: impl Future<Output = T>) -> T {
        #[cfg(feature = "tracing")]
        let release = tracing::Instrument::instrument(release, spans::release(self.backend, claim));
        release.await
    }

    /// Runs a request that renews so many claims, in a span of its own.
    pub(crate) async fn renewing<T>(self, claims: usize, renewal: impl Future<Output = T>) -> T {
        #[cfg(feature = "tracing")]
        let renewal = tracing::Instrument::instrument(renewal, spans::renew(self.backend, claims));
        renewal.await
    }
}

impl Acquisition {
    /// Runs the acquisition. If the future is dropped before its end, the outcome is `cancelled`.
    pub(crate) async fn run<T>(
        self,
        waits: bool,
        acquisition: impl Future<Output = Result<Option<T>>>,
    ) -> Result<Option<T>> {
        #[cfg(feature = "tracing")]
        let acquisition = tracing::Instrument::instrument(acquisition, self.span.clone());
        let answer = acquisition.await;
        let outcome = match &answer {
            Ok(Some(_)) => "acquired",
            Ok(None) if waits => "timeout",
            Ok(None) => "busy",
            Err(_) => "error",
        };
        #[cfg(feature = "metrics")]
        self.waiting.end(outcome);
        #[cfg(feature = "tracing")]
        safely(|| {
            self.span.record("outcome", outcome);
        });
        answer
    }
}

impl HoldCell {
    #[cfg(any(feature = "metrics", feature = "tracing"))]
    fn lock(&self) -> MutexGuard<'_, Option<Hold>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hold begins. The caller must then end it, if belief ended before.
    pub(crate) fn begin(&self, telemetry: Telemetry, claim: &Claim, fence: Fence, now: Moment) {
        #[cfg(any(feature = "metrics", feature = "tracing"))]
        safely(|| *self.lock() = Some(telemetry.hold(claim, fence, now)));
    }

    /// It ends in another way than by a release, unless it is lost.
    pub(crate) fn ends_as(&self, end: &'static str) {
        #[cfg(any(feature = "metrics", feature = "tracing"))]
        if let Some(hold) = &mut *self.lock() {
            hold.end = end;
        }
    }

    /// Its span, unless it has ended.
    #[cfg(feature = "tracing")]
    fn span(&self) -> Option<tracing::Span> {
        self.lock().as_ref().map(|hold| hold.span.clone())
    }

    /// Belief has ended: by a loss, or by a release.
    pub(crate) fn end(&self, loss: Option<&LossReason>, clock: &dyn Clock) {
        #[cfg(any(feature = "metrics", feature = "tracing"))]
        {
            let hold = self.lock().take();
            if let Some(hold) = hold {
                deferred::report((hold, loss.cloned(), clock.now()));
            }
        }
    }
}

impl Hold {
    fn end(self, loss: Option<&LossReason>, now: Moment) {
        let end = match loss {
            None => self.end,
            Some(LossReason::Broken(_)) => "broken",
            Some(_) => "lost",
        };
        #[cfg(feature = "metrics")]
        self.series.ended(end, loss, now.since(self.began));
        #[cfg(feature = "tracing")]
        spans::ended(&self.span, end, loss);
    }
}

/// Until this is dropped, the ends of holds on this thread are not reported: a recorder and a subscriber must not run
/// while the engine has something locked. Declare it before the lock.
#[must_use]
pub(crate) struct Deferred(#[cfg(any(feature = "metrics", feature = "tracing"))] deferred::Scope);

impl Deferred {
    pub(crate) fn begin() -> Self {
        Self(
            #[cfg(any(feature = "metrics", feature = "tracing"))]
            deferred::Scope::begin(),
        )
    }
}

/// A write came with a fence that is too old.
pub(crate) fn fence_rejected(store: &'static str) {
    #[cfg(feature = "metrics")]
    safely(|| metrics::fence_rejected(store));
}

fn safely(report: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(report));
}

/// The word for a loss, for labels.
#[cfg(any(feature = "metrics", feature = "tracing"))]
fn cause(loss: &LossReason) -> &'static str {
    match loss {
        LossReason::Expired => "expired",
        LossReason::Gone => "gone",
        LossReason::Broken(_) => "broken",
        LossReason::Session => "session",
        LossReason::MaxHold => "max_hold",
    }
}
