//! Who had a contended lock after whom.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// One hold, in nanoseconds of the machine's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    contender: usize,
    asked: u64,
    granted: u64,
    releasing: u64,
}

/// The grants that a process wrote down; its contenders are counted from `first`.
pub(super) fn read(file: &Path, first: usize) -> Result<Vec<Grant>> {
    let text = std::fs::read_to_string(file)?;
    let grant = |line: &str| {
        let mut numbers = line.split(' ').map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        let contender = first + usize::try_from(next()?).ok()?;
        Some(Grant { contender, asked: next()?, granted: next()?, releasing: next()? })
    };
    text.lines().map(|line| grant(line).with_context(|| format!("not a grant: {line}"))).collect()
}

/// What came of all turns of one load.
#[derive(Debug)]
pub(super) struct Contention {
    /// Grants, and those of them that went to another contender than the one before.
    pub(super) grants: u64,
    pub(super) hand_offs: u64,
    pub(super) longest_wait: Duration,
    /// Grants of each contender.
    shares: Vec<u64>,
    pub(super) time: Duration,
    /// Requests to the server, where they are counted, and all grants that they were for.
    calls: Option<u64>,
    served: u64,
    /// How often two held it at once.
    pub(super) overlaps: u64,
}

impl Contention {
    pub(super) fn new(contenders: usize) -> Self {
        Self {
            grants: 0,
            hand_offs: 0,
            longest_wait: Duration::ZERO,
            shares: vec![0; contenders],
            time: Duration::ZERO,
            calls: None,
            served: 0,
            overlaps: 0,
        }
    }

    /// Adds one turn. Those who were served after its end have waited, but do not count.
    pub(super) fn add(&mut self, mut grants: Vec<Grant>, time: Duration, calls: Option<u64>) {
        grants.sort_unstable_by_key(|grant| grant.granted);
        let start = grants.iter().map(|grant| grant.asked).min().unwrap_or(0);
        let end = start + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let mut before: Option<Grant> = None;
        for grant in &grants {
            let waited = Duration::from_nanos(grant.granted.saturating_sub(grant.asked));
            self.longest_wait = self.longest_wait.max(waited);
            self.overlaps += u64::from(before.is_some_and(|before| grant.granted < before.releasing));
            if grant.granted <= end {
                self.grants += 1;
                self.hand_offs += u64::from(before.is_some_and(|before| before.contender != grant.contender));
                if let Some(share) = self.shares.get_mut(grant.contender) {
                    *share += 1;
                }
            }
            before = Some(*grant);
        }
        self.time += time;
        self.calls = calls.map(|calls| calls + self.calls.unwrap_or(0));
        self.served += grants.len() as u64;
    }

    /// The largest share and the smallest.
    pub(super) fn shares(&self) -> (u64, u64) {
        (self.shares.iter().copied().max().unwrap_or(0), self.shares.iter().copied().min().unwrap_or(0))
    }

    /// Requests to the server for each grant, where they are counted.
    pub(super) fn calls(&self) -> Option<f64> {
        Some(super::rate(self.calls?, super::rate(self.served.max(1), 1.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(contender: usize, asked: u64, granted: u64, releasing: u64) -> Grant {
        Grant { contender, asked, granted, releasing }
    }

    #[test]
    fn retaking_ones_own_lock_is_no_hand_off() {
        let mut contention = Contention::new(2);
        let grants = vec![grant(1, 0, 50, 60), grant(0, 0, 10, 20), grant(0, 21, 30, 40), grant(0, 41, 5000, 5001)];
        contention.add(grants, Duration::from_nanos(1000), Some(8));
        assert_eq!((contention.grants, contention.hand_offs, contention.overlaps), (3, 1, 0));
        assert_eq!(contention.shares(), (2, 1));
        assert_eq!(contention.longest_wait, Duration::from_nanos(4959));
        assert!(contention.calls().is_some_and(|calls| (calls - 2.0).abs() < 0.001));
    }

    #[test]
    fn two_at_once_are_seen() {
        let mut contention = Contention::new(2);
        contention.add(vec![grant(0, 0, 10, 30), grant(1, 0, 20, 40)], Duration::from_nanos(100), None);
        assert_eq!((contention.overlaps, contention.calls()), (1, None));
    }
}
