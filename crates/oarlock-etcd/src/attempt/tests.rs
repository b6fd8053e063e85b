//! What only a real server, and a look behind the verbs, can show.

use std::sync::Arc;

use oarlock_core::driver::{Driver, End, Gone, Released, Renewal, Renewed};
use oarlock_core::state::{Ending, Query, Waiters};
use oarlock_core::{Applied, ErrorKind, Limit, ResourceName};

use super::*;
use crate::config::Config;
use crate::driver::delete;

struct Bed {
    server: oarlock_testbed::Etcd,
    one: Etcd,
    two: Etcd,
}

async fn bed() -> Option<Bed> {
    bed_with(Layout::Native).await
}

async fn bed_with(layout: Layout) -> Option<Bed> {
    let server = oarlock_testbed::Etcd::start_or_skip().unwrap()?;
    let mut config = Config::new([server.addr().to_string()]);
    config.layout = layout;
    let (one, two) = (Etcd::open(config.clone()).await.unwrap(), Etcd::open(config).await.unwrap());
    Some(Bed { server, one, two })
}

fn claim(bits: u128, weight: Weight) -> Claim {
    let mut claim = Claim::new(ClaimId::from_bits(bits), ResourceName::new("job").unwrap());
    (claim.wait, claim.weight, claim.capacity) = (true, weight, Capacity::Fixed(Limit::Unlimited));
    claim
}

async fn place(store: &Etcd, claim: &Claim) -> Option<Place> {
    let listing = store.look(&store.keys(&claim.resource)).await.unwrap();
    listing.position(claim.id).map(|at| listing.places[at].clone())
}

async fn attempt(store: &Etcd, claim: &Claim) -> bool {
    matches!(store.attempt(claim).await.unwrap(), Attempt::Granted(_))
}

async fn release(store: &Etcd, claim: &Claim) -> Released {
    store.release(&claim.resource, claim.id, &End::Done { memo: None }).await.unwrap().outcome
}

/// The key is written before the memo can be read: the error must not say that nothing happened, and nobody else may get
/// the lease that the key stands on.
#[tokio::test]
async fn an_attempt_that_cannot_read_what_is_there_may_count() {
    let Some(bed) = bed().await else { return };
    let (one, keys) = (&bed.one, bed.one.keys(&claim(1, Weight::ONE).resource));
    for beside_another in [false, true] {
        let (other, mine) = (claim(1, Weight::ONE), claim(2, Weight::ONE));
        if beside_another {
            assert!(attempt(&bed.two, &other).await);
        }
        // Read by the step that finds nobody; by that which finds somebody, only after it has written.
        let memo = keys.memo();
        let full = one.leases.take(&one.link, seconds(mine.ttl)).await.unwrap();
        let listing = one.look(&keys).await.unwrap();
        one.link.txn(Vec::new(), vec![put(&memo, vec![9], 0)], Vec::new()).await.unwrap();
        let error = if beside_another {
            let (visit, _) = one.leases.visit(&mine);
            one.leases.edit(mine.id, |entry| entry.full = Some(full));
            let error = one.arrive(&mine, &keys, &listing, full).await.unwrap_err();
            visit.answered();
            one.leases.lay_aside(mine.id);
            error
        } else {
            one.leases.put(full);
            let error = one.attempt(&mine).await.unwrap_err();
            assert_eq!(error.applied(), Applied::Unknown);
            error
        };
        assert_eq!(error.kind(), ErrorKind::NewerFormat);
        assert_eq!(one.leases.idle(), Vec::<i64>::new(), "a lease with a key on it is free");
        one.link.txn(Vec::new(), vec![delete(&memo.key)], Vec::new()).await.unwrap();
        assert_eq!(place(one, &mine).await.map(|place| place.lease), Some(full.id));
        assert_eq!(release(one, &mine).await, Released::Released);
        if beside_another {
            assert_eq!(release(&bed.two, &other).await, Released::Released);
        }
        one.end_leases(one.leases.drain()).await;
    }
}

