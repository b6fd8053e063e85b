//! Judges a history: what its holders believed, the fences, the counters, and what is left at the end.

mod counted;
mod excuse;
mod figures;
mod holds;
mod perhaps;
mod told;
mod tried;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use oarlock_core::LossReason;
use oarlock_core::clock::Moment;
use serde::Serialize;

use crate::history::{Rules, Verdict, Violation};
use crate::record::{Event, FaultKind, Header, OARLOCK, Record, What, named};
use crate::worker::EXPIRED;

use excuse::Excuses;
pub use figures::{Figures, LockFigures};
pub use holds::{Belief, BeliefEnd, beliefs};
pub(crate) use told::TOLD_WITHIN;
pub use tried::{LEFT_OUT, UNUSED};

/// The verdict on a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Ruling {
    /// Everything that was tried held, and enough was tried.
    #[serde(rename = "OK")]
    Ok,
    /// Too little was tried, or it could not be judged.
    #[serde(rename = "INCONCLUSIVE")]
    Inconclusive,
    /// Something went wrong that this deployment does not promise to prevent.
    #[serde(rename = "RISK SEEN")]
    RiskSeen,
    /// A promise was broken.
    #[serde(rename = "VIOLATION")]
    Violation,
}

impl fmt::Display for Ruling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "OK",
            Self::Inconclusive => "INCONCLUSIVE",
            Self::RiskSeen => "RISK SEEN",
            Self::Violation => "VIOLATION",
        })
    }
}

/// One thing that keeps a run from being OK.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub ruling: Ruling,
    /// Its name.
    pub name: &'static str,
    /// When: nanoseconds since the start, where it has a time.
    pub at: Option<u64>,
    /// What happened, in words.
    pub what: String,
    /// The last fault before it, in words.
    pub after: Option<String>,
    /// Why it is no violation.
    pub excuse: Option<&'static str>,
}

/// The judgement of a run.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
#[must_use = "a judgement that is not read proves nothing"]
pub struct Judgement {
    /// The verdict: the worst finding, or OK.
    pub ruling: Ruling,
    /// What was found.
    pub findings: Vec<Finding>,
    /// What was counted.
    pub figures: Figures,
}

/// Fewer holds prove nothing.
const LEAST_HOLDS: usize = 20;

/// More of one kind than this are counted and not listed.
const LISTED: usize = 8;

/// What the checker says of the beliefs in a history.
#[must_use]
pub fn violations(record: &Record) -> Vec<Violation> {
    check(record, &beliefs(record)).violations
}

/// How long a takeover may take: as the header says, or longer where the store granted longer leases than were asked for.
fn takeover(record: &Record) -> Duration {
    let lease = |event: &Event| match event.what {
        What::Granted { until, .. } | What::Until { until, .. } if until < u64::MAX => until.saturating_sub(event.at),
        _ => 0,
    };
    let longest = Duration::from_nanos(record.events.iter().map(lease).max().unwrap_or(0));
    takeover_for(&record.header, longest)
}

/// How long a takeover may take if leases last so long.
pub(crate) fn takeover_for(header: &Header, lease: Duration) -> Duration {
    let longer = lease.saturating_sub(Duration::from_millis(header.ttl_ms));
    Duration::from_millis(header.takeover_ms).saturating_add(longer.saturating_mul(2))
}

/// A claim that waits for a free lock gets it within this time, where nothing is broken: a few round trips, and the
/// pauses of a busy machine. Never more than half of the time that a takeover may take.
const IDLE: Duration = Duration::from_secs(5);

fn check(record: &Record, beliefs: &[Belief]) -> Verdict {
    let takeover = takeover(record);
    let kills = record.header.faults.contains(&FaultKind::Kill);
    let rules = Rules::new().least_holds(LEAST_HOLDS).least_takeovers(usize::from(kills)).takeover_within(takeover);
    let rules = if record.header.fencing == "none" { rules.unfenced() } else { rules };
    let rules = rules.without_fences(record.libraries().owners());
    // Another library has its own way to wait, and by hand servers are broken at any time.
    let idle = IDLE.min(Duration::from_millis(record.header.takeover_ms / 2));
    let is_idle_judged = record.header.lock == OARLOCK && !record.header.by_hand;
    let rules = if is_idle_judged { undisturbed(record, takeover, rules.idle_within(idle)) } else { rules };
    holds::history(record, beliefs).check(&rules)
}

/// A claim may wait longer while something is broken and a takeover after that. In the storm too much is.
fn undisturbed(record: &Record, takeover: Duration, mut rules: Rules) -> Rules {
    let moment = Moment::from_nanos;
    let storm = holds::phase(record, "storm").unwrap_or(u64::MAX);
    rules = rules.unjudged(moment(storm), Moment::NEVER);
    let mut open = BTreeMap::new();
    for event in record.events.iter().filter(|event| event.at < storm) {
        match event.what {
            What::Fault { id, kind, .. } => {
                open.insert(id, (kind, event.at));
            }
            What::FaultEnded { id, .. } => {
                let Some((kind, from)) = open.remove(&id) else { continue };
                let (from, to) = (moment(from), moment(event.at) + takeover);
                // A server that restarts answers no request.
                rules = if kind == FaultKind::Command { rules.unjudged(from, to) } else { rules.disturbed(from, to) };
            }
            // A worker that ended by itself may have held the lock.
            What::Died { .. } => rules = rules.disturbed(moment(event.at), moment(event.at) + takeover),
            _ => {}
        }
    }
    open.into_values().fold(rules, |rules, (_, from)| rules.unjudged(moment(from), Moment::NEVER))
}

