//! Grants follow the order of arrival, where it is known.
//!
//! Two claims that can hold together may be answered in either order: neither delays the other. So only claims that
//! exclude each other are compared, and for those the order of answers is the order of grants.

use std::collections::BTreeMap;

use oarlock_core::{Limit, Weight};

use super::{Hold, Violation};

pub(super) fn check(holds: &[Hold], found: &mut Vec<Violation>) {
    let mut queued: Vec<&Hold> = holds.iter().filter(|hold| hold.queued.is_some()).collect();
    queued.sort_by_key(|hold| std::cmp::Reverse(hold.queued));
    // From the last arrival to the first: the earliest answer to a later claim, by weight.
    let mut all: Option<&Hold> = None;
    let mut by_units: BTreeMap<u32, &Hold> = BTreeMap::new();
    for waited in queued {
        let too_heavy_beside = match (waited.weight, waited.capacity) {
            (Weight::All, _) => Some(0),
            (Weight::Units(_), Some(Limit::Unlimited)) => None,
            (Weight::Units(units), Some(Limit::Units(most))) => Some(most.get().saturating_sub(units.get()) + 1),
            (Weight::Units(_), None) => Some(1),
        };
        // Different weights are few, whatever the number of holds.
        let heavy = too_heavy_beside.and_then(|least| by_units.range(least..).map(|(_, hold)| *hold).min_by_key(when));
        let first = all.into_iter().chain(heavy).min_by_key(when);
        if let Some(overtook) = first.filter(|later| later.granted < waited.granted) {
            found.push(Violation::Overtaken { waited: waited.clone(), overtook: overtook.clone() });
        }
        match waited.weight {
            Weight::All => all = all.filter(|first| first.granted <= waited.granted).or(Some(waited)),
            Weight::Units(units) => {
                let first = by_units.entry(units.get()).or_insert(waited);
                if waited.granted < first.granted {
                    *first = waited;
                }
            }
        }
    }
}

fn when(hold: &&Hold) -> oarlock_core::clock::Moment {
    hold.granted
}