/// Another came between the look and the step: the loser waits, and not on the long lease of a hold.
#[tokio::test]
async fn whoever_comes_second_stands_on_the_lease_of_a_waiter() {
    let Some(bed) = bed().await else { return };
    let (mine, writer) = (claim(1, Weight::ONE), claim(2, Weight::All));
    let keys = bed.one.keys(&mine.resource);
    let listing = bed.one.look(&keys).await.unwrap();
    assert!(attempt(&bed.two, &writer).await);
    let (visit, _) = bed.one.leases.visit(&mine);
    let full = bed.one.leases.take(&bed.one.link, seconds(mine.ttl)).await.unwrap();
    let listing = bed.one.arrive(&mine, &keys, &listing, full).await.unwrap();
    visit.answered();
    let place = &listing.places[listing.position(mine.id).unwrap()];
    assert!(!place.record.granted && place.lease != full.id);
    assert!(bed.one.link.left(place.lease).await.unwrap() <= mine.place_ttl());
}

/// What an adopted hold replaces may still be wanted by a request under way.
#[tokio::test]
async fn a_lease_replaced_by_an_adopted_one_is_ended() {
    let Some(bed) = bed().await else { return };
    let mine = claim(1, Weight::All);
    assert!(attempt(&bed.one, &mine).await);
    let hold = place(&bed.one, &mine).await.unwrap().lease;
    let (visit, _) = bed.two.leases.visit(&mine);
    let own = bed.two.leases.take(&bed.two.link, seconds(mine.ttl)).await.unwrap();
    bed.two.leases.edit(mine.id, |entry| entry.full = Some(own));
    drop(visit);
    assert_eq!(bed.two.adopt(mine.id, hold).await.unwrap().map(|lease| lease.id), Some(hold));
    assert_eq!(bed.two.leases.idle(), Vec::<i64>::new());
    assert!(bed.two.link.left(own.id).await.unwrap().is_zero());
    assert!(!bed.two.link.left(hold).await.unwrap().is_zero());
}

/// A turn runs from when it was first seen open; and whoever takes it late, but before he is removed, has it.
#[tokio::test]
async fn nobody_loses_a_turn_that_he_takes() {
    let Some(bed) = bed().await else { return };
    let (first, called, behind) = (claim(1, Weight::All), claim(2, Weight::All), claim(3, Weight::All));
    assert!(attempt(&bed.one, &first).await);
    assert!(!attempt(&bed.one, &called).await);
    assert!(!attempt(&bed.two, &behind).await);
    assert_eq!(release(&bed.one, &first).await, Released::Released);
    let keys = bed.two.keys(&behind.resource);
    let listing = bed.two.look(&keys).await.unwrap();
    // Whoever sees it for the first time gives it all of its time, however long it was open.
    let again = bed.two.pass_the_dead(&keys, &listing, 1).await.unwrap().unwrap();
    assert!(again > TURN_TTL / 2, "{again:?}");
    assert!(place(&bed.two, &called).await.is_some());

    let long_ago = Instant::now().checked_sub(TURN_TTL).unwrap();
    let created = listing.places[0].created;
    bed.two.turns.lock().unwrap().insert(created, long_ago);
    assert!(attempt(&bed.one, &called).await);
    bed.two.pass_the_dead(&keys, &listing, 1).await.unwrap();
    assert!(place(&bed.two, &called).await.is_some_and(|place| place.record.granted), "a holder was removed");

    // And who does not take it is removed.
    assert_eq!(release(&bed.one, &called).await, Released::Released);
    let (late, last) = (claim(4, Weight::All), claim(5, Weight::All));
    assert!(!attempt(&bed.one, &late).await);
    assert_eq!(release(&bed.two, &behind).await, Released::Released);
    assert!(!attempt(&bed.two, &last).await);
    let created = place(&bed.two, &late).await.unwrap().created;
    bed.two.turns.lock().unwrap().insert(created, long_ago);
    assert!(!attempt(&bed.two, &last).await);
    assert!(place(&bed.two, &late).await.is_none(), "a dead one is in the way");
}

