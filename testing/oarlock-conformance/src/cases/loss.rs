//! A holder that lost its lock learns of it, with the reason.

use std::sync::Arc;

use oarlock_core::driver::Released;
use oarlock_core::event::Step;
use oarlock_core::{Belief, ErrorKind, LossReason};

use super::cases;
use crate::context::{TestContext, within};
use crate::failure::{Failure, Outcome, ensure, ensure_eq};

cases!("loss":
    the_holder_learns_of_its_loss [Records],
    work_under_the_lock_is_dropped [Records],
    an_unreachable_store_ends_belief_in_time [Cut],
    a_short_outage_costs_nothing [Cut],
    a_lost_lock_is_not_renewed_back [Cut],
);

async fn the_holder_learns_of_its_loss(context: Arc<TestContext>) -> Outcome {
    let (peer, stranger, name) = (context.peer().await?, context.raw().await?, context.name()?);
    let guard = peer.mutex(name.as_str()).lock().await?;
    ensure_eq!(guard.belief(), Belief::Held, "belief at first");
    ensure!(guard.time_left() <= context.ttl(), "more time left than was leased: {:?}", guard.time_left());
    stranger.take_away(&name, guard.id()).await?;
    let reason = within(context.lease_ends_within(), "the loss", guard.lost()).await?;
    ensure!(matches!(reason, LossReason::Gone | LossReason::Session), "the reason is {reason:?}");
    ensure!(
        !guard.is_held() && guard.belief() == Belief::Lost && guard.token().is_cancelled(),
        "lost, but still believed"
    );
    let told = |step: &Step| matches!(step, Step::Lost { .. });
    context.soon("the event", peer.events.until(|events| events.iter().any(|event| told(&event.step)))).await?;
    ensure_eq!(guard.release().await?, Released::NotHeld, "the release of a lost lock");
    Ok(())
}

async fn work_under_the_lock_is_dropped(context: Arc<TestContext>) -> Outcome {
    let (peer, stranger, name) = (context.peer().await?, context.raw().await?, context.name()?);
    let guard = peer.mutex(name.as_str()).lock().await?;
    let id = guard.id();
    let work = within(context.lease_ends_within(), "the end of the work", guard.with(|_| std::future::pending()));
    let (work, taken): (Outcome<oarlock_core::Result<()>>, _) = tokio::join!(work, stranger.take_away(&name, id));
    taken?;
    let Err(error) = work? else {
        return Err(Failure::new("work that never ends has ended"));
    };
    ensure_eq!(error.kind(), ErrorKind::Lost, "the error of the work");
    Ok(())
}

async fn an_unreachable_store_ends_belief_in_time(context: Arc<TestContext>) -> Outcome {
    let (peer, name) = (context.peer().await?, context.name()?);
    let ttl = context.ttl() * 3;
    let guard = peer.mutex(name.as_str()).ttl(ttl).lock().await?;
    peer.connection.cut().await?;
    let suspected = peer.events.until(|events| events.iter().any(|e| matches!(e.step, Step::Suspect { .. })));
    within(ttl, "doubt after a missed renewal", suspected).await?;
    ensure_eq!(guard.belief(), Belief::Suspect, "belief after a missed renewal");
    let reason = within(ttl, "the end of belief", guard.lost()).await?;
    ensure_eq!(reason, LossReason::Expired, "the reason");
    peer.connection.heal().await?;
    Ok(())
}

async fn a_short_outage_costs_nothing(context: Arc<TestContext>) -> Outcome {
    let (peer, name) = (context.peer().await?, context.name()?);
    let guard = peer.mutex(name.as_str()).ttl(context.ttl() * 3).lock().await?;
    peer.connection.cut().await?;
    let suspected = peer.events.until(|events| events.iter().any(|e| matches!(e.step, Step::Suspect { .. })));
    within(context.ttl() * 3, "doubt after a missed renewal", suspected).await?;
    peer.connection.heal().await?;
    let recovered = peer.events.until(|events| events.iter().any(|e| matches!(e.step, Step::Recovered)));
    within(context.ttl() * 2, "recovery", recovered).await?;
    ensure_eq!(guard.belief(), Belief::Held, "belief after recovery");
    guard.release().await?;
    Ok(())
}

async fn a_lost_lock_is_not_renewed_back(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let guard = peer.mutex(name.as_str()).lock().await?;
    let lock = rival.mutex(name.as_str());
    peer.connection.cut().await?;
    let theirs = within(context.lease_ends_within() * 2, "the rival", lock.lock()).await??;
    peer.connection.heal().await?;
    ensure!(!guard.is_held(), "still believed while another holds it");
    // Let its late renewals and its release arrive: they must not disturb the rival.
    drop(guard);
    tokio::time::sleep(context.ttl() + context.ttl() / 2).await;
    ensure!(theirs.is_held(), "the late messages of a lost holder took it from the next: {:?}", theirs.loss());
    theirs.release().await?;
    Ok(())
}
