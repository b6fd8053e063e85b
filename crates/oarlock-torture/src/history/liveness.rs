//! A waiter is served within a bound after a death, and after any other event that leaves the resource free.

use std::time::Duration;

use oarlock_core::clock::Moment;

use super::{Hold, Resource, Rules, Verdict, Violation};

pub(super) fn check(name: &str, resource: &Resource, rules: &Rules, verdict: &mut Verdict) {
    let mut grants: Vec<&Hold> = resource.holds.iter().collect();
    grants.sort_by_key(|hold| hold.granted);
    let starved = takeovers(name, resource, &grants, rules, verdict);
    if let Some(bound) = rules.idle_within {
        // The same wait is not told twice.
        idle(name, resource, &grants, (bound, rules), &starved, &mut verdict.violations);
    }
}

/// Counts takeovers, and says before which grants a claim waited for too long after a death.
fn takeovers(
    name: &str,
    resource: &Resource,
    grants: &[&Hold],
    rules: &Rules,
    verdict: &mut Verdict,
) -> Vec<Option<Moment>> {
    let mut starved = Vec::new();
    if resource.deaths.is_empty() {
        return starved;
    }
    let held = Reach::new(grants.iter().map(|hold| (hold.granted, hold.ended)));
    let served = grants.iter().map(|hold| (hold.asked, hold.granted));
    let waited = Reach::new(served.chain(resource.waits.iter().map(|wait| (wait.asked, wait.until))));

    for &died in &resource.deaths {
        // Others still hold it, or no claim waits: no grant is due.
        if held.at(died).is_some_and(|ended| ended > died) || waited.at(died).is_none_or(|until| until <= died) {
            continue;
        }
        let next = grants.get(grants.partition_point(|hold| hold.granted <= died)).copied();
        if let Some(next) = next {
            let took = next.granted.since(died);
            verdict.takeovers += 1;
            verdict.slowest_takeover = verdict.slowest_takeover.max(Some(took));
        }
        let Some(bound) = rules.takeover_within else { continue };
        let until = next.map_or(Moment::NEVER, |next| next.granted);
        // One claim has waited for so long; or one was refused when the lock should have been free for long, however
        // short its own wait was.
        let itself = next.is_some_and(|next| next.granted.since(next.asked.max(died)) > bound);
        let another = resource.waits.iter().any(|wait| {
            let refused = wait.refused && wait.until >= died + bound && wait.until < until;
            refused || wait.until.min(until).since(wait.asked.max(died)) > bound
        });
        if itself || another {
            starved.push(next.map(|next| next.granted));
            let (resource, since, next) = (name.to_owned(), died, next.cloned());
            verdict.violations.push(Violation::Starved { resource, since, next, bound });
        }
    }
    starved
}

/// Finds gaps between holds in which a claim waited for longer than `bound`, or was refused after that time.
fn idle(
    name: &str,
    resource: &Resource,
    grants: &[&Hold],
    (bound, rules): (Duration, &Rules),
    told: &[Option<Moment>],
    found: &mut Vec<Violation>,
) {
    let served = grants.iter().map(|hold| (hold.asked, hold.granted));
    let mut waits: Vec<_> = served.chain(resource.waits.iter().map(|wait| (wait.asked, wait.until))).collect();
    waits.sort_unstable();
    let mut refusals: Vec<_> = resource.waits.iter().filter(|wait| wait.refused).map(|wait| wait.until).collect();
    refusals.sort_unstable();
    let reach = Reach::new(waits.iter().copied());
    // Nothing is due before the first claim.
    let mut held_until = waits.first().map_or(Moment::ZERO, |(asked, _)| *asked);
    for next in grants.iter().map(|hold| Some(*hold)).chain([None]) {
        let (from, to) = (held_until, next.map_or(Moment::NEVER, |hold| hold.granted));
        held_until = next.map_or(held_until, |hold| held_until.max(hold.ended));
        if told.contains(&next.map(|next| next.granted)) {
            continue;
        }
        // Those who waited when the gap began, and those who came in it: each comes in one gap only.
        let waiting = reach.at(from).map(|until| (from, until));
        let came = waits[waits.partition_point(|(asked, _)| *asked <= from)..].iter().copied();
        let waiting = waiting.into_iter().chain(came.take_while(|(asked, _)| *asked < to));
        // A refusal says that the resource was not free, and no holder has believed in it since the gap began.
        let refused = refusals[refusals.partition_point(|at| *at <= from)..].iter().map(|at| (from, *at));
        let mut candidates = waiting.chain(refused.take_while(|(_, at)| *at < to));
        let late = |(since, until): &(Moment, Moment)| {
            let until = (*until).min(to);
            rules.allowed(*since, until, bound).is_some_and(|allowed| until.since(*since) > allowed)
        };
        if let Some((since, until)) = candidates.find(late) {
            let bound = rules.allowed(since, until.min(to), bound).unwrap_or(bound);
            let (resource, next) = (name.to_owned(), next.cloned());
            found.push(Violation::Starved { resource, since, next, bound });
        }
    }
}

impl Rules {
    /// How long a claim may wait for a free resource between these moments; `None` for any time.
    fn allowed(&self, from: Moment, to: Moment, bound: Duration) -> Option<Duration> {
        let mut disturbed = self.disturbed.iter().filter(|(begun, ended, _)| *begun < to && from < *ended).peekable();
        let is_disturbed = disturbed.peek().is_some();
        if disturbed.any(|(.., unjudged)| *unjudged) {
            return None;
        }
        if is_disturbed { self.takeover_within } else { Some(bound) }
    }
}

/// For any moment: how far the intervals reach that have begun by then.
struct Reach(Vec<(Moment, Moment)>);

impl Reach {
    fn new(intervals: impl Iterator<Item = (Moment, Moment)>) -> Self {
        let mut reach: Vec<_> = intervals.collect();
        reach.sort_unstable();
        let mut furthest = Moment::ZERO;
        for (_, end) in &mut reach {
            furthest = furthest.max(*end);
            *end = furthest;
        }
        Self(reach)
    }

    fn at(&self, moment: Moment) -> Option<Moment> {
        let begun = self.0.partition_point(|(begin, _)| *begin <= moment);
        begun.checked_sub(1).map(|last| self.0[last].1)
    }
}
