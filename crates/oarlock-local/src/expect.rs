//! Claims of this process that wait, from before they are put into the queue: what they are told is kept until they ask.

use std::collections::HashMap;

use oarlock_core::ClaimId;
use oarlock_core::clock::Moment;
use oarlock_core::driver::Grant;

use crate::turn::{Answer, Word};

/// Everyone who waits, and what came for them.
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

    /// The grant that was handed to this claim, which waits no longer then. Only once: whoever asks again wants to know what
    /// the state file says.
    pub(crate) fn take_grant(&mut self, id: ClaimId, now: Moment) -> Option<Grant> {
        let news = self.0.get_mut(&id)?;
        let grant = news.handed.take()?.grant(news.answer?, now)?;
        self.0.remove(&id);
        Some(grant)
    }
}
