//! The checker beside a general linearizability checker, on small histories.
//!
//! The general checker (Wing and Gong) knows nothing of belief. It has a sequential lock with fences, and looks for an
//! order of all acquisitions and releases that this lock would allow and that keeps real time: an acquisition takes
//! effect between its request and its answer, a release at the end of belief or later. It takes exponential time.
//!
//! Where the two differ, and why:
//!
//! - **A hold of no time.** The checker ignores a belief that ends at the moment it begins: nothing is done under it. For
//!   the general checker it was held.
//! - **Fences of claims that share a semaphore.** The checker orders the fences of claims that exclude all others by
//!   their grants, and those of all claims by what was answered before the next was asked for. Permits of which some fit
//!   together and some do not have more to say about their order: a claim that had to wait for another to end cannot have
//!   a smaller fence than one that was answered before that end. The general checker sees that. No store of Oarlock can
//!   do this without also giving exclusive claims a wrong order.
//!
//! In all other histories both say the same, and the checker never refuses what the general one accepts.

use std::collections::HashSet;
use std::num::NonZeroU32;

use super::*;

/// The most permits of the semaphores here.
const CAPACITY: u32 = 3;

/// Whether the sequential lock allows this history.
fn is_linearizable(holds: &[Hold]) -> bool {
    Search { holds, fences: true, dead_ends: HashSet::new() }.extends(0, 0)
}

/// The same for a lock that gives its fences in any order.
fn is_linearizable_without_fences(holds: &[Hold]) -> bool {
    Search { holds, fences: false, dead_ends: HashSet::new() }.extends(0, 0)
}

struct Search<'a> {
    holds: &'a [Hold],
    fences: bool,
    dead_ends: HashSet<(u32, u32)>,
}

impl Search<'_> {
    /// Whether the order so far, of these acquisitions and releases, can be extended to all acquisitions.
    fn extends(&mut self, acquired: u32, released: u32) -> bool {
        if acquired.count_ones() as usize == self.holds.len() {
            return true;
        }
        if self.dead_ends.contains(&(acquired, released)) {
            return false;
        }
        for at in 0..self.holds.len() {
            let bit = 1 << at;
            let held = acquired & bit != 0 && released & bit == 0;
            if held && self.may_be_next(acquired, self.holds[at].ended) && self.extends(acquired, released | bit) {
                return true;
            }
            let next = acquired & bit == 0 && self.may_be_next(acquired, self.holds[at].asked);
            if next && self.allows(acquired, released, at) && self.extends(acquired | bit, released) {
                return true;
            }
        }
        self.dead_ends.insert((acquired, released));
        false
    }

    /// Whether nothing that is still to come was answered before this was invoked. Releases are never answered.
    fn may_be_next(&self, acquired: u32, invoked: Moment) -> bool {
        let mut to_come = self.holds.iter().enumerate().filter(|(at, _)| acquired & 1 << at == 0);
        to_come.all(|(_, hold)| hold.granted >= invoked)
    }

    /// Whether the lock grants this now.
    fn allows(&self, acquired: u32, released: u32, at: usize) -> bool {
        let chosen = |mask: u32| self.holds.iter().enumerate().filter(move |(at, _)| mask & 1 << at != 0);
        let hold = &self.holds[at];
        if self.fences && chosen(acquired).any(|(_, earlier)| earlier.fence >= hold.fence) {
            return false;
        }
        fits(hold, chosen(acquired & !released).map(|(_, other)| other))
    }
}

/// Whether the lock bears `hold` beside these.
fn fits<'a>(hold: &Hold, others: impl Iterator<Item = &'a Hold>) -> bool {
    let others: Vec<_> = others.collect();
    if hold.weight == Weight::All || others.iter().any(|other| other.weight == Weight::All) {
        return others.is_empty();
    }
    let units = |hold: &Hold| if let Weight::Units(units) = hold.weight { units.get() } else { 0 };
    let load = units(hold) + others.iter().map(|other| units(other)).sum::<u32>();
    hold.capacity == Some(Limit::Unlimited) || load <= CAPACITY
}

/// What a history is of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Mutex,
    Permits,
    Readers,
}

