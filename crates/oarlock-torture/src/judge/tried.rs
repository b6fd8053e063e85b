//! Whether enough was tried, and what the end of the run showed.

use std::collections::{BTreeMap, BTreeSet};

use super::holds::BUSY;
use super::{Figures, Finding, Ruling, excused, finding};
use crate::record::{Event, FaultKind, Record, What, named};
use crate::run::{PANICKED, SILENT};
use crate::workers::BY_ITSELF;

/// The name of a finding about a fault that was not chosen: it says nothing about those that were.
pub const LEFT_OUT: &str = "LeftOut";

/// The name of a finding about servers of which no worker used one.
pub const UNUSED: &str = "Unused";

fn untried(what: String) -> Finding {
    finding(Ruling::Inconclusive, "Untried", None, what)
}

/// A run that did not try what it should try is never OK.
pub(super) fn exercised(record: &Record, commands: &BTreeMap<u64, (u64, u64)>, figures: &Figures) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut missing = |what: String| findings.push(untried(what));
    let faults = &record.header.faults;
    let cuts = [FaultKind::Cut, FaultKind::CutRequests, FaultKind::CutReplies];
    let effective = effective(record);
    for &kind in faults {
        if figures.faults.get(&kind).is_none_or(|count| *count == 0) {
            missing(format!("this fault was never injected: {}", kind.words()));
            continue;
        }
        // Whatever the reason is: a worker that reaches a server past its proxy, or a machine that is too slow.
        if cuts.contains(&kind) && !effective.contains(&kind) {
            missing(format!("this fault cost no holder its lock, as it should have: {}", kind.words()));
        }
    }
    if faults.contains(&FaultKind::LostReply) && figures.replies_lost == 0 {
        missing("no reply was lost when one should have been".to_owned());
    }
    if faults.contains(&FaultKind::Pause) && record.header.fencing != "none" && figures.refused() == 0 {
        missing("no stale write came to the fenced counter".to_owned());
    }
    for what in &record.header.untried {
        missing(what.clone());
    }
    let (mut unused, mut used) = (Vec::new(), 0);
    for event in &record.events {
        match &event.what {
            What::Carried { host, bytes: 0 } => unused.push(host.as_str()),
            What::Carried { .. } => used += 1,
            What::FaultEnded { id, effect: Some(code), .. } if *code != 0 && commands.contains_key(id) => {
                missing(format!("the fault command ended with code {code}: what it did is not known"));
            }
            What::Garbled { w } => missing(format!("a report of worker {w} could not be read")),
            _ => {}
        }
    }
    // A replica, and a node of a cluster without one of the names, is asked for nothing. That faults reach the holders is
    // seen by what they cost.
    if used == 0 && !unused.is_empty() {
        let what = format!("no request went to {} through the proxies", unused.join(", "));
        findings.push(finding(Ruling::Inconclusive, UNUSED, None, what));
    }
    findings
}

/// The kinds of faults that did, at least once, what they were meant to do.
fn effective(record: &Record) -> BTreeSet<FaultKind> {
    let mut open = BTreeMap::new();
    let mut effective = BTreeSet::new();
    for event in &record.events {
        match event.what {
            What::Fault { id, kind, .. } => {
                open.insert(id, kind);
            }
            What::FaultEnded { id, effect: Some(1..), .. } => effective.extend(open.get(&id)),
            _ => {}
        }
    }
    effective
}

/// A history that leaves something out proves nothing, also if another program wrote it.
pub(super) fn whole(record: &Record) -> Vec<Finding> {
    let ours = record.header.has_oarlock();
    let mut findings = Vec::new();
    let connected = record.events.iter().any(|event| matches!(event.what, What::Carried { .. }));
    let applies = |kind: &FaultKind| match kind {
        FaultKind::Repeat | FaultKind::Cancel => ours,
        kind => connected || FaultKind::OF_PROCESSES.contains(kind),
    };
    let all = FaultKind::OF_PROCESSES.into_iter().chain(FaultKind::OF_NETWORKS);
    for kind in all.filter(|kind| applies(kind) && !record.header.faults.contains(kind)) {
        let what = format!("the run was not to have this fault: {}", kind.words());
        findings.push(finding(Ruling::Inconclusive, LEFT_OUT, None, what));
    }
    let (mut phases, mut started, mut left) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for event in &record.events {
        match &event.what {
            What::Phase { name } => {
                phases.insert(name.as_str());
            }
            What::Started { w, .. } => {
                started.insert(*w);
            }
            What::Died { w, .. } | What::Drained { w, .. } => {
                started.remove(w);
            }
            What::Left { lock, .. } => {
                left.insert(lock.as_str());
            }
            _ => {}
        }
    }
    for phase in ["calm", "scenes", "storm", "drain"] {
        if !phases.contains(phase) {
            findings.push(untried(format!("the run had no phase {phase}")));
        }
    }
    findings.extend(started.iter().map(|w| untried(format!("worker {w} was not there at the end"))));
    for lock in record.header.locks.iter().filter(|lock| ours && !left.contains(lock.name.as_str())) {
        findings.push(untried(format!("what is left of {} was not looked for", named(&lock.name))));
    }
    findings
}

/// After the faults: workers that got no lock, claims that stayed.
pub(super) fn left(record: &Record) -> Vec<Finding> {
    let libraries = record.libraries();
    let of = |event: &Event| match &event.what {
        What::Drained { w, failed: Some(why) } => {
            // A server that does not come back is no fault of the lock. A store that answers and grants nothing is, and
            // so is a library that panics, or hangs longer than its wait.
            let failed = !libraries.contains(*w) && [PANICKED, SILENT].contains(&why.as_str());
            let ruling = if why.starts_with(BUSY) || failed { Ruling::Violation } else { Ruling::Inconclusive };
            let what = format!("worker {w} could not take every lock once the faults were over: {why}");
            Some(finding(ruling, "Stuck", Some(event.at), what))
        }
        What::Died { w, why } if why == BY_ITSELF => {
            let what = format!("worker {w} ended by itself");
            Some(finding(Ruling::Inconclusive, "Crashed", Some(event.at), what))
        }
        What::Left { lock, holders, waiters } if holders.unwrap_or(0).max(waiters.unwrap_or(0)) > 0 => {
            let (holders, waiters) = (holders.unwrap_or(0), waiters.unwrap_or(0));
            let what = format!("{} still had {holders} holders and {waiters} waiters after the run", named(lock));
            let excuse = record.header.beside.then_some("the other library may have left them");
            Some(excused(excuse, "Leaked", event.at, what))
        }
        What::Left { lock, holders: None, .. } => {
            let what = format!("what is left of {} could not be seen", named(lock));
            Some(finding(Ruling::Inconclusive, "Unseen", Some(event.at), what))
        }
        _ => None,
    };
    record.events.iter().filter_map(of).collect()
}
