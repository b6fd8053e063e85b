//! Sessions that end while their process lives, as where all connections of a client are reset.

use std::sync::atomic::Ordering::SeqCst;

use oarlock_core::driver::SessionEnd;
use oarlock_core::{ErrorKind, Lifetime, LossReason};

use super::spy::{SECOND, World, world, world_with};

fn reset(world: &World) {
    world.hooks.kit.lock().unwrap().as_ref().unwrap().end_session();
}

/// However often it happens, and whatever became of the mailbox and of the renewals: no request is needed.
#[tokio::test(start_paused = true)]
async fn belief_ends_with_each_of_many_sessions_before_the_next_grant() {
    let world = world();
    for number in 0..20 {
        let guard = world.spied.mutex("a").ttl(SECOND * 600).lock().await.unwrap();
        let token = guard.token();
        tokio::time::sleep(SECOND / 10).await;
        let (renewals, inspects) = (world.hooks.renewals.load(SeqCst), world.hooks.inspects.load(SeqCst));
        reset(&world);
        assert!(!guard.is_held(), "session {number}");
        let next = world.honest.mutex("a").try_lock().await.unwrap();
        assert!(next.is_some(), "the store ended it");
        assert!(token.is_cancelled(), "session {number}");
        assert_eq!(guard.lost().await, LossReason::Session);
        assert_eq!((world.hooks.renewals.load(SeqCst), world.hooks.inspects.load(SeqCst)), (renewals, inspects));
    }
}

/// There is no network: the session has ended, and nothing can be asked.
#[tokio::test(start_paused = true)]
async fn belief_ends_with_the_session_while_a_renewal_has_no_answer() {
    let world = world();
    *world.hooks.renewal_delay.lock().unwrap() = SECOND * 500;
    let guard = world.spied.mutex("a").ttl(SECOND * 30).lock().await.unwrap();
    let explicit = world.spied.mutex("b").ttl(SECOND * 30).no_renewal().lock().await.unwrap();
    tokio::time::sleep(SECOND * 11).await;
    assert!(world.hooks.renewals.load(SeqCst) > 0);
    let now = tokio::time::Instant::now();
    reset(&world);
    let (token, other) = (guard.token(), explicit.token());
    tokio::join!(token.cancelled(), other.cancelled());
    assert_eq!((guard.lost().await, explicit.lost().await), (LossReason::Session, LossReason::Session));
    assert_eq!(now.elapsed(), std::time::Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn what_lives_by_its_lease_and_what_was_granted_later_does_not_end_with_a_session() {
    let world = world();
    let lease = world.spied.mutex("a").lifetime(Lifetime::Lease).lock().await.unwrap();
    let early = world.spied.mutex("b").lock().await.unwrap();
    reset(&world);
    let late = world.spied.mutex("b").lock().await.unwrap();
    tokio::time::sleep(SECOND * 60).await;
    assert!(lease.is_held() && late.is_held() && !early.is_held());
    reset(&world);
    assert!(lease.is_held() && !late.is_held());
    assert_eq!(late.lost().await, LossReason::Session);
}

/// The answer to the attempt is on its way while the session ends.
#[tokio::test(start_paused = true)]
async fn a_grant_of_a_session_that_has_ended_is_not_believed_in() {
    let world = world_with(|builder| builder);
    world.hooks.end_session_after_grant.store(true, SeqCst);
    let guard = world.spied.mutex("a").lock().await.unwrap();
    assert!(guard.is_held());
    assert_eq!(world.hooks.attempts.load(SeqCst), 2, "the first grant was worth nothing");
}

/// As on a store that can show the end of a session only since a while ago.
#[tokio::test(start_paused = true)]
async fn a_reader_ends_with_the_session_of_its_downgrade() {
    let world = world();
    *world.hooks.ends_with.lock().unwrap() = Some(None);
    let writer = world.spied.rwlock("a").write().await.unwrap();
    let held = writer.held();
    let lost = tokio::spawn(async move { held.lost().await });
    tokio::task::yield_now().await;
    *world.hooks.ends_with.lock().unwrap() = None;
    let reader = writer.downgrade().await.unwrap();
    let (token, now) = (reader.token(), tokio::time::Instant::now());
    reset(&world);
    // Nothing else asks whether it is held: that would end belief, too.
    token.cancelled().await;
    assert_eq!((lost.await.unwrap(), now.elapsed()), (LossReason::Session, std::time::Duration::ZERO));
    assert!(!reader.is_held(), "it believes in what has ended with its session");
}

/// The first one may end, or have ended, without a word about the second.
#[tokio::test(start_paused = true)]
async fn a_hold_that_is_granted_in_another_session_is_lost() {
    let world = world();
    let writer = world.spied.rwlock("a").write().await.unwrap();
    let held = writer.held();
    *world.hooks.ends_with.lock().unwrap() = Some(Some(SessionEnd::new()));
    assert_eq!(writer.downgrade().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(held.loss(), Some(LossReason::Session));
}