/// The lease of a claim whose key went before it is not taken for alive by the next attempt.
#[tokio::test]
async fn a_claim_that_comes_back_gets_a_lease_that_lives() {
    let Some(bed) = bed().await else { return };
    let (first, mine) = (claim(1, Weight::All), claim(2, Weight::All));
    assert!(attempt(&bed.two, &first).await);
    assert!(!attempt(&bed.one, &mine).await);
    let seat = bed.one.leases.get(mine.id).unwrap().seat;
    let key = bed.one.keys(&mine.resource).claim(seat).key;
    bed.two.link.txn(Vec::new(), vec![delete(&key)], Vec::new()).await.unwrap();
    let gone = bed.one.renew(&[Renewal::of(Arc::new(mine.clone()))]).await.remove(0).unwrap();
    assert_eq!(gone, Renewed::Gone(Gone::Unknown));
    assert_eq!(release(&bed.two, &first).await, Released::Released);
    let full = bed.one.leases.get(mine.id).and_then(|entry| entry.full).unwrap();
    bed.two.link.revoke(full.id).await.unwrap();
    assert!(attempt(&bed.one, &mine).await);
}

fn plain(bits: u128) -> Claim {
    let mut claim = claim(bits, Weight::All);
    claim.capacity = Capacity::Any;
    claim
}

/// Whoever wants everything queues up in the step that finds somebody there: that counts also if it cannot read who it is.
#[tokio::test]
async fn queueing_up_at_once_counts_also_when_the_line_cannot_be_read() {
    for layout in [Layout::Native, Layout::Go] {
        let Some(bed) = bed_with(layout).await else { return };
        let mine = plain(2);
        let keys = bed.one.keys(&mine.resource);
        let foreign = keys.claim(9);
        let mut strange = vec![put(&foreign, b"hello".to_vec(), 0)];
        strange.extend(keys.seat(9).map(|seat| put(&seat, Vec::new(), 0)));
        bed.two.link.txn(Vec::new(), strange, Vec::new()).await.unwrap();
        let spare = bed.one.link.grant(seconds(mine.place_ttl())).await.unwrap();
        bed.one.leases.put(spare);
        let error = bed.one.attempt(&mine).await.unwrap_err();
        assert_eq!((error.kind(), error.applied()), (ErrorKind::Foreign, Applied::Unknown), "{layout:?}");
        assert!(!bed.one.leases.idle().contains(&spare.id), "{layout:?}: a lease with a key on it is free");
        let strange = std::iter::once(foreign).chain(keys.seat(9)).map(|range| delete(&range.key)).collect();
        bed.two.link.txn(Vec::new(), strange, Vec::new()).await.unwrap();
        let waiting = place(&bed.one, &mine).await.unwrap();
        assert!(!waiting.record.granted && waiting.lease == spare.id);
        assert!(attempt(&bed.one, &mine).await);
        assert_eq!(release(&bed.one, &mine).await, Released::Released);
    }
}

