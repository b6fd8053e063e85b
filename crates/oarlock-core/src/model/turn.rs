//! A turn that comes with its grant: the step that frees the resource also grants, so that the waiter saves a round
//! trip.

use super::{Entry, EntryState, Now, Quiet, Resource, TURN_TTL};
use crate::claim::{Claim, ClaimId, Lifetime};
use crate::driver::{Fences, Grant, Lease, Renewal};

/// Whether this claim may be given its turn with the grant. A hold that is not renewed, or that is to outlive its
/// process, must begin with its whole lease; and only an attempt can say which fence it proposes.
pub(super) fn may_be_handed(claim: &Claim) -> bool {
    claim.renews && claim.lifetime == Lifetime::Process && claim.least_fence.is_none()
}

/// Whether this renewal comes from a client that knows of its grant.
pub(super) fn takes(renewal: &Renewal) -> bool {
    renewal.held || renewal.fences != Fences::Keep || renewal.memo.is_some()
}

impl Resource {
    /// Grants to a waiter whose turn has come, for as long as a turn lasts. It holds from now on, and an attempt will
    /// answer with the same fence; unless its client attempts or renews it as a holder, it ends with the turn.
    ///
    /// `None` if its turn has not come, or it has to ask: then nothing has changed.
    pub fn take_turn(&mut self, id: ClaimId, now: Now) -> Option<Grant> {
        let at = self.position(id).filter(|at| self.entries[*at].may_take_turn(now))?;
        // Without a fence left, the attempt returns the error.
        let fence = self.next_fence(None, now).ok()?;
        let entry = &mut self.entries[at];
        let ttl = entry.ttl.min(TURN_TTL);
        (entry.state, entry.untaken) = (EntryState::Held(fence), true);
        (entry.since, entry.expires) = (now.boot, now.boot + ttl);
        self.quiet_until = Quiet::default();
        self.last_fence = fence.get();
        self.use_at(now);
        let mut grant = Grant::new(fence, Lease::sent_at(now.boot, ttl));
        grant.memo.clone_from(&self.memo);
        Some(grant)
    }
}

