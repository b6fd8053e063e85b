//! A store that falls back to an earlier state: restarted from a snapshot, or failed over to a replica that was behind.

use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver, End, Grant, Renewal, Renewed};
use oarlock_core::{Claim, ClaimId, ErrorKind, Guard, Lifetime, Locks, LossReason};

use crate::spy::{SECOND, World, name, world};

/// The grant is forgotten, as in a state from before it.
async fn forget(world: &World, id: ClaimId) {
    Driver::release(&world.raw, &name(), id, &End::Withdrawn).await.unwrap();
}

/// The claim of `guard` asks again, as it did before it was granted.
async fn ask_again(world: &World, guard: &Guard) -> Attempt {
    let mut claim = Claim::new(guard.id(), name());
    claim.wait = true;
    Driver::attempt(&world.raw, &claim).await.unwrap()
}

async fn waits_again(world: &World, guard: &Guard) {
    assert!(matches!(ask_again(world, guard).await, Attempt::Pending(_)));
}

async fn hold(client: &Locks) -> Guard {
    client.mutex("a").lock().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_the_store_calls_a_waiter_has_lost_the_lock() {
    let world = world();
    let guard = hold(&world.spied).await;
    forget(&world, guard.id()).await;
    let rival = hold(&world.honest).await;
    waits_again(&world, &guard).await;
    let lost = tokio::time::timeout(SECOND * 30, guard.lost()).await;
    assert_eq!(lost.expect("two believe"), LossReason::Gone);
    assert!(rival.is_held());
    // Its place blocks no other claim: it was released at the loss, while the guard still exists.
    tokio::time::sleep(SECOND).await;
    assert_eq!(world.honest.inspect(&name()).await.unwrap().waiters.count(), Some(0));
    drop(guard);
}

/// A rival may have come and gone in between, with a fence larger than that of the first grant.
#[tokio::test(start_paused = true)]
async fn a_claim_that_was_granted_again_is_not_the_hold_that_is_believed_in() {
    let world = world();
    let guard = hold(&world.spied).await;
    forget(&world, guard.id()).await;
    let between = hold(&world.honest).await;
    let theirs = between.fence();
    between.release().await.unwrap();
    let Attempt::Granted(Grant { fence, .. }) = ask_again(&world, &guard).await else { panic!("it is free") };
    assert!(fence > theirs && theirs > guard.fence());
    let lost = tokio::time::timeout(SECOND * 30, guard.lost()).await;
    assert_eq!(lost.expect("it believes in a grant that it does not know"), LossReason::Gone);
    tokio::time::sleep(SECOND).await;
    assert!(world.honest.mutex("a").try_lock().await.unwrap().is_some(), "no holder believes in that grant");
}

#[tokio::test(start_paused = true)]
async fn what_is_published_is_not_told_to_be_there() {
    let world = world();
    let election = world.spied.election("a");
    let mut leadership = election.campaign("one").await.unwrap();
    forget(&world, leadership.id()).await;
    let _rival = hold(&world.honest).await;
    let mut claim = Claim::new(leadership.id(), name());
    claim.wait = true;
    assert!(matches!(Driver::attempt(&world.raw, &claim).await.unwrap(), Attempt::Pending(_)));
    assert_eq!(leadership.proclaim("two").await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_waits_again_cannot_become_a_reader() {
    let world = world();
    let guard = world.spied.rwlock("a").write().await.unwrap();
    forget(&world, guard.id()).await;
    let _rival = hold(&world.honest).await;
    let held = guard.held();
    assert_eq!(guard.downgrade().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(!held.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_granted_again_is_not_the_one_that_was_handed_over() {
    let world = world();
    let lock = world.spied.mutex("a").lifetime(Lifetime::Lease);
    for lock in [lock.clone(), lock.clone().ttl(SECOND * 60).no_renewal(), lock.cohort(8, SECOND * 5)] {
        let guard = lock.lock().await.unwrap();
        let (id, ticket) = (guard.id(), guard.hand_over().unwrap());
        forget(&world, id).await;
        tokio::time::sleep(SECOND).await;
        hold(&world.honest).await.release().await.unwrap();
        let mut claim = Claim::new(id, name());
        claim.lifetime = Lifetime::Lease;
        assert!(matches!(Driver::attempt(&world.raw, &claim).await.unwrap(), Attempt::Granted(_)));
        assert_eq!(world.honest.adopt(&ticket).await.unwrap_err().kind(), ErrorKind::Lost, "{lock:?}");
        forget(&world, id).await;
    }
}

/// What a cohort handed on has another fence than the grant in the store, which is no reason to take it for lost.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_handed_on_is_kept_and_can_be_handed_over() {
    let world = world();
    let lock = world.spied.mutex("a").cohort(8, SECOND * 5).lifetime(Lifetime::Lease);
    let first = lock.lock().await.unwrap();
    let next = tokio::spawn({
        let lock = lock.clone();
        async move { lock.lock().await.unwrap() }
    });
    // One more that seeks it, so that fences are reserved with the grant.
    tokio::time::sleep(SECOND).await;
    first.release().await.unwrap();
    let second = next.await.unwrap();
    let third = tokio::spawn(async move { lock.lock().await.unwrap() });
    tokio::time::sleep(SECOND).await;
    second.release().await.unwrap();
    let guard = third.await.unwrap();
    tokio::time::sleep(SECOND * 120).await;
    assert!(guard.is_held(), "{:?}", guard.loss());
    let (fence, ticket) = (guard.fence(), guard.hand_over().unwrap());
    let guard = world.honest.adopt(&ticket).await.unwrap();
    tokio::time::sleep(SECOND * 120).await;
    assert!(guard.is_held() && guard.fence() == fence, "{:?}", guard.loss());
}

/// A hint makes the engine inspect the lock, and the first state that it sees is older than the grant.
#[tokio::test(start_paused = true)]
async fn an_explicit_lease_that_waits_again_is_lost() {
    let world = world();
    let guard = world.spied.mutex("a").ttl(SECOND * 600).no_renewal().lock().await.unwrap();
    tokio::time::sleep(SECOND).await;
    forget(&world, guard.id()).await;
    let _rival = hold(&world.honest).await;
    waits_again(&world, &guard).await;
    world.hooks.hint();
    let lost = tokio::time::timeout(SECOND * 5, guard.lost()).await;
    assert_eq!(lost.expect("two believe"), LossReason::Gone);
}

/// The rule is the engine's; this is what it relies on.
#[tokio::test(start_paused = true)]
async fn the_store_names_the_fence_of_a_grant_with_each_renewal() {
    let world = world();
    let guard = hold(&world.honest).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    let claim = Claim::new(guard.id(), name());
    let answers = Driver::renew(&world.raw, &[Renewal::of(claim.into())]).await;
    assert!(matches!(answers[..], [Ok(Renewed::Alive { fence: Some(fence), .. })] if fence == guard.fence()));
}