/// Somebody removed the seat of a waiter, and those behind it have moved up: its turn is theirs, not its own.
#[tokio::test]
async fn whoever_has_lost_its_seat_has_lost_its_turn() {
    let Some(bed) = bed_with(Layout::Go).await else { return };
    let (first, mine) = (plain(1), plain(2));
    let keys = bed.one.keys(&mine.resource);
    assert!(attempt(&bed.two, &first).await);
    assert!(!attempt(&bed.one, &mine).await);
    // Another program comes: it knows seats alone, and waits for the one before it to go.
    let theirs = keys.seat(bed.two.link.grant(30).await.unwrap().id).unwrap();
    bed.two.link.txn(Vec::new(), vec![put(&theirs, Vec::new(), 0)], Vec::new()).await.unwrap();
    let seat = keys.seat(bed.one.leases.get(mine.id).unwrap().seat).unwrap();
    bed.two.link.txn(Vec::new(), vec![delete(&seat.key)], Vec::new()).await.unwrap();
    assert_eq!(release(&bed.two, &first).await, Released::Released);
    for _ in 0..3 {
        let answer = bed.one.attempt(&mine).await;
        assert!(!matches!(answer, Ok(Attempt::Granted(_))), "two hold at once");
    }
    bed.two.link.txn(Vec::new(), vec![delete(&theirs.key)], Vec::new()).await.unwrap();
    assert!(attempt(&bed.one, &mine).await, "it came anew, and is the first now");
}

/// Glances say the same as looks: how many are before, and whom to watch; and what has changed is looked at.
#[tokio::test]
async fn a_glance_shows_what_a_look_does() {
    let Some(bed) = bed().await else { return };
    let (first, second, third) = (plain(1), plain(2), plain(3));
    assert!(attempt(&bed.two, &first).await);
    assert!(!attempt(&bed.two, &second).await);
    bed.one.leases.put(bed.one.link.grant(seconds(third.place_ttl())).await.unwrap());
    let mut answers = Vec::new();
    for glances in [true, true, false] {
        if !glances {
            bed.one.leases.edit(third.id, |entry| entry.before = None);
        }
        let Attempt::Pending(pending) = bed.one.attempt(&third).await.unwrap() else { panic!("it is third") };
        answers.push(pending);
        assert!(bed.one.leases.get(third.id).unwrap().before.is_some(), "it would look at everything next time");
    }
    assert_eq!(answers[0].ahead, Some(2));
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{answers:?}");

    // The one before it goes between two glances: the second is not content with the first.
    assert_eq!(release(&bed.one, &third).await, Released::Released);
    bed.one.leases.put(bed.one.link.grant(seconds(third.place_ttl())).await.unwrap());
    let fourth = plain(4);
    let Attempt::Pending(behind) = bed.one.attempt(&fourth).await.unwrap() else { panic!("it is third") };
    assert_eq!(release(&bed.two, &second).await, Released::Released);
    let Attempt::Pending(moved) = bed.one.attempt(&fourth).await.unwrap() else { panic!("it is second") };
    assert_eq!((behind.ahead, moved.ahead), (Some(2), Some(1)));
    assert_ne!(behind.cursor, moved.cursor);
    // And a turn that is open is seen at once.
    assert_eq!(release(&bed.two, &first).await, Released::Released);
    assert!(attempt(&bed.one, &fourth).await);
}

/// A renewal has looked for the key of a waiter before the waiter came anew: what it did not find was another key, and the lease
/// that the claim holds by is not free.
#[tokio::test]
async fn a_late_look_for_a_waiter_does_not_free_the_lease_of_a_holder() {
    let Some(bed) = bed().await else { return };
    let (first, mine) = (claim(1, Weight::All), claim(2, Weight::All));
    let renewal = Renewal::of(Arc::new(mine.clone()));
    assert!(attempt(&bed.two, &first).await);
    assert!(!attempt(&bed.one, &mine).await);
    let before = bed.one.leases.get(mine.id);
    let key = place(&bed.one, &mine).await.unwrap().key;
    bed.two.link.txn(Vec::new(), vec![delete(&key)], Vec::new()).await.unwrap();
    let seen = bed.one.find(std::slice::from_ref(&renewal)).await.pop().unwrap().unwrap();
    assert_eq!(release(&bed.two, &first).await, Released::Released);
    assert!(attempt(&bed.one, &mine).await);
    let holds = bed.one.leases.get(mine.id).unwrap();
    assert_eq!(holds.created, place(&bed.one, &mine).await.unwrap().created);

    let late = bed.one.renew_one(&renewal, before.clone(), before, seen).await;
    assert!(late.is_err(), "it holds: {late:?}");
    bed.one.leases.lay_aside(mine.id);
    assert!(!bed.one.leases.idle().contains(&holds.full.unwrap().id), "a lease with a key on it is free");
    assert_eq!(release(&bed.one, &mine).await, Released::Released);
}

