//! The verdict on a run that goes on, for people who watch it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::SoFar;
use crate::judge::{Ruling, judge};
use crate::record::{Event, Header, Record};
use crate::workers::Shared;

/// More events are not judged before the end: each look reads all of them.
const MOST: usize = 200_000;

/// The time between two looks, and how many times as long as a look it is at least: a look must not slow the run down.
const PAUSE: Duration = Duration::from_secs(2);
const REST: u32 = 20;

/// A report of a worker that runs arrives within this time.
const ARRIVES: Duration = Duration::from_secs(1);

/// What was written down so far.
pub(super) struct Seen {
    header: Header,
    events: Mutex<Vec<Event>>,
}

impl Seen {
    pub(super) fn new(header: Header) -> Self {
        Self { header, events: Mutex::default() }
    }

    pub(super) fn keep(&self, event: Event) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() < MOST {
            events.push(event);
        }
    }

    /// What happened before `until`: later reports may be incomplete.
    fn judged(&self, until: u64) -> SoFar {
        let (mut events, is_final) = {
            let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
            let before = events.iter().filter(|event| event.at <= until);
            (before.cloned().collect::<Vec<_>>(), events.len() == MOST)
        };
        events.sort_by_key(|event| event.at);
        so_far(&Record { header: self.header.clone(), events }, is_final)
    }
}

/// What broke. That something was not tried yet says nothing before the end.
fn so_far(record: &Record, is_final: bool) -> SoFar {
    let findings = judge(record).findings;
    let broken = || findings.iter().filter(|finding| finding.ruling >= Ruling::RiskSeen);
    let mut names: Vec<_> = broken().map(|finding| finding.name).collect();
    names.dedup();
    SoFar { ruling: broken().map(|finding| finding.ruling).max().unwrap_or(Ruling::Ok), names, is_final }
}

/// Looks again and again.
pub(super) async fn look(seen: &Arc<Seen>, shared: &Shared) {
    loop {
        tokio::time::sleep(PAUSE).await;
        let until = shared.now().saturating_sub(u64::try_from(ARRIVES.as_nanos()).unwrap_or(u64::MAX));
        let (begun, seen) = (Instant::now(), Arc::clone(seen));
        let judged = tokio::task::spawn_blocking(move || seen.judged(until)).await;
        if let Ok(found) = judged {
            shared.change(|status| status.found = Some(found));
        }
        tokio::time::sleep(begun.elapsed() * REST).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broken::{BrokenStore, Flaw, storm};

    async fn of(flaw: Flaw) -> Record {
        storm(Arc::new(BrokenStore::new(flaw)), 5, Duration::from_secs(2)).await.unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_broke_is_told_before_the_end_and_what_was_not_tried_is_not() {
        let (right, broken) = tokio::join!(of(Flaw::None), of(Flaw::RepeatsFences));
        let end = right.events.last().unwrap().at;
        let seen = Seen::new(right.header.clone());
        right.events.into_iter().for_each(|event| seen.keep(event));
        for part in [0, 2, 4] {
            let found = seen.judged(end / 4 * part);
            assert_eq!((found.ruling, found.names, found.is_final), (Ruling::Ok, vec![], false), "{part}");
        }
        let end = broken.events.last().unwrap().at;
        let seen = Seen::new(broken.header.clone());
        broken.events.into_iter().for_each(|event| seen.keep(event));
        let found = seen.judged(end / 2);
        assert_eq!(found.ruling, Ruling::Violation);
        assert!(found.names.contains(&"FenceRepeated"), "{found:?}");
    }
}
