//! A turn that came with its grant, so that nothing has to be asked again.

use oarlock_core::clock::Clock;
use oarlock_core::driver::Handed;
use oarlock_core::{Claim, ClaimId};

/// What a script publishes for a claim: its id, and what was handed to it, if anything.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) claim: Option<ClaimId>,
    pub(crate) handed: Option<Handed>,
}

impl Word {
    /// `id` or `id fence sent ttl [memo]`. What makes no sense is a hint without a claim.
    pub(crate) fn read(payload: &[u8]) -> Self {
        let mut parts =
            payload.splitn(5, |byte| *byte == b' ').map(|part| std::str::from_utf8(part).unwrap_or_default());
        let claim = parts.next().and_then(|id| id.parse().ok());
        let memo = payload.splitn(5, |byte| *byte == b' ').nth(4).map(Into::into);
        Self { claim, handed: Handed::read(parts, memo) }
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
    if claim.may_be_handed() && !confirms { now } else { -now }
}

#[cfg(test)]
mod tests {
    use oarlock_core::Tether;
    use oarlock_core::clock::BootClock;

    use super::*;

    const ID: &str = "000000000000000000000000000000ff";

    #[test]
    fn words_are_read_as_they_are_written() {
        let claim = Some(ClaimId::from_bits(255));
        assert_eq!(Word::read(ID.as_bytes()), Word { claim, handed: None });
        let handed = Handed::read(["7", "5", "2"].into_iter(), Some(b"a b \xff"[..].into()));
        assert!(handed.is_some());
        assert_eq!(Word::read(&[ID.as_bytes(), b" 7 5 2 a b \xff"].concat()), Word { claim, handed });
        assert_eq!(Word::read(b"something else"), Word { claim: None, handed: None });
        assert_eq!(Word::read(format!("{ID} 7 x 2").as_bytes()), Word { claim, handed: None });
    }

    #[test]
    fn who_is_not_renewed_or_outlives_the_process_is_handed_nothing() {
        let mut claim = Claim::new(ClaimId::from_bits(1), oarlock_core::ResourceName::new("deploy").unwrap());
        claim.wait = true;
        assert!(sent(&BootClock, &claim, true, false) > 0);
        assert!(sent(&BootClock, &claim, true, true) < 0);
        assert_eq!(sent(&BootClock, &claim, false, false), 0);
        claim.renews = false;
        assert!(sent(&BootClock, &claim, true, false) < 0);
        (claim.renews, claim.tether) = (true, Tether::Lease);
        assert!(sent(&BootClock, &claim, true, false) < 0);
    }
}
