//! Granted weights never exceed the capacity: one sweep over the begins and ends of belief.

use std::collections::BTreeSet;

use oarlock_core::{Limit, Weight};

use super::{Hold, Violation};

pub(super) fn check(holds: &[Hold], found: &mut Vec<Violation>) {
    // Half-open intervals: at one moment, ends come before begins.
    let mut edges: Vec<(u64, bool, usize)> = Vec::with_capacity(holds.len() * 2);
    for (at, hold) in holds.iter().enumerate().filter(|(_, hold)| hold.granted < hold.ended) {
        edges.push((hold.granted.as_nanos(), true, at));
        edges.push((hold.ended.as_nanos(), false, at));
    }
    edges.sort_unstable();
    let mut present = Present::default();
    for (_, begins, at) in edges {
        if begins {
            found.extend(present.conflict(holds, at));
            present.enter(holds, at);
        } else {
            present.leave(holds, at);
        }
    }
}

/// Who believes to hold, at one moment of the sweep.
#[derive(Default)]
struct Present {
    units: BTreeSet<usize>,
    alls: BTreeSet<usize>,
    load: u64,
}

impl Present {
    fn conflict(&self, holds: &[Hold], at: usize) -> Option<Violation> {
        let second = &holds[at];
        let excluded = match second.weight {
            Weight::All => self.alls.first().or_else(|| self.units.first()),
            Weight::Units(_) => self.alls.first(),
        };
        if let Some(&first) = excluded {
            return Some(Violation::Overlap { first: holds[first].clone(), second: second.clone() });
        }
        let &first = self.units.first()?;
        let stated = || self.units.iter().find_map(|&other| holds[other].capacity);
        let limit = match second.capacity.or_else(stated) {
            Some(Limit::Unlimited) => return None,
            Some(Limit::Units(most)) => u64::from(most.get()),
            None => 1,
        };
        let load = self.load + units(second);
        let (first, second) = (holds[first].clone(), second.clone());
        (load > limit).then_some(Violation::CapacityExceeded { first, second, load, limit })
    }

    fn enter(&mut self, holds: &[Hold], at: usize) {
        match holds[at].weight {
            Weight::All => self.alls.insert(at),
            Weight::Units(_) => self.units.insert(at),
        };
        self.load += units(&holds[at]);
    }

    fn leave(&mut self, holds: &[Hold], at: usize) {
        if self.alls.remove(&at) || self.units.remove(&at) {
            self.load -= units(&holds[at]);
        }
    }
}

fn units(hold: &Hold) -> u64 {
    match hold.weight {
        Weight::All => 0,
        Weight::Units(units) => u64::from(units.get()),
    }
}
