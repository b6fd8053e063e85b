//! Claims of this process that wait, from before they are put into the queue: what they are told is kept until they ask.

use std::collections::HashMap;

use oarlock_core::ClaimId;
use oarlock_core::clock::Moment;
use oarlock_core::driver::Grant;

use crate::turn::{Answer, Word};

/// The claims that wait, and what came for them.
#[derive(Debug, Default)]
pub(crate) struct Expected(HashMap<ClaimId, News>);

#[derive(Debug, Default)]
struct News {
    /// What the state file said last; nothing yet while the first answer is on its way.
    answer: Option<Answer>,
    /// A call came that was not heard yet.
    called: bool,
    handed: Option<Word>,
}

impl Expected {
    /// A claim is about to ask the state file: what came before says less than the answer will.
    pub(crate) fn begin(&mut self, id: ClaimId) {
        self.0.insert(id, News::default());
    }

    /// The state file said that it waits.
    pub(crate) fn answered(&mut self, id: ClaimId, answer: Answer) {
        if let Some(news) = self.0.get_mut(&id) {
            news.answer = Some(answer);
        }
    }

    /// What is kept for this claim is of no use any more.
    pub(crate) fn forget(&mut self, id: ClaimId) {
        self.0.remove(&id);
    }

    /// A claim should look again, whatever it was handed before. False if it does not wait.
    pub(crate) fn call(&mut self, id: ClaimId) -> bool {
        self.0.get_mut(&id).map(|news| (news.called, news.handed) = (true, None)).is_some()
    }

    /// Something was lost: every claim should look again.
    pub(crate) fn call_all(&mut self) {
        self.0.values_mut().for_each(|news| news.called = true);
    }

    /// A claim was handed its turn. False if it does not wait.
    pub(crate) fn hand(&mut self, id: ClaimId, word: Word) -> bool {
        let Some(news) = self.0.get_mut(&id) else { return false };
        news.called = true;
        // Datagrams of different processes may overtake each other.
        if news.handed.as_ref().is_none_or(|handed| word.is_after(handed)) {
            news.handed = Some(word);
        }
        true
    }

    /// Whether a call came for this claim that was not heard yet; it counts as heard from now on. `None` if it does not wait.
    pub(crate) fn take_call(&mut self, id: ClaimId) -> Option<bool> {
        self.0.get_mut(&id).map(|news| std::mem::take(&mut news.called))
    }

    /// The grant that was handed to this claim, which waits no longer then. Only once: a claim that asks again wants to know what
    /// the state file says.
    pub(crate) fn take_grant(&mut self, id: ClaimId, now: Moment) -> Option<Grant> {
        let news = self.0.get_mut(&id)?;
        let grant = news.handed.take()?.grant(news.answer?, now)?;
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
    fn word(fence: u64, millis: u64) -> Word {
        Word::new(Fence::new(fence), ASKED + Duration::from_millis(millis))
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
        assert!(!expected.hand(ClaimId::from_bits(2), word(7, 1)), "it does not wait");
        assert!(expected.hand(ID, word(7, 1)));
        assert_eq!(expected.take_call(ID), Some(true));
        assert_eq!(expected.take_call(ID), Some(false));
        assert_eq!([fence(&mut expected), fence(&mut expected)], [Some(7), None]);
        assert_eq!(expected.take_call(ID), None, "it waits no longer");
    }

    #[test]
    fn of_several_grants_the_last_one_counts_in_whichever_order_they_come() {
        for words in [[word(7, 1), word(8, 2)], [word(8, 2), word(7, 1)]] {
            let mut expected = waiting();
            for word in words {
                assert!(expected.hand(ID, word));
            }
            assert_eq!(fence(&mut expected), Some(8));
        }
    }

    #[test]
    fn a_call_or_a_new_question_lets_the_state_file_decide() {
        let mut expected = waiting();
        expected.hand(ID, word(7, 1));
        assert!(expected.call(ID));
        assert_eq!(fence(&mut expected), None);
        expected.hand(ID, word(7, 1));
        expected.begin(ID);
        assert_eq!(fence(&mut expected), None);
        expected.hand(ID, word(7, 1));
        assert_eq!(fence(&mut expected), None, "the answer to the new question has not come yet");
    }

    #[test]
    fn when_something_was_lost_everyone_is_called() {
        let mut expected = waiting();
        expected.call_all();
        assert_eq!(expected.take_call(ID), Some(true));
    }
}
