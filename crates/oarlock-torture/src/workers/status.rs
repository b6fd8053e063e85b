//! What each worker does just now, by its last report.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::run::SoFar;

/// What a worker does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    Nothing,
    Asks { lock: String, alone: bool },
    Holds { lock: String, alone: bool, op: u64 },
}

/// What is known now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Status {
    pub(crate) workers: BTreeMap<u32, Doing>,
    /// Workers whose processes ended by themselves.
    pub(crate) ended: BTreeSet<u32>,
    pub(crate) drained: BTreeSet<u32>,
    /// Workers of another library beside Oarlock: the counters that check fences take no write of theirs.
    pub(crate) without_fences: BTreeSet<u32>,
    /// The workers are told to end.
    pub(crate) is_ending: bool,
    pub(crate) holds: u64,
    pub(crate) losses: u64,
    /// Losses by worker.
    pub(crate) lost: BTreeMap<u32, u64>,
    pub(crate) faults: u64,
    /// The longest belief that one request gave.
    pub(crate) lease: Duration,
    /// Accepted writes by lock: the last worker, and how many.
    pub(crate) writes: BTreeMap<String, (u32, u64)>,
    /// This worker is to be stopped when it reads the counters.
    pub(crate) stop_at_read: Option<u32>,
    /// It was.
    pub(crate) stopped_at_read: Option<u32>,
    pub(crate) phase: &'static str,
    /// When the last fault of the storm begins at the latest: nanoseconds since the start.
    pub(crate) storm_ends: Option<u64>,
    /// What is broken now, by the numbers of faults.
    pub(crate) active: BTreeMap<u64, String>,
    /// The counters of each lock.
    pub(crate) counted: BTreeMap<String, Counted>,
    /// What was found so far, where that is asked for.
    pub(crate) found: Option<SoFar>,
}

/// The counters of one lock so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) writes: u64,
    /// Stale writes that the fenced one refused.
    pub(crate) refused: u64,
    pub(crate) plain: u64,
}

impl Status {
    pub(super) fn started(&mut self, w: u32, has_no_fence: bool) {
        self.workers.insert(w, Doing::Nothing);
        if has_no_fence {
            self.without_fences.insert(w);
        }
    }

    pub(super) fn gone(&mut self, w: u32) {
        self.workers.remove(&w);
    }

    pub(crate) fn doing(&self, w: u32) -> &Doing {
        self.workers.get(&w).unwrap_or(&Doing::Nothing)
    }

    /// Whether a worker holds this lock alone.
    pub(crate) fn holds(&self, w: u32, wanted: &str) -> bool {
        matches!(self.doing(w), Doing::Holds { lock, alone: true, .. } if lock == wanted)
    }

    /// Another worker that waits for this lock.
    pub(crate) fn waiter(&self, lock: &str, but: u32) -> Option<u32> {
        let waits = |doing: &Doing| matches!(doing, Doing::Asks { lock: other, .. } if other == lock);
        self.workers.iter().find(|(w, doing)| **w != but && waits(doing)).map(|(w, _)| *w)
    }

    /// Another worker that holds this lock.
    pub(crate) fn other_holder(&self, lock: &str, but: u32) -> Option<u32> {
        let holds = |doing: &Doing| matches!(doing, Doing::Holds { lock: other, .. } if other == lock);
        self.workers.iter().find(|(w, doing)| **w != but && holds(doing)).map(|(w, _)| *w)
    }
}
