//! After a death somebody who waits is served within a bound.

use oarlock_core::clock::Moment;

use super::{Hold, Resource, Rules, Verdict, Violation};

pub(super) fn check(name: &str, resource: &Resource, rules: &Rules, verdict: &mut Verdict) {
    if resource.deaths.is_empty() {
        return;
    }
    let mut grants: Vec<&Hold> = resource.holds.iter().collect();
    grants.sort_by_key(|hold| hold.granted);
    let held = Reach::new(grants.iter().map(|hold| (hold.granted, hold.ended)));
    let served = grants.iter().map(|hold| (hold.asked, hold.granted));
    let waited = Reach::new(served.chain(resource.waits.iter().map(|wait| (wait.asked, wait.until))));
    // Only those who were never served can show that nobody was served for long enough.
    let unserved = Reach::new(resource.waits.iter().map(|wait| (wait.asked, wait.until)));

    for &died in &resource.deaths {
        // Others still hold it, or nobody wants it: nothing need happen.
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
            let (resource, next) = (name.to_owned(), next.cloned());
            verdict.violations.push(Violation::Starved { resource, died, next, bound });
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
