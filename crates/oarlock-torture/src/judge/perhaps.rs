//! Two holders at once, of which the first may have known that its lock was lost.
//!
//! Another library is asked now and then. From the last question that it answered with "yes" until its "no", or until it
//! gave the lock back, nobody knows whether it believed: it may have told its user of the loss, or have noticed nothing,
//! also while its process was stopped or a question hung.

use std::collections::{BTreeMap, BTreeSet};

use super::holds::{self, Belief};
use super::{Finding, excused};
use crate::history::Violation;
use crate::record::{Record, named};

const MAY_HAVE_HELD: &str =
    "this library is asked now and then: after its last \"yes\" it may have held, or have told its user of the loss";

/// Overlaps that are not among the `certain` ones.
pub(super) fn findings(record: &Record, beliefs: &[Belief], certain: &[Violation]) -> Vec<Finding> {
    if beliefs.iter().all(|belief| belief.perhaps == belief.ended) {
        return Vec::new();
    }
    let known: BTreeSet<_> = certain.iter().filter_map(second).collect();
    let granted = |belief: &Belief| Some(((u64::from(belief.w), belief.granted?.0), belief.ended));
    let ends: BTreeMap<_, _> = beliefs.iter().filter_map(granted).collect();
    let longest: Vec<_> = beliefs.iter().map(|belief| Belief { ended: belief.perhaps, ..belief.clone() }).collect();
    let overlaps = holds::history(record, &longest).overlaps();
    let of = |violation: &Violation| {
        let at = second(violation).filter(|second| !known.contains(second))?;
        let Violation::Overlap { first, second } = violation else { return None };
        let last = ends.get(&(first.owner, first.granted.as_nanos()));
        let seconds = |nanos: u64| format!("{}.{:06} s", nanos / 1_000_000_000, nanos % 1_000_000_000 / 1000);
        let what = format!(
            "at {} worker {} got {} while worker {} may have held it until {}: its last \"yes\" was of {}",
            seconds(at.1),
            second.owner,
            named(&second.resource),
            first.owner,
            seconds(first.ended.as_nanos()),
            seconds(last.copied().unwrap_or_else(|| first.granted.as_nanos()))
        );
        Some(excused(Some(MAY_HAVE_HELD), "PerhapsOverlap", at.1, what))
    };
    overlaps.iter().filter_map(of).collect()
}

/// Who was granted a lock that another one held, and when.
fn second(violation: &Violation) -> Option<(u64, u64)> {
    match violation {
        Violation::Overlap { second, .. } => Some((second.owner, second.granted.as_nanos())),
        _ => None,
    }
}
