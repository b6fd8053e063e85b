//! What was received for a claim of this process that waits, from before it enters the queue until it asks.

use oarlock_core::clock::Moment;
use oarlock_core::driver::Grant;

use crate::turn::{Answer, TurnGrant};

/// What was received for a claim since it began to ask the state file.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// The last answer of the state file; `None` until the first one.
    pub(crate) answer: Option<Answer>,
    granted: Option<TurnGrant>,
}

impl Received {
    /// The claim is about to ask the state file. The answer replaces all that was received before.
    pub(crate) fn begin(&mut self) {
        *self = Self::default();
    }

    /// The claim must attempt again, also if it was granted before.
    pub(crate) fn call(&mut self) {
        self.granted = None;
    }

    /// The claim was granted.
    pub(crate) fn grant(&mut self, grant: TurnGrant) {
        // Datagrams of different processes may overtake each other.
        if self.granted.as_ref().is_none_or(|granted| grant.is_after(granted)) {
            self.granted = Some(grant);
        }
    }

    /// The grant that was received. Only once: the next attempt asks the state file.
    pub(crate) fn take_grant(&mut self, now: Moment) -> Option<Grant> {
        self.granted.take()?.into_grant(self.answer?, now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use oarlock_core::driver::Waiters;
    use oarlock_core::{ClaimId, Fence};

    use super::*;

    const ID: ClaimId = ClaimId::from_bits(1);
    const ASKED: Moment = Moment::from_nanos(1_000_000_000);
    const NOW: Moment = Moment::from_nanos(1_500_000_000);

    /// A grant of this fence, so many milliseconds after the state file was asked.
    fn grant(fence: u64, millis: u64) -> TurnGrant {
        TurnGrant::new(Fence::new(fence), ASKED + Duration::from_millis(millis))
    }

    fn waiting() -> Received {
        Received { answer: Some(Answer { at: ASKED, last_fence: Some(Fence::new(6)) }), granted: None }
    }

    fn fence(received: &mut Received) -> Option<u64> {
        received.take_grant(NOW).map(|grant| grant.fence.get())
    }

    #[test]
    fn a_grant_is_given_once_to_the_claim_that_waits_for_it() {
        let waiters = Waiters::<Received>::default();
        waiters.expect(ID, |received| *received = waiting());
        waiters.notify(ClaimId::from_bits(2), |_| panic!("it does not wait"));
        waiters.notify(ID, |received| received.grant(grant(7, 1)));
        let taken = || waiters.kept(ID, fence).flatten();
        assert_eq!([taken(), taken()], [Some(7), None]);
    }

    #[test]
    fn the_latest_grant_counts_in_any_order_of_arrival() {
        for grants in [[grant(7, 1), grant(8, 2)], [grant(8, 2), grant(7, 1)]] {
            let mut received = waiting();
            for one in grants {
                received.grant(one);
            }
            assert_eq!(fence(&mut received), Some(8));
        }
    }

    #[test]
    fn after_a_call_or_a_new_attempt_the_state_file_decides() {
        let mut received = waiting();
        received.grant(grant(7, 1));
        received.call();
        assert_eq!(fence(&mut received), None);
        received.grant(grant(7, 1));
        received.begin();
        assert_eq!(fence(&mut received), None);
        received.grant(grant(7, 1));
        assert_eq!(fence(&mut received), None, "the new attempt has no answer yet");
    }
}
