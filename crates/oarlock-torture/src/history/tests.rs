use std::num::NonZeroU32;

use super::*;

fn ms(ms: u64) -> Moment {
    Moment::from_nanos(ms * 1_000_000)
}

/// A chain of exclusive holds of "job", each asked for while the one before was there.
fn chain(length: u64) -> Vec<Hold> {
    let hold = |n: u64| Hold {
        resource: "job".into(),
        owner: n % 5,
        weight: Weight::All,
        capacity: None,
        fence: Fence::new(100 + n),
        asked: ms(n.saturating_sub(1) * 10 + 1),
        granted: ms(n * 10 + 2),
        ended: ms(n * 10 + 9),
        queued: Some(n),
    };
    (0..length).map(hold).collect()
}

fn shared(n: u64, units: u32, capacity: Limit, granted: u64, ended: u64) -> Hold {
    let mut hold = chain(n + 1).remove(usize::try_from(n).unwrap());
    hold.weight = Weight::Units(NonZeroU32::new(units).unwrap());
    hold.capacity = Some(capacity);
    (hold.asked, hold.granted, hold.ended) = (ms(0), ms(granted), ms(ended));
    hold
}

fn verdict(holds: Vec<Hold>) -> Verdict {
    let mut history = History::new();
    for hold in holds {
        history.hold(hold);
    }
    history.check(&Rules::new())
}

/// The names of what is wrong with a valid chain after one change.
fn after(change: impl FnOnce(&mut Vec<Hold>)) -> Vec<&'static str> {
    let mut holds = chain(6);
    assert!(verdict(holds.clone()).is_ok());
    change(&mut holds);
    verdict(holds).names()
}

#[test]
fn each_mutation_has_its_name() {
    assert_eq!(after(|h| h[2].ended = h[3].granted), [""; 0], "intervals are half-open");
    assert_eq!(after(|h| h[2].ended = h[3].granted + Duration::from_nanos(1)), ["Overlap"]);
    assert_eq!(after(|h| h[2].ended = Moment::NEVER), ["Overlap"], "a release that was forgotten");
    assert_eq!(after(|h| h[3].fence = h[2].fence), ["FenceRepeated"]);
    assert_eq!(
        after(|h| {
            let fence = h[2].fence;
            h[2].fence = h[3].fence;
            h[3].fence = fence;
        }),
        ["FenceOrder"]
    );
    assert_eq!(
        after(|h| {
            let queued = h[2].queued;
            h[2].queued = h[3].queued;
            h[3].queued = queued;
        }),
        ["Overtaken"]
    );
    assert_eq!(after(Vec::clear), ["Vacuous"]);
}

#[test]
fn fences_of_those_who_share_follow_real_time() {
    let four = Limit::Units(NonZeroU32::new(4).unwrap());
    let mut early = shared(1, 1, four, 10, 30);
    let mut late = shared(2, 1, four, 20, 40);
    late.asked = ms(11);
    assert!(verdict(vec![early.clone(), late.clone()]).is_ok());
    std::mem::swap(&mut early.fence, &mut late.fence);
    assert_eq!(verdict(vec![early.clone(), late.clone()]).names(), ["FenceOrder"]);
    late.asked = ms(9);
    assert!(verdict(vec![early, late]).is_ok(), "asked at once, either may come first");
}

#[test]
fn weights_are_added_up() {
    let four = Limit::Units(NonZeroU32::new(4).unwrap());
    let fits = vec![shared(0, 2, four, 1, 9), shared(1, 1, four, 2, 9), shared(2, 1, four, 3, 9)];
    assert!(verdict(fits.clone()).is_ok());
    let mut too_much = fits.clone();
    too_much.push(shared(3, 1, four, 8, 10));
    let wrong = verdict(too_much);
    let [Violation::CapacityExceeded { load: 5, limit: 4, .. }] = wrong.violations[..] else { panic!("{wrong}") };
    let mut after = fits;
    after.push(shared(3, 4, four, 9, 10));
    assert!(verdict(after).is_ok());

    let readers = |writer_at| {
        let mut writer = chain(4).remove(3);
        (writer.asked, writer.granted, writer.ended) = (ms(1), ms(writer_at), ms(writer_at + 5));
        vec![shared(0, 1, Limit::Unlimited, 1, 9), shared(1, 1, Limit::Unlimited, 2, 9), writer]
    };
    assert!(verdict(readers(9)).is_ok());
    assert_eq!(verdict(readers(8)).names(), ["Overlap"]);
    assert_eq!(verdict(readers(0)).names(), ["FenceOrder", "Overlap", "Overtaken"]);
}

#[test]
fn light_claims_must_not_pass_a_heavy_one() {
    let four = Limit::Units(NonZeroU32::new(4).unwrap());
    let heavy = shared(0, 3, four, 20, 30);
    let light = shared(1, 1, four, 10, 30);
    assert!(verdict(vec![heavy.clone(), light]).is_ok(), "it fits beside the heavy one: no delay");
    let mut middle = shared(1, 2, four, 10, 15);
    middle.fence = Fence::new(1);
    assert_eq!(verdict(vec![heavy, middle]).names(), ["Overtaken"]);
}

