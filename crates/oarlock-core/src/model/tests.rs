//! The rule, case by case.

use std::num::NonZeroU32;

use super::*;

struct World {
    resource: Resource,
    now: Now,
    notified: Notified,
}

impl World {
    fn new() -> Self {
        let now = Now { boot: Moment::from_nanos(1_000_000_000_000), wall_micros: 1_000_000 };
        Self { resource: Resource::default(), now, notified: Notified::new() }
    }

    fn pass(&mut self, span: Duration) {
        self.now.boot = self.now.boot + span;
        self.now.wall_micros += u64::try_from(span.as_micros()).unwrap();
    }

    fn attempt(&mut self, claim: &Claim) -> Option<Fence> {
        match self.resource.attempt(claim, 0, self.now, &mut self.notified).unwrap() {
            Attempt::Granted(grant) => Some(grant.fence),
            Attempt::Pending(_) => None,
        }
    }

    fn refused(&mut self, claim: &Claim) -> ErrorKind {
        self.resource.attempt(claim, 0, self.now, &mut self.notified).unwrap_err().kind()
    }

    fn renew(&mut self, claim: &Claim) -> Renewed {
        self.resource.renew(&Renewal::of(Arc::new(claim.clone())), self.now, &mut self.notified).unwrap()
    }

    fn release(&mut self, claim: &Claim) -> Released {
        self.resource.release(claim.id, &End::Done { memo: None }, self.now, &mut self.notified).outcome
    }

    fn notified(&mut self) -> Vec<u128> {
        std::mem::take(&mut self.notified).into_iter().map(|(id, _)| id.bits()).collect()
    }
}

fn claim(id: u128) -> Claim {
    let mut claim = Claim::new(ClaimId::from_bits(id), ResourceName::new("r").unwrap());
    claim.wait = true;
    claim
}

fn units(id: u128, units: u32, of: u32) -> Claim {
    let mut claim = claim(id);
    claim.weight = Weight::Units(NonZeroU32::new(units).unwrap());
    claim.capacity = Capacity::Fixed(Limit::Units(NonZeroU32::new(of).unwrap()));
    claim
}

fn reader(id: u128) -> Claim {
    let mut claim = claim(id);
    claim.weight = Weight::ONE;
    claim.capacity = Capacity::Fixed(Limit::Unlimited);
    claim
}

#[test]
fn one_holds_and_the_next_has_a_larger_fence() {
    let mut world = World::new();
    let first = world.attempt(&claim(1)).unwrap();
    assert_eq!(world.attempt(&claim(2)), None);
    assert_eq!(world.release(&claim(1)), Released::Released);
    assert_eq!(world.notified(), [2]);
    assert!(world.attempt(&claim(2)).unwrap() > first);
}

#[test]
fn fences_rise_even_when_the_wall_clock_falls() {
    let mut world = World::new();
    let first = world.attempt(&claim(1)).unwrap();
    world.release(&claim(1));
    world.now.wall_micros = 0;
    assert!(world.attempt(&claim(2)).unwrap() > first);
}

#[test]
fn a_proposed_fence_is_moved_to_within_a_minute_of_the_clock() {
    let mut world = World::new();
    world.pass(Duration::from_secs(86_400));
    let clock = world.now.wall_micros;
    let proposed = |number: u64| {
        let mut claim = claim(1);
        claim.least_fence = Some(Fence::new(number));
        Resource::default().attempt(&claim, 0, world.now, &mut Notified::new()).unwrap()
    };
    let (least, most) = (clock - 60_000_000, clock + 60_000_000);
    let cases = [(7, least), (least, least), (clock + 7, clock + 7), (most, most), (most + 1, most), (u64::MAX, most)];
    for (number, given) in cases {
        assert!(matches!(proposed(number), Attempt::Granted(grant) if grant.fence.get() == given), "{number}");
    }
}

#[test]
fn asking_twice_takes_one_place_and_one_fence() {
    let mut world = World::new();
    let fence = world.attempt(&claim(1));
    assert_eq!(world.attempt(&claim(1)), fence);
    world.attempt(&claim(2));
    world.attempt(&claim(2));
    assert_eq!(world.resource.entries().len(), 2);
}

