//! Grants that come with a notification. The step that frees a name also grants it to the next waiter, and the datagram
//! that wakes the waiter carries the grant. The driver answers the next attempt from it, without a step.
//!
//! **What is trusted.** The datagram is a copy of what the state file says; `attempt` would answer the same. It is
//! believed only for a claim that this store has put into the queue, and only if it is newer than the last answer of
//! the state file to that claim: granted after it, and with a larger fence. Otherwise, and when half of its time has
//! passed, the driver reads the state file. All processes of a machine read the same boot clock, so belief counts from
//! the moment of the grant. The datagram carries no other proof: a process that can write to the socket can write to
//! the state files too.

use std::time::Duration;

use oarlock_core::clock::Moment;
use oarlock_core::driver::{Grant, Lease};
use oarlock_core::model::{Entry, EntryState, Notified, Now, Resource, Session, TURN_TTL};
use oarlock_core::state::{MAX_MEMO_BYTES, Memo};
use oarlock_core::{Claim, ClaimId, Fence};

/// A waiter whose last request is older than this when its turn comes may hang.
const SILENT: Duration = Duration::from_millis(200);
/// Among more waiters than this, one polls soon enough to notice that a turn was not taken.
const FEW: usize = 32;

/// The first bytes of a datagram with grants. A datagram without grants has only ids, 16 bytes each.
pub(crate) const MAGIC: [u8; 9] = *b"oarlock\x01g";
const HEADER: usize = MAGIC.len() + 2 + 8;
const GRANT: usize = 16 + 8 + 8;
/// The most grants in one datagram.
const MAX_GRANTS: usize = 128;
/// The length of the longest datagram with grants.
pub(crate) const MAX_BYTES: usize = HEADER + MAX_MEMO_BYTES + MAX_GRANTS * GRANT;

/// A grant to a waiter, and the session to notify.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Handed {
    pub(crate) claim: ClaimId,
    pub(crate) session: Session,
    pub(crate) grant: TurnGrant,
}

/// A grant as the notification carries it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TurnGrant {
    fence: Fence,
    at: Moment,
    pub(crate) ttl: Duration,
    memo: Option<Memo>,
}

/// The last answer of the state file to a claim that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) at: Moment,
    pub(crate) last_fence: Option<Fence>,
}

impl TurnGrant {
    /// A grant for a whole turn.
    #[cfg(test)]
    pub(crate) fn new(fence: Fence, at: Moment) -> Self {
        Self { fence, at, ttl: TURN_TTL, memo: None }
    }

    /// The grant, if it is newer than the answer of the state file and at least half of its time is left.
    pub(crate) fn into_grant(self, after: Answer, now: Moment) -> Option<Grant> {
        let is_newer = self.at > after.at && Some(self.fence) > after.last_fence;
        if !is_newer || self.at > now || now.since(self.at) > self.ttl / 2 {
            return None;
        }
        let mut grant = Grant::new(self.fence, Lease::sent_at(self.at, self.ttl));
        grant.memo = self.memo;
        Some(grant)
    }

    /// Whether this was granted after the other.
    pub(crate) fn is_after(&self, other: &Self) -> bool {
        self.at > other.at
    }
}

/// Grants to the claims in `notified` that wait for it and whose sessions `reaches` accepts. They leave `notified`.
///
/// A grant to a waiter that hangs ends with its turn, but a client must poll then. So if the waiter was silent for
/// long, the next waiter is notified: it attempts now and learns when the turn ends.
pub(crate) fn hand(
    resource: &mut Resource,
    now: Now,
    notified: &mut Notified,
    mut reaches: impl FnMut(Session) -> bool,
) -> Vec<Handed> {
    let mut handed = Vec::new();
    let mut doubtful = false;
    notified.retain(|(claim, session)| {
        let Some(entry) = resource.entries().iter().find(|entry| entry.id == *claim) else { return true };
        let silent = is_silent(entry, now);
        if !entry.awaits_grant || entry.is_held() || !reaches(*session) {
            return true;
        }
        let Some(grant) = resource.take_turn(*claim, now) else { return true };
        doubtful |= silent;
        let grant = TurnGrant { fence: grant.fence, at: now.boot, ttl: grant.lease.ttl, memo: grant.memo };
        handed.push(Handed { claim: *claim, session: *session, grant });
        false
    });
    let waits = |entry: &&Entry| entry.state == EntryState::Waits(None);
    if doubtful
        && resource.entries().iter().filter(waits).count() <= FEW
        && let Some(next) = resource.entries().iter().find(waits)
        && !notified.iter().any(|(claim, _)| *claim == next.id)
    {
        notified.push((next.id, next.session));
    }
    handed
}

/// Whether the last request of a waiter is old. Each request renews its place in the queue.
fn is_silent(entry: &Entry, now: Now) -> bool {
    let last_request = entry.expires - entry.ttl.min(Claim::MAX_WAITER_TTL);
    now.boot.since(last_request) > SILENT
}

/// Writes the grants of one step to one session as datagrams.
pub(crate) fn write(handed: &[Handed]) -> impl Iterator<Item = Vec<u8>> {
    handed.chunks(MAX_GRANTS).map(|handed| {
        let mut message = Vec::with_capacity(MAX_BYTES);
        message.extend_from_slice(&MAGIC);
        let first = handed.first().map(|handed| &handed.grant);
        let memo = first.and_then(|grant| grant.memo.as_deref());
        // One more than its length; 0 is none. The engine refuses a memo that is too long for this.
        let length = memo.map_or(0, |memo| u16::try_from(memo.len() + 1).unwrap_or(0));
        message.extend_from_slice(&length.to_be_bytes());
        message.extend_from_slice(&first.map_or(0, |grant| grant.at.as_nanos()).to_be_bytes());
        message.extend_from_slice(memo.filter(|_| length > 0).unwrap_or_default());
        for Handed { claim, grant, .. } in handed {
            message.extend_from_slice(&claim.bits().to_be_bytes());
            message.extend_from_slice(&grant.fence.get().to_be_bytes());
            message.extend_from_slice(&u64::try_from(grant.ttl.as_nanos()).unwrap_or(0).to_be_bytes());
        }
        message
    })
}

