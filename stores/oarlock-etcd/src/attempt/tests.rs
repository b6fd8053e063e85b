//! Cases that need a real server and the internals of the driver.

use std::sync::Arc;

use oarlock_core::driver::{Driver, End, Gone, Interest, Released, Renewal, Renewed};
use oarlock_core::model::TURN_TTL;
use oarlock_core::queue::{EARLY_POLLS, FORGET_TURN_AFTER, LATER};
use oarlock_core::state::{Ending, Query, Waiters};
use oarlock_core::{Applied, ErrorKind, Limit, ResourceName};

use super::*;
use crate::api::WatchCreate;
use crate::config::Config;
use crate::operations::delete;
use crate::queue::{FenceOffset, memo_bytes};

const SOON: Duration = Duration::from_secs(10);

struct TestContext {
    server: oarlock_testbed::Etcd,
    one: Etcd,
    two: Etcd,
}

async fn context() -> Option<TestContext> {
    context_with(Layout::Native).await
}

async fn context_with(layout: Layout) -> Option<TestContext> {
    let server = oarlock_testbed::Etcd::start_or_skip().unwrap()?;
    let mut config = Config::new([server.addr().to_string()]);
    config.layout = layout;
    let (one, two) = (Etcd::open(config.clone()).await.unwrap(), Etcd::open(config).await.unwrap());
    Some(TestContext { server, one, two })
}

fn claim(bits: u128, weight: Weight) -> Claim {
    let mut claim = Claim::new(ClaimId::from_bits(bits), ResourceName::new("job").unwrap());
    (claim.wait, claim.weight, claim.capacity) = (true, weight, Capacity::Fixed(Limit::Unlimited));
    claim
}

async fn stored(store: &Etcd, claim: &Claim) -> Option<StoredClaim> {
    let listing = store.poll(&store.keys(&claim.resource)).await.unwrap();
    listing.position(claim.id).map(|at| listing.claims[at].clone())
}

async fn attempt(store: &Etcd, claim: &Claim) -> bool {
    matches!(store.attempt(claim).await.unwrap(), Attempt::Granted(_))
}

async fn release(store: &Etcd, claim: &Claim) -> Released {
    store.release(&claim.resource, claim.id, &End::Done { memo: None }).await.unwrap().outcome
}

/// The key is written before the memo can be read: the error must not say that nothing happened, and no other claim
/// may get the lease of that key.
#[tokio::test]
async fn an_attempt_that_cannot_read_what_is_there_may_count() {
    let Some(context) = context().await else { return };
    let (one, keys) = (&context.one, context.one.keys(&claim(1, Weight::ONE).resource));
    for beside_another in [false, true] {
        let (other, mine) = (claim(1, Weight::ONE), claim(2, Weight::ONE));
        if beside_another {
            assert!(attempt(&context.two, &other).await);
        }
        // Read by the step that finds no other claim; if it finds one, only after it has written.
        let memo = keys.memo();
        let full = one.leases.take(&one.connection, seconds(mine.ttl)).await.unwrap();
        let listing = one.poll(&keys).await.unwrap();
        one.connection.txn(Vec::new(), vec![put(&memo, vec![9], 0)], Vec::new()).await.unwrap();
        let error = if beside_another {
            let (attempt, _) = one.leases.begin_attempt(&mine);
            one.leases.edit(mine.id, |entry| entry.full = Some(full));
            let error = one.arrive(&mine, &keys, &listing, full).await.unwrap_err();
            attempt.answered();
            one.leases.recycle(mine.id);
            error
        } else {
            one.leases.put(full);
            let error = one.attempt(&mine).await.unwrap_err();
            assert_eq!(error.applied(), Applied::Unknown);
            error
        };
        assert_eq!(error.kind(), ErrorKind::NewerFormat);
        assert_eq!(one.leases.idle(), Vec::<i64>::new(), "a lease with a key on it is free");
        one.connection.txn(Vec::new(), vec![delete(&memo.key)], Vec::new()).await.unwrap();
        assert_eq!(stored(one, &mine).await.map(|stored| stored.lease), Some(full.id));
        assert_eq!(release(one, &mine).await, Released::Released);
        if beside_another {
            assert_eq!(release(&context.two, &other).await, Released::Released);
        }
        one.end_leases(one.leases.drain()).await;
    }
}

