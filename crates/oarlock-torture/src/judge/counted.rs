//! The counters: a fence must lose nothing.

use std::collections::BTreeMap;

use super::excuse::Excuses;
use super::{Figures, Finding, excused};
use crate::record::{Record, What, named};

pub(super) fn findings(record: &Record, excuses: &Excuses<'_>, figures: &Figures) -> Vec<Finding> {
    let mut findings = Vec::new();
    let end = record.events.last().map_or(0, |event| event.at);
    for (lock, counted) in &figures.locks {
        let lost = counted.lost_with_fence();
        if lost > 0 {
            let lock = named(lock);
            let what = format!(
                "the fenced counter of {lock} lost {lost} of {} updates",
                counted.writes - counted.refused - counted.unfenced
            );
            findings.push(excused(excuses.of_fences(end), "LostUpdate", end, what));
        }
    }
    // The referee is checked as well: a counter that accepts an older fence would make every run look good.
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for event in &record.events {
        let (lock, fence, accepted) = match &event.what {
            What::Read { lock, fence, fenced, .. } => (lock, *fence, fenced.is_some()),
            What::Wrote { lock, fence, accepted, .. } => (lock, *fence, *accepted),
            _ => continue,
        };
        let largest = seen.entry(lock).or_default();
        if accepted && fence < *largest {
            let what = format!("fence {fence} was accepted for {} after fence {largest}", named(lock));
            findings.push(excused(excuses.of_fences(event.at), "StaleAccepted", event.at, what));
        }
        if accepted {
            *largest = fence.max(*largest);
        }
    }
    findings
}