#[test]
fn a_refused_try_leaves_nothing() {
    let mut world = World::new();
    world.attempt(&claim(1));
    let mut attempt = claim(2);
    attempt.wait = false;
    assert_eq!(world.attempt(&attempt), None);
    assert_eq!(world.resource.entries().len(), 1);
}

#[test]
fn weights_never_exceed_the_capacity() {
    let mut world = World::new();
    assert!(world.attempt(&units(1, 2, 3)).is_some());
    assert!(world.attempt(&units(2, 2, 3)).is_none());
    assert!(world.attempt(&units(3, 1, 3)).is_none(), "it would fit, but a heavier claim waits before it");
    world.release(&units(2, 2, 3));
    assert_eq!(world.notified(), [3]);
    assert!(world.attempt(&units(3, 1, 3)).is_some());
    assert!(world.attempt(&claim(4)).is_none(), "everything does not fit beside something");
    assert_eq!(world.refused(&units(5, 4, 3)), ErrorKind::TooHeavy);
    assert_eq!(world.refused(&units(6, 1, 2)), ErrorKind::SpecMismatch);
    let mut adopts = units(7, 1, 2);
    adopts.capacity = Capacity::Stored(Limit::Units(NonZeroU32::new(2).unwrap()));
    assert!(world.attempt(&adopts).is_none(), "adopts three, which are taken");
}

#[test]
fn the_capacity_is_forgotten_with_the_last_claim() {
    let mut world = World::new();
    world.attempt(&units(1, 1, 3));
    world.release(&units(1, 1, 3));
    assert!(world.attempt(&units(2, 1, 2)).is_some());
}

#[test]
fn claims_are_granted_in_order_of_arrival() {
    let mut world = World::new();
    world.attempt(&claim(1));
    world.attempt(&claim(2));
    world.attempt(&claim(3));
    world.release(&claim(1));
    assert_eq!(world.notified(), [2]);
    assert!(world.attempt(&claim(3)).is_none(), "no overtaking");
    let mut barging = claim(4);
    barging.wait = false;
    assert!(world.attempt(&barging).is_none(), "a try that does not wait respects the queue");
    assert!(world.attempt(&claim(2)).is_some());
}

#[test]
fn a_waiting_writer_holds_back_later_readers() {
    let mut world = World::new();
    assert!(world.attempt(&reader(1)).is_some());
    assert!(world.attempt(&reader(2)).is_some());
    assert!(world.attempt(&claim(3)).is_none());
    assert!(world.attempt(&reader(4)).is_none());
    world.release(&reader(1));
    assert_eq!(world.notified(), [] as [u128; 0]);
    world.release(&reader(2));
    assert_eq!(world.notified(), [3]);
    assert!(world.attempt(&claim(3)).is_some());
    world.attempt(&reader(5));
    world.release(&claim(3));
    assert_eq!(world.notified(), [4, 5], "all readers at once");
}

#[test]
fn a_writer_becomes_a_reader_without_a_gap() {
    let mut world = World::new();
    let mut writer = reader(1);
    writer.weight = Weight::All;
    let fence = world.attempt(&writer);
    world.attempt(&reader(2));
    assert_eq!(world.attempt(&reader(1)), fence, "lighter, same fence");
    assert_eq!(world.notified(), [2]);
    assert!(world.attempt(&reader(2)).is_some());
    assert_eq!(world.refused(&writer), ErrorKind::Upgrade);
}

#[test]
fn a_lease_ends_and_is_never_revived() {
    let mut world = World::new();
    let first = world.attempt(&claim(1)).unwrap();
    world.pass(Duration::from_secs(29));
    assert!(matches!(world.renew(&claim(1)), Renewed::Alive { .. }));
    world.pass(Duration::from_secs(29));
    assert!(world.attempt(&claim(2)).is_none());
    world.pass(Duration::from_secs(1));
    assert!(world.attempt(&claim(2)).unwrap() > first);
    assert_eq!(world.renew(&claim(1)), Renewed::Gone(Gone::Unknown));
    assert_eq!(world.release(&claim(1)), Released::NotHeld);
}