/// Another claim came between the read and the step: the loser waits, and not on the long lease of a holder.
#[tokio::test]
async fn the_second_claim_is_on_the_lease_of_a_waiter() {
    let Some(context) = context().await else { return };
    let (mine, writer) = (claim(1, Weight::ONE), claim(2, Weight::All));
    let keys = context.one.keys(&mine.resource);
    let listing = context.one.poll(&keys).await.unwrap();
    assert!(attempt(&context.two, &writer).await);
    let (attempt, _) = context.one.leases.begin_attempt(&mine);
    let full = context.one.leases.take(&context.one.connection, seconds(mine.ttl)).await.unwrap();
    let listing = context.one.arrive(&mine, &keys, &listing, full).await.unwrap();
    attempt.answered();
    let stored = &listing.claims[listing.position(mine.id).unwrap()];
    assert!(!stored.record.granted && stored.lease != full.id);
    assert!(context.one.connection.left(stored.lease).await.unwrap() <= mine.waiter_ttl());
}

/// What an adopted hold replaces may still be wanted by a request under way.
#[tokio::test]
async fn a_lease_replaced_by_an_adopted_one_is_ended() {
    let Some(context) = context().await else { return };
    let mine = claim(1, Weight::All);
    assert!(attempt(&context.one, &mine).await);
    let hold = stored(&context.one, &mine).await.unwrap().lease;
    let (attempt, _) = context.two.leases.begin_attempt(&mine);
    let own = context.two.leases.take(&context.two.connection, seconds(mine.ttl)).await.unwrap();
    context.two.leases.edit(mine.id, |entry| entry.full = Some(own));
    drop(attempt);
    assert_eq!(context.two.adopt(mine.id, hold).await.unwrap().map(|lease| lease.id), Some(hold));
    assert_eq!(context.two.leases.idle(), Vec::<i64>::new());
    assert!(context.two.connection.left(own.id).await.unwrap().is_zero());
    assert!(!context.two.connection.left(hold).await.unwrap().is_zero());
}

/// A turn runs from when it was first seen open; a waiter that takes it late, but before it is evicted, has it.
#[tokio::test]
async fn no_waiter_loses_a_turn_that_it_takes() {
    let Some(context) = context().await else { return };
    let (first, called, behind) = (claim(1, Weight::All), claim(2, Weight::All), claim(3, Weight::All));
    assert!(attempt(&context.one, &first).await);
    assert!(!attempt(&context.one, &called).await);
    assert!(!attempt(&context.two, &behind).await);
    assert_eq!(release(&context.one, &first).await, Released::Released);
    let keys = context.two.keys(&behind.resource);
    let listing = context.two.poll(&keys).await.unwrap();
    // A client that sees the turn for the first time gives it all of its time, however long it was open.
    let again = context.two.evict_silent(&keys, &listing, 1, 1).await.unwrap().unwrap();
    assert!(again > TURN_TTL / 2, "{again:?}");
    assert!(stored(&context.two, &called).await.is_some());

    let long_ago = Instant::now().checked_sub(TURN_TTL).unwrap();
    let created = listing.claims[0].created;
    context.two.turns.observe([(created, false)], 1, long_ago);
    context.two.turns.observe([(created, true)], 1, long_ago);
    assert!(attempt(&context.one, &called).await);
    context.two.evict_silent(&keys, &listing, 1, 1).await.unwrap();
    assert!(stored(&context.two, &called).await.is_some_and(|stored| stored.record.granted), "a holder was removed");

    // A waiter that does not take its turn is evicted.
    assert_eq!(release(&context.one, &called).await, Released::Released);
    let (late, last) = (claim(4, Weight::All), claim(5, Weight::All));
    assert!(!attempt(&context.one, &late).await);
    assert_eq!(release(&context.two, &behind).await, Released::Released);
    assert!(!attempt(&context.two, &last).await);
    let created = stored(&context.two, &late).await.unwrap().created;
    context.two.turns.observe([(created, false)], 1, long_ago);
    context.two.turns.observe([(created, true)], 1, long_ago);
    assert!(!attempt(&context.two, &last).await);
    assert!(stored(&context.two, &late).await.is_none(), "a dead one is in the way");
}

