//! How long to wait before the next request.

use std::time::Duration;

use crate::capabilities::Notify;

/// How a claim waits between two attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// For a hint, with a slow poll.
    Hint,
    /// By timer only, with short pauses.
    Spin,
}

/// Pauses that double up to a bound.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    next: Duration,
    most: Duration,
    ahead: Option<u32>,
}

impl Backoff {
    /// From `first` to `most`.
    #[must_use]
    pub fn new(first: Duration, most: Duration) -> Self {
        Self { first: first.min(most), next: first.min(most), most, ahead: None }
    }

    /// Between failed requests, for a lease of `ttl`: the first retry comes quickly, and several fit into the lease.
    pub(crate) fn for_errors(ttl: Duration) -> Self {
        Self::new(Duration::from_millis(20), (ttl / 6).min(Duration::from_secs(5)))
    }

    /// Between attempts of a waiter, for a store that notifies or has to be polled, and for a lease of `ttl`.
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

    /// Whether no pause was taken since the start or the last reset.
    pub(crate) fn is_fresh(&self) -> bool {
        self.next == self.first
    }

    /// Begins with the first pause again.
    pub fn reset(&mut self) {
        self.next = self.first;
    }

    /// Sets how many claims are granted before this one: a waiter further back polls later, and sooner again once the
    /// queue has moved.
    pub(crate) fn set_ahead(&mut self, ahead: u32) {
        if self.ahead.replace(ahead) != Some(ahead) {
            self.next = self.first.saturating_mul(ahead.max(1)).min(self.most);
        }
    }

    /// The next pause, without taking it.
    #[must_use]
    pub fn peek(&self) -> Duration {
        self.next
    }

    /// The next pause.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.most);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_further_back_polls_later_until_the_queue_moves() {
        let mut pauses = Backoff::for_waiting(Patience::Hint, Notify::Poll, Duration::from_secs(30));
        let mut polls = |ahead| {
            pauses.set_ahead(ahead);
            pauses.pause().as_millis()
        };
        assert_eq!([3, 3, 3].map(&mut polls), [30, 60, 120]);
        assert_eq!([2, 1, 1, 1].map(&mut polls), [20, 10, 20, 40]);
        assert_eq!([1000, 1000].map(&mut polls), [250, 250], "no waiter polls later than before");
    }
}
