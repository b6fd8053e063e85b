//! Metrics, through the facade of the `metrics` crate.

use std::sync::Arc;
use std::time::Duration;

use metrics::{Label, counter, gauge, histogram};

use super::{RenewalOutcome, Telemetry, cause, safely};
use crate::belief::LossReason;
use crate::claim::Claim;
use crate::clock::{Clock, Moment};

/// The labels of one claim.
#[derive(Clone, Debug)]
pub(super) struct Series {
    labels: Vec<Label>,
}

/// An acquisition that is not over.
pub(super) struct Waiting {
    series: Series,
    clock: Arc<dyn Clock>,
    began: Moment,
    outcome: &'static str,
}

impl Series {
    pub(super) fn new(telemetry: Telemetry, claim: &Claim) -> Self {
        let kind = claim.kind;
        let mut labels = vec![
            Label::from_static_parts("backend", telemetry.backend),
            Label::from_static_parts("kind", kind.family()),
            Label::from_static_parts("mode", kind.mode()),
        ];
        if telemetry.names {
            labels.push(Label::new("name", claim.resource.as_str().to_owned()));
        }
        Self { labels }
    }

    fn and(&self, name: &'static str, value: &'static str) -> Vec<Label> {
        let mut labels = self.labels.clone();
        labels.push(Label::from_static_parts(name, value));
        labels
    }

    /// The hold of these labels begins.
    pub(super) fn held(self) -> Self {
        gauge!("oarlock_held", self.labels.clone()).increment(1.0);
        self
    }

    pub(super) fn ended(&self, end: &'static str, loss: Option<&LossReason>, span: Duration) {
        gauge!("oarlock_held", self.labels.clone()).decrement(1.0);
        histogram!("oarlock_hold_duration_seconds", self.and("end", end)).record(span);
        if let Some(loss) = loss {
            counter!("oarlock_lost_total", self.and("cause", cause(loss))).increment(1);
        }
    }
}

impl Waiting {
    pub(super) fn begin(series: Series, clock: Arc<dyn Clock>) -> Self {
        safely(|| gauge!("oarlock_waiting", series.labels.clone()).increment(1.0));
        Self { began: clock.now(), series, clock, outcome: "cancelled" }
    }

    pub(super) fn end(mut self, outcome: &'static str) {
        self.outcome = outcome;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        safely(|| {
            gauge!("oarlock_waiting", self.series.labels.clone()).decrement(1.0);
            histogram!("oarlock_wait_duration_seconds", self.series.and("outcome", self.outcome))
                .record(self.clock.now().since(self.began));
        });
    }
}

pub(super) fn renewed(backend: &'static str, outcome: RenewalOutcome, took: Duration, left: Duration, lease: Duration) {
    histogram!("oarlock_renewal_duration_seconds", "backend" => backend, "outcome" => outcome.as_str()).record(took);
    if outcome == RenewalOutcome::Ok {
        histogram!("oarlock_lease_margin_seconds", "backend" => backend).record(left);
        let part = if lease.is_zero() { 0.0 } else { left.as_secs_f64() / lease.as_secs_f64() };
        histogram!("oarlock_lease_margin_ratio", "backend" => backend).record(part);
    }
}

pub(super) fn late(backend: &'static str, by: Duration) {
    histogram!("oarlock_renewal_late_seconds", "backend" => backend).record(by);
}

pub(super) fn fence_rejected(store: &'static str) {
    counter!("oarlock_fence_rejected_total", "store" => store).increment(1);
}
