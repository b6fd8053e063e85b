//! Makes a failing world smaller: fewer actors, fewer steps, fewer faults, as long as it fails in the same way.

use super::plan::{Load, Plan};
use super::world::run;

/// The most worlds that are tried.
const MOST_TRIED: u32 = 500;

/// The smallest world that still fails as `plan` does, found by leaving things out one by one; and how many worlds were
/// tried. `None` if `plan` does not fail.
#[must_use]
pub fn shrink(plan: &Plan) -> Option<(Plan, u32)> {
    let failure = run(plan).failure()?;
    let mut tried = 1;
    let mut fails = |plan: &Plan| {
        tried += 1;
        tried <= MOST_TRIED && run(plan).failure().as_ref() == Some(&failure)
    };
    let mut smallest = plan.clone();
    while let Some(smaller) = smaller(&smallest).into_iter().find(|plan| fails(plan)) {
        smallest = smaller;
    }
    smallest.most_faults = fewest_faults(&smallest, &mut fails);
    Some((smallest, tried))
}

/// The plans that have a little less in them.
fn smaller(plan: &Plan) -> Vec<Plan> {
    let mut all = Vec::new();
    let mut add = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan.clone();
        change(&mut plan);
        all.push(plan);
    };
    add(&|plan| plan.clients -= u64::from(plan.clients > 1));
    add(&|plan| plan.tasks -= u64::from(plan.tasks > 1));
    add(&|plan| plan.rounds -= u32::from(plan.rounds > 1));
    add(&|plan| plan.names = 1);
    for at in 0..plan.chances.clone().each().len() {
        add(&|plan| *plan.chances.each()[at] = 0.0);
    }
    add(&|plan| plan.handed = false);
    add(&|plan| plan.brisk = false);
    add(&|plan| plan.delay = std::time::Duration::ZERO);
    // From the simplest on: only what comes before the present one is simpler.
    let loads = [Load::Mutex { fair: false }, Load::ReadWrite, Load::Semaphore(1)];
    for load in loads.into_iter().take_while(|load| *load != plan.load) {
        add(&move |plan| plan.load = load);
    }
    all.retain(|smaller| smaller != plan);
    all
}

/// How few of the faults that the plan draws are enough.
fn fewest_faults(plan: &Plan, mut fails: impl FnMut(&Plan) -> bool) -> u64 {
    let (mut enough, mut too_few) = (1, 0);
    while enough < 1 << 12 && !fails(&Plan { most_faults: enough, ..plan.clone() }) {
        (too_few, enough) = (enough, enough * 2);
    }
    if enough >= 1 << 12 {
        return plan.most_faults;
    }
    while enough - too_few > 1 {
        let middle = too_few.midpoint(enough);
        if fails(&Plan { most_faults: middle, ..plan.clone() }) {
            enough = middle;
        } else {
            too_few = middle;
        }
    }
    enough
}