/// The next attempt does not take a lease for alive if its key went before.
#[tokio::test]
async fn a_claim_that_comes_back_gets_a_lease_that_lives() {
    let Some(context) = context().await else { return };
    let (first, mine) = (claim(1, Weight::All), claim(2, Weight::All));
    assert!(attempt(&context.two, &first).await);
    assert!(!attempt(&context.one, &mine).await);
    let shared = context.one.leases.get(mine.id).unwrap().named_after;
    let key = context.one.keys(&mine.resource).claim(shared).key;
    context.two.connection.txn(Vec::new(), vec![delete(&key)], Vec::new()).await.unwrap();
    let gone = context.one.renew(&[Renewal::of(Arc::new(mine.clone()))]).await.remove(0).unwrap();
    assert_eq!(gone, Renewed::Gone(Gone::Unknown));
    assert_eq!(release(&context.two, &first).await, Released::Released);
    let full = context.one.leases.get(mine.id).and_then(|entry| entry.full).unwrap();
    context.two.connection.revoke(full.id).await.unwrap();
    assert!(attempt(&context.one, &mine).await);
}

fn plain(bits: u128) -> Claim {
    let mut claim = claim(bits, Weight::All);
    claim.capacity = Capacity::Any;
    claim
}

/// An exclusive claim is added to the queue in the step that finds another claim there: that counts also if it cannot
/// read that claim.
#[tokio::test]
async fn joining_the_queue_counts_also_when_the_queue_cannot_be_read() {
    for layout in [Layout::Native, Layout::Go] {
        let Some(context) = context_with(layout).await else { return };
        let mine = plain(2);
        let keys = context.one.keys(&mine.resource);
        let other = keys.claim(9);
        let mut unreadable = vec![put(&other, b"hello".to_vec(), 0)];
        unreadable.extend(keys.shared_key(9).map(|shared| put(&shared, Vec::new(), 0)));
        context.two.connection.txn(Vec::new(), unreadable, Vec::new()).await.unwrap();
        let spare = context.one.connection.grant(seconds(mine.waiter_ttl())).await.unwrap();
        context.one.leases.put(spare);
        let error = context.one.attempt(&mine).await.unwrap_err();
        assert_eq!((error.kind(), error.applied()), (ErrorKind::Foreign, Applied::Unknown), "{layout:?}");
        assert!(!context.one.leases.idle().contains(&spare.id), "{layout:?}: a lease with a key on it is free");
        let unreadable = std::iter::once(other).chain(keys.shared_key(9)).map(|range| delete(&range.key)).collect();
        context.two.connection.txn(Vec::new(), unreadable, Vec::new()).await.unwrap();
        let waiting = stored(&context.one, &mine).await.unwrap();
        assert!(!waiting.record.granted && waiting.lease == spare.id);
        assert!(attempt(&context.one, &mine).await);
        assert_eq!(release(&context.one, &mine).await, Released::Released);
    }
}

/// The shared key of a waiter was deleted, and later waiters have moved up: the turn is theirs.
#[tokio::test]
async fn a_claim_without_its_shared_key_has_lost_its_turn() {
    let Some(context) = context_with(Layout::Go).await else { return };
    let (first, mine) = (plain(1), plain(2));
    let keys = context.one.keys(&mine.resource);
    assert!(attempt(&context.two, &first).await);
    assert!(!attempt(&context.one, &mine).await);
    // Another program comes: it knows only shared keys, and waits for the one before it to go.
    let external = keys.shared_key(context.two.connection.grant(30).await.unwrap().id).unwrap();
    context.two.connection.txn(Vec::new(), vec![put(&external, Vec::new(), 0)], Vec::new()).await.unwrap();
    let shared = keys.shared_key(context.one.leases.get(mine.id).unwrap().named_after).unwrap();
    context.two.connection.txn(Vec::new(), vec![delete(&shared.key)], Vec::new()).await.unwrap();
    assert_eq!(release(&context.two, &first).await, Released::Released);
    for _ in 0..3 {
        let answer = context.one.attempt(&mine).await;
        assert!(!matches!(answer, Ok(Attempt::Granted(_))), "two hold at once");
    }
    context.two.connection.txn(Vec::new(), vec![delete(&external.key)], Vec::new()).await.unwrap();
    assert!(attempt(&context.one, &mine).await, "it came anew, and is the first now");
}

