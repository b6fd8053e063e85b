//! A turn that comes with its grant: the step that makes room for a waiter also grants to it, and the datagram that wakes
//! it says so. The driver answers the attempt that follows from that, without a step of its own.
//!
//! **What is trusted.** The datagram is a copy of what the state file says; `attempt` would answer the same. It is believed
//! only for a claim that this store has put into the queue, and only if it is newer than the last answer of the state file
//! to that claim: granted after it, and with a larger fence. Otherwise, and when half of its time has passed, the state file
//! is asked. All processes of a machine read the same boot clock, so belief counts from the moment of the grant. A process that can
//! write to the socket could write to the state files as well: the datagram carries no other proof.

use std::time::Duration;

use oarlock_core::clock::Moment;
use oarlock_core::driver::{Grant, Lease};
use oarlock_core::model::{Calls, Entry, Now, Resource, Session, Standing, TURN_TTL};
use oarlock_core::state::{MAX_MEMO_BYTES, Memo};
use oarlock_core::{Claim, ClaimId, Fence};

/// A waiter that was silent for so long when its turn came may hang.
const SILENT: Duration = Duration::from_millis(200);
/// If more wait than this, one of them looks soon enough to notice that a turn was not taken.
const FEW: usize = 32;

/// What a datagram with grants begins with. One without is only ids, 16 bytes each.
const MAGIC: [u8; 9] = *b"oarlock\x01g";
const HEADER: usize = MAGIC.len() + 2 + 8;
const GRANT: usize = 16 + 8 + 8;
/// The most grants in one datagram.
const MAX_GRANTS: usize = 128;
/// The length of the longest datagram with grants.
pub(crate) const MAX_BYTES: usize = HEADER + MAX_MEMO_BYTES + MAX_GRANTS * GRANT;

/// A waiter that was granted its turn, and the session that has to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Handed {
    pub(crate) claim: ClaimId,
    pub(crate) session: Session,
    pub(crate) word: Word,
}

/// What the process of the waiter is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    fence: Fence,
    at: Moment,
    ttl: Duration,
    memo: Option<Memo>,
}

/// What the state file said last to a claim that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) at: Moment,
    pub(crate) last_fence: Option<Fence>,
}

impl Word {
    /// A grant for a whole turn.
    #[cfg(test)]
    pub(crate) fn new(fence: Fence, at: Moment) -> Self {
        Self { fence, at, ttl: TURN_TTL, memo: None }
    }

    /// The grant, if it is newer than what the state file said, and more than half of its time is left.
    pub(crate) fn grant(self, after: Answer, now: Moment) -> Option<Grant> {
        let is_newer = self.at > after.at && Some(self.fence) > after.last_fence;
        if !is_newer || self.at > now || now.since(self.at) > self.ttl / 2 {
            return None;
        }
        let mut grant = Grant::new(self.fence, Lease { from: Some(self.at), ttl: self.ttl });
        grant.memo = self.memo;
        Some(grant)
    }

    /// Whether this was granted after the other.
    pub(crate) fn is_after(&self, other: &Self) -> bool {
        self.at > other.at
    }
}

/// Grants to those of `calls` that wait for it and that `reaches` says can be told: they need no call any more.
///
/// A grant to a waiter that hangs is over with its turn, but a client has to look then: if the waiter was silent for long, the
/// one behind it is called, which looks now and learns when the turn will be over.
pub(crate) fn hand(
    resource: &mut Resource,
    now: Now,
    calls: &mut Calls,
    mut reaches: impl FnMut(Session) -> bool,
) -> Vec<Handed> {
    let mut handed = Vec::new();
    let mut doubtful = false;
    calls.retain(|(claim, session)| {
        let Some(entry) = resource.entries().iter().find(|entry| entry.id == *claim) else { return true };
        let silent = is_silent(entry, now);
        if !entry.awaits_grant || entry.is_held() || !reaches(*session) {
            return true;
        }
        let Some(grant) = resource.take_turn(*claim, now) else { return true };
        doubtful |= silent;
        let word = Word { fence: grant.fence, at: now.boot, ttl: grant.lease.ttl, memo: grant.memo };
        handed.push(Handed { claim: *claim, session: *session, word });
        false
    });
    let waits = |entry: &&Entry| entry.standing == Standing::Waits(None);
    if doubtful
        && resource.entries().iter().filter(waits).count() <= FEW
        && let Some(next) = resource.entries().iter().find(waits)
        && !calls.iter().any(|(claim, _)| *claim == next.id)
    {
        calls.push((next.id, next.session));
    }
    handed
}

