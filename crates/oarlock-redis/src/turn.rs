//! A turn that came with its grant, so that nothing has to be asked again.

use std::time::Duration;

use oarlock_core::clock::{Clock, Moment};
use oarlock_core::driver::{Grant, Lease};
use oarlock_core::state::Memo;
use oarlock_core::{Claim, ClaimId, Fence, Tether};

/// What a script publishes for a claim: its id, and what was handed to it, if anything.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) claim: Option<ClaimId>,
    pub(crate) handed: Option<Handed>,
}

/// A grant that was not asked for. It begins with the last request of its claim that the store had seen, by the clock of
/// this client: that was before the grant, so belief in it ends before the grant does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Handed {
    fence: Fence,
    from: Moment,
    ttl: Duration,
    memo: Option<Memo>,
}

impl Word {
    /// `id` or `id fence sent ttl [memo]`. What makes no sense is a hint without a claim.
    pub(crate) fn read(payload: &[u8]) -> Self {
        let mut parts = payload.splitn(5, |byte| *byte == b' ');
        let mut text = || parts.next().and_then(|part| std::str::from_utf8(part).ok());
        let claim = text().and_then(|id| id.parse().ok());
        let mut number = || text().and_then(|number| number.parse::<u64>().ok());
        let (fence, sent, ttl) = (number(), number(), number());
        let memo = parts.next().map(Into::into);
        let handed = fence.zip(sent).zip(ttl).map(|((fence, sent), ttl)| Handed {
            fence: Fence::new(fence),
            from: Moment::ZERO + Duration::from_micros(sent),
            ttl: Duration::from_micros(ttl),
            memo,
        });
        Self { claim, handed }
    }
}

impl Handed {
    /// The grant, if more than half of it is left: else it is better to ask, and be given all of it.
    pub(crate) fn grant(self, clock: &dyn Clock) -> Option<Grant> {
        if clock.now().since(self.from) > self.ttl / 2 {
            return None;
        }
        let mut grant = Grant::new(self.fence, Lease { from: Some(self.from), ttl: self.ttl });
        grant.memo = self.memo;
        Some(grant)
    }
}

/// What a request says of the time at which it left, in microseconds, for a claim whose turn will be heard of; 0 for others.
/// It is negative for one that must not be handed its turn: a hold that is not renewed, or that is to outlive this process,
/// must begin with its whole lease, and one that replicas must confirm has to be asked for.
pub(crate) fn sent(clock: &dyn Clock, claim: &Claim, expected: bool, confirms: bool) -> i64 {
    if !expected {
        return 0;
    }
    let now = i64::try_from(clock.now().as_nanos() / 1000).unwrap_or(0);
    if claim.renews && claim.tether == Tether::Process && !confirms { now } else { -now }
}

#[cfg(test)]
mod tests {
    use oarlock_core::clock::BootClock;

    use super::*;

    const ID: &str = "000000000000000000000000000000ff";

    #[test]
    fn words_are_read_as_they_are_written() {
        let claim = Some(ClaimId::from_bits(255));
        assert_eq!(Word::read(ID.as_bytes()), Word { claim, handed: None });
        let memo: Memo = b"a b \xff"[..].into();
        let (fence, from, ttl) = (Fence::new(7), Moment::from_nanos(5000), Duration::from_micros(2));
        let handed = Some(Handed { fence, from, ttl, memo: Some(memo) });
        assert_eq!(Word::read(&[ID.as_bytes(), b" 7 5 2 a b \xff"].concat()), Word { claim, handed });
        assert_eq!(Word::read(b"something else"), Word { claim: None, handed: None });
        assert_eq!(Word::read(format!("{ID} 7 x 2").as_bytes()), Word { claim, handed: None });
    }

    #[test]
    fn what_was_handed_counts_from_the_last_request_and_not_when_it_is_old() {
        let at = |ago: u64| Handed {
            fence: Fence::new(7),
            from: BootClock.now() - Duration::from_millis(ago),
            ttl: Duration::from_secs(2),
            memo: None,
        };
        let fresh = at(500);
        let lease = Lease { from: Some(fresh.from), ttl: Duration::from_secs(2) };
        assert_eq!(fresh.grant(&BootClock).unwrap().lease, lease);
        assert_eq!(at(1001).grant(&BootClock), None);
    }

    #[test]
    fn who_is_not_renewed_or_outlives_the_process_is_handed_nothing() {
        let mut claim = Claim::new(ClaimId::from_bits(1), oarlock_core::ResourceName::new("deploy").unwrap());
        assert!(sent(&BootClock, &claim, true, false) > 0);
        assert!(sent(&BootClock, &claim, true, true) < 0);
        assert_eq!(sent(&BootClock, &claim, false, false), 0);
        claim.renews = false;
        assert!(sent(&BootClock, &claim, true, false) < 0);
        (claim.renews, claim.tether) = (true, Tether::Lease);
        assert!(sent(&BootClock, &claim, true, false) < 0);
    }
}