/// Peeks and polls say the same: how many are before, and which key to watch; and what has changed is read.
#[tokio::test]
async fn a_peek_shows_what_a_poll_does() {
    let Some(context) = context().await else { return };
    let (first, second, third) = (plain(1), plain(2), plain(3));
    assert!(attempt(&context.two, &first).await);
    assert!(!attempt(&context.two, &second).await);
    context.one.leases.put(context.one.connection.grant(seconds(third.waiter_ttl())).await.unwrap());
    let mut answers = Vec::new();
    for peeks in [true, true, false] {
        if !peeks {
            context.one.leases.edit(third.id, |entry| entry.predecessor = None);
        }
        let Attempt::Pending(pending) = context.one.attempt(&third).await.unwrap() else { panic!("it is third") };
        answers.push(pending);
        assert!(context.one.leases.get(third.id).unwrap().predecessor.is_some(), "it would poll next time");
    }
    assert_eq!(answers[0].ahead, Some(2));
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{answers:?}");

    // The predecessor goes between two peeks: the second peek notices.
    assert_eq!(release(&context.one, &third).await, Released::Released);
    context.one.leases.put(context.one.connection.grant(seconds(third.waiter_ttl())).await.unwrap());
    let fourth = plain(4);
    let Attempt::Pending(behind) = context.one.attempt(&fourth).await.unwrap() else { panic!("it is third") };
    assert_eq!(release(&context.two, &second).await, Released::Released);
    let Attempt::Pending(moved) = context.one.attempt(&fourth).await.unwrap() else { panic!("it is second") };
    assert_eq!((behind.ahead, moved.ahead), (Some(2), Some(1)));
    assert_ne!(behind.cursor, moved.cursor);
    // And a turn that is open is seen at once.
    assert_eq!(release(&context.two, &first).await, Released::Released);
    assert!(attempt(&context.one, &fourth).await);
}

/// A renewal has read the key of a waiter before the waiter was added again: the key that it did not find is another,
/// and the lease by which the claim holds is not free.
#[tokio::test]
async fn a_late_read_for_a_waiter_does_not_free_the_lease_of_a_holder() {
    let Some(context) = context().await else { return };
    let (first, mine) = (claim(1, Weight::All), claim(2, Weight::All));
    let renewal = Renewal::of(Arc::new(mine.clone()));
    assert!(attempt(&context.two, &first).await);
    assert!(!attempt(&context.one, &mine).await);
    let before = context.one.leases.get(mine.id);
    let key = stored(&context.one, &mine).await.unwrap().key;
    context.two.connection.txn(Vec::new(), vec![delete(&key)], Vec::new()).await.unwrap();
    let seen = context.one.find(std::slice::from_ref(&renewal)).await.pop().unwrap().unwrap();
    assert_eq!(release(&context.two, &first).await, Released::Released);
    assert!(attempt(&context.one, &mine).await);
    let holds = context.one.leases.get(mine.id).unwrap();
    assert_eq!(holds.created, stored(&context.one, &mine).await.unwrap().created);

    let late = context.one.renew_one(&renewal, before.clone(), before, seen).await;
    assert!(late.is_err(), "it holds: {late:?}");
    context.one.leases.recycle(mine.id);
    assert!(!context.one.leases.idle().contains(&holds.full.unwrap().id), "a lease with a key on it is free");
    assert_eq!(release(&context.one, &mine).await, Released::Released);
}

