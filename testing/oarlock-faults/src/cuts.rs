//! Whether a cut of the network of the one server did what it must: no holder that runs keeps its lock for longer than the
//! lease.

use oarlock_torture::judge::{Belief, BeliefEnd, beliefs};
use oarlock_torture::record::{FaultKind, Record, What};

use crate::runs::Done;

/// From when to when something was broken.
type Span = (u64, u64);

/// Adds what the cuts of a run did not do.
pub(crate) fn judge(record: &Record, done: &mut Done) {
    let (mut cuts, mut stops) = (Vec::new(), Vec::new());
    let mut open = std::collections::BTreeMap::new();
    for event in &record.events {
        match event.what {
            What::Fault { id, kind, w, .. } => {
                open.insert(id, (kind, w, event.at));
            }
            What::FaultEnded { id, .. } => match open.remove(&id) {
                Some((FaultKind::Command, _, from)) => cuts.push((from, event.at)),
                Some((FaultKind::Pause, Some(w), from)) => stops.push((w, (from, event.at))),
                _ => {}
            },
            _ => {}
        }
    }
    let lease = record.header.ttl_ms.saturating_mul(1_000_000);
    // Packets are dropped for 1.6 leases at least. When that begins is not known: the command has to come to it first.
    let spare = lease / 5 * 3;
    let beliefs = beliefs(record);
    let mut costs = 0;
    for cut in cuts {
        for belief in beliefs.iter().filter(|belief| is_cut_off(belief, cut, &stops)) {
            costs += u64::from(matches!(belief.end, BeliefEnd::Lost(_)) && belief.ended <= cut.1);
            if belief.ended.min(cut.1) > cut.1.saturating_sub(spare) {
                let ms = (belief.ended - cut.0) / 1_000_000;
                done.untried.push(format!("Untried: worker {} held for {ms} ms after it was cut off", belief.w));
            }
        }
    }
    if costs == 0 {
        done.untried.push("Untried: no cut cost a holder that ran its lock".to_owned());
    }
}

/// Whether it held when the cut began, and was not stopped meanwhile: then its lease would have ended anyway.
fn is_cut_off(belief: &Belief, (from, to): Span, stops: &[(u32, Span)]) -> bool {
    let holds = belief.granted.is_some_and(|(granted, _)| granted < from) && belief.ended > from;
    holds && !stops.iter().any(|(w, stop)| *w == belief.w && stop.0 <= to && from <= stop.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::Case;

    /// Worker 0 holds from 500 ms on, its lease of 1 s is renewed every 300 ms, and from 2000 to 4000 ms it is cut off.
    fn untried(change: impl Fn(&mut u64, &mut What)) -> Vec<String> {
        let mut record = Record::read(include_str!("../tests/cut.jsonl").as_bytes()).expect("a history");
        record.events.iter_mut().for_each(|event| change(&mut event.at, &mut event.what));
        let case = Case::named("redis", "own network", "net-cut").expect("a case");
        let mut done = Done::of(&case, 1, 15);
        judge(&record, &mut done);
        done.untried
    }

    #[test]
    fn a_cut_that_costs_no_holder_its_lock_was_not_tried() {
        assert!(untried(|_, _| {}).is_empty());
        let ended = |lost: bool, ms: u64| {
            move |at: &mut u64, what: &mut What| {
                if let What::Ended { lost: why, .. } = what {
                    *why = lost.then(|| "expired".to_owned());
                    *at = ms * 1_000_000;
                }
            }
        };
        let nothing = untried(ended(false, 2100));
        assert!(nothing.len() == 1 && nothing[0].contains("no cut cost"), "it was released: {nothing:?}");
        for lost in [false, true] {
            let kept = untried(ended(lost, 3600));
            assert!(kept[0].contains("worker 0 held for 1600 ms"), "the cut did not reach it: {kept:?}");
        }
        assert!(!untried(ended(true, 4100)).is_empty(), "it was lost after the cut");
        let late = untried(|at, what| {
            if matches!(what, What::Granted { .. }) {
                *at = 2_050_000_000;
            }
        });
        assert!(!late.is_empty(), "it was granted the lock during the cut");
    }

    #[test]
    fn a_holder_that_is_stopped_shows_nothing() {
        // Its lease ends anyway.
        let stopped = untried(|_, what| {
            if let What::Fault { kind: kind @ FaultKind::Cancel, .. } = what {
                *kind = FaultKind::Pause;
            }
        });
        assert!(stopped.len() == 1 && stopped[0].contains("no cut cost"), "{stopped:?}");
    }
}