/// Reads the grants of a datagram; `None` if it is another datagram or not whole.
pub(crate) fn read(message: &[u8]) -> Option<Vec<(ClaimId, TurnGrant)>> {
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
        // No grant that comes with a notification is longer.
        let ttl = Duration::from_nanos(u64::from_be_bytes(ttl.try_into().ok()?)).min(TURN_TTL);
        Some((ClaimId::from_bits(u128::from_be_bytes(*claim)), TurnGrant { fence, at, ttl, memo: memo.clone() }))
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

    fn grant(fence: u64, memo: Option<&[u8]>) -> TurnGrant {
        TurnGrant { fence: Fence::new(fence), at: START.boot, ttl: TURN_TTL, memo: memo.map(Into::into) }
    }

    /// Claims 1 to `count` of sessions 1 to `count` ask for everything; the first holds and releases. Answers with the
    /// notified.
    fn released(count: u128, now: Now) -> (Resource, Notified) {
        let mut resource = Resource::default();
        for number in 1..=count {
            let mut claim = Claim::new(id(number), ResourceName::new("x").unwrap());
            claim.wait = true;
            resource.attempt(&claim, number, START, &mut Notified::new()).unwrap();
        }
        let mut notified = Notified::new();
        resource.release(id(1), &End::Withdrawn, now, &mut notified);
        (resource, notified)
    }

    #[test]
    fn grants_are_read_as_they_are_written() {
        for memo in [None, Some(&b""[..]), Some(&[7; MAX_MEMO_BYTES][..])] {
            let handed: Vec<_> =
                (1..=300).map(|n| Handed { claim: id(n), session: 1, grant: grant(n as u64, memo) }).collect();
            let mut back = Vec::new();
            for message in write(&handed) {
                assert!(message.len() <= MAX_BYTES);
                assert!(!message.len().is_multiple_of(16) || message.starts_with(&MAGIC));
                for cut in [message.len() - 1, HEADER - 1, 0] {
                    assert_eq!(read(&message[..cut]), None, "cut to {cut}");
                }
                back.extend(read(&message).unwrap());
            }
            let handed: Vec<_> = handed.into_iter().map(|handed| (handed.claim, handed.grant)).collect();
            assert_eq!(back, handed);
        }
        assert_eq!(read(b"something else"), None);
        assert_eq!(read(&[0; 32]), None, "two ids");
    }

    #[test]
    fn belief_lasts_no_longer_than_a_turn() {
        let long = TurnGrant { ttl: TURN_TTL * 10, ..grant(7, None) };
        let message = write(&[Handed { claim: id(1), session: 1, grant: long }]).next().unwrap();
        assert_eq!(read(&message).unwrap(), [(id(1), grant(7, None))]);
    }

    #[test]
    fn belief_counts_from_the_grant_and_only_if_it_is_newer() {
        let (before, at) = (START.boot - Duration::from_nanos(1), START.boot);
        let fence = |fence| Some(Fence::new(fence));
        let believed = |answered, last_fence, now| grant(7, None).into_grant(Answer { at: answered, last_fence }, now);
        let granted = believed(before, fence(6), at + TURN_TTL / 2).unwrap();
        assert_eq!((granted.fence, granted.lease), (Fence::new(7), Lease::sent_at(at, TURN_TTL)));
        assert_eq!(believed(at, fence(6), at), None, "the state file answered later that it waits");
        assert_eq!(believed(before, fence(7), at), None, "an old fence");
        assert_eq!(believed(before, fence(6), at + TURN_TTL / 2 + Duration::from_nanos(1)), None, "it is old");
        assert_eq!(believed(before, fence(6), before), None, "of another clock");
    }

    #[test]
    fn a_release_grants_to_the_next_waiter() {
        let (mut resource, mut notified) = released(3, START);
        let handed = hand(&mut resource, START, &mut notified, |session| session == 2);
        assert_eq!(handed.iter().map(|handed| (handed.claim, handed.session)).collect::<Vec<_>>(), [(id(2), 2)]);
        assert_eq!(resource.last_fence(), Some(handed[0].grant.fence));
        assert_eq!(notified, [], "no other claim is notified");
    }

    #[test]
    fn a_waiter_that_receives_no_datagrams_is_notified_and_granted_nothing() {
        let (mut resource, mut notified) = released(3, START);
        assert_eq!(hand(&mut resource, START, &mut notified, |_| false), []);
        assert_eq!(notified, [(id(2), 2)]);
        assert!(resource.entries().iter().all(|entry| !entry.is_held()));
    }

    #[test]
    fn the_waiter_behind_a_silent_one_is_notified_too() {
        for (silence, count, notifies) in [(SILENT, 3, false), (SILENT * 2, 3, true), (SILENT * 2, 100, false)] {
            let now = after(silence);
            let (mut resource, mut notified) = released(count, now);
            assert_eq!(hand(&mut resource, now, &mut notified, |_| true).len(), 1);
            assert_eq!(notified, if notifies { vec![(id(3), 3)] } else { vec![] }, "{silence:?}, {count} claims");
        }
    }
}
