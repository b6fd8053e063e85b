//! Spans and their events, through `tracing`.

use std::time::Duration;

use tracing::field::Empty;
use tracing::{Span, debug, debug_span, info_span, warn};

use super::{RenewalOutcome, cause};
use crate::belief::LossReason;
use crate::claim::{Claim, Fence};

/// An acquisition.
pub(super) fn wait(backend: &'static str, claim: &Claim) -> Span {
    info_span!(target: "oarlock", "lock wait", lock.name = %claim.resource, lock.kind = %claim.kind, backend,
        outcome = Empty)
}

/// A hold.
pub(super) fn hold(backend: &'static str, claim: &Claim, fence: Fence) -> Span {
    info_span!(target: "oarlock", "lock hold", lock.name = %claim.resource, lock.kind = %claim.kind, backend,
        lock.fence = %fence, end = Empty)
}

/// The request of a release.
pub(super) fn release(backend: &'static str, claim: &Claim) -> Span {
    debug_span!(target: "oarlock", "lock release", lock.name = %claim.resource, lock.kind = %claim.kind, backend)
}

/// A request that renews claims.
pub(super) fn renew(backend: &'static str, claims: usize) -> Span {
    debug_span!(target: "oarlock", parent: None, "lock renew", backend, claims)
}

pub(super) fn renewed(hold: &Span, outcome: RenewalOutcome, took: Duration, left: Duration) {
    if outcome == RenewalOutcome::Ok {
        debug!(target: "oarlock", parent: hold, ?took, ?left, "renewed");
    } else {
        warn!(target: "oarlock", parent: hold, outcome = outcome.as_str(), ?took, ?left, "not renewed");
    }
}

pub(super) fn late(backend: &'static str, claim: &Claim, by: Duration) {
    warn!(target: "oarlock", { lock.name = %claim.resource, lock.kind = %claim.kind, backend, ?by },
        "a renewal began late: the runtime was busy");
}

pub(super) fn ended(hold: &Span, end: &'static str, loss: Option<&LossReason>) {
    hold.record("end", end);
    if let Some(loss) = loss {
        warn!(target: "oarlock", parent: hold, cause = cause(loss), "lost: {loss}");
    }
}
