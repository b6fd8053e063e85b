//! Whose turn it is, and what becomes of a turn that is not taken.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::Lifetime;
use oarlock_core::clock::{BootClock, Clock as _};
use oarlock_core::driver::{Driver as _, End, Released, Renewal, Renewed};
use oarlock_core::state::{Ending, Query};

use super::context::{DONE, TURN, claim, context, granted, name, pending, release, told};

#[tokio::test]
async fn a_lock_costs_two_requests_however_many_wait() {
    let mut context = context!();
    let client = context.client().await;
    for tasks in [2_u64, 16, 64] {
        let (rounds, before) = (400 / tasks, context.calls().await);
        let work = (0..tasks).map(|_| {
            let lock = client.mutex("deploy");
            tokio::spawn(async move {
                for _ in 0..rounds {
                    lock.lock().await.unwrap().release().await.unwrap();
                }
            })
        });
        for task in work.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        let (calls, grants) = (context.calls().await - before, rounds * tasks);
        println!("{tasks} tasks: {calls} requests for {grants} grants");
        // A claim that queues before the mailbox is subscribed polls once more, and so does a claim that waited for
        // long.
        assert!(calls <= grants * 2 + tasks * 2 + grants / 10, "{tasks} tasks: {calls} requests for {grants} grants");
    }
}

#[tokio::test]
async fn a_turn_that_is_not_taken_passes_on_though_its_place_is_kept() {
    let context = context!();
    let (one, (two, _mailbox)) = (context.open().await, context.listening().await);
    granted(&one, &claim(1)).await;
    pending(&two, &claim(2)).await;
    release(&one, &claim(1)).await;
    let began = BootClock.now();
    let mut renewal = Renewal::of(Arc::new(claim(2)));
    match two.renew(&[renewal.clone()]).await.remove(0).unwrap() {
        Renewed::Alive { lease, fence: None, .. } => assert!(lease.ttl <= TURN, "{lease:?}"),
        other => panic!("{other:?}"),
    }
    pending(&one, &claim(3)).await;
    tokio::time::sleep(TURN.saturating_sub(BootClock.now().since(began)) + Duration::from_millis(20)).await;
    granted(&one, &claim(3)).await;
    // Too late.
    renewal.held = true;
    assert!(matches!(two.renew(&[renewal]).await.remove(0).unwrap(), Renewed::Gone(_)));
    release(&one, &claim(3)).await;
}

#[tokio::test]
async fn a_turn_that_is_taken_is_kept_by_the_first_renewal() {
    let context = context!();
    let (one, (two, mut mailbox)) = (context.open().await, context.listening().await);
    granted(&one, &claim(1)).await;
    pending(&two, &claim(2)).await;
    release(&one, &claim(1)).await;
    told(&mut mailbox).await;
    let grant = granted(&two, &claim(2)).await;
    let mut renewal = Renewal::of(Arc::new(claim(2)));
    renewal.held = true;
    match two.renew(&[renewal]).await.remove(0).unwrap() {
        Renewed::Alive { lease, fence, .. } => assert_eq!((lease.ttl, fence), (claim(2).ttl, Some(grant.fence))),
        other @ Renewed::Gone(_) => panic!("{other:?}"),
    }
    tokio::time::sleep(TURN + Duration::from_millis(20)).await;
    pending(&one, &claim(3)).await;
}

/// A claim that was handed the lock holds it, also before it has asked again.
#[tokio::test]
async fn no_claim_passes_one_that_was_handed_the_lock() {
    let context = context!();
    let (one, (two, _mailbox)) = (context.open().await, context.listening().await);
    granted(&one, &claim(1)).await;
    pending(&two, &claim(2)).await;
    release(&one, &claim(1)).await;
    let mut hasty = claim(4);
    hasty.wait = false;
    pending(&one, &hasty).await;
    pending(&one, &claim(3)).await;
    granted(&two, &claim(2)).await;
}