/// The first step took the lock, or may have, while the leases of the claim could not be kept alive.
#[tokio::test]
async fn an_attempt_whose_leases_are_not_kept_alive_may_count() {
    let Some(context) = context().await else { return };
    let (one, mine) = (&context.one, plain(1));
    let keys = one.keys(&mine.resource);
    let denied = || Error::new(ErrorKind::Denied, "no");
    let (attempt, entry) = one.leases.begin_attempt(&mine);
    let full = one.leases.take(&one.connection, seconds(mine.ttl)).await.unwrap();
    one.leases.edit(mine.id, |entry| entry.full = Some(full));
    let granted = one.first_step(&mine, &keys, &entry, full).await;
    assert!(matches!(granted, Ok(Step::Granted { .. })));
    let unheard = Err(Error::unreachable("no answer"));
    assert_eq!(one.unkept(mine.id, full, &unheard, denied()).applied(), Applied::Unknown);
    assert_eq!(one.unkept(mine.id, full, &Err(denied()), denied()).applied(), Applied::No);
    assert_eq!(one.leases.get(mine.id).unwrap().created, 0);
    assert_eq!(one.unkept(mine.id, full, &granted, denied()).applied(), Applied::Unknown);
    attempt.answered();
    one.leases.recycle(mine.id);
    assert_eq!(one.leases.idle(), Vec::<i64>::new(), "a lease with a key on it is free");
    assert_eq!(one.leases.get(mine.id).unwrap().created, stored(one, &mine).await.unwrap().created);
}

/// A hold may be kept alive until the moment it is moved to its last lease. With time to end in order, that one is not
/// shorter.
#[tokio::test]
async fn a_hold_asked_to_end_outlasts_what_its_holder_believes() {
    let Some(context) = context().await else { return };
    let mine = plain(1);
    assert!(attempt(&context.one, &mine).await);
    let whole = mine.ttl;
    // Shown in whole seconds: this many are seen to be gone.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let ending = Ending::new("ops", "maintenance");
    let end = End::Broken { ending, grace: whole * 2 };
    assert_eq!(context.two.release(&mine.resource, mine.id, &end).await.unwrap().outcome, Released::Asked);
    let last = stored(&context.two, &mine).await.unwrap().lease;
    let length = context.two.connection.whole(last).await.unwrap();
    assert!(
        length > whole + Duration::from_secs(4),
        "the move may take longer than {:?}",
        length.saturating_sub(whole)
    );
    // Asking again gives it no more time.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(context.two.release(&mine.resource, mine.id, &end).await.unwrap().outcome, Released::Asked);
    let again = stored(&context.two, &mine).await.unwrap().lease;
    assert!(context.two.connection.whole(again).await.unwrap() < length);
}

/// A break that came too late leaves nothing in the store.
#[tokio::test]
async fn a_break_that_fails_ends_the_leases_it_made() {
    let Some(context) = context().await else { return };
    let mine = plain(1);
    assert!(attempt(&context.one, &mine).await);
    let (keys, stored) = (context.two.keys(&mine.resource), stored(&context.two, &mine).await.unwrap());
    assert_eq!(release(&context.one, &mine).await, Released::Released);
    let leases = || context.server.ctl(&["lease", "list"]).unwrap().lines().count();
    let before = leases();
    let ending = Ending::new("ops", "maintenance");
    for grace in [Duration::ZERO, Duration::from_secs(10)] {
        assert!(context.two.break_stored(&keys, &stored, &ending, grace).await.is_err());
        assert_eq!(leases(), before, "{grace:?}");
    }
}

