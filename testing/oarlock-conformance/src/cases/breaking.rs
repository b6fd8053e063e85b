//! An operator can end a hold, and the holder learns who did.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{End, Released, Renewal, Renewed};
use oarlock_core::event::Step;
use oarlock_core::model::TURN_TTL;
use oarlock_core::state::Ending;
use oarlock_core::{Belief, Claim, Ended, Fence, LossReason};

use super::cases;
use crate::context::{TestContext, now, within};
use crate::failure::{Failure, Outcome, ensure, ensure_eq};
use crate::faulty::Faulty;

cases!("breaking":
    the_holder_learns_who_broke_it [Fences],
    a_push_tells_the_holder_at_once [Fences, Push],
    a_break_before_the_mailbox_is_armed_is_noticed_at_once [Fences],
    two_clients_over_one_driver_are_both_notified_of_breaks [Fences, Push],
    a_stale_fence_breaks_nothing [Fences],
    with_grace_the_holder_can_finish [Fences],
    after_the_grace_it_is_over [Fences],
    a_waiter_is_given_no_more_than_its_grace [Leases, Waiters],
);

fn ending() -> Ending {
    Ending::new("ops@example.org", "maintenance")
}

async fn the_holder_learns_who_broke_it(context: Arc<TestContext>) -> Outcome {
    let (peer, operator, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let guard = peer.mutex(name.as_str()).lock().await?;
    let broken = operator.break_hold(&name, guard.fence(), ending(), Duration::ZERO).await?;
    ensure_eq!(broken, Released::Released, "the break");
    let next = operator.mutex(name.as_str()).try_lock().await?;
    ensure!(next.is_some(), "still held after the break");
    let reason = within(context.lease_ends_within(), "the loss", guard.lost()).await?;
    ensure_eq!(reason, LossReason::Broken(ending()), "the reason");
    Ok(())
}

/// With a long lease, so that no renewal comes soon: only the mailbox can notify in time.
async fn a_push_tells_the_holder_at_once(context: Arc<TestContext>) -> Outcome {
    let (peer, operator, name) = (context.peer().await?, context.peer().await?, context.name()?);
    // The first hold of a client arms its mailbox.
    let _other = peer.mutex(context.name()?.as_str()).lock().await?;
    let guard = peer.mutex(name.as_str()).ttl(Duration::from_secs(60)).lock().await?;
    tokio::time::sleep(context.ttl()).await;
    operator.break_hold(&name, guard.fence(), ending(), Duration::ZERO).await?;
    let reason = context.soon("the loss", guard.lost()).await?;
    ensure_eq!(reason, LossReason::Broken(ending()), "the reason");
    Ok(())
}

/// The first hold of a client arms its mailbox. This one is broken meanwhile: only a renewal after the arming can
/// notice it.
async fn a_break_before_the_mailbox_is_armed_is_noticed_at_once(context: Arc<TestContext>) -> Outcome {
    for explicit in [false, true] {
        let (operator, name) = (context.peer().await?, context.name()?);
        let connection = context.connection().await?;
        let faulty = Arc::new(Faulty::new(connection.driver()));
        faulty.hold_mailbox();
        let peer = context.peer_over(faulty.clone(), connection)?;
        let lock = peer.mutex(name.as_str()).ttl(Duration::from_secs(60));
        let lock = if explicit { lock.ttl(Duration::from_secs(60)).no_renewal() } else { lock };
        let guard = lock.lock().await?;
        operator.break_hold(&name, guard.fence(), ending(), Duration::ZERO).await?;
        faulty.arm_mailbox();
        let reason = context.soon("the loss", guard.lost()).await?;
        ensure_eq!(reason, LossReason::Broken(ending()), "the reason");
    }
    Ok(())
}

/// Each client has a mailbox of its own.
async fn two_clients_over_one_driver_are_both_notified_of_breaks(context: Arc<TestContext>) -> Outcome {
    let (connection, operator) = (context.connection().await?, context.peer().await?);
    let peers = [(); 2].map(|()| context.peer_over(connection.driver(), connection.clone()));
    let [one, other] = peers;
    let (one, other) = (one?, other?);
    // A client with a hold has an armed mailbox.
    let _held =
        (one.mutex(context.name()?.as_str()).lock().await?, other.mutex(context.name()?.as_str()).lock().await?);
    tokio::time::sleep(context.ttl()).await;
    for peer in [&one, &other, &one] {
        let name = context.name()?;
        let guard = peer.mutex(name.as_str()).ttl(Duration::from_secs(60)).lock().await?;
        operator.break_hold(&name, guard.fence(), ending(), Duration::ZERO).await?;
        let reason = context.soon("the loss", guard.lost()).await?;
        ensure_eq!(reason, LossReason::Broken(ending()), "the reason");
    }
    Ok(())
}

async fn a_stale_fence_breaks_nothing(context: Arc<TestContext>) -> Outcome {
    let (peer, operator, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let first = peer.mutex(name.as_str()).lock().await?;
    let stale = first.fence();
    first.release().await?;
    let guard = peer.mutex(name.as_str()).lock().await?;
    for fence in [stale, Fence::new(guard.fence().get() + 1)] {
        let broken = operator.break_hold(&name, fence, ending(), Duration::ZERO).await?;
        ensure_eq!(broken, Released::NotHeld, "a break by another fence");
    }
    ensure!(operator.mutex(name.as_str()).try_lock().await?.is_none(), "a stale fence broke the hold");
    guard.release().await?;
    Ok(())
}

async fn with_grace_the_holder_can_finish(context: Arc<TestContext>) -> Outcome {
    let (peer, operator, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let guard = peer.mutex(name.as_str()).lock().await?;
    let grace = context.ttl() * 4;
    ensure_eq!(operator.break_hold(&name, guard.fence(), ending(), grace).await?, Released::Asked, "the break");
    let asked = peer.events.until(|events| events.iter().any(|e| matches!(e.step, Step::Ending { .. })));
    within(context.ttl(), "the notification of the break", asked).await?;
    ensure_eq!(context.soon("who asked", guard.asked_to_end()).await?, Some(ending()), "who asked");
    let (held, token) = (guard.held(), guard.token());
    ensure!(held.is_held() && !token.is_cancelled(), "over before the grace was");
    ensure_eq!(guard.belief(), Belief::Suspect, "belief of a holder asked to end");
    let state = operator.inspect(&name).await?;
    ensure_eq!(state.holders.first().and_then(|h| h.ending.clone()), Some(ending()), "the ending shown");
    ensure_eq!(guard.release().await?, Released::Released, "a release within the grace");
    ensure_eq!(context.soon("the end", held.ended()).await?, Ended::Released, "how it ended");
    ensure!(token.is_cancelled(), "a release does not cancel the token");
    context.left_clean(&operator, &name).await
}

async fn after_the_grace_it_is_over(context: Arc<TestContext>) -> Outcome {
    let (peer, operator, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let guard = peer.mutex(name.as_str()).lock().await?;
    let lock = operator.mutex(name.as_str());
    operator.break_hold(&name, guard.fence(), ending(), context.ttl() / 2).await?;
    let waiter = tokio::spawn(async move { lock.lock().await.map(|guard| (guard, now())) });
    let reason = within(context.lease_ends_within(), "the end", guard.lost()).await?;
    // A busy machine may report it later; `is_held` is false from here on.
    let ended = guard.ends_at().min(now());
    ensure_eq!(reason, LossReason::Broken(ending()), "the reason");
    let (theirs, granted) = within(context.lease_ends_within(), "the next holder", waiter).await???;
    ensure!(granted > ended, "the next holder came {:?} before the end of belief", ended.since(granted));
    theirs.release().await?;
    Ok(())
}

/// In each state: it attempts again, it waits, its turn comes, it holds.
async fn a_waiter_is_given_no_more_than_its_grace(context: Arc<TestContext>) -> Outcome {
    let (raw, name) = (context.raw().await?, context.name()?);
    let [mut holder, mut waiter] = [raw.claim(&name), raw.claim(&name)];
    (holder.ttl, waiter.ttl, waiter.wait) = (Duration::from_secs(60), Duration::from_secs(60), true);
    raw.granted(&holder).await?;
    raw.pending(&waiter).await?;
    // Shorter than its place, which is shorter than its lease.
    let grace = Claim::MAX_WAITER_TTL - Duration::from_secs(1);
    let asked = raw.release(&name, waiter.id, End::Broken { ending: ending(), grace }).await?;
    ensure_eq!(asked.outcome, Released::Asked, "the break");
    let end = now() + grace;
    let kept = async |what: &str| {
        let sent = now();
        let renewed = raw.driver.clone().renew(vec![Renewal::of(Arc::new(waiter.clone()))]).await.remove(0)?;
        let Renewed::Alive { lease, .. } = renewed else {
            return Err(Failure::new(format!("{what}: {renewed:?} within its grace")));
        };
        ensure!(sent + lease.ttl <= end, "{what}, it is kept for {:?} of {grace:?}", lease.ttl);
        Ok(())
    };
    kept("asked to end").await?;
    raw.pending(&waiter).await?;
    kept("after it attempted again").await?;
    let released = now();
    raw.release(&name, holder.id, End::Done { memo: None }).await?;
    for what in ["granted", "granted again"] {
        let sent = now();
        let grant = raw.granted(&waiter).await?;
        if now().since(released) >= TURN_TTL {
            context.note("the machine was too busy to take a turn in time");
            return Ok(());
        }
        ensure!(sent + grant.lease.ttl <= end, "{what}, it is given {:?} of {grace:?}", grant.lease.ttl);
    }
    kept("holding").await
}
