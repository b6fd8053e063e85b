//! The arithmetic of votes.

use std::time::Duration;

use super::SCHEME;
use super::memo::newest;
use oarlock_core::claim::Fence;
use oarlock_core::driver::memo::Versioned;
use oarlock_core::driver::{Attempt, Grant, Pending};
use oarlock_core::error::{Applied, Error, Result, Retry};

/// The votes of one round.
#[derive(Debug)]
pub(super) struct Tally {
    nodes: usize,
    majority: usize,
    pub(super) granted: Vec<(usize, Grant)>,
    /// When the vote of each node that is taken ends by itself.
    refused: Vec<Option<Duration>>,
    faults: Vec<(usize, Error)>,
}

impl Tally {
    pub(super) fn of(nodes: usize, majority: usize) -> Self {
        Self { nodes, majority, granted: Vec::new(), refused: Vec::new(), faults: Vec::new() }
    }

    pub(super) fn add(&mut self, node: usize, vote: Result<Attempt>) {
        match vote {
            Ok(Attempt::Granted(grant)) => self.granted.push((node, grant)),
            Ok(Attempt::Pending(pending)) => self.refused.push(pending.recheck_after),
            Err(error) => self.faults.push((node, error)),
        }
    }

    pub(super) fn is_won(&self) -> bool {
        self.granted.len() >= self.majority
    }

    /// Whether the votes that are still out can change nothing.
    pub(super) fn is_decided(&self) -> bool {
        self.is_won() || self.refused.len() + self.faults.len() > self.nodes - self.majority
    }

    /// The largest fence among the votes.
    pub(super) fn fence(&self) -> Option<Fence> {
        self.granted.iter().map(|(_, grant)| grant.fence).max()
    }

    /// The newest memo that came with the votes.
    pub(super) fn memo(&self) -> Option<Versioned> {
        newest(self.granted.iter().map(|(_, grant)| grant.memo.as_ref()))
    }

    /// Where a vote of this round may be.
    pub(super) fn traces(&self) -> impl Iterator<Item = usize> {
        let unsure = self.faults.iter().filter(|(_, error)| error.applied() == Applied::Unknown);
        self.granted.iter().map(|(node, _)| *node).chain(unsure.map(|(node, _)| *node))
    }

    /// What to say of a round that was not won.
    pub(super) fn verdict(&self) -> Result<Attempt> {
        // In a round that ended early, the nodes that had not answered yet are not counted as silent.
        let silent =
            if self.is_decided() { self.faults.len() } else { self.nodes - self.granted.len() - self.refused.len() };
        if silent > self.nodes - self.majority {
            return Err(self.fault(silent));
        }
        let mut pending = Pending::default();
        let mut ends: Vec<_> = self.refused.iter().map(|ends| ends.unwrap_or(Duration::MAX)).collect();
        ends.sort_unstable();
        // So many more votes are missing, and the last of them is free then.
        let missing = self.majority.saturating_sub(self.granted.len());
        pending.recheck_after = missing.checked_sub(1).and_then(|last| ends.get(last).copied());
        pending.recheck_after = pending.recheck_after.filter(|after| *after < Duration::MAX);
        Ok(Attempt::Pending(pending))
    }

    fn fault(&self, silent: usize) -> Error {
        // What will not go away by itself goes before what may.
        if let Some((_, error)) = self.faults.iter().find(|(_, error)| error.retry() == Retry::Never) {
            return error.clone();
        }
        let message = format!("{silent} of {} nodes did not vote", self.nodes);
        let error = Error::unreachable(message).on(SCHEME);
        match self.faults.first() {
            Some((_, cause)) => error.because(cause.clone()),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oarlock_core::driver::Lease;
    use oarlock_core::error::ErrorKind;

    fn granted(fence: u64) -> Result<Attempt> {
        Ok(Attempt::Granted(Grant::new(Fence::new(fence), Lease::of(Duration::from_secs(1)))))
    }

    fn refused() -> Result<Attempt> {
        Ok(Attempt::Pending(Pending::default()))
    }

    /// For every number of nodes and every way they may vote, in order: a round ends, and not before it must.
    #[test]
    fn a_round_ends_when_it_is_certain_for_even_and_odd_numbers() {
        for nodes in 3..=7_usize {
            let majority = nodes / 2 + 1;
            for votes in 0..3_usize.pow(u32::try_from(nodes).unwrap()) {
                let mut tally = Tally::of(nodes, majority);
                let vote = |at: usize| votes / 3_usize.pow(u32::try_from(at).unwrap()) % 3;
                let count = |of: usize, until: usize| (0..until).filter(|at| vote(*at) == of).count();
                for at in 0..nodes {
                    let (yes, out) = (count(0, at), nodes - at);
                    let certain = yes >= majority || yes + out < majority;
                    assert_eq!(tally.is_decided(), certain, "{nodes} nodes, {tally:?}");
                    if certain {
                        break;
                    }
                    let fault = || Err(Error::unreachable("down"));
                    tally.add(at, [granted(7), refused(), fault()].into_iter().nth(vote(at)).unwrap());
                }
                assert!(tally.is_decided());
                if !tally.is_won() {
                    let answer = tally.verdict();
                    assert!(!matches!(answer, Ok(Attempt::Granted(_))));
                    assert!(answer.is_ok() || tally.faults.len() + tally.refused.len() > nodes - majority);
                }
            }
        }
    }

    #[test]
    fn what_stays_wrong_is_said_and_what_passes_is_waited_for() {
        let foreign = || Err(Error::new(ErrorKind::Foreign, "a list"));
        let down = || Err(Error::unreachable("down"));
        let said = |votes: [Result<Attempt>; 2]| {
            let mut tally = Tally::of(3, 2);
            votes.into_iter().enumerate().for_each(|(node, vote)| tally.add(node, vote));
            assert!(tally.is_decided() && !tally.is_won());
            tally.verdict().map(|_| ()).map_err(|error| error.kind())
        };
        assert_eq!(said([down(), foreign()]), Err(ErrorKind::Foreign));
        assert_eq!(said([down(), down()]), Err(ErrorKind::Unreachable));
        assert_eq!(said([refused(), foreign()]), Ok(()));
        assert_eq!(said([down(), refused()]), Ok(()), "one node down, and another holds it");
        let mut tally = Tally::of(3, 2);
        for (node, ends) in [(0, 30), (1, 10)] {
            let mut pending = Pending::default();
            pending.recheck_after = Some(Duration::from_secs(ends));
            tally.add(node, Ok(Attempt::Pending(pending)));
        }
        let Ok(Attempt::Pending(pending)) = tally.verdict() else { panic!("{tally:?}") };
        assert_eq!(pending.recheck_after, Some(Duration::from_secs(30)));
    }
}
