//! The grants of one name in their order, and a check that there were never two holders at once.
//!
//! Fences are the order of grants, across processes too.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::figures::Spans;

/// One hold, in nanoseconds of the machine's boot-time clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The number of the contender.
    pub contender: u32,
    /// Zero for those of a baseline, which has none.
    pub fence: u64,
    /// When it was asked for.
    pub asked: u64,
    /// When it was granted.
    pub granted: u64,
    /// When its release was called, or when it was lost before that.
    pub ended: u64,
}

/// As a process writes it for another.
impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { contender, fence, asked, granted, ended } = self;
        write!(f, "{contender} {fence} {asked} {granted} {ended}")
    }
}

impl FromStr for Grant {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let numbers: Result<Vec<u64>, _> = line.split(' ').map(str::parse).collect();
        let Ok([contender, fence, asked, granted, ended]) = numbers.as_deref() else { return Err(()) };
        let contender = u32::try_from(*contender).map_err(drop)?;
        Ok(Self { contender, fence: *fence, asked: *asked, granted: *granted, ended: *ended })
    }
}

/// The time in which grants count; those before and after it are checked, but not counted.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Its beginning, in nanoseconds of the boot-time clock.
    pub start: u64,
    /// Its end.
    pub end: u64,
}

/// What came of a contended load.
#[derive(Clone, Debug)]
pub struct Contention {
    /// How many grants there were.
    pub grants: u64,
    /// From the start of a release to the next grant, where that was another's.
    pub hand_offs: Spans,
    /// From a request to its grant.
    pub longest_wait: Duration,
    /// Grants of each contender.
    pub shares: Vec<u64>,
    /// Requests that the store served for them, and for how many grants, where it says.
    pub calls: Option<(u64, u64)>,
    /// How long it was measured.
    pub time: Duration,
}

impl Contention {
    /// Nothing yet, of so many contenders.
    ///
    /// # Errors
    /// As [`Spans::new`].
    pub fn new(contenders: u32) -> oarlock::Result<Self> {
        let shares = vec![0; contenders as usize];
        Ok(Self {
            grants: 0,
            hand_offs: Spans::new()?,
            longest_wait: Duration::ZERO,
            shares,
            calls: None,
            time: Duration::ZERO,
        })
    }

    /// Adds one turn.
    pub fn add(&mut self, grants: &mut [Grant], window: Window) {
        grants.sort_unstable_by_key(|grant| (grant.fence, grant.granted));
        let counts = |grant: &Grant| (window.start..=window.end).contains(&grant.granted);
        for grant in grants.iter() {
            // Contenders that were served only after the others had stopped have waited all the same.
            let waited = Duration::from_nanos(grant.granted.saturating_sub(grant.asked));
            self.longest_wait = self.longest_wait.max(waited);
            if counts(grant) {
                self.grants += 1;
                if let Some(share) = self.shares.get_mut(grant.contender as usize) {
                    *share += 1;
                }
            }
        }
        for pair in grants.windows(2) {
            let [last, next] = pair else { continue };
            if last.contender != next.contender && counts(next) {
                self.hand_offs.add(next.granted.saturating_sub(last.ended));
            }
        }
        self.time += Duration::from_nanos(window.end.saturating_sub(window.start));
    }

    /// Adds what the store did for the turn that was added last, in which there were so many grants.
    pub fn served(&mut self, calls: Option<u64>, grants: usize) {
        let (sum, all) = self.calls.unwrap_or_default();
        self.calls = calls.map(|calls| (sum + calls, all + grants as u64));
    }

    /// Requests for each grant.
    #[must_use]
    pub fn calls_per_grant(&self) -> Option<f64> {
        let (calls, grants) = self.calls.filter(|(_, grants)| *grants > 0)?;
        #[expect(clippy::cast_precision_loss, reason = "figures are rounded anyway")]
        Some(calls as f64 / grants as f64)
    }

    /// Grants of the contender that had most.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.shares.iter().copied().max().unwrap_or(0)
    }

    /// Grants of the contender that had fewest.
    #[must_use]
    pub fn least(&self) -> u64 {
        self.shares.iter().copied().min().unwrap_or(0)
    }
}

