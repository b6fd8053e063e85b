//! A grant that comes with the notification of a waiter's turn.

use std::time::Duration;

use super::{Grant, Lease};
use crate::claim::{Claim, Fence, Lifetime};
use crate::clock::Moment;
use crate::model::TURN_TTL;
use crate::state::Memo;

/// A grant that the step of another client gave to a waiter. The notification that wakes the waiter carries it.
///
/// Belief in it counts from the last request of the claim that the store had seen, by the clock of the waiter's client.
/// That request was sent before the grant, so belief ends before the grant does, however long the notification took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handed {
    fence: Fence,
    from: Moment,
    ttl: Duration,
    memo: Option<Memo>,
}

impl Handed {
    /// Reads the fence, when the last request was sent and how long the grant lasts from there, both in microseconds.
    pub fn read<'a>(mut parts: impl Iterator<Item = &'a str>, memo: Option<Memo>) -> Option<Self> {
        let mut number = || parts.next().and_then(|number| number.parse().ok());
        Some(Self::new(number()?, number()?, number()?, memo))
    }

    /// A grant of this fence, when the last request was sent and how long the grant lasts from there, both in
    /// microseconds.
    #[must_use]
    pub fn new(fence: u64, sent: u64, ttl: u64, memo: Option<Memo>) -> Self {
        // A grant that comes with a turn is never longer.
        let ttl = Duration::from_micros(ttl).min(TURN_TTL);
        Self { fence: Fence::new(fence), from: Moment::ZERO + Duration::from_micros(sent), ttl, memo }
    }

    /// The grant, if more than half of its time is left. Otherwise an attempt is better, which returns a whole lease.
    #[must_use]
    pub fn grant(self, now: Moment) -> Option<Grant> {
        if self.from > now || now.since(self.from) > self.ttl / 2 {
            return None;
        }
        let mut grant = Grant::new(self.fence, Lease::sent_at(self.from, self.ttl));
        grant.memo = self.memo;
        Some(grant)
    }
}

impl Claim {
    /// Whether it may be granted by a notification. A hold that is not renewed, or that outlives its process, must
    /// begin with a whole lease, and so needs an attempt.
    #[must_use]
    pub fn may_be_handed(&self) -> bool {
        self.wait && self.renews && self.lifetime == Lifetime::Process
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::{ClaimId, ResourceName};

    fn read(text: &str) -> Option<Handed> {
        Handed::read(text.split(' '), None)
    }

    #[test]
    fn a_handed_grant_counts_from_the_last_request_and_not_when_it_is_old() {
        let handed = || read("7 5000000 2000000").unwrap();
        let at = |micros| handed().grant(Moment::ZERO + Duration::from_micros(micros));
        let from = Moment::from_nanos(5_000_000_000);
        let grant = at(6_000_000).unwrap();
        assert_eq!((grant.fence, grant.lease), (Fence::new(7), Lease::sent_at(from, TURN_TTL)));
        assert_eq!(at(6_000_001), None, "more than half of it is over");
        assert_eq!(at(4_999_999), None, "of another clock");
    }

    #[test]
    fn it_lasts_no_longer_than_a_turn() {
        let grant = read("7 5000000 3000000000").unwrap().grant(Moment::from_nanos(5_000_000_000)).unwrap();
        assert_eq!(grant.lease.ttl, TURN_TTL);
    }

    #[test]
    fn what_is_not_three_numbers_is_no_grant() {
        for text in ["", "7", "7 5", "7 x 2", "-7 5 2", "7  5 2"] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_claim_that_is_not_renewed_or_outlives_its_process_is_handed_nothing() {
        let mut claim = Claim::new(ClaimId::from_bits(1), ResourceName::new("deploy").unwrap());
        assert!(!claim.may_be_handed(), "it does not wait");
        claim.wait = true;
        assert!(claim.may_be_handed());
        claim.renews = false;
        assert!(!claim.may_be_handed());
        (claim.renews, claim.lifetime) = (true, Lifetime::Lease);
        assert!(!claim.may_be_handed());
    }
}
