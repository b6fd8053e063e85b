//! Fences never repeat, and rise in the order in which things really happened.

use std::collections::HashMap;

use oarlock_core::Weight;

use super::{Hold, Rules, Violation};

pub(super) fn check(holds: &[&Hold], rules: &Rules, found: &mut Vec<Violation>) {
    let mut seen = HashMap::with_capacity(holds.len());
    for (at, hold) in holds.iter().enumerate() {
        if let Some(first) = seen.insert(hold.fence, at) {
            let (first, second) = (holds[first].clone(), (*hold).clone());
            found.push(Violation::FenceRepeated { first, second });
        }
    }

    let mut by_grant: Vec<&Hold> = holds.to_vec();
    by_grant.sort_by_key(|hold| (hold.granted, hold.fence));
    let mut by_ask = by_grant.clone();
    by_ask.sort_by_key(|hold| hold.asked);
    // Who had his answer before another even asked has the smaller fence.
    let mut largest: Option<&Hold> = None;
    let mut answered = by_grant.iter().copied().peekable();
    let mut reported = Vec::new();
    for later in by_ask {
        while let Some(earlier) = answered.next_if(|earlier| earlier.granted < later.asked) {
            largest = larger(largest, earlier);
        }
        reported.extend(largest.filter(|earlier| earlier.fence > later.fence).map(|earlier| (earlier, later)));
    }

    // Who excludes all others is answered in the order of grants, since no answer is used that came after its lease.
    if !rules.forced {
        let (mut of_all, mut of_any) = (None, None);
        for later in by_grant {
            let before = if later.weight == Weight::All { of_any } else { of_all };
            reported.extend(before.filter(|earlier: &&Hold| earlier.fence > later.fence).map(|e| (e, later)));
            of_any = larger(of_any, later);
            if later.weight == Weight::All {
                of_all = larger(of_all, later);
            }
        }
    }
    // Both passes can find the same one.
    let mut named: Vec<&Hold> = Vec::new();
    reported.sort_by_key(|(_, later)| (later.granted, later.fence));
    for (earlier, later) in reported {
        if named.last().is_none_or(|last| !std::ptr::eq(*last, later)) {
            named.push(later);
            found.push(Violation::FenceOrder { earlier: earlier.clone(), later: later.clone() });
        }
    }
}

fn larger<'a>(largest: Option<&'a Hold>, hold: &'a Hold) -> Option<&'a Hold> {
    Some(largest.filter(|largest| largest.fence >= hold.fence).unwrap_or(hold))
}