/// The first step took the lock, or may have, while the leases of the claim could not be kept alive.
#[tokio::test]
async fn an_attempt_whose_leases_are_not_kept_alive_may_count() {
    let Some(bed) = bed().await else { return };
    let (one, mine) = (&bed.one, plain(1));
    let keys = one.keys(&mine.resource);
    let denied = || Error::new(ErrorKind::Denied, "no");
    let (visit, entry) = one.leases.visit(&mine);
    let full = one.leases.take(&one.link, seconds(mine.ttl)).await.unwrap();
    one.leases.edit(mine.id, |entry| entry.full = Some(full));
    let granted = one.first_step(&mine, &keys, &entry, full).await;
    assert!(matches!(granted, Ok(Step::Granted { .. })));
    let unheard = Err(Error::unreachable("no answer"));
    assert_eq!(one.unkept(mine.id, full, &unheard, denied()).applied(), Applied::Unknown);
    assert_eq!(one.unkept(mine.id, full, &Err(denied()), denied()).applied(), Applied::No);
    assert_eq!(one.leases.get(mine.id).unwrap().created, 0);
    assert_eq!(one.unkept(mine.id, full, &granted, denied()).applied(), Applied::Unknown);
    visit.answered();
    one.leases.lay_aside(mine.id);
    assert_eq!(one.leases.idle(), Vec::<i64>::new(), "a lease with a key on it is free");
    assert_eq!(one.leases.get(mine.id).unwrap().created, place(one, &mine).await.unwrap().created);
}

/// A hold may be kept alive until the moment it is moved to its last lease. With time to end in order, that one is not shorter.
#[tokio::test]
async fn a_hold_asked_to_end_outlasts_what_its_holder_believes() {
    let Some(bed) = bed().await else { return };
    let mine = plain(1);
    assert!(attempt(&bed.one, &mine).await);
    let whole = mine.ttl;
    // Shown in whole seconds: this many are seen to be gone.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let ending = Ending { by: "ops".into(), why: "maintenance".into() };
    let end = End::Broken { ending, grace: whole * 2 };
    assert_eq!(bed.two.release(&mine.resource, mine.id, &end).await.unwrap().outcome, Released::Asked);
    let last = place(&bed.two, &mine).await.unwrap().lease;
    let length = bed.two.link.whole(last).await.unwrap();
    assert!(
        length > whole + Duration::from_secs(4),
        "the move may take longer than {:?}",
        length.saturating_sub(whole)
    );
    // Asking again gives it no more time.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(bed.two.release(&mine.resource, mine.id, &end).await.unwrap().outcome, Released::Asked);
    let again = place(&bed.two, &mine).await.unwrap().lease;
    assert!(bed.two.link.whole(again).await.unwrap() < length);
}

/// A break that came too late leaves nothing at the server.
#[tokio::test]
async fn a_break_that_fails_ends_the_leases_it_made() {
    let Some(bed) = bed().await else { return };
    let mine = plain(1);
    assert!(attempt(&bed.one, &mine).await);
    let (keys, place) = (bed.two.keys(&mine.resource), place(&bed.two, &mine).await.unwrap());
    assert_eq!(release(&bed.one, &mine).await, Released::Released);
    let leases = || bed.server.ctl(&["lease", "list"]).unwrap().lines().count();
    let before = leases();
    let ending = Ending { by: "ops".into(), why: "maintenance".into() };
    for grace in [Duration::ZERO, Duration::from_secs(10)] {
        assert!(bed.two.break_place(&keys, &place, &ending, grace).await.is_err());
        assert_eq!(leases(), before, "{grace:?}");
    }
}