/// As after the end of a process: the server sees its connections end, and knows that no client listens.
#[tokio::test]
async fn the_dead_are_passed_over_at_once_but_keep_their_place_if_they_come_back() {
    let context = context!();
    let (one, (three, mut word)) = (context.open().await, context.listening().await);
    let mut whole = claim(3);
    whole.renews = false;
    // The first would be handed its turn, the second would have to ask for it.
    for dead in [claim(2), whole] {
        let (two, mailbox) = context.listening().await;
        granted(&one, &claim(1)).await;
        assert!(pending(&two, &dead).await.watched);
        assert!(pending(&three, &claim(4)).await.watched);
        drop(mailbox);
        two.close().await.unwrap();
        drop(two);
        while context.listeners().await > 1 {
            tokio::task::yield_now().await;
        }
        let released = one.release(&name(), claim(1).id, &DONE).await.unwrap();
        assert_eq!((released.outcome, released.others_waiting), (Released::Released, Some(true)));
        assert_eq!(told(&mut word).await, Some(claim(4).id));
        granted(&three, &claim(4)).await;
        // It was only its connection that had died.
        pending(&one, &dead).await;
        pending(&one, &claim(5)).await;
        release(&three, &claim(4)).await;
        pending(&one, &claim(5)).await;
        granted(&one, &dead).await;
        release(&one, &dead).await;
        granted(&one, &claim(5)).await;
        release(&one, &claim(5)).await;
    }
}

/// No claim holds, and the only one in line cannot be notified.
#[tokio::test]
async fn a_dead_waiter_is_in_the_way_of_no_other() {
    let context = context!();
    let (one, (two, mailbox)) = (context.open().await, context.listening().await);
    granted(&one, &claim(1)).await;
    assert!(pending(&two, &claim(2)).await.watched);
    drop(mailbox);
    two.close().await.unwrap();
    drop(two);
    while context.listeners().await > 0 {
        tokio::task::yield_now().await;
    }
    release(&one, &claim(1)).await;
    granted(&one, &claim(3)).await;
}

/// The next in line was silent for a while when its turn came. The claim after it is notified to poll, and learns when
/// that turn is over.
#[tokio::test]
async fn the_one_behind_a_silent_waiter_knows_when_its_turn_is_over() {
    let context = context!();
    let (one, (two, _two), (three, mut word)) =
        (context.open().await, context.listening().await, context.listening().await);
    granted(&one, &claim(1)).await;
    pending(&two, &claim(2)).await;
    // Longer than a waiter is silent for a lock that goes round quickly.
    tokio::time::sleep(Duration::from_millis(250)).await;
    let before = pending(&three, &claim(3)).await.recheck_after.unwrap();
    assert!(before > TURN * 2, "{before:?}");
    release(&one, &claim(1)).await;
    assert_eq!(told(&mut word).await, Some(claim(3).id), "told to look");
    let recheck = pending(&three, &claim(3)).await.recheck_after.unwrap();
    assert!(recheck <= TURN, "{recheck:?}");
    tokio::time::sleep(recheck + Duration::from_millis(1)).await;
    granted(&three, &claim(3)).await;
    release(&three, &claim(3)).await;
}

/// A claim that has just asked is not suspected: no other claim is woken.
#[tokio::test]
async fn only_the_next_in_line_is_told_where_the_lock_goes_round_quickly() {
    let context = context!();
    let (one, (two, mut first), (three, mut second)) =
        (context.open().await, context.listening().await, context.listening().await);
    loop {
        granted(&one, &claim(1)).await;
        let asked = BootClock.now();
        pending(&two, &claim(2)).await;
        pending(&three, &claim(3)).await;
        release(&one, &claim(1)).await;
        let quickly = BootClock.now().since(asked) < Duration::from_millis(150);
        assert_eq!(told(&mut first).await, Some(claim(2).id));
        granted(&two, &claim(2)).await;
        release(&two, &claim(2)).await;
        assert_eq!(told(&mut second).await, Some(claim(3).id));
        let holders = one.inspect(&Query::name(name())).await.unwrap().resources.remove(0).holders;
        release(&three, &claim(3)).await;
        // A machine that is too busy for that has another try.
        if quickly {
            assert_eq!(holders[0].id, claim(3).id, "its first word was that of its turn");
            break;
        }
    }
}

