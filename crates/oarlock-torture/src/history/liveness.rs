//! A waiter is served within a bound after a death, and after any other event that leaves the resource free.

use oarlock_core::clock::Moment;

use super::{Hold, Resource, Rules, Verdict, Violation};

pub(super) fn check(name: &str, resource: &Resource, rules: &Rules, verdict: &mut Verdict) {
    if let Some(bound) = rules.idle_within {
        idle(name, resource, bound, &mut verdict.violations);
    }
    if resource.deaths.is_empty() {
        return;
    }
    let mut grants: Vec<&Hold> = resource.holds.iter().collect();
    grants.sort_by_key(|hold| hold.granted);
    let held = Reach::new(grants.iter().map(|hold| (hold.granted, hold.ended)));
    let served = grants.iter().map(|hold| (hold.asked, hold.granted));
    let waited = Reach::new(served.chain(resource.waits.iter().map(|wait| (wait.asked, wait.until))));
    // Only claims that were never served show that no claim was served for long enough.
    let unserved = Reach::new(resource.waits.iter().map(|wait| (wait.asked, wait.until)));

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
        let late = match next {
            Some(next) => next.granted > died + bound,
            None => unserved.at(died).is_some_and(|until| until >= died + bound),
        };
        if late {
            let (resource, since, next) = (name.to_owned(), died, next.cloned());
            verdict.violations.push(Violation::Starved { resource, since, next, bound });
        }
    }
}

/// Finds gaps between holds in which a claim waited for longer than `bound`.
fn idle(name: &str, resource: &Resource, bound: std::time::Duration, found: &mut Vec<Violation>) {
    let mut grants: Vec<&Hold> = resource.holds.iter().collect();
    grants.sort_by_key(|hold| hold.granted);
    let served = grants.iter().map(|hold| (hold.asked, hold.granted));
    let mut waits: Vec<_> = served.chain(resource.waits.iter().map(|wait| (wait.asked, wait.until))).collect();
    waits.sort_unstable();
    let reach = Reach::new(waits.iter().copied());
    let mut held_until = Moment::ZERO;
    for next in grants.iter().map(|hold| Some(*hold)).chain([None]) {
        let (from, to) = (held_until, next.map_or(Moment::NEVER, |hold| hold.granted));
        held_until = next.map_or(held_until, |hold| held_until.max(hold.ended));
        // Those who waited when the gap began, and those who came in it: each comes in one gap only.
        let waiting = reach.at(from).map(|until| (from, until));
        let came = waits[waits.partition_point(|(asked, _)| *asked <= from)..].iter().copied();
        let mut candidates = waiting.into_iter().chain(came.take_while(|(asked, _)| *asked < to));
        if let Some((since, _)) = candidates.find(|(since, until)| (*until).min(to).since(*since) > bound) {
            let (resource, next) = (name.to_owned(), next.cloned());
            found.push(Violation::Starved { resource, since, next, bound });
        }
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
