//! Checks a recorded run for violations of the rule.
//!
//! Every acquisition is an interval of *belief* with a fence. Exclusion, capacity, order and liveness are checked with
//! sweeps in O(n log n), and each violation is reported with its holds. The history records belief and not the store's
//! state, because users act on belief.

mod exclusion;
mod fences;
mod liveness;
mod order;
mod violation;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use oarlock_core::clock::Moment;
use oarlock_core::{Fence, Limit, Weight};

pub use violation::Violation;

/// One hold, as its holder saw it. All moments are of one clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// What was held.
    pub resource: String,
    /// Which contender held it.
    pub owner: u64,
    /// How much of it.
    pub weight: Weight,
    /// The capacity that it stated; `None`: that of other claims, else one unit.
    pub capacity: Option<Limit>,
    /// Its fence.
    pub fence: Fence,
    /// When it was asked for.
    pub asked: Moment,
    /// When the acquisition returned: belief begins.
    pub granted: Moment,
    /// When belief ended: release invoked, lost, deadline or death, whichever came first.
    pub ended: Moment,
    /// Its number in the store's order of arrival, where order is to be checked.
    pub queued: Option<u64>,
}

/// A claim that was never granted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wait {
    asked: Moment,
    until: Moment,
    /// The store refused it at the end of its wait: another claim was in the way.
    refused: bool,
}

/// What happened in one run.
#[derive(Clone, Debug, Default)]
pub struct History {
    resources: BTreeMap<String, Resource>,
}

/// What happened to one name.
#[derive(Clone, Debug, Default)]
struct Resource {
    holds: Vec<Hold>,
    waits: Vec<Wait>,
    deaths: Vec<Moment>,
}

/// What a history must satisfy, beyond exclusion, capacity and fences.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Rules {
    /// A grant must follow the death of a holder within this time, if a claim waits.
    pub takeover_within: Option<Duration>,
    /// No claim may wait for longer than this while the resource is free, for any reason.
    pub idle_within: Option<Duration>,
    /// Something was broken between these moments: there, a claim may wait as long as for a takeover; or for any time,
    /// where the third field says so.
    disturbed: Vec<(Moment, Moment, bool)>,
    /// Fewer holds than this prove nothing.
    pub least_holds: usize,
    /// Fewer takeovers from the dead than this prove nothing.
    pub least_takeovers: usize,
    /// The lock has no fences: they are not checked.
    pub unfenced: bool,
    /// These owners have no fences, though others have: theirs are not checked.
    without_fences: BTreeSet<u64>,
    /// Holds were broken by force: then a belief may overlap its successor, and only fences are checked.
    pub forced: bool,
}

impl Rules {
    /// Exclusion, capacity, fences and order; and at least one hold, since an empty history proves nothing.
    #[must_use]
    pub fn new() -> Self {
        Self { least_holds: 1, ..Self::default() }
    }

    /// Requires a grant within `bound` after a death, if a claim waits.
    #[must_use]
    pub fn takeover_within(mut self, bound: Duration) -> Self {
        self.takeover_within = Some(bound);
        self
    }

    /// Requires that no claim waits for longer than `bound` while the resource is free.
    #[must_use]
    pub fn idle_within(mut self, bound: Duration) -> Self {
        self.idle_within = Some(bound);
        self
    }

    /// Something is broken from then to then: a claim may wait for a free resource as long as for a takeover.
    #[must_use]
    pub fn disturbed(mut self, from: Moment, to: Moment) -> Self {
        self.disturbed.push((from, to, false));
        self
    }

    /// From then to then a claim may wait for a free resource for any time, as while its server is away.
    #[must_use]
    pub fn unjudged(mut self, from: Moment, to: Moment) -> Self {
        self.disturbed.push((from, to, true));
        self
    }

    /// A history of fewer holds is vacuous.
    #[must_use]
    pub fn least_holds(mut self, holds: usize) -> Self {
        self.least_holds = holds;
        self
    }

    /// A history of fewer takeovers is vacuous.
    #[must_use]
    pub fn least_takeovers(mut self, takeovers: usize) -> Self {
        self.least_takeovers = takeovers;
        self
    }

    /// The lock has no fences.
    #[must_use]
    pub fn unfenced(mut self) -> Self {
        self.unfenced = true;
        self
    }