/// One record of somebody else, or of a newer version, does not hide all other names.
#[tokio::test]
async fn a_record_that_cannot_be_read_hides_nobody_in_a_list() {
    let Some(bed) = bed().await else { return };
    assert!(attempt(&bed.one, &plain(1)).await);
    for (name, what) in [("foreign", &b"hello"[..]), ("newer", br#"{"format":99}"#)] {
        let key = bed.one.keys(&ResourceName::new(name).unwrap()).claim(9);
        bed.two.link.txn(Vec::new(), vec![put(&key, what.to_vec(), 0)], Vec::new()).await.unwrap();
    }
    let shown = bed.one.inspect(&Query::live()).await.unwrap().resources;
    let shown: Vec<_> = shown
        .iter()
        .map(|state| (state.name.as_str(), state.holders.len(), matches!(state.waiters, Waiters::Hidden)))
        .collect();
    assert_eq!(shown, [("foreign", 0, true), ("job", 1, false), ("newer", 0, true)]);
    assert!(bed.one.inspect(&Query::name(ResourceName::new("newer").unwrap())).await.is_err());
}

/// The server goes past all keys that ever were in a range: a lock that used another one each time would become slower and slower.
#[tokio::test]
async fn claims_use_the_keys_of_those_before_them() {
    for layout in [Layout::Native, Layout::Go] {
        let Some(bed) = bed_with(layout).await else { return };
        let keys = bed.one.keys(&plain(1).resource);
        let mut used = std::collections::BTreeSet::new();
        for round in 0..10 {
            let (first, second) = (plain(10 * round + 1), plain(10 * round + 2));
            assert!(attempt(&bed.two, &first).await);
            assert!(!attempt(&bed.one, &second).await);
            let (_, kvs) = bed.one.link.read(&keys.all()).await.unwrap();
            used.extend(kvs.into_iter().map(|kv| kv.key));
            assert_eq!(release(&bed.two, &first).await, Released::Released);
            assert!(attempt(&bed.one, &second).await);
            assert_eq!(release(&bed.one, &second).await, Released::Released);
        }
        assert_eq!(used.len(), 2, "{layout:?}");
    }
}

/// An answer is lost, and with it what the client would know of its place: asking again finds it, on whichever lease it stands.
#[tokio::test]
async fn a_place_that_nobody_noted_is_found_again() {
    let Some(bed) = bed().await else { return };
    for (round, waits) in (0..).zip([false, true]) {
        let (other, mine) = (plain(10 * round + 1), plain(10 * round + 2));
        // With a lease for waiting at hand it would queue up in the step that finds somebody: itself.
        bed.one.leases.put(bed.one.link.grant(seconds(mine.place_ttl())).await.unwrap());
        if waits {
            assert!(attempt(&bed.two, &other).await);
        }
        assert_eq!(attempt(&bed.one, &mine).await, !waits);
        let before = place(&bed.one, &mine).await.unwrap();
        bed.one.leases.edit(mine.id, |entry| {
            entry.note(None);
            (entry.waits_for, entry.unsure) = (None, true);
        });
        assert_eq!(attempt(&bed.one, &mine).await, !waits);
        let listing = bed.one.look(&bed.one.keys(&mine.resource)).await.unwrap();
        assert_eq!(listing.places.iter().filter(|place| place.id == mine.id).count(), 1);
        assert_eq!(place(&bed.one, &mine).await.unwrap().created, before.created);
        bed.one.leases.edit(mine.id, |entry| entry.note(None));
        assert_eq!(release(&bed.one, &mine).await, Released::Released);
        assert!(place(&bed.one, &mine).await.is_none());
        if waits {
            assert_eq!(release(&bed.two, &other).await, Released::Released);
        }
    }
}

/// A release that was sent twice arrives once more when the next claim stands on the same lease, and so has the same keys.
#[tokio::test]
async fn a_late_release_leaves_the_next_claim_alone() {
    for layout in [Layout::Native, Layout::Go] {
        let Some(bed) = bed_with(layout).await else { return };
        let (first, second) = (plain(1), plain(2));
        assert!(attempt(&bed.one, &first).await);
        let known = bed.one.leases.get(first.id).unwrap();
        assert_eq!(release(&bed.one, &first).await, Released::Released);
        assert!(attempt(&bed.one, &second).await);
        assert_eq!(bed.one.leases.get(second.id).unwrap().seat, known.seat, "other keys: nothing is tested");
        let (visit, _) = bed.one.leases.visit(&first);
        bed.one.leases.edit(first.id, |entry| (entry.seat, entry.created) = (known.seat, known.created));
        assert_eq!(release(&bed.one, &first).await, Released::NotHeld);
        drop(visit);
        assert!(place(&bed.one, &second).await.is_some_and(|place| place.record.granted), "{layout:?}");
        assert_eq!(release(&bed.one, &second).await, Released::Released);
    }
}

/// What cannot be read is in the middle of the line: whoever reads the whole of it fails. Nobody does who wants everything and has
/// to wait, whether it has just come, without a lease for waiting, or looks again, or finds that the one before it has gone.
#[tokio::test]
async fn whoever_waits_for_everything_does_not_read_the_whole_line() {
    let Some(bed) = bed().await else { return };
    let (first, between, mine) = (plain(1), plain(2), plain(3));
    assert!(attempt(&bed.two, &first).await);
    let foreign = bed.two.keys(&mine.resource).claim(9);
    bed.two.link.txn(Vec::new(), vec![put(&foreign, b"hello".to_vec(), 0)], Vec::new()).await.unwrap();
    assert!(!attempt(&bed.two, &between).await);
    assert_eq!(bed.one.leases.idle(), Vec::<i64>::new(), "a lease for waiting is there: nothing is tested");
    assert!(!attempt(&bed.one, &mine).await);
    assert!(!attempt(&bed.one, &mine).await);
    assert_eq!(release(&bed.two, &between).await, Released::Released);
    let Attempt::Pending(moved) = bed.one.attempt(&mine).await.unwrap() else { panic!("it is third") };
    assert_eq!(moved.ahead, Some(2));
    bed.two.link.txn(Vec::new(), vec![delete(&foreign.key)], Vec::new()).await.unwrap();
    assert_eq!(release(&bed.two, &first).await, Released::Released);
    assert!(attempt(&bed.one, &mine).await);
}

/// In a line that moves, a turn is open much of the time. If everybody who happens to see that came back soon, all would look at
/// all turns.
#[tokio::test]
async fn only_the_next_few_come_back_for_an_open_turn() {
    let Some(bed) = bed().await else { return };
    let crowd: Vec<_> = (0..u128::try_from(LOOKOUTS).unwrap() + 3).map(|number| plain(number + 1)).collect();
    for (number, claim) in crowd.iter().enumerate() {
        assert_eq!(attempt(&bed.one, claim).await, number == 0);
    }
    assert_eq!(release(&bed.one, &crowd[0]).await, Released::Released);
    for glances in [true, false] {
        for (ahead, claim) in crowd[1..].iter().enumerate().skip(1) {
            if !glances {
                bed.one.leases.edit(claim.id, |entry| entry.before = None);
            }
            let Attempt::Pending(pending) = bed.one.attempt(claim).await.unwrap() else {
                panic!("it is not the first")
            };
            assert_eq!(pending.ahead, u32::try_from(ahead).ok());
            let after = pending.recheck_after.unwrap();
            assert_eq!(after < LATER, ahead <= LOOKOUTS, "{ahead} before it, {glances}");
            assert!(after < FORGET_TURN_AFTER, "what it saw of the turn is forgotten by then");
        }
    }
}
