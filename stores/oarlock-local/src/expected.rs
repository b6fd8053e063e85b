//! Claims of this process that wait, from before they enter the queue. Their notifications are kept until they ask.

use std::collections::HashMap;

use oarlock_core::ClaimId;
use oarlock_core::clock::Moment;
use oarlock_core::driver::Grant;

use crate::turn::{Answer, TurnGrant};

/// The claims that wait, and what was received for them.
#[derive(Debug, Default)]
pub(crate) struct Expected(HashMap<ClaimId, Received>);

#[derive(Debug, Default)]
struct Received {
    /// The last answer of the state file; `None` until the first one.
    answer: Option<Answer>,
    /// A notification came that no watch has passed on yet.
    called: bool,
    granted: Option<TurnGrant>,
}

impl Expected {
    /// A claim is about to ask the state file. The answer replaces all that was received before.
    pub(crate) fn begin(&mut self, id: ClaimId) {
        self.0.insert(id, Received::default());
    }

    /// The state file answered that the claim waits.
    pub(crate) fn answered(&mut self, id: ClaimId, answer: Answer) {
        if let Some(received) = self.0.get_mut(&id) {
            received.answer = Some(answer);
        }
    }

    /// The claim waits no longer.
    pub(crate) fn forget(&mut self, id: ClaimId) {
        self.0.remove(&id);
    }

    /// A claim must attempt again, also if it was granted before. False if it does not wait.
    pub(crate) fn call(&mut self, id: ClaimId) -> bool {
        self.0.get_mut(&id).map(|received| (received.called, received.granted) = (true, None)).is_some()
    }

    /// Datagrams were lost: every claim must attempt again.
    pub(crate) fn call_all(&mut self) {
        self.0.values_mut().for_each(|received| received.called = true);
    }

    /// A claim was granted. False if it does not wait.
    pub(crate) fn grant(&mut self, id: ClaimId, grant: TurnGrant) -> bool {
        let Some(received) = self.0.get_mut(&id) else { return false };
        received.called = true;
        // Datagrams of different processes may overtake each other.
        if received.granted.as_ref().is_none_or(|granted| grant.is_after(granted)) {
            received.granted = Some(grant);
        }
        true
    }

    /// Whether a notification came that no watch has passed on yet; the caller passes it on. `None` if the claim does not wait.
    pub(crate) fn take_call(&mut self, id: ClaimId) -> Option<bool> {
        self.0.get_mut(&id).map(|received| std::mem::take(&mut received.called))
    }

    /// The grant that was received for this claim, which then waits no longer. Only once: the next attempt asks the state
    /// file.
    pub(crate) fn take_grant(&mut self, id: ClaimId, now: Moment) -> Option<Grant> {
        let received = self.0.get_mut(&id)?;
        let grant = received.granted.take()?.into_grant(received.answer?, now)?;
        self.0.remove(&id);
        Some(grant)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use oarlock_core::Fence;

    use super::*;

    const ID: ClaimId = ClaimId::from_bits(1);
    const ASKED: Moment = Moment::from_nanos(1_000_000_000);
    const NOW: Moment = Moment::from_nanos(1_500_000_000);

    /// A grant of this fence, so many milliseconds after the state file was asked.
    fn grant(fence: u64, millis: u64) -> TurnGrant {
        TurnGrant::new(Fence::new(fence), ASKED + Duration::from_millis(millis))
    }

    fn waiting() -> Expected {
        let mut expected = Expected::default();
        expected.begin(ID);
        expected.answered(ID, Answer { at: ASKED, last_fence: Some(Fence::new(6)) });
        expected
    }

    fn fence(expected: &mut Expected) -> Option<u64> {
        expected.take_grant(ID, NOW).map(|grant| grant.fence.get())
    }

    #[test]
    fn a_grant_is_given_once_to_the_claim_that_waits_for_it() {
        let mut expected = waiting();
        assert!(!expected.grant(ClaimId::from_bits(2), grant(7, 1)), "it does not wait");
        assert!(expected.grant(ID, grant(7, 1)));
        assert_eq!(expected.take_call(ID), Some(true));
        assert_eq!(expected.take_call(ID), Some(false));
        assert_eq!([fence(&mut expected), fence(&mut expected)], [Some(7), None]);
        assert_eq!(expected.take_call(ID), None, "it waits no longer");
    }

    #[test]
    fn the_latest_grant_counts_in_any_order_of_arrival() {
        for grants in [[grant(7, 1), grant(8, 2)], [grant(8, 2), grant(7, 1)]] {
            let mut expected = waiting();
            for received in grants {
                assert!(expected.grant(ID, received));
            }
            assert_eq!(fence(&mut expected), Some(8));
        }
    }

    #[test]
    fn after_a_call_or_a_new_attempt_the_state_file_decides() {
        let mut expected = waiting();
        expected.grant(ID, grant(7, 1));
        assert!(expected.call(ID));
        assert_eq!(fence(&mut expected), None);
        expected.grant(ID, grant(7, 1));
        expected.begin(ID);
        assert_eq!(fence(&mut expected), None);
        expected.grant(ID, grant(7, 1));
        assert_eq!(fence(&mut expected), None, "the new attempt has no answer yet");
    }

    #[test]
    fn after_a_loss_every_claim_is_called() {
        let mut expected = waiting();
        expected.call_all();
        assert_eq!(expected.take_call(ID), Some(true));
    }
}
