//! The history of a broken lock, written down as the history of a run: it is read and judged like those of users.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oarlock_core::clock::Moment;
use oarlock_core::{Fence, Guard};

use super::storm::now;
use crate::counters::Counters;
use crate::record::{Event, FaultKind, Header, LockKind, LockSpec, OARLOCK, Record, VERSION, What};

/// What is written down, by all contenders.
pub(super) struct Journal {
    started: Moment,
    written: Mutex<Written>,
}

#[derive(Default)]
struct Written {
    events: Vec<Event>,
    counters: Counters,
    workers: u32,
    faults: u64,
}

impl Journal {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { started: now(), written: Mutex::default() })
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn since(&self, at: Moment) -> u64 {
        at.since(self.started).as_nanos().try_into().unwrap_or(u64::MAX)
    }

    pub(super) fn add(&self, what: What) {
        self.add_at(now(), what);
    }

    pub(super) fn add_at(&self, at: Moment, what: What) {
        let at = self.since(at);
        self.written().events.push(Event { at, what });
    }

    pub(super) fn phase(&self, name: &str) {
        self.add(What::Phase { name: name.to_owned() });
    }

    /// A new worker.
    pub(super) fn worker(&self) -> u32 {
        let w = {
            let mut written = self.written();
            written.workers += 1;
            written.workers - 1
        };
        self.add(What::Started { w, slot: w });
        w
    }

    /// A fault begins.
    pub(super) fn fault(&self, kind: FaultKind, w: u32) -> u64 {
        let id = {
            let mut written = self.written();
            written.faults += 1;
            written.faults
        };
        self.add(What::Fault { id, kind, w: Some(w), host: None });
        id
    }

    pub(super) fn ended(&self, id: u64) {
        self.add(What::FaultEnded { id, effect: None, reset: false });
    }

    /// Reads the counters of a lock. The order of the events is the order in which they changed.
    pub(super) fn read(&self, w: u32, op: u64, lock: &str, fence: Fence) -> (Option<u64>, u64) {
        let mut written = self.written();
        let (fenced, plain) = written.counters.read(lock, fence);
        let (lock, fence, at) = (lock.to_owned(), fence.get(), self.since(now()));
        written.events.push(Event { at, what: What::Read { w, op, lock, fence, fenced, plain } });
        (fenced, plain)
    }

    /// Writes the counters, one larger than they were read.
    pub(super) fn write(&self, w: u32, op: u64, lock: &str, fence: Fence, (fenced, plain): (Option<u64>, u64)) {
        let (fenced, plain) = (fenced.map(|value| value + 1), plain + 1);
        let mut written = self.written();
        let accepted = written.counters.write(lock, fence, fenced, plain);
        let (lock, fence, at) = (lock.to_owned(), fence.get(), self.since(now()));
        written.events.push(Event { at, what: What::Wrote { w, op, lock, fence, fenced, plain, accepted } });
    }

    /// Writes down a grant. Its end is written down when it is known.
    pub(super) fn granted(&self, w: u32, op: u64, guard: &Guard) {
        self.add(What::Granted { w, op, fence: guard.fence().get(), until: u64::MAX });
    }

    /// The whole history.
    pub(super) fn record(&self, ttl_ms: u64, takeover_ms: u64, locks: &[(&str, LockKind)]) -> Record {
        self.add(What::Done);
        let mut events = std::mem::take(&mut self.written().events);
        events.sort_by_key(|event| event.at);
        let locks = locks.iter().map(|(name, kind)| LockSpec { name: (*name).to_owned(), kind: *kind }).collect();
        let header = Header {
            oarlock_torture: VERSION,
            run: "0-0".to_owned(),
            seed: 0,
            url: "mem:".to_owned(),
            lock: OARLOCK.to_owned(),
            also: None,
            beside: false,
            // The weakest of all promises: what excuses too much would let a broken lock pass.
            consistency: "best effort".to_owned(),
            liveness: "lease and process".to_owned(),
            fencing: "clocked".to_owned(),
            ttl_ms,
            duration_ms: 0,
            workers: self.written().workers,
            rate: 0,
            started_ms: 0,
            takeover_ms,
            locks,
            faults: FaultKind::OF_PROCESSES.to_vec(),
            by_hand: false,
            loses_data: false,
            untried: Vec::new(),
        };
        Record { header, events }
    }
}