/// The rule was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The second was granted while the first still believed.
    Overlap(Grant, Grant),
    /// The second was granted after the first, with a fence that is not larger.
    Fence(Grant, Grant),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overlap(first, second) => write!(
                f,
                "contender {} (fence {}) was granted {:?} before contender {} (fence {}) had ended",
                second.contender,
                second.fence,
                Duration::from_nanos(first.ended.saturating_sub(second.granted)),
                first.contender,
                first.fence,
            ),
            Self::Fence(first, second) => write!(
                f,
                "contender {} was granted after contender {}, with fence {} after {}",
                second.contender, first.contender, second.fence, first.fence,
            ),
        }
    }
}

/// Everything in the grants of one name that must not be.
#[must_use]
pub fn check(grants: &[Grant]) -> Vec<Violation> {
    let mut in_time: Vec<&Grant> = grants.iter().collect();
    in_time.sort_unstable_by_key(|grant| (grant.granted, grant.ended));
    let mut violations = Vec::new();
    let mut first: Option<(&Grant, &Grant)> = None;
    for next in in_time {
        let Some((latest, highest)) = first else {
            first = Some((next, next));
            continue;
        };
        // The one that believes longest so far is the one to be overlapped, and not always the last.
        if next.granted < latest.ended {
            violations.push(Violation::Overlap(*latest, *next));
        }
        if next.fence <= highest.fence {
            violations.push(Violation::Fence(*highest, *next));
        }
        first = Some((
            if next.ended > latest.ended { next } else { latest },
            if next.fence > highest.fence { next } else { highest },
        ));
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(contender: u32, fence: u64, asked: u64, granted: u64, ended: u64) -> Grant {
        Grant { contender, fence, asked, granted, ended }
    }

    /// Three contenders, in order.
    fn good() -> Vec<Grant> {
        vec![grant(0, 7, 0, 10, 20), grant(1, 8, 1, 25, 30), grant(2, 9, 2, 30, 40), grant(0, 12, 21, 41, 50)]
    }

    #[test]
    fn a_lock_that_holds_passes_in_whatever_order_its_grants_are_told() {
        let mut grants = good();
        assert_eq!(check(&grants), []);
        grants.reverse();
        assert_eq!(check(&grants), []);
    }

    #[test]
    fn two_at_once_are_found() {
        let mut grants = good();
        grants[1].granted = 19;
        assert_eq!(check(&grants), [Violation::Overlap(grants[0], grants[1])]);
    }

    #[test]
    fn one_that_holds_on_for_long_is_found_though_others_came_between() {
        let mut grants = good();
        grants[0].ended = 45;
        let expected: Vec<_> = grants[1..].iter().map(|next| Violation::Overlap(grants[0], *next)).collect();
        assert_eq!(check(&grants), expected);
    }

    #[test]
    fn fences_that_repeat_or_fall_are_found() {
        for fence in [8, 7, 1] {
            let mut grants = good();
            grants[2].fence = fence;
            assert_eq!(check(&grants), [Violation::Fence(grants[1], grants[2])], "{fence}");
        }
        let mut grants = good();
        grants[0].fence = 100;
        assert_eq!(check(&grants).len(), 3, "all later ones are too small");
    }

    #[test]
    fn retaking_ones_own_lock_is_no_hand_off() {
        let mut contention = Contention::new(3).unwrap();
        let mut grants = vec![
            grant(0, 1, 0, 100, 200),
            grant(0, 2, 210, 300, 400),
            grant(1, 3, 0, 450, 500),
            grant(0, 4, 410, 560, 600),
            // Served after the end: has waited, but does not count.
            grant(2, 5, 0, 5000, 5001),
        ];
        grants.reverse();
        contention.add(&mut grants, Window { start: 0, end: 1000 });
        assert_eq!((contention.grants, contention.hand_offs.count()), (4, 2));
        assert_eq!(contention.hand_offs.at(0.0), Some(Duration::from_nanos(50)));
        assert_eq!(contention.hand_offs.at(1.0), Some(Duration::from_nanos(60)));
        assert_eq!(contention.longest_wait, Duration::from_nanos(5000));
        assert_eq!((contention.most(), contention.least()), (3, 0));
        assert_eq!(contention.time, Duration::from_nanos(1000));
    }

    #[test]
    fn a_grant_is_read_as_it_was_written() {
        let one = grant(3, u64::MAX, 1, 2, 3);
        assert_eq!(one.to_string().parse(), Ok(one));
        for line in ["", "1 2 3 4", "1 2 3 4 5 6", "1 2 3 4 x", "99999999999 2 3 4 5"] {
            assert_eq!(line.parse::<Grant>(), Err(()), "{line}");
        }
    }
}