#[test]
fn an_expired_waiter_is_evicted() {
    let mut world = World::new();
    world.attempt(&claim(1));
    world.attempt(&claim(2));
    world.pass(Duration::from_secs(5));
    world.attempt(&claim(3));
    world.renew(&claim(3));
    world.pass(Duration::from_secs(6));
    world.release(&claim(1));
    assert_eq!(world.notified(), [3], "2 let its place run out");
    assert!(world.attempt(&claim(3)).is_some());
}

#[test]
fn a_turn_not_taken_passes_on() {
    let mut world = World::new();
    world.attempt(&claim(1));
    world.attempt(&claim(2));
    world.attempt(&claim(3));
    world.release(&claim(1));
    world.pass(TURN_TTL - Duration::from_millis(1));
    world.renew(&claim(2));
    assert!(world.attempt(&claim(3)).is_none());
    world.pass(Duration::from_millis(1));
    assert!(world.attempt(&claim(3)).is_some(), "renewing is not enough to sit on a turn");
}

#[test]
fn a_broken_holder_is_told_by_whom() {
    let mut world = World::new();
    world.attempt(&claim(1));
    world.attempt(&claim(2));
    let ending = Ending::new("alice", "stuck");
    let end = End::Broken { ending: ending.clone(), grace: Duration::ZERO };
    let release = world.resource.release(ClaimId::from_bits(1), &end, world.now, &mut world.notified);
    assert_eq!(release.outcome, Released::Released);
    assert_eq!(world.notified(), [1, 2], "the victim and the next are told");
    assert_eq!(world.renew(&claim(1)), Renewed::Gone(Gone::Broken(ending)));
}

#[test]
fn a_break_with_grace_ends_the_lease_early() {
    let mut world = World::new();
    world.attempt(&claim(1));
    let ending = Ending::new("alice", "stuck");
    let end = End::Broken { ending: ending.clone(), grace: Duration::from_secs(5) };
    let release = world.resource.release(ClaimId::from_bits(1), &end, world.now, &mut world.notified);
    assert_eq!(release.outcome, Released::Asked);
    world.pass(Duration::from_secs(4));
    let alive = Renewed::Alive {
        lease: Lease::of(Duration::from_secs(1)),
        fence: world.resource.last_fence(),
        ending: Some(ending.clone()),
    };
    assert_eq!(world.renew(&claim(1)), alive);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.renew(&claim(1)), Renewed::Gone(Gone::Broken(ending)));
    assert!(world.attempt(&claim(2)).is_some());
}

#[test]
fn a_waiter_that_was_asked_to_end_is_given_no_more_than_its_grace() {
    let mut world = World::new();
    world.attempt(&claim(1));
    world.attempt(&claim(2));
    let end = End::Broken { ending: Ending::new("alice", "to drain"), grace: Duration::from_secs(5) };
    world.resource.release(ClaimId::from_bits(2), &end, world.now, &mut world.notified);
    world.pass(Duration::from_secs(1));
    let Renewed::Alive { lease, .. } = world.renew(&claim(2)) else { panic!("its grace is not over") };
    assert_eq!(lease.ttl, Duration::from_secs(4));
    world.attempt(&claim(2));
    world.release(&claim(1));
    world.pass(Duration::from_secs(1));
    match world.resource.attempt(&claim(2), 0, world.now, &mut world.notified).unwrap() {
        Attempt::Granted(grant) => assert_eq!(grant.lease.ttl, Duration::from_secs(3)),
        Attempt::Pending(pending) => panic!("{pending:?}"),
    }
}

#[test]
fn the_claims_of_a_dead_session_end_unless_they_outlive_it() {
    let mut world = World::new();
    world.resource.attempt(&reader(1), 7, world.now, &mut world.notified).unwrap();
    let mut survivor = reader(2);
    survivor.lifetime = Lifetime::Lease;
    world.resource.attempt(&survivor, 7, world.now, &mut world.notified).unwrap();
    world.attempt(&claim(3));
    world.resource.end_sessions(world.now, &mut world.notified, |session| session != 7);
    let left: Vec<_> = world.resource.entries().iter().map(|entry| entry.id.bits()).collect();
    assert_eq!(left, [2, 3]);
}