    /// These owners have no fences, though others have.
    #[must_use]
    pub fn without_fences(mut self, owners: BTreeSet<u64>) -> Self {
        self.without_fences = owners;
        self
    }

    /// Holds were broken by force in this run.
    #[must_use]
    pub fn forced(mut self) -> Self {
        self.forced = true;
        self
    }
}

/// The outcome of a check.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
#[must_use = "an unread verdict proves nothing"]
pub struct Verdict {
    /// What was wrong; empty if nothing was.
    pub violations: Vec<Violation>,
    /// The number of holds that were checked.
    pub holds: usize,
    /// The number of deaths that were followed by a grant to a waiter.
    pub takeovers: usize,
    /// The longest time from a death to the next grant.
    pub slowest_takeover: Option<Duration>,
    /// The number of resources that were checked.
    pub resources: usize,
}

impl Verdict {
    /// Whether nothing was wrong.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.violations.is_empty()
    }

    /// The names of what was wrong, each once, in order of names.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.violations.iter().map(Violation::name).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { holds, takeovers, resources, .. } = self;
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        write!(f, "{holds} hold{} of {resources} resource{}", plural(*holds), plural(*resources))?;
        write!(f, ", {takeovers} takeover{}", plural(*takeovers))?;
        if let Some(slowest) = self.slowest_takeover {
            write!(f, " (slowest {} ms)", slowest.as_millis())?;
        }
        if self.is_ok() {
            return f.write_str(": in order.");
        }
        write!(f, ": {} violation{}.", self.violations.len(), plural(self.violations.len()))?;
        for violation in &self.violations {
            write!(f, "\n- {}: {violation}", violation.name())?;
        }
        Ok(())
    }
}

impl History {
    /// An empty history.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn resource(&mut self, name: &str) -> &mut Resource {
        self.resources.entry(name.to_owned()).or_default()
    }

    /// Records a hold, in any order.
    pub fn hold(&mut self, hold: Hold) {
        self.resource(&hold.resource.clone()).holds.push(hold);
    }

    /// Records a claim that the store refused after its wait.
    pub fn waited(&mut self, resource: &str, asked: Moment, until: Moment) {
        self.resource(resource).waits.push(Wait { asked, until, refused: true });
    }

    /// Records a claim that waited, and was withdrawn without an answer of the store: given up, or its process died.
    pub fn withdrew(&mut self, resource: &str, asked: Moment, until: Moment) {
        self.resource(resource).waits.push(Wait { asked, until, refused: false });
    }

    /// Records the death of a holder.
    pub fn death(&mut self, resource: &str, at: Moment) {
        self.resource(resource).deaths.push(at);
    }

    /// Adds everything of another history, such as that of another worker.
    pub fn merge(&mut self, other: Self) {
        for (name, theirs) in other.resources {
            let ours = self.resource(&name);
            ours.holds.extend(theirs.holds);
            ours.waits.extend(theirs.waits);
            ours.deaths.extend(theirs.deaths);
        }
    }

    /// Every hold recorded so far.
    pub fn holds(&self) -> impl Iterator<Item = &Hold> {
        self.resources.values().flat_map(|resource| &resource.holds)
    }

    /// Checks the history for violations.
    pub fn check(&self, rules: &Rules) -> Verdict {
        let mut verdict = Verdict { resources: self.resources.len(), ..Verdict::default() };
        for (name, resource) in &self.resources {
            verdict.holds += resource.holds.len();
            if !rules.forced {
                exclusion::check(&resource.holds, &mut verdict.violations);
                order::check(&resource.holds, &mut verdict.violations);
            }
            if !rules.unfenced {
                let holds = resource.holds.iter().filter(|hold| !rules.without_fences.contains(&hold.owner));
                fences::check(&holds.collect::<Vec<_>>(), rules, &mut verdict.violations);
            }
            liveness::check(name, resource, rules, &mut verdict);
        }
        for (what, seen, least) in
            [("holds", verdict.holds, rules.least_holds), ("takeovers", verdict.takeovers, rules.least_takeovers)]
        {
            if seen < least {
                verdict.violations.push(Violation::Vacuous { what, seen, least });
            }
        }
        verdict
    }
}

#[cfg(test)]
mod linear;
#[cfg(test)]
mod tests;