/// Whether a waiter has said nothing for long. Its place was renewed when it last did.
fn is_silent(entry: &Entry, now: Now) -> bool {
    let heard = entry.expires - entry.ttl.min(Claim::MAX_PLACE_TTL);
    now.boot.since(heard) > SILENT
}

/// Grants of one step to one session, as datagrams.
pub(crate) fn write(handed: &[Handed]) -> impl Iterator<Item = Vec<u8>> {
    handed.chunks(MAX_GRANTS).map(|handed| {
        let mut message = Vec::with_capacity(MAX_BYTES);
        message.extend_from_slice(&MAGIC);
        let first = handed.first().map(|handed| &handed.word);
        let memo = first.and_then(|word| word.memo.as_deref());
        // One more than its length; 0 is none.
        let length = memo.map_or(0, |memo| u16::try_from(memo.len() + 1).unwrap_or(0));
        message.extend_from_slice(&length.to_be_bytes());
        message.extend_from_slice(&first.map_or(0, |word| word.at.as_nanos()).to_be_bytes());
        message.extend_from_slice(memo.filter(|_| length > 0).unwrap_or_default());
        for Handed { claim, word, .. } in handed {
            message.extend_from_slice(&claim.bits().to_be_bytes());
            message.extend_from_slice(&word.fence.get().to_be_bytes());
            message.extend_from_slice(&u64::try_from(word.ttl.as_nanos()).unwrap_or(0).to_be_bytes());
        }
        message
    })
}

