//! The history of a broken lock as the record of a run, so that it takes the way that the histories of users take.

use std::collections::BTreeSet;

use oarlock_core::{Limit, Weight};

use crate::history::History;
use crate::judge::history_of;
use crate::record::{Event, Header, LockKind, LockSpec, OARLOCK, Record, Unreadable, VERSION, What};

/// The same history, written as JSON lines, read again, and turned into beliefs.
///
/// # Errors
/// [`Unreadable`] if what was written cannot be read.
pub fn through_a_file(history: &History) -> Result<History, Unreadable> {
    let mut text = Vec::new();
    record(history).write(&mut text).map_err(|error| Unreadable { line: 0, why: error.to_string() })?;
    Record::read(text.as_slice()).map(|record| history_of(&record))
}

/// Each hold and each wait is a worker of its own, which may die.
fn record(history: &History) -> Record {
    let mut events = Vec::new();
    let mut locks: Vec<LockSpec> = Vec::new();
    let mut w = 0;
    let mut add = |at: u64, what: What| events.push(Event { at, what });
    add(0, What::Phase { name: "scenes".to_owned() });
    let deaths: BTreeSet<(&str, u64)> = history.deaths().map(|(name, at)| (name, at.as_nanos())).collect();
    for hold in history.holds() {
        w += 1;
        let (lock, op, fence) = (hold.resource.clone(), 1, hold.fence.get());
        let kind = match hold.capacity {
            None => LockKind::Mutex,
            Some(Limit::Units(units)) => LockKind::Semaphore(units.get()),
            Some(_) => LockKind::ReadWrite,
        };
        if locks.iter().all(|known| known.name != lock) {
            locks.push(LockSpec { name: lock.clone(), kind });
        }
        let units = match hold.weight {
            Weight::Units(units) => Some(units.get()),
            _ => None,
        };
        let ended = hold.ended.as_nanos();
        add(hold.asked.as_nanos(), What::Asked { w, op, lock, units });
        add(hold.granted.as_nanos(), What::Granted { w, op, fence, until: u64::MAX });
        if deaths.contains(&(hold.resource.as_str(), ended)) {
            add(ended, What::Died { w, why: "killed".to_owned() });
        } else {
            add(ended, What::Ended { w, op, lost: None });
        }
    }
    for (name, asked, until) in history.waits() {
        w += 1;
        if locks.iter().all(|known| known.name != name) {
            locks.push(LockSpec { name: name.to_owned(), kind: LockKind::Mutex });
        }
        add(asked.as_nanos(), What::Asked { w, op: 1, lock: name.to_owned(), units: None });
        add(until.as_nanos(), What::GaveUp { w, op: 1, why: "Busy".to_owned() });
    }
    let last = events.iter().map(|event| event.at).max().unwrap_or(0);
    events.push(Event { at: last.saturating_add(1), what: What::Done });
    Record { header: header(locks), events }
}

fn header(locks: Vec<LockSpec>) -> Header {
    Header {
        oarlock_torture: VERSION,
        run: "0-0".to_owned(),
        seed: 0,
        url: "mem:".to_owned(),
        lock: OARLOCK.to_owned(),
        consistency: "consensus".to_owned(),
        liveness: "lease".to_owned(),
        fencing: "strict".to_owned(),
        ttl_ms: 0,
        duration_ms: 0,
        workers: 0,
        rate: 0,
        started_ms: 0,
        takeover_ms: 0,
        locks,
        faults: Vec::new(),
        by_hand: false,
        untried: Vec::new(),
    }
}
