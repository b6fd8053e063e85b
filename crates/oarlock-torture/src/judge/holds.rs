//! From reports to intervals of belief.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use oarlock_core::clock::Moment;
use oarlock_core::{Fence, Limit, Weight};

use crate::history::{History, Hold};
use crate::record::{LockKind, Record, What};
use crate::worker::CANCELLED;

/// What the reason of a claim begins with that the store refused.
pub(super) const BUSY: &str = "Busy";

/// One acquisition, from the request to the end of belief.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Belief {
    /// The worker.
    pub w: u32,
    /// Its lock.
    pub lock: String,
    /// How much of it; `None` for all.
    pub units: Option<u32>,
    /// When it asked.
    pub asked: u64,
    /// When it got the lock, and its fence.
    pub granted: Option<(u64, u64)>,
    /// When belief ended, or waiting.
    pub ended: u64,
    /// Until when another library may have believed: not before `ended`.
    pub perhaps: u64,
    /// How it ended.
    pub end: BeliefEnd,
}

/// How a belief ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BeliefEnd {
    /// Its holder released it.
    Released,
    /// Its holder was told that it is lost.
    Lost(String),
    /// It was never granted.
    GaveUp(String),
    /// Its process died.
    Died,
    /// The run ended.
    Open,
}

/// What was reported of one acquisition. Times of reports need not be in their order: a belief ends with its lease, and
/// a worker that was stopped says so later.
#[derive(Default)]
struct Reports<'a> {
    asked: Option<(u64, &'a str, Option<u32>)>,
    granted: Option<(u64, u64)>,
    until: Option<u64>,
    ended: Option<(u64, BeliefEnd)>,
    perhaps: Option<u64>,
}

/// Every acquisition of a history, in order of requests.
#[must_use]
pub fn beliefs(record: &Record) -> Vec<Belief> {
    let mut reports: BTreeMap<(u32, u64), Reports<'_>> = BTreeMap::new();
    let mut deaths: BTreeMap<u32, u64> = BTreeMap::new();
    let last = record.events.last().map_or(0, |event| event.at);
    for event in &record.events {
        let at = event.at;
        match &event.what {
            What::Asked { w, op, lock, units } => {
                reports.entry((*w, *op)).or_default().asked = Some((at, lock, *units));
            }
            What::Granted { w, op, fence, until } => {
                let of = reports.entry((*w, *op)).or_default();
                of.granted = Some((at, *fence));
                of.until = of.until.max(Some(*until));
            }
            What::Until { w, op, until } => {
                let of = reports.entry((*w, *op)).or_default();
                of.until = of.until.max(Some(*until));
            }
            What::Ended { w, op, lost, perhaps, .. } => {
                let of = reports.entry((*w, *op)).or_default();
                of.ended = Some((at, lost.clone().map_or(BeliefEnd::Released, BeliefEnd::Lost)));
                of.perhaps = *perhaps;
            }
            What::GaveUp { w, op, why } => {
                reports.entry((*w, *op)).or_default().ended = Some((at, BeliefEnd::GaveUp(why.clone())));
            }
            What::Died { w, .. } => {
                deaths.entry(*w).or_insert(at);
            }
            _ => {}
        }
    }
    let libraries = record.libraries();
    let of = |((w, _), reports): (_, Reports<'_>)| {
        let died = deaths.get(&w).copied();
        // Another library that said nothing more may have believed until it died.
        let silent = if !libraries.contains(w) || reports.ended.is_some() { None } else { Some(died.unwrap_or(last)) };
        belief(w, Reports { perhaps: reports.perhaps.or(silent), ..reports }, died, last)
    };
    let mut beliefs: Vec<_> = reports.into_iter().filter_map(of).collect();
    beliefs.sort_by_key(|belief| belief.asked);
    beliefs
}

fn belief(w: u32, reports: Reports<'_>, died: Option<u64>, last: u64) -> Option<Belief> {
    let (asked, lock, units) = reports.asked?;
    let until = reports.until.unwrap_or(u64::MAX);
    let (ended, end) = match (reports.ended, died) {
        // Its own time counts: it knows of renewals that it did not report.
        (Some(ended), _) => ended,
        (None, Some(died)) => (died.min(until), BeliefEnd::Died),
        (None, None) => (last.min(until), BeliefEnd::Open),
    };
    // A worker that was stopped before it could report its grant has believed nothing; its fence counts all the same, at
    // the end of its lease.
    let granted = reports.granted.map(|(at, fence)| (at.min(ended), fence));
    let asked = granted.map_or(asked, |(granted, _)| asked.min(granted));
    let perhaps = reports.perhaps.map_or(ended, |perhaps| perhaps.max(ended));
    Some(Belief { w, lock: lock.to_owned(), units, asked, granted, ended, perhaps, end })
}

/// When a phase began.
pub(super) fn phase(record: &Record, name: &str) -> Option<u64> {
    let is = |what: &What| matches!(what, What::Phase { name: phase } if phase == name);
    record.events.iter().find(|event| is(&event.what)).map(|event| event.at)
}

/// The history that the checker takes. Deaths count in the scenes alone, where nothing else is broken.
pub(super) fn history(record: &Record, beliefs: &[Belief]) -> History {
    let kinds = record.kinds();
    let mut history = History::new();
    let scenes = phase(record, "scenes").unwrap_or(0)..phase(record, "storm").unwrap_or(u64::MAX);
    for belief in beliefs {
        let moment = Moment::from_nanos;
        let Some((granted, fence)) = belief.granted else {
            let (asked, ended) = (moment(belief.asked), moment(belief.ended));
            match &belief.end {
                BeliefEnd::GaveUp(why) if why.starts_with(BUSY) => history.waited(&belief.lock, asked, ended),
                // While the store does not answer, no claim waits for a lock.
                BeliefEnd::GaveUp(why) if why != CANCELLED => {}
                _ => history.withdrew(&belief.lock, asked, ended),
            }
            continue;
        };
        let capacity = match kinds.get(belief.lock.as_str()) {
            Some(LockKind::ReadWrite) => Some(Limit::Unlimited),
            Some(LockKind::Semaphore(permits)) => NonZeroU32::new(*permits).map(Limit::Units),
            Some(LockKind::Mutex) | None => None,
        };
        if belief.end == BeliefEnd::Died && scenes.contains(&belief.ended) {
            history.death(&belief.lock, moment(belief.ended));
        }
        history.hold(Hold {
            resource: belief.lock.clone(),
            owner: belief.w.into(),
            weight: belief.units.and_then(NonZeroU32::new).map_or(Weight::All, Weight::Units),
            capacity,
            fence: Fence::new(fence),
            asked: moment(belief.asked),
            granted: moment(granted),
            ended: moment(belief.ended),
            queued: None,
        });
    }
    history
}