/// Judges a history.
pub fn judge(record: &Record) -> Judgement {
    let beliefs = beliefs(record);
    let verdict = check(record, &beliefs);
    let mut figures = Figures::of(record, &beliefs);
    (figures.takeovers, figures.slowest_takeover) = (verdict.takeovers, verdict.slowest_takeover);
    let excuses = Excuses::new(record, takeover(record));
    let mut findings: Vec<_> = verdict.violations.iter().map(|violation| checked(&excuses, violation)).collect();
    findings.extend(perhaps::findings(record, &beliefs, &excuses));
    findings.extend(calm(record, &beliefs, &excuses));
    findings.extend(counted::findings(record, &excuses, &figures));
    let (latest, late) = told::findings(record, &excuses);
    figures.latest_told = latest;
    findings.extend(late);
    findings.extend(tried::exercised(record, &excuses.commands, &figures));
    findings.extend(tried::whole(record));
    findings.extend(tried::left(record));
    let ruling = findings.iter().map(|finding| finding.ruling).max().unwrap_or(Ruling::Ok);
    shorten(&mut findings);
    for finding in &mut findings {
        finding.after = finding.at.and_then(|at| last_fault(record, Moment::from_nanos(at)));
    }
    Judgement { ruling, findings, figures }
}

/// Locks that were lost before anything was broken. A lease that ran out may be that of a machine that is too slow for it;
/// every other loss is the store's. Another library may have lost its lock at any time until its "no".
fn calm(record: &Record, beliefs: &[Belief], excuses: &Excuses<'_>) -> Vec<Finding> {
    let (calm, ttl) = (figures::first_fault(record), Duration::from_millis(record.header.ttl_ms));
    let of = |belief: &Belief| match &belief.end {
        BeliefEnd::Lost(why) if belief.perhaps < calm => {
            let what = format!("worker {} lost {} while nothing was broken: {why}", belief.w, named(&belief.lock));
            // Another library says "no" without a reason. If it was not asked for so long, its lease may have run out.
            let unasked = Duration::from_nanos(belief.perhaps - belief.ended) > ttl / 2;
            if unasked || *why == LossReason::Expired.to_string() || why == EXPIRED {
                let what = format!("{what}; too slow for this lease?");
                return Some(finding(Ruling::Inconclusive, "FalseAlarm", Some(belief.ended), what));
            }
            Some(excused(excuses.of_store(belief.ended), "FalseAlarm", belief.ended, what))
        }
        _ => None,
    };
    beliefs.iter().filter_map(of).collect()
}

fn checked(excuses: &Excuses<'_>, violation: &Violation) -> Finding {
    let at = match violation {
        Violation::Overlap { second, .. } | Violation::CapacityExceeded { second, .. } => second.granted,
        Violation::FenceRepeated { second, .. } => second.granted,
        Violation::FenceOrder { later, .. } => later.granted,
        Violation::Overtaken { overtook, .. } => overtook.granted,
        Violation::Starved { since, .. } => *since,
        Violation::Vacuous { .. } => {
            return finding(Ruling::Inconclusive, violation.name(), None, violation.to_string());
        }
    };
    let sides = excuses.sides(violation).map_or_else(String::new, |sides| format!("; {sides}"));
    excused(excuses.of(violation), violation.name(), at.as_nanos(), format!("{violation}{sides}"))
}

/// A violation, or a risk if there is an excuse.
fn excused(excuse: Option<&'static str>, name: &'static str, at: u64, what: String) -> Finding {
    let ruling = if excuse.is_some() { Ruling::RiskSeen } else { Ruling::Violation };
    Finding { excuse, ..finding(ruling, name, Some(at), what) }
}

fn finding(ruling: Ruling, name: &'static str, at: Option<u64>, what: String) -> Finding {
    Finding { ruling, name, at, what, after: None, excuse: None }
}

/// The fault before a moment, if it can have to do with it.
fn last_fault(record: &Record, at: Moment) -> Option<String> {
    let reach = Duration::from_millis(record.header.ttl_ms.saturating_mul(3));
    let mut faults = record.events.iter().filter_map(|event| match &event.what {
        What::Fault { kind, w, host, .. } if event.at <= at.as_nanos() => Some((event.at, kind, w, host)),
        _ => None,
    });
    let (begun, kind, w, host) = faults.next_back()?;
    let ago = at.since(Moment::from_nanos(begun));
    if ago > reach {
        return None;
    }
    let who = w.map_or_else(String::new, |w| format!(" of worker {w}"));
    let host = host.as_ref().map_or_else(String::new, |host| format!(" to {host}"));
    Some(format!("{}{who}{host}, {} ms before", kind.words(), ago.as_millis()))
}

/// Keeps the first of each name, the worst first.
fn shorten(findings: &mut Vec<Finding>) {
    findings.sort_by_key(|finding| (std::cmp::Reverse(finding.ruling), finding.at));
    let mut counts = BTreeMap::<_, usize>::new();
    findings.retain(|finding| {
        let count = counts.entry((finding.ruling, finding.name)).or_default();
        *count += 1;
        *count <= LISTED
    });
    for ((ruling, name), count) in counts {
        if count > LISTED {
            findings.push(finding(ruling, name, None, format!("and {} more like this", count - LISTED)));
        }
    }
}

#[cfg(test)]
mod tests;