#[test]
fn fences_can_be_reserved_and_raised_but_not_past_the_limit() {
    let mut world = World::new();
    let fence = world.attempt(&claim(1)).unwrap().get();
    let mut renewal = Renewal::of(Arc::new(claim(1)));
    renewal.fences = Fences::Reserve(100);
    world.resource.renew(&renewal, world.now, &mut world.notified).unwrap();
    assert_eq!(world.resource.last_fence(), Some(Fence::new(fence + 100)));
    renewal.fences = Fences::AtLeast(Fence::new(Fence::LIMIT));
    let error = world.resource.renew(&renewal, world.now, &mut world.notified).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FenceExhausted);
    renewal.fences = Fences::AtLeast(Fence::new(Fence::LIMIT - 1));
    world.resource.renew(&renewal, world.now, &mut world.notified).unwrap();
    world.release(&claim(1));
    assert_eq!(world.refused(&claim(2)), ErrorKind::FenceExhausted);
}

#[test]
fn an_idle_resource_is_forgotten_after_a_day() {
    let mut world = World::new();
    world.attempt(&claim(1));
    world.release(&claim(1));
    assert!(!world.resource.is_forgettable(world.now));
    world.pass(FORGET_AFTER);
    assert!(world.resource.is_forgettable(world.now));
}

#[test]
fn a_memo_is_kept_for_as_long_as_its_writer_asked() {
    let mut world = World::new();
    world.attempt(&claim(1)).unwrap();
    let mut renewal = Renewal::of(Arc::new(claim(1)));
    (renewal.memo, renewal.keep, renewal.held) = (Some(b"slot".as_slice().into()), 30 * FORGET_AFTER, true);
    world.resource.renew(&renewal, world.now, &mut world.notified).unwrap();
    world.release(&claim(1));
    for day in 1..30 {
        world.pass(FORGET_AFTER);
        assert!(!world.resource.is_forgettable(world.now), "day {day}");
        // A later use does not shorten it.
        world.attempt(&claim(2)).unwrap();
        world.release(&claim(2));
    }
    world.pass(FORGET_AFTER);
    assert!(world.resource.is_forgettable(world.now));
}

#[test]
fn a_fence_ahead_of_the_clock_is_not_forgotten() {
    let mut world = World::new();
    let set_right = world.now.wall_micros;
    world.pass(7 * FORGET_AFTER);
    world.attempt(&claim(1)).unwrap();
    world.release(&claim(1));
    // The clock was a week ahead; from here on it is right.
    world.now.wall_micros = set_right;
    let last = world.attempt(&claim(2)).unwrap();
    world.release(&claim(2));
    for _ in 0..7 {
        world.pass(FORGET_AFTER);
        assert!(!world.resource.is_forgettable(world.now), "the next fence would be {}", world.now.wall_micros);
    }
    // The last fence is a microsecond ahead of the week.
    world.pass(FORGET_AFTER + Duration::from_secs(1));
    assert!(world.resource.is_forgettable(world.now));
    world.resource = Resource::default();
    assert!(world.attempt(&claim(3)).unwrap() > last);
}

/// A clock that was ahead moves the last use, too; a fence that its holder raised does not.
#[test]
fn a_name_whose_fence_was_raised_is_not_forgotten() {
    let mut world = World::new();
    world.attempt(&claim(1)).unwrap();
    let raised = Fence::new(world.now.wall_micros + 2 * u64::try_from(FORGET_AFTER.as_micros()).unwrap());
    let mut renewal = Renewal::of(Arc::new(claim(1)));
    (renewal.fences, renewal.held) = (Fences::AtLeast(raised), true);
    world.resource.renew(&renewal, world.now, &mut world.notified).unwrap();
    world.release(&claim(1));
    world.pass(FORGET_AFTER + Duration::from_secs(1));
    assert!(!world.resource.is_forgettable(world.now), "the next fence would be {}", world.now.wall_micros);
    assert!(world.attempt(&claim(2)).unwrap() > raised);
}

#[test]
fn a_withdrawn_head_passes_the_turn_on() {
    let mut world = World::new();
    world.attempt(&claim(1));
    world.attempt(&claim(2));
    world.attempt(&claim(3));
    world.release(&claim(1));
    assert_eq!(world.notified(), [2]);
    world.resource.release(ClaimId::from_bits(2), &End::Withdrawn, world.now, &mut world.notified);
    assert_eq!(world.notified(), [3]);
}
