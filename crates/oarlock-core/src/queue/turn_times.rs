//! When a waiter that does not take its turn is evicted, for stores that cannot say since when a turn is open.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::model::TURN_TTL;

/// An open turn that was not seen for so long is forgotten.
pub const FORGET_TURN_AFTER: Duration = Duration::from_secs(60);

/// In a long queue only this many waiters poll as soon as a turn may expire. In a queue that moves, a turn is open
/// much of the time: if every waiter polled early, all of them would read each open turn. The others poll later, in
/// case these do not.
pub const EARLY_POLLS: usize = 8;

/// When the others poll: well before the time of an open turn is forgotten.
pub const LATER: Duration = Duration::from_secs(20);

/// Since when this client has seen turns open, by what a store calls their claims.
///
/// Time counts from when this client first saw a turn open, which is never too early: a client that has just come, or
/// was away, gives more time and not less. Time in which the machine sleeps does not count: the waiter may sleep on the
/// same machine.
#[derive(Debug)]
pub struct TurnTimes<K>(Mutex<HashMap<K, Instant>>);

impl<K> Default for TurnTimes<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Copy + Eq + Hash> TurnTimes<K> {
    /// Notes for each claim `before` this one whether it has an open turn that it has not taken. Returns the claims to
    /// evict, and when to poll for the others; `waiting` claims wait before this one.
    ///
    /// The store removes a claim only if it is unchanged: one that has taken its turn meanwhile is not evicted.
    pub fn observe(
        &self,
        before: impl IntoIterator<Item = (K, bool)>,
        waiting: usize,
        now: Instant,
    ) -> (Vec<K>, Option<Duration>) {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, since| now.duration_since(*since) < FORGET_TURN_AFTER);
        let (mut expired, mut recheck_after) = (Vec::new(), None::<Duration>);
        for (claim, is_open) in before {
            if !is_open {
                // A turn that has closed meanwhile starts again when it opens.
                turns.remove(&claim);
                continue;
            }
            let left = TURN_TTL.saturating_sub(now.duration_since(*turns.entry(claim).or_insert(now)));
            if left.is_zero() {
                expired.push(claim);
            }
            recheck_after = Some(recheck_after.map_or(left, |other| other.min(left)));
        }
        let recheck_after = recheck_after.map(|after| if waiting <= EARLY_POLLS { after } else { after.max(LATER) });
        (expired, recheck_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_runs_from_when_it_was_first_seen_open() {
        let (turns, start) = (TurnTimes::default(), Instant::now());
        let half = TURN_TTL / 2;
        let at = |open, after| turns.observe([(7, open)], 1, start + after);
        assert_eq!(at(true, Duration::ZERO), (vec![], Some(TURN_TTL)));
        assert_eq!(at(true, half), (vec![], Some(half)));
        assert_eq!(at(false, half), (vec![], None));
        assert_eq!(at(true, half), (vec![], Some(TURN_TTL)), "it closed meanwhile");
        assert_eq!(at(true, half + TURN_TTL), (vec![7], Some(Duration::ZERO)));
        assert_eq!(at(true, half + FORGET_TURN_AFTER), (vec![], Some(TURN_TTL)), "this client was away");
    }

    #[test]
    fn only_the_next_few_poll_early() {
        let (turns, now) = (TurnTimes::default(), Instant::now());
        assert_eq!(turns.observe([(7, true)], EARLY_POLLS, now).1, Some(TURN_TTL));
        assert_eq!(turns.observe([(7, true)], EARLY_POLLS + 1, now).1, Some(LATER));
    }
}