/// The grants in a message; `None` if it is not such a message, or not whole.
pub(crate) fn read(message: &[u8]) -> Option<Vec<(ClaimId, Word)>> {
    let rest = message.strip_prefix(&MAGIC)?;
    let (length, rest) = rest.split_first_chunk()?;
    let (at, rest) = rest.split_first_chunk()?;
    let length = usize::from(u16::from_be_bytes(*length));
    let (memo, grants) = rest.split_at_checked(length.saturating_sub(1))?;
    let memo: Option<Memo> = (length > 0).then(|| memo.into());
    let at = Moment::from_nanos(u64::from_be_bytes(*at));
    let (grants, []) = grants.as_chunks::<GRANT>() else { return None };
    let read = |grant: &[u8; GRANT]| {
        let (claim, rest) = grant.split_first_chunk()?;
        let (fence, ttl) = rest.split_first_chunk()?;
        let fence = Fence::new(u64::from_be_bytes(*fence));
        // No grant that came with its turn is longer.
        let ttl = Duration::from_nanos(u64::from_be_bytes(ttl.try_into().ok()?)).min(TURN_TTL);
        Some((ClaimId::from_bits(u128::from_be_bytes(*claim)), Word { fence, at, ttl, memo: memo.clone() }))
    };
    grants.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use oarlock_core::ResourceName;
    use oarlock_core::driver::End;

    use super::*;

    const START: Now = Now { boot: Moment::from_nanos(1_000_000_000_000), wall_micros: 1_000_000 };

    fn id(number: u128) -> ClaimId {
        ClaimId::from_bits(number)
    }

    fn after(span: Duration) -> Now {
        Now { boot: START.boot + span, ..START }
    }

    fn word(fence: u64, memo: Option<&[u8]>) -> Word {
        Word { fence: Fence::new(fence), at: START.boot, ttl: TURN_TTL, memo: memo.map(Into::into) }
    }

    /// Claims 1 to `count` of sessions 1 to `count` asked for everything; the first holds. What its release calls.
    fn released(count: u128, now: Now) -> (Resource, Calls) {
        let mut resource = Resource::default();
        for number in 1..=count {
            let mut claim = Claim::new(id(number), ResourceName::new("x").unwrap());
            claim.wait = true;
            resource.attempt(&claim, number, START, &mut Calls::new()).unwrap();
        }
        let mut calls = Calls::new();
        resource.release(id(1), &End::Withdrawn, now, &mut calls);
        (resource, calls)
    }

    #[test]
    fn words_are_read_as_they_are_written() {
        for memo in [None, Some(&b""[..]), Some(&[7; MAX_MEMO_BYTES][..])] {
            let handed: Vec<_> =
                (1..=300).map(|n| Handed { claim: id(n), session: 1, word: word(n as u64, memo) }).collect();
            let mut back = Vec::new();
            for message in write(&handed) {
                assert!(message.len() <= MAX_BYTES);
                assert!(!message.len().is_multiple_of(16) || message.starts_with(&MAGIC));
                for cut in [message.len() - 1, HEADER - 1, 0] {
                    assert_eq!(read(&message[..cut]), None, "cut to {cut}");
                }
                back.extend(read(&message).unwrap());
            }
            let handed: Vec<_> = handed.into_iter().map(|handed| (handed.claim, handed.word)).collect();
            assert_eq!(back, handed);
        }
        assert_eq!(read(b"something else"), None);
        assert_eq!(read(&[0; 32]), None, "two ids");
    }

    #[test]
    fn nobody_is_told_to_believe_for_longer_than_a_turn() {
        let long = Word { ttl: TURN_TTL * 10, ..word(7, None) };
        let message = write(&[Handed { claim: id(1), session: 1, word: long }]).next().unwrap();
        assert_eq!(read(&message).unwrap(), [(id(1), word(7, None))]);
    }

    #[test]
    fn a_word_counts_from_the_grant_and_only_if_it_is_news() {
        let (before, at) = (START.boot - Duration::from_nanos(1), START.boot);
        let fence = |fence| Some(Fence::new(fence));
        let grant = |answered, last_fence, now| word(7, None).grant(Answer { at: answered, last_fence }, now);
        let granted = grant(before, fence(6), at + TURN_TTL / 2).unwrap();
        assert_eq!((granted.fence, granted.lease), (Fence::new(7), Lease { from: Some(at), ttl: TURN_TTL }));
        assert_eq!(grant(at, fence(6), at), None, "the state file said later that it waits");
        assert_eq!(grant(before, fence(7), at), None, "an old fence");
        assert_eq!(grant(before, fence(6), at + TURN_TTL / 2 + Duration::from_nanos(1)), None, "it is old");
        assert_eq!(grant(before, fence(6), before), None, "of another clock");
    }

    #[test]
    fn the_next_in_line_is_handed_its_turn() {
        let (mut resource, mut calls) = released(3, START);
        let handed = hand(&mut resource, START, &mut calls, |session| session == 2);
        assert_eq!(handed.iter().map(|handed| (handed.claim, handed.session)).collect::<Vec<_>>(), [(id(2), 2)]);
        assert_eq!(resource.last_fence(), Some(handed[0].word.fence));
        assert_eq!(calls, [], "it is told of its grant, and no other of anything");
    }

    #[test]
    fn who_cannot_be_told_is_called_and_granted_nothing() {
        let (mut resource, mut calls) = released(3, START);
        assert_eq!(hand(&mut resource, START, &mut calls, |_| false), []);
        assert_eq!(calls, [(id(2), 2)]);
        assert!(resource.entries().iter().all(|entry| !entry.is_held()));
    }

    #[test]
    fn behind_a_waiter_that_was_silent_for_long_the_next_is_called_too() {
        for (silence, count, called) in [(SILENT, 3, false), (SILENT * 2, 3, true), (SILENT * 2, 100, false)] {
            let now = after(silence);
            let (mut resource, mut calls) = released(count, now);
            assert_eq!(hand(&mut resource, now, &mut calls, |_| true).len(), 1);
            assert_eq!(calls, if called { vec![(id(3), 3)] } else { vec![] }, "{silence:?}, {count} claims");
        }
    }
}
