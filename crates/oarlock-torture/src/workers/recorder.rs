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

pub(crate) struct Recorder {
    pub(crate) shared: Arc<Shared>,
    counters: Counters,
    /// The lock that each worker asked for last, and whether alone.
    asked: BTreeMap<u32, (String, bool)>,
}

impl Recorder {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, counters: Counters::default(), asked: BTreeMap::new() }
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
                Report::End => self.shared.change(|status| {
                    status.ended.insert(w);
                }),
            }
        }
    }

    fn take(&mut self, w: u32, Event { at, mut what }: Event) {
        let shared = Arc::clone(&self.shared);
        let at = shared.since(Moment::from_nanos(at));
        match &mut what {
            // A library without a deadline of its own believes until it is told.
            What::Granted { until: u64::MAX, .. } | What::Until { until: u64::MAX, .. } => {}
            What::Granted { until, .. } | What::Until { until, .. } => {
                *until = shared.since(Moment::from_nanos(*until));
                let lease = Duration::from_nanos(until.saturating_sub(at));
                shared.change(|status| status.lease = status.lease.max(lease));
            }
            What::Read { op, lock, fence, fenced, plain, .. } => {
                // It is stopped with its answer under way, between its read and its write.
                if shared.look(|status| status.stop_at_read == Some(w)) {
                    shared.signal(w, Signal::STOP);
                    shared.change(|status| (status.stop_at_read, status.stopped_at_read) = (None, Some(w)));
                }
                (*fenced, *plain) = self.counters.read(lock, Fence::new(*fence));
                shared.order(w, Order::Counters { op: *op, fenced: *fenced, plain: *plain });
            }
            What::Wrote { op, lock, fence, fenced, plain, accepted, .. } => {
                *accepted = self.counters.write(lock, Fence::new(*fence), *fenced, *plain);
                shared.order(w, Order::Written { op: *op });
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