#[test]
fn a_death_is_followed_by_a_grant_in_time() {
    let rules = Rules::new().takeover_within(Duration::from_millis(3)).least_takeovers(1);
    let mut history = History::new();
    for hold in chain(3) {
        history.hold(hold);
    }
    assert_eq!(history.check(&rules).names(), ["Vacuous"], "no holder died");
    history.death("job", ms(9));
    let verdict = history.check(&rules);
    assert!(verdict.is_ok(), "{verdict}");
    assert_eq!((verdict.takeovers, verdict.slowest_takeover), (1, Some(Duration::from_millis(3))));
    let strict = Rules::new().takeover_within(Duration::from_millis(2));
    assert_eq!(history.check(&strict).names(), ["Starved"]);

    history.death("job", ms(29));
    assert!(history.check(&rules).is_ok(), "no claim waits");
    history.waited("job", ms(25), ms(31));
    assert!(history.check(&rules).is_ok(), "it gave up before the bound");
    history.waited("job", ms(25), ms(60));
    let verdict = history.check(&rules);
    assert_eq!(verdict.names(), ["Starved"]);
    assert!(verdict.to_string().contains("no claim got it"), "{verdict}");
}

#[test]
fn no_claim_waits_for_a_free_lock() {
    let idle = |rules: &Rules, change: &dyn Fn(&mut History)| {
        let mut history = History::new();
        for hold in chain(3) {
            history.hold(hold);
        }
        change(&mut history);
        history.check(rules).names()
    };
    let rules = Rules::new().idle_within(Duration::from_millis(3));
    assert_eq!(idle(&rules, &|_| {}), [""; 0], "3 ms from hold to hold");
    assert_eq!(idle(&Rules::new().idle_within(Duration::from_millis(2)), &|_| {}), ["Starved"]);
    assert_eq!(idle(&rules, &|history| history.waited("job", ms(10), ms(32))), [""; 0]);
    assert_eq!(idle(&rules, &|history| history.waited("job", ms(10), ms(33))), ["Starved"], "after the last hold");
    assert_eq!(idle(&rules, &|history| history.waited("job", ms(40), ms(44))), ["Starved"], "long after it");
    assert_eq!(idle(&rules, &|history| history.waited("never", ms(0), ms(4))), ["Starved"], "never held");
}

#[test]
fn names_do_not_meet() {
    let mut holds = chain(2);
    holds.extend(chain(2).into_iter().map(|hold| Hold { resource: "other".into(), ..hold }));
    assert!(verdict(holds).is_ok());
}

#[test]
fn a_violation_is_a_sentence() {
    let mut holds = chain(2);
    holds[0].ended = ms(15);
    let text = verdict(holds).to_string();
    let sentence = "at 0.012000 s contender 1 (fence 101) got \"job\" while contender 0 (fence 100) still believed in it, \
                    for 3.000 ms";
    assert!(text.contains(sentence), "{text}");
}

/// A store that obeys the rule by construction, at random.
fn random_history(seed: u64) -> History {
    let mut random = fastrand::Rng::with_seed(seed);
    let capacity = random.u32(1..6);
    let limit = Some(Limit::Units(NonZeroU32::new(capacity).unwrap()));
    let mut history = History::new();
    let (mut held, mut clock, mut queued): (Vec<(Weight, Moment)>, u64, u64) = (Vec::new(), 0, 0);
    for fence in 0..200 {
        let weight = match random.u32(0..=capacity) {
            0 => Weight::All,
            units => Weight::Units(NonZeroU32::new(units).unwrap()),
        };
        let asked = clock;
        loop {
            held.retain(|(_, ended)| *ended > Moment::from_nanos(clock));
            let load: u32 = held.iter().map(|(w, _)| if let Weight::Units(u) = w { u.get() } else { 0 }).sum();
            let alone = held.iter().any(|(w, _)| *w == Weight::All);
            let fits = match weight {
                Weight::All => held.is_empty(),
                Weight::Units(units) => !alone && load + units.get() <= capacity,
            };
            if fits {
                break;
            }
            clock += random.u64(1..50);
        }
        let ended = Moment::from_nanos(clock + random.u64(1..500));
        held.push((weight, ended));
        queued += 1;
        history.hold(Hold {
            resource: "r".into(),
            owner: random.u64(0..7),
            weight,
            capacity: limit,
            fence: Fence::new(fence),
            asked: Moment::from_nanos(asked),
            granted: Moment::from_nanos(clock),
            ended,
            queued: Some(queued),
        });
        clock += random.u64(0..20);
    }
    history
}

#[test]
fn random_valid_histories_pass_and_their_mutations_do_not() {
    for seed in 0..300 {
        let history = random_history(seed);
        let verdict = history.check(&Rules::new().least_holds(200));
        assert!(verdict.is_ok(), "seed {seed}: {verdict}");

        let mut random = fastrand::Rng::with_seed(seed);
        let mut broken = history.clone();
        let holds = &mut broken.resource("r").holds;
        let at = random.usize(0..holds.len() - 1);
        holds[at].ended = Moment::NEVER;
        holds[at].weight = Weight::All;
        assert!(!broken.check(&Rules::new()).is_ok(), "seed {seed}: hold {at} never ends");
    }
}
