//! What was counted in a run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;

use super::Belief;
use super::holds::BeliefEnd;
use crate::record::{FaultKind, Record, What};
use crate::worker::CANCELLED;

/// The figures of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Figures {
    /// Holds that were checked.
    pub holds: usize,
    /// Requests that were not granted.
    pub gave_up: usize,
    /// Losses that holders were told of.
    pub losses: usize,
    /// Losses before the first fault: this machine or the server is too slow for the lease.
    pub calm_losses: usize,
    /// Holders and waiters that were killed.
    pub deaths: usize,
    /// Locks of killed holders that a waiter got, in the scenes.
    pub takeovers: usize,
    /// The longest time that took.
    #[serde(serialize_with = "optional_ms", rename = "slowest_takeover_ms")]
    pub slowest_takeover: Option<Duration>,
    /// The least time between the end of a belief that was not released and the next grant; zero if the grant came first.
    #[serde(serialize_with = "optional_ms", rename = "least_margin_ms")]
    pub least_margin: Option<Duration>,
    /// The longest time from the end of a belief until its holder heard of the loss, without the time in which its
    /// process was stopped.
    #[serde(serialize_with = "optional_ms", rename = "latest_told_ms")]
    pub latest_told: Option<Duration>,
    /// How often each fault was injected.
    pub faults: BTreeMap<FaultKind, u64>,
    /// Replies that were lost on request.
    pub replies_lost: u64,
    /// The counters of each lock that has them.
    pub locks: BTreeMap<String, LockFigures>,
    /// How long the run took.
    #[serde(serialize_with = "ms", rename = "took_ms")]
    pub took: Duration,
}

/// The counters behind one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LockFigures {
    /// Writes that workers sent.
    pub writes: u64,
    /// Writes that the fenced counter refused: an older fence than it had seen.
    pub refused: u64,
    /// Writes without a fence, by another library beside Oarlock: the fenced counter took none of them.
    pub unfenced: u64,
    /// Where the fenced counter ended.
    pub fenced: u64,
    /// Where the plain counter ended.
    pub plain: u64,
}

impl LockFigures {
    /// Updates that the fenced counter accepted and lost: never any.
    #[must_use]
    pub const fn lost_with_fence(&self) -> u64 {
        self.writes.saturating_sub(self.refused).saturating_sub(self.unfenced).abs_diff(self.fenced)
    }

    /// Updates that were lost where no fence was checked.
    #[must_use]
    pub const fn lost_without_fence(&self) -> u64 {
        self.writes.saturating_sub(self.plain)
    }
}

impl Figures {
    pub(super) fn of(record: &Record, beliefs: &[Belief]) -> Self {
        let mut figures = Self::default();
        let calm = first_fault(record);
        for belief in beliefs {
            match (&belief.end, belief.granted.is_some()) {
                (BeliefEnd::GaveUp(why), _) => {
                    figures.gave_up += 1;
                    *figures.faults.entry(FaultKind::Cancel).or_default() += u64::from(why == CANCELLED);
                }
                (BeliefEnd::Lost(_), _) => {
                    figures.losses += 1;
                    figures.calm_losses += usize::from(belief.perhaps < calm);
                }
                _ => {}
            }
            figures.holds += usize::from(belief.granted.is_some());
        }
        let mut lossy = BTreeSet::new();
        let libraries = record.libraries();
        let has_no_fence = |w| record.header.has_fences_beside() && libraries.contains(w);
        for event in &record.events {
            figures.count(&event.what, has_no_fence);
            match event.what {
                What::Fault { id, kind: FaultKind::LostReply, .. } => {
                    lossy.insert(id);
                }
                What::FaultEnded { id, effect: Some(lost), .. } if lossy.contains(&id) => {
                    figures.replies_lost = figures.replies_lost.saturating_add(u64::try_from(lost).unwrap_or(0));
                }
                _ => {}
            }
        }
        figures.least_margin = least_margin(beliefs);
        figures.took = Duration::from_nanos(record.events.last().map_or(0, |event| event.at));
        figures
    }

    fn count(&mut self, what: &What, has_no_fence: impl Fn(u32) -> bool) {
        match what {
            What::Fault { kind, .. } => *self.faults.entry(*kind).or_default() += 1,
            What::Repeated { .. } => *self.faults.entry(FaultKind::Repeat).or_default() += 1,
            What::Died { .. } => self.deaths += 1,
            What::Wrote { w, lock, fenced, plain, accepted, .. } => {
                let lock = self.locks.entry(lock.clone()).or_default();
                lock.writes += 1;
                lock.plain = *plain;
                match (accepted, fenced) {
                    (true, Some(value)) => lock.fenced = *value,
                    _ if has_no_fence(*w) => lock.unfenced += 1,
                    _ => lock.refused += 1,
                }
            }
            _ => {}
        }
    }

    /// Stale writes that fenced counters refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.locks.values().map(|lock| lock.refused).sum()
    }

    /// Updates that were lost where no fence was checked.
    #[must_use]
    pub fn lost_without_fence(&self) -> u64 {
        self.locks.values().map(LockFigures::lost_without_fence).sum()
    }
}

/// When something was broken for the first time.
pub(super) fn first_fault(record: &Record) -> u64 {
    let mut faults = record.events.iter().filter(|event| matches!(event.what, What::Fault { .. }));
    faults.next().map_or(u64::MAX, |event| event.at)
}

fn least_margin(beliefs: &[Belief]) -> Option<Duration> {
    let mut by_lock: BTreeMap<&str, Vec<(u64, u64, bool)>> = BTreeMap::new();
    for belief in beliefs.iter().filter(|belief| belief.units.is_none()) {
        if let Some((granted, _)) = belief.granted {
            let abandoned = matches!(belief.end, BeliefEnd::Lost(_) | BeliefEnd::Died);
            by_lock.entry(&belief.lock).or_default().push((granted, belief.ended, abandoned));
        }
    }
    let mut least: Option<u64> = None;
    for holds in by_lock.values_mut() {
        holds.sort_unstable();
        for pair in holds.windows(2) {
            let ((_, ended, abandoned), (next, ..)) = (pair[0], pair[1]);
            if abandoned {
                let margin = next.saturating_sub(ended);
                least = Some(least.map_or(margin, |least| least.min(margin)));
            }
        }
    }
    least.map(Duration::from_nanos)
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn ms<S: serde::Serializer>(span: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(span.as_secs_f64() * 1000.0)
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn optional_ms<S: serde::Serializer>(span: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    match span {
        Some(span) => ms(span, to),
        None => to.serialize_none(),
    }
}