#[tokio::test]
async fn a_waiter_that_was_asked_to_end_is_given_no_more_than_its_grace() {
    let context = context!();
    let (one, two) = (context.open().await, context.open().await);
    let grace = Duration::from_secs(5);
    let ending = Ending::new("ops", "to drain");
    granted(&one, &claim(1)).await;
    pending(&two, &claim(2)).await;
    one.release(&name(), claim(2).id, &End::Broken { ending: ending.clone(), grace }).await.unwrap();
    let renewal = Renewal::of(Arc::new(claim(2)));
    match two.renew(std::slice::from_ref(&renewal)).await.remove(0).unwrap() {
        Renewed::Alive { lease, .. } => assert!(lease.ttl <= grace, "its place: {lease:?}"),
        other @ Renewed::Gone(_) => panic!("{other:?}"),
    }
    pending(&two, &claim(2)).await;
    release(&one, &claim(1)).await;
    let grant = granted(&two, &claim(2)).await;
    assert!(grant.lease.ttl <= grace, "what it holds: {:?}", grant.lease);
    match two.renew(&[renewal]).await.remove(0).unwrap() {
        Renewed::Alive { lease, ending: told, .. } => {
            assert!(lease.ttl <= grace, "{lease:?}");
            assert_eq!(told, Some(ending));
        }
        other @ Renewed::Gone(_) => panic!("{other:?}"),
    }
    release(&two, &claim(2)).await;
}

#[tokio::test]
async fn a_claim_that_is_not_renewed_or_outlives_the_process_gets_the_whole_lease() {
    let context = context!();
    let (one, two) = (context.client().await, context.client().await);
    let ttl = Duration::from_secs(20);
    let lock = || two.mutex("deploy").ttl(ttl);
    let mut left = Vec::new();
    // With its first waiter the client subscribes to its mailbox.
    for lock in [lock(), lock(), lock().ttl(ttl).no_renewal(), lock().lifetime(Lifetime::Lease)] {
        let guard = one.mutex("deploy").lock().await.unwrap();
        // Nothing is awaited in between: the client asks for the rest of the lease in the background.
        let waits = tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            (guard.time_left(), guard)
        });
        while one.inspect(&name()).await.unwrap().waiters.count() != Some(1) {
            tokio::task::yield_now().await;
        }
        guard.release().await.unwrap();
        let (begun, guard) = waits.await.unwrap();
        left.push(begun);
        guard.release().await.unwrap();
    }
    assert!(left[1] <= TURN, "it was handed the lock: {left:?}");
    assert!(left[2..].iter().all(|left| *left > ttl / 2), "{left:?}");
}

/// The first waiter missed its turn and gave up, so that the holder's own number follows those that are free.
#[tokio::test]
async fn the_holder_is_not_next_in_its_own_line() {
    let context = context!();
    let (first, gone) = (context.open().await, context.listening().await);
    let (others, mut mailbox) = context.listening().await;
    granted(&first, &claim(1)).await;
    pending(&gone.0, &claim(2)).await;
    for id in 3..6 {
        pending(&others, &claim(id)).await;
    }
    drop(gone);
    let ended = async {
        while context.listeners().await > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), ended).await.expect("the server to see the end of its connection");
    first.release(&name(), claim(1).id, &DONE).await.unwrap();
    assert_eq!(told(&mut mailbox).await, Some(claim(3).id), "the first one does not listen");
    let (back, _mailbox) = context.listening().await;
    pending(&back, &claim(2)).await;
    back.release(&name(), claim(2).id, &End::Withdrawn).await.unwrap();
    others.release(&name(), claim(3).id, &DONE).await.unwrap();
    assert_eq!(told(&mut mailbox).await, Some(claim(4).id));
    let page = others.inspect(&Query::name(name())).await.unwrap();
    let holders: Vec<_> = page.resources[0].holders.iter().map(|holder| holder.id).collect();
    assert_eq!(holders, [claim(4).id]);
    assert_eq!(pending(&others, &claim(5)).await.ahead, Some(1));
}