impl Entry {
    fn may_take_turn(&self, now: Now) -> bool {
        let called = matches!(self.state, EntryState::Waits(Some(_))) && self.ends() > now.boot;
        called && self.awaits_grant && self.ending.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::claim::{Fence, ResourceName};
    use crate::clock::Moment;
    use crate::driver::{Attempt, End, Release, Renewed};
    use crate::model::Notified;
    use crate::state::Ending;

    const START: Now = Now { boot: Moment::from_nanos(1_000_000_000_000), wall_micros: 1_000_000 };

    fn after(span: Duration) -> Now {
        Now { boot: START.boot + span, ..START }
    }

    fn claim(id: u128) -> Claim {
        let mut claim = Claim::new(ClaimId::from_bits(id), ResourceName::new("r").unwrap());
        claim.wait = true;
        claim
    }

    /// The first of these holds, the others wait.
    fn queue(claims: &[Claim]) -> Resource {
        let mut resource = Resource::default();
        for claim in claims {
            resource.attempt(claim, 0, START, &mut Notified::new()).unwrap();
        }
        resource
    }

    fn release(resource: &mut Resource, id: u128, end: &End) -> Release {
        resource.release(ClaimId::from_bits(id), end, START, &mut Notified::new())
    }

    fn handed(resource: &mut Resource, id: u128) -> Option<Grant> {
        resource.take_turn(ClaimId::from_bits(id), START)
    }

    fn fence_of(resource: &mut Resource, id: u128, now: Now) -> Option<Fence> {
        match resource.attempt(&claim(id), 0, now, &mut Notified::new()).unwrap() {
            Attempt::Granted(grant) => Some(grant.fence),
            Attempt::Pending(_) => None,
        }
    }

    fn renew(resource: &mut Resource, id: u128, now: Now, change: impl FnOnce(&mut Renewal)) -> Renewed {
        let mut renewal = Renewal::of(Arc::new(claim(id)));
        change(&mut renewal);
        resource.renew(&renewal, now, &mut Notified::new()).unwrap()
    }

    #[test]
    fn a_turn_comes_with_a_grant_of_the_same_fence_that_an_attempt_gives() {
        let mut resource = queue(&[claim(1), claim(2), claim(3)]);
        let first = resource.last_fence().unwrap();
        release(&mut resource, 1, &End::Done { memo: Some(b"left"[..].into()) });
        let grant = handed(&mut resource, 2).unwrap();
        assert!(grant.fence > first);
        assert_eq!(grant.lease, Lease::sent_at(START.boot, TURN_TTL));
        assert_eq!(grant.memo.as_deref(), Some(&b"left"[..]));
        assert!(resource.entries()[0].is_held());
        assert_eq!(handed(&mut resource, 2), None, "once");
        assert_eq!(fence_of(&mut resource, 2, START), Some(grant.fence));
        assert_eq!(resource.entries()[0].expires, START.boot + claim(2).ttl, "an attempt gives the whole lease");
    }

    #[test]
    fn only_a_waiter_whose_turn_has_come_is_granted() {
        let mut resource = queue(&[claim(1), claim(2), claim(3)]);
        let before = resource.clone();
        for id in [1, 2, 3, 4] {
            assert_eq!(handed(&mut resource, id), None, "{id}");
        }
        assert_eq!(resource, before);
        release(&mut resource, 1, &End::Withdrawn);
        assert_eq!(handed(&mut resource, 3), None, "the second in line");
        assert_eq!(resource.take_turn(ClaimId::from_bits(2), after(TURN_TTL)), None, "its turn is over");
        assert!(handed(&mut resource, 2).is_some());
        assert_eq!(handed(&mut resource, 3), None, "beside the holder");
    }

    #[test]
    fn a_turn_that_is_not_taken_passes_on_however_its_place_is_renewed() {
        let mut resource = queue(&[claim(1), claim(2), claim(3)]);
        release(&mut resource, 1, &End::Withdrawn);
        handed(&mut resource, 2).unwrap();
        let late = after(TURN_TTL - Duration::from_millis(1));
        let left = Lease::of(Duration::from_millis(1));
        assert_eq!(renew(&mut resource, 2, late, |_| {}), Renewed::Alive { lease: left, fence: None, ending: None });
        assert!(fence_of(&mut resource, 3, late).is_none());
        assert!(fence_of(&mut resource, 3, after(TURN_TTL)).is_some());
    }

    #[test]
    fn a_holder_that_knows_of_its_grant_is_renewed() {
        let changes: [fn(&mut Renewal); 3] = [
            |renewal| renewal.held = true,
            |renewal| renewal.fences = Fences::Reserve(3),
            |renewal| renewal.memo = Some(b"left"[..].into()),
        ];
        for change in changes {
            let mut resource = queue(&[claim(1), claim(2), claim(3)]);
            release(&mut resource, 1, &End::Withdrawn);
            handed(&mut resource, 2).unwrap();
            let Renewed::Alive { lease, fence, .. } = renew(&mut resource, 2, START, change) else { panic!("gone") };
            assert_eq!((lease.ttl, fence.is_some()), (claim(2).ttl, true));
            // From then on it is a hold like any other.
            let plain = renew(&mut resource, 2, after(TURN_TTL * 2), |_| {});
            assert!(matches!(plain, Renewed::Alive { fence: Some(_), .. }), "{plain:?}");
        }
    }

    #[test]
    fn a_claim_that_needs_its_whole_lease_has_to_ask() {
        let changes: [fn(&mut Claim); 3] = [
            |claim| claim.renews = false,
            |claim| claim.lifetime = Lifetime::Lease,
            |claim| claim.least_fence = Some(Fence::new(7)),
        ];
        for change in changes {
            let mut second = claim(2);
            change(&mut second);
            let mut resource = queue(&[claim(1), second]);
            release(&mut resource, 1, &End::Withdrawn);
            assert_eq!(handed(&mut resource, 2), None);
        }
    }

    #[test]
    fn a_waiter_that_was_asked_to_end_has_to_ask() {
        let mut resource = queue(&[claim(1), claim(2)]);
        let ending = Ending::new("alice", "");
        release(&mut resource, 2, &End::Broken { ending, grace: Duration::from_secs(1) });
        release(&mut resource, 1, &End::Withdrawn);
        assert_eq!(handed(&mut resource, 2), None);
    }

    #[test]
    fn a_lease_shorter_than_a_turn_is_not_exceeded() {
        let mut short = claim(2);
        short.ttl = Duration::from_secs(1);
        let mut resource = queue(&[claim(1), short]);
        release(&mut resource, 1, &End::Withdrawn);
        assert_eq!(handed(&mut resource, 2).unwrap().lease.ttl, Duration::from_secs(1));
    }
}