/// A record of another program, or of a newer version, does not hide all other names.
#[tokio::test]
async fn a_record_that_cannot_be_read_hides_no_other_name_in_a_list() {
    let Some(context) = context().await else { return };
    assert!(attempt(&context.one, &plain(1)).await);
    for (name, what) in [("foreign", &b"hello"[..]), ("newer", br#"{"format":99}"#)] {
        let key = context.one.keys(&ResourceName::new(name).unwrap()).claim(9);
        context.two.connection.txn(Vec::new(), vec![put(&key, what.to_vec(), 0)], Vec::new()).await.unwrap();
    }
    let shown = context.one.inspect(&Query::live()).await.unwrap().resources;
    let shown: Vec<_> = shown
        .iter()
        .map(|state| (state.name.as_str(), state.holders.len(), matches!(state.waiters, Waiters::Hidden)))
        .collect();
    assert_eq!(shown, [("foreign", 0, true), ("job", 1, false), ("newer", 0, true)]);
    assert!(context.one.inspect(&Query::name(ResourceName::new("newer").unwrap())).await.is_err());
}

/// The server goes past all keys that ever were in a range: with a new key each time, a lock would become slower and
/// slower.
#[tokio::test]
async fn claims_use_the_keys_of_those_before_them() {
    for layout in [Layout::Native, Layout::Go] {
        let Some(context) = context_with(layout).await else { return };
        let keys = context.one.keys(&plain(1).resource);
        let mut used = std::collections::BTreeSet::new();
        for round in 0..10 {
            let (first, second) = (plain(10 * round + 1), plain(10 * round + 2));
            assert!(attempt(&context.two, &first).await);
            assert!(!attempt(&context.one, &second).await);
            let (_, kvs) = context.one.connection.read(&keys.all()).await.unwrap();
            used.extend(kvs.into_iter().map(|kv| kv.key));
            assert_eq!(release(&context.two, &first).await, Released::Released);
            assert!(attempt(&context.one, &second).await);
            assert_eq!(release(&context.one, &second).await, Released::Released);
        }
        assert_eq!(used.len(), 2, "{layout:?}");
    }
}

/// An answer is lost, and with it what the client would know of its key: a new attempt finds it, on whichever lease it
/// is.
#[tokio::test]
async fn a_key_that_was_not_noted_is_found_again() {
    let Some(context) = context().await else { return };
    for (round, waits) in (0..).zip([false, true]) {
        let (other, mine) = (plain(10 * round + 1), plain(10 * round + 2));
        // With an idle lease for waiting it would be added in the step that finds another claim: itself.
        context.one.leases.put(context.one.connection.grant(seconds(mine.waiter_ttl())).await.unwrap());
        if waits {
            assert!(attempt(&context.two, &other).await);
        }
        assert_eq!(attempt(&context.one, &mine).await, !waits);
        let before = stored(&context.one, &mine).await.unwrap();
        context.one.leases.edit(mine.id, |entry| {
            entry.note(None);
            (entry.waits_for, entry.unsure) = (None, true);
        });
        assert_eq!(attempt(&context.one, &mine).await, !waits);
        let listing = context.one.poll(&context.one.keys(&mine.resource)).await.unwrap();
        assert_eq!(listing.claims.iter().filter(|stored| stored.id == mine.id).count(), 1);
        assert_eq!(stored(&context.one, &mine).await.unwrap().created, before.created);
        context.one.leases.edit(mine.id, |entry| entry.note(None));
        assert_eq!(release(&context.one, &mine).await, Released::Released);
        assert!(stored(&context.one, &mine).await.is_none());
        if waits {
            assert_eq!(release(&context.two, &other).await, Released::Released);
        }
    }
}

/// A release that was sent twice arrives again when the next claim is on the same lease, and so has the same keys.
#[tokio::test]
async fn a_late_release_leaves_the_next_claim_alone() {
    for layout in [Layout::Native, Layout::Go] {
        let Some(context) = context_with(layout).await else { return };
        let (first, second) = (plain(1), plain(2));
        assert!(attempt(&context.one, &first).await);
        let known = context.one.leases.get(first.id).unwrap();
        assert_eq!(release(&context.one, &first).await, Released::Released);
        assert!(attempt(&context.one, &second).await);
        assert_eq!(
            context.one.leases.get(second.id).unwrap().named_after,
            known.named_after,
            "other keys: nothing is tested"
        );
        let (attempt, _) = context.one.leases.begin_attempt(&first);
        context
            .one
            .leases
            .edit(first.id, |entry| (entry.named_after, entry.created) = (known.named_after, known.created));
        assert_eq!(release(&context.one, &first).await, Released::NotHeld);
        drop(attempt);
        assert!(stored(&context.one, &second).await.is_some_and(|stored| stored.record.granted), "{layout:?}");
        assert_eq!(release(&context.one, &second).await, Released::Released);
    }
}

/// A record that cannot be read is in the middle of the queue: a client that reads all of it fails. An exclusive
/// waiter never does, whether it has just come without a lease for waiting, polls again, or finds that its predecessor
/// has gone.
#[tokio::test]
async fn an_exclusive_waiter_does_not_read_the_whole_queue() {
    let Some(context) = context().await else { return };
    let (first, between, mine) = (plain(1), plain(2), plain(3));
    assert!(attempt(&context.two, &first).await);
    let other = context.two.keys(&mine.resource).claim(9);
    context.two.connection.txn(Vec::new(), vec![put(&other, b"hello".to_vec(), 0)], Vec::new()).await.unwrap();
    assert!(!attempt(&context.two, &between).await);
    assert_eq!(context.one.leases.idle(), Vec::<i64>::new(), "a lease for waiting is there: nothing is tested");
    assert!(!attempt(&context.one, &mine).await);
    assert!(!attempt(&context.one, &mine).await);
    assert_eq!(release(&context.two, &between).await, Released::Released);
    let Attempt::Pending(moved) = context.one.attempt(&mine).await.unwrap() else { panic!("it is third") };
    assert_eq!(moved.ahead, Some(2));
    context.two.connection.txn(Vec::new(), vec![delete(&other.key)], Vec::new()).await.unwrap();
    assert_eq!(release(&context.two, &first).await, Released::Released);
    assert!(attempt(&context.one, &mine).await);
}

/// The claim right before this one ends, and a watch has seen how. Only if it has held is this one the next.
#[tokio::test]
async fn a_predecessor_that_gave_up_is_not_the_last_holder() {
    let Some(context) = context().await else { return };
    let (first, between, mine) = (plain(1), plain(2), plain(3));
    assert!(attempt(&context.two, &first).await);
    for gives_up in [true, false] {
        assert!(!attempt(&context.two, &between).await);
        let Attempt::Pending(pending) = context.one.attempt(&mine).await.unwrap() else { panic!("it is third") };
        let before = || context.one.leases.get(mine.id).unwrap().predecessor.unwrap();
        assert!(!before().has_held());
        let interest = Interest::Turn(Arc::new(mine.clone()), pending.cursor);
        let mut watch = context.one.watch(&interest).await.unwrap();
        if gives_up {
            assert_eq!(release(&context.two, &between).await, Released::Released);
            assert!(watch.changed().await.is_some());
            assert!(!before().has_held());
            assert!(!attempt(&context.one, &mine).await, "two hold at once");
            assert_eq!(release(&context.one, &mine).await, Released::Released);
        } else {
            assert_eq!(release(&context.two, &first).await, Released::Released);
            assert!(attempt(&context.two, &between).await);
            assert!(!attempt(&context.one, &mine).await);
            assert_eq!(release(&context.two, &between).await, Released::Released);
            assert!(watch.changed().await.is_some());
            assert!(before().has_held(), "the server would read the whole queue");
            assert!(attempt(&context.one, &mine).await);
        }
    }
}

/// Keys are used again: the watch for the end of one claim serves the next wait behind the same key.
#[tokio::test]
async fn a_wait_behind_the_same_key_misses_no_end() {
    let Some(context) = context().await else { return };
    let late = Instant::now() + 6 * SOON;
    let mut number = 0;
    for (is_kept, ends_early) in [(false, false), (true, false), (true, true)] {
        // A slow machine may need so long for a round that the watch has ended meanwhile: then once more.
        loop {
            assert!(Instant::now() < late, "no watch is kept");
            number += 2;
            let served = wait_behind(&context, plain(number), plain(number + 1), ends_early).await;
            if served || !is_kept {
                break;
            }
        }
    }
}

/// One claim waits for the end of another one, which comes before or after it watches for that. True if the wait was
/// on a watch that was kept.
async fn wait_behind(context: &TestContext, first: Claim, mine: Claim, ends_early: bool) -> bool {
    assert!(attempt(&context.two, &first).await);
    let Attempt::Pending(pending) = context.one.attempt(&mine).await.unwrap() else { panic!("it is second") };
    let before = context.one.leases.get(mine.id).unwrap().predecessor.unwrap().key;
    if ends_early {
        // What is reported for another key is reported later.
        let other = Range::key("other");
        let mut other_watch = context.one.connection.watch_turn(WatchCreate::of(&other)).await.unwrap().0;
        assert_eq!(release(&context.two, &first).await, Released::Released);
        context.two.connection.txn(Vec::new(), vec![put(&other, Vec::new(), 0)], Vec::new()).await.unwrap();
        tokio::time::timeout(SOON, std::future::poll_fn(|cx| other_watch.poll_next(cx))).await.unwrap().unwrap();
    }
    let interest = Interest::Turn(Arc::new(mine.clone()), pending.cursor);
    let stream = context.one.connection.open_turns();
    let kept = stream.as_ref().and_then(|stream| stream.kept(&before.key));
    let mut watch = context.one.watch(&interest).await.unwrap();
    let served = stream.zip(kept).is_some_and(|(stream, kept)| {
        assert_ne!(stream.kept(&before.key), Some(kept), "another watch");
        stream.serves(kept)
    });
    if !ends_early {
        assert_eq!(release(&context.two, &first).await, Released::Released);
    }
    let hint = tokio::time::timeout(SOON, watch.changed()).await.expect("the end was missed");
    assert!(hint.is_some());
    assert!(attempt(&context.one, &mine).await, "woken too early");
    drop(watch);
    assert_eq!(release(&context.one, &mine).await, Released::Released);
    served
}

/// A name that no client uses now may still have a memo, and a fence that was raised.
#[tokio::test]
async fn a_free_name_keeps_its_memo_and_its_fence() {
    let Some(context) = context().await else { return };
    let (mine, raised) = (plain(1), 1 << 40);
    let keys = context.one.keys(&mine.resource);
    let left = [put(&keys.memo(), memo_bytes(b"left"), 0), put(&keys.fence_offset(), FenceOffset::bytes(raised), 0)];
    for (keeps, kept) in left.into_iter().enumerate() {
        context.two.connection.txn(Vec::new(), vec![kept], Vec::new()).await.unwrap();
        let Attempt::Granted(grant) = context.one.attempt(&mine).await.unwrap() else { panic!("it is free") };
        assert_eq!(grant.memo.as_deref(), Some(&b"left"[..]));
        assert_eq!(grant.fence.get() > raised, keeps == 1, "{}", grant.fence);
        assert_eq!(release(&context.one, &mine).await, Released::Released);
    }
}

/// In a queue that moves, a turn is open much of the time. If every waiter that sees one came back soon, all would
/// read all turns.
#[tokio::test]
async fn only_the_next_few_come_back_for_an_open_turn() {
    let Some(context) = context().await else { return };
    let crowd: Vec<_> = (0..u128::try_from(EARLY_POLLS).unwrap() + 3).map(|number| plain(number + 1)).collect();
    for (number, claim) in crowd.iter().enumerate() {
        assert_eq!(attempt(&context.one, claim).await, number == 0);
    }
    assert_eq!(release(&context.one, &crowd[0]).await, Released::Released);
    for peeks in [true, false] {
        for (ahead, claim) in crowd[1..].iter().enumerate().skip(1) {
            if !peeks {
                context.one.leases.edit(claim.id, |entry| entry.predecessor = None);
            }
            let Attempt::Pending(pending) = context.one.attempt(claim).await.unwrap() else {
                panic!("it is not the first")
            };
            assert_eq!(pending.ahead, u32::try_from(ahead).ok());
            let after = pending.recheck_after.unwrap();
            assert_eq!(after < LATER, ahead <= EARLY_POLLS, "{ahead} before it, {peeks}");
            assert!(after < FORGET_TURN_AFTER, "what it saw of the turn is forgotten by then");
        }
    }
}
