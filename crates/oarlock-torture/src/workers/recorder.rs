//! Takes the reports of the workers, answers for the counters, and writes everything down.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::Fence;
use oarlock_core::clock::Moment;
use rustix::process::Signal;
use tokio::sync::mpsc;

use super::{Doing, Report, Shared};
use crate::counters::Counters;
use crate::record::{Event, What};
use crate::worker::Order;

/// Why a worker died that was not killed by the run.
pub(crate) const BY_ITSELF: &str = "its process ended by itself";

pub(crate) struct Recorder {
    pub(crate) shared: Arc<Shared>,
    counters: Counters,
    /// The lock that each worker asked for last, and whether alone.
    asked: BTreeMap<u32, (String, bool)>,
    /// The last sign of life of each worker.
    seen: BTreeMap<u32, u64>,
}

impl Recorder {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, counters: Counters::default(), asked: BTreeMap::new(), seen: BTreeMap::new() }
    }

    /// Works until no report can come any more.
    pub(crate) async fn work(mut self, mut reports: mpsc::UnboundedReceiver<(u32, Report)>) {
        while let Some((w, report)) = reports.recv().await {
            match report {
                Report::Event(event) => self.take(w, event),
                // Only what a killed worker was about to write may be half a line.
                Report::Garbled if self.shared.look(|status| status.workers.contains_key(&w)) => {
                    self.shared.record(What::Garbled { w });
                }
                Report::Garbled => {}
                Report::End => self.end(w),
            }
        }
    }

    /// A process that ends by itself believes nothing any more. When it ended is not known: it believed at its last sign of
    /// life, and a belief that is too long would accuse the next holder.
    fn end(&mut self, w: u32) {
        let by_itself = self
            .shared
            .look(|status| status.workers.contains_key(&w) && !status.drained.contains(&w) && !status.is_ending);
        if by_itself {
            let at = self.seen.get(&w).copied().unwrap_or_else(|| self.shared.now());
            self.shared.record_at(at, What::Died { w, why: BY_ITSELF.to_owned() });
        }
        self.shared.change(|status| {
            status.ended.insert(w);
        });
    }

    fn take(&mut self, w: u32, Event { at, mut what }: Event) {
        let shared = Arc::clone(&self.shared);
        let at = shared.since(Moment::from_nanos(at));
        self.seen.insert(w, at);
        match &mut what {
            // In older histories another library believes until it is told otherwise.
            What::Granted { until: u64::MAX, .. } | What::Until { until: u64::MAX, .. } => {}
            What::Granted { until, .. } | What::Until { until, .. } => {
                *until = shared.since(Moment::from_nanos(*until));
                let lease = Duration::from_nanos(until.saturating_sub(at));
                shared.change(|status| status.lease = status.lease.max(lease));
            }
            What::Ended { told, perhaps, .. } => {
                for moment in [told, perhaps].into_iter().flatten() {
                    *moment = shared.since(Moment::from_nanos(*moment));
                }
            }
            What::Read { op, lock, fence, fenced, plain, .. } => {
                // It is stopped with its answer under way, between its read and its write.
                if shared.look(|status| status.stop_at_read == Some(w)) {
                    shared.signal(w, Signal::STOP);
                    shared.change(|status| (status.stop_at_read, status.stopped_at_read) = (None, Some(w)));
                }
                let fence = self.fence(w, *fence);
                (*fenced, *plain) = self.counters.read(lock, fence);
                shared.order(w, Order::Counters { op: *op, fenced: *fenced, plain: *plain });
            }
            What::Wrote { op, lock, fence, fenced, plain, accepted, .. } => {
                let fence = self.fence(w, *fence);
                *accepted = self.counters.write(lock, fence, *fenced, *plain);
                shared.order(w, Order::Written { op: *op });
                shared.change(|status| {
                    let counted = status.counted.entry(lock.clone()).or_default();
                    (counted.writes, counted.plain) = (counted.writes + 1, *plain);
                    counted.refused += u64::from(!*accepted && fence.is_some());
                });
                if *accepted {
                    shared.change(|status| {
                        let (last, count) = status.writes.entry(lock.clone()).or_default();
                        (*last, *count) = (w, *count + 1);
                    });
                }
            }
            _ => {}
        }
        self.post(w, &what);
        // When the counters were asked is the parent's time: it is the order in which they changed.
        let at = if matches!(what, What::Read { .. } | What::Wrote { .. }) { shared.now() } else { at };
        shared.record_at(at, what);
    }

    /// `None` for a worker without fences among others that have them.
    fn fence(&self, w: u32, fence: u64) -> Option<Fence> {
        (!self.shared.look(|status| status.without_fences.contains(&w))).then_some(Fence::new(fence))
    }

    fn post(&mut self, w: u32, what: &What) {
        let shared = Arc::clone(&self.shared);
        let doing = match what {
            What::Asked { lock, units, .. } => {
                let asked = (lock.clone(), units.is_none());
                self.asked.insert(w, asked.clone());
                Doing::Asks { lock: asked.0, alone: asked.1 }
            }
            What::Granted { op, .. } => {
                let (lock, alone) = self.asked.get(&w).cloned().unwrap_or_default();
                shared.change(|status| status.holds += 1);
                Doing::Holds { lock, alone, op: *op }
            }
            What::Ended { lost, .. } => {
                let lost = u64::from(lost.is_some());
                shared.change(|status| {
                    status.losses += lost;
                    *status.lost.entry(w).or_default() += lost;
                });
                Doing::Nothing
            }
            What::GaveUp { .. } => Doing::Nothing,
            What::Drained { .. } => {
                shared.change(|status| {
                    status.drained.insert(w);
                });
                return;
            }
            _ => return,
        };
        shared.change(|status| {
            // What a killed worker had still reported is history.
            if let Some(state) = status.workers.get_mut(&w) {
                *state = doing;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written down of a worker that reported a grant and then ended.
    async fn ends(change: impl FnOnce(&mut super::super::Status)) -> Vec<What> {
        let (events, mut written) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared::new(events));
        shared.change(|status| status.started(3, false));
        shared.change(change);
        let (reports, inbox) = mpsc::unbounded_channel();
        let granted = What::Granted { w: 3, op: 1, fence: 7, until: u64::MAX };
        reports.send((3, Report::Event(Event { at: u64::MAX / 2, what: granted }))).unwrap();
        reports.send((3, Report::End)).unwrap();
        drop(reports);
        Recorder::new(Arc::clone(&shared)).work(inbox).await;
        drop(shared);
        let mut all = Vec::new();
        let mut granted_at = None;
        while let Some(event) = written.recv().await {
            assert_eq!(*granted_at.get_or_insert(event.at), event.at, "it is not known to have lived longer");
            all.push(event.what);
        }
        all
    }

    #[tokio::test]
    async fn a_worker_that_ends_by_itself_has_died_with_its_last_sign_of_life() {
        let died = |all: &[What]| all.iter().any(|what| matches!(what, What::Died { w: 3, why } if why == BY_ITSELF));
        assert!(died(&ends(|_| {}).await));
        assert!(!died(&ends(|status| status.gone(3)).await), "it was killed");
        assert!(!died(&ends(|status| status.is_ending = true).await), "the run is over");
        assert!(!died(&ends(|status| status.drained.extend([3])).await), "it was done");
    }
}