/// What a lock that works gives: a few holds in a few ticks of time.
fn valid(rng: &mut fastrand::Rng, of: Of) -> Vec<Hold> {
    let mut now = 0;
    let mut holds: Vec<Hold> = Vec::new();
    for fence in 1..=rng.u64(2..=5) {
        let units = if of != Of::Mutex && rng.bool() { rng.u32(1..=CAPACITY) } else { 0 };
        let limit = NonZeroU32::new(CAPACITY).map(Limit::Units);
        let capacity = if of == Of::Readers { Some(Limit::Unlimited) } else { limit };
        let weight = NonZeroU32::new(units).map_or(Weight::All, Weight::Units);
        let (resource, owner, fence) = ("job".to_owned(), fence, Fence::new(fence));
        let [asked, granted, ended] = [Moment::ZERO; 3];
        let mut hold = Hold { resource, owner, weight, capacity, fence, asked, granted, ended, queued: None };
        let blocked = |now: u64, hold: &Hold, holds: &[Hold]| {
            !fits(hold, holds.iter().filter(|other| other.ended > Moment::from_nanos(now)))
        };
        while blocked(now, &hold, &holds) {
            now += 1;
        }
        let (asked, granted) = (now.saturating_sub(rng.u64(..4)), now + rng.u64(..2));
        let ended = granted + rng.u64(..4);
        [hold.asked, hold.granted, hold.ended] = [asked, granted, ended].map(Moment::from_nanos);
        holds.push(hold);
        now += rng.u64(..3);
    }
    holds
}

/// One thing of it is changed; often that breaks it.
fn changed(rng: &mut fastrand::Rng, holds: &mut [Hold]) {
    let (at, other) = (rng.usize(..holds.len()), rng.usize(..holds.len()));
    let by = Duration::from_nanos(rng.u64(1..=4));
    match rng.u8(..6) {
        0 => (holds[at].fence, holds[other].fence) = (holds[other].fence, holds[at].fence),
        1 => holds[at].fence = holds[other].fence,
        2 => holds[at].ended = holds[at].ended + by,
        3 => {
            holds[at].granted = Moment::from_nanos(holds[at].granted.as_nanos().saturating_sub(2));
            holds[at].asked = holds[at].asked.min(holds[at].granted);
        }
        4 => holds[at].asked = Moment::ZERO,
        _ => (holds[at].granted, holds[at].ended) = (holds[at].granted + by, holds[at].ended + by),
    }
}

fn accepts(holds: &[Hold]) -> bool {
    !holds.is_empty() && accepts_all(holds)
}

/// Also a history of nothing.
fn accepts_all(holds: &[Hold]) -> bool {
    let mut history = History::new();
    holds.iter().cloned().for_each(|hold| history.hold(hold));
    history.check(&Rules::default()).is_ok()
}

#[test]
fn the_checker_agrees_with_a_general_one() {
    let mut rng = fastrand::Rng::with_seed(24);
    let (mut right, mut wrong, mut of_no_time, mut of_permits) = (0, 0, 0, 0);
    for round in 0..30_000 {
        let of = [Of::Mutex, Of::Permits, Of::Readers][rng.usize(..3)];
        let mut holds = valid(&mut rng, of);
        for _ in 0..round % 4 {
            changed(&mut rng, &mut holds);
        }
        let (ours, general) = (accepts(&holds), is_linearizable(&holds));
        if round % 4 == 0 {
            assert!(ours && general, "a valid history: ours {ours}, general {general}: {holds:#?}");
        }
        if ours == general {
            (right, wrong) = (right + u32::from(ours), wrong + u32::from(!ours));
            continue;
        }
        // Without the holds of no time, only the order of fences may make a difference, and only among permits.
        let lasting: Vec<_> = holds.iter().filter(|hold| hold.granted < hold.ended).cloned().collect();
        let (lasting_ours, lasting_general) = (accepts_all(&lasting), is_linearizable(&lasting));
        if lasting_ours == lasting_general && lasting.len() < holds.len() {
            of_no_time += 1;
        } else {
            let fences_alone = lasting_ours && is_linearizable_without_fences(&lasting);
            assert!(ours && of == Of::Permits && fences_alone, "ours {ours}, general {general}: {holds:#?}");
            of_permits += 1;
        }
        assert!(ours, "the checker refuses what the general one accepts: {holds:#?}");
    }
    println!("{right} right, {wrong} wrong, {of_no_time} with a hold of no time, {of_permits} with permits");
    // Both verdicts, and both differences, must have come up often enough to mean something.
    assert!(right > 5000 && wrong > 3000 && of_no_time > 100 && of_permits > 10);
}

/// The smallest history of permits that only the general checker refuses.
#[test]
fn a_claim_that_waited_has_a_smaller_fence_than_one_that_came_after() {
    let hold = |fence: u64, units: u32, asked: u64, granted: u64, ended: u64| Hold {
        resource: "job".into(),
        owner: fence,
        weight: NonZeroU32::new(units).map_or(Weight::All, Weight::Units),
        capacity: NonZeroU32::new(CAPACITY).map(Limit::Units),
        fence: Fence::new(fence),
        asked: Moment::from_nanos(asked),
        granted: Moment::from_nanos(granted),
        ended: Moment::from_nanos(ended),
        queued: None,
    };
    let holds = [hold(1, 2, 0, 0, 20), hold(2, 2, 1, 25, 30), hold(3, 1, 1, 15, 18)];
    assert!(accepts(&holds) && !is_linearizable(&holds));
}
