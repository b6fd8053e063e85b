//! How long to wait before looking again.

use std::time::Duration;

use crate::capabilities::Notify;

/// How a claim waits between two looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// For a hint, with a slow look now and then.
    Hint,
    /// By timer only, tightly.
    Spin,
}

/// Pauses that double up to a bound.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    next: Duration,
    most: Duration,
    ahead: Option<u32>,
}

impl Backoff {
    pub(crate) fn new(first: Duration, most: Duration) -> Self {
        Self { first: first.min(most), next: first.min(most), most, ahead: None }
    }

    /// Between failed requests, for a lease of `ttl`: the first retry comes quickly, and several fit into the lease.
    pub(crate) fn for_errors(ttl: Duration) -> Self {
        Self::new(Duration::from_millis(20), (ttl / 6).min(Duration::from_secs(5)))
    }

    /// Between looks of a waiter whose store gives hints (or not), for a lease of `ttl`.
    pub(crate) fn for_waiting(patience: Patience, notify: Notify, ttl: Duration) -> Self {
        let slow = ttl / 3;
        match (patience, notify) {
            (Patience::Spin, _) => Self::new(Duration::from_millis(1), slow.min(Duration::from_millis(50))),
            (Patience::Hint, Notify::Push) => Self::new(slow, slow),
            (Patience::Hint, Notify::Poll) => {
                Self::new(Duration::from_millis(10), slow.min(Duration::from_millis(250)))
            }
        }
    }

    /// Whether nothing has failed since it began, or since the last reset.
    pub(crate) fn is_fresh(&self) -> bool {
        self.next == self.first
    }

    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }

    /// So many go before, and none is passed: who stands further back looks later, and sooner again once the line has moved.
    pub(crate) fn stand(&mut self, ahead: u32) {
        if self.ahead.replace(ahead) != Some(ahead) {
            self.next = self.first.saturating_mul(ahead.max(1)).min(self.most);
        }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.most);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stands_further_back_looks_later_until_the_line_moves() {
        let mut pauses = Backoff::for_waiting(Patience::Hint, Notify::Poll, Duration::from_secs(30));
        let mut looks = |ahead| {
            pauses.stand(ahead);
            pauses.next().as_millis()
        };
        assert_eq!([3, 3, 3].map(&mut looks), [30, 60, 120]);
        assert_eq!([2, 1, 1, 1].map(&mut looks), [20, 10, 20, 40]);
        assert_eq!([1000, 1000].map(&mut looks), [250, 250], "nobody looks later than it did");
    }
}
