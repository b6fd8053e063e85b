//! A claim that is not renewed ends: not before its lease, and not much later.

use std::sync::Arc;

use oarlock_core::driver::{Attempt, End, Gone, Released, Renewal, Renewed};
use oarlock_core::{Belief, LossReason};

use super::cases;
use crate::context::{TestContext, now, within};
use crate::failure::{Outcome, ensure, ensure_eq};

cases!("expiry":
    a_dead_holder_ends_with_its_lease [Leases],
    an_explicit_lease_is_not_renewed,
    an_expired_claim_is_gone [Leases],
    a_hold_has_its_bound,
);

async fn a_dead_holder_ends_with_its_lease(context: Arc<TestContext>) -> Outcome {
    let (dead, rival, name) = (context.raw().await?, context.raw().await?, context.name()?);
    let sent = now();
    let first = dead.granted(&dead.claim(&name)).await?;
    ensure!(first.lease.ttl <= context.ttl(), "a longer lease than was asked for: {:?}", first.lease);
    let claim = rival.claim(&name);
    let takeover = async {
        loop {
            match rival.attempt(&claim).await? {
                Attempt::Granted(grant) => return Ok::<_, oarlock_core::Error>(grant),
                Attempt::Pending(_) => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
            }
        }
    };
    let second = within(context.lease_ends_within(), "the end of a lease", takeover).await??;
    let took = now().since(sent);
    ensure!(took >= context.ttl(), "the lease of {:?} ended after {took:?}", context.ttl());
    ensure!(second.fence > first.fence, "the next fence is not larger");
    Ok(())
}

async fn an_explicit_lease_is_not_renewed(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let asked = now();
    let guard = peer.mutex(name.as_str()).ttl(context.ttl()).no_renewal().lock().await?;
    // Without a renewal belief ends here, however late a busy machine reports it.
    let ends = guard.ends_at();
    ensure!(ends < now() + context.ttl() && ends > asked, "believed for longer than the lease");
    let lock = rival.mutex(name.as_str());
    let waiter = tokio::spawn(async move { lock.lock().await.map(|guard| (guard, now())) });
    let reason = within(context.lease_ends_within(), "the end of belief", guard.lost()).await?;
    ensure_eq!(reason, LossReason::Expired, "the reason");
    ensure_eq!(guard.ends_at(), ends, "the end of an explicit lease");
    let (theirs, granted) = within(context.lease_ends_within(), "the rival", waiter).await???;
    ensure!(granted > ends, "the rival was served before belief ended");
    ensure!(theirs.fence() > guard.fence(), "the next fence is not larger");
    theirs.release().await?;
    Ok(())
}

async fn an_expired_claim_is_gone(context: Arc<TestContext>) -> Outcome {
    let (raw, name) = (context.raw().await?, context.name()?);
    let claim = raw.claim(&name);
    raw.granted(&claim).await?;
    tokio::time::sleep(context.ttl() + context.ttl() / 4).await;
    let answers = raw.driver.clone().renew(vec![Renewal::of(Arc::new(claim.clone()))]).await;
    let gone = matches!(answers[..], [Ok(Renewed::Gone(Gone::Unknown | Gone::Session))]);
    ensure!(gone, "a renewal revived an expired claim: {answers:?}");
    let release = raw.release(&name, claim.id, End::Done { memo: None }).await?;
    ensure_eq!(release.outcome, Released::NotHeld, "the release of an expired claim");
    Ok(())
}

async fn a_hold_has_its_bound(context: Arc<TestContext>) -> Outcome {
    let (peer, name) = (context.peer().await?, context.name()?);
    let bound = context.ttl() * 2;
    let asked = now();
    let guard = peer.mutex(name.as_str()).max_hold(bound).lock().await?;
    let reason = within(bound + context.pace.soon, "the end of the hold", guard.lost()).await?;
    ensure_eq!(reason, LossReason::MaxHold, "the reason");
    let held = now().since(asked);
    ensure!(held >= bound && guard.belief() == Belief::Lost, "ended after {held:?} instead of {bound:?}");
    drop(guard);
    context.left_clean(&peer, &name).await
}
