//! A repeated request changes nothing.

use std::sync::Arc;

use oarlock_core::driver::{Attempt, End, Gone, Released, Renewal, Renewed};
use oarlock_core::state::{Query, Waiters};

use super::cases;
use crate::context::{Raw, TestContext};
use crate::failure::{Failure, Outcome, ensure, ensure_eq};

cases!("idempotence":
    a_repeated_attempt_keeps_its_fence,
    a_repeated_wait_keeps_its_place [Order],
    a_refusal_leaves_nothing,
    only_the_claim_itself_is_released,
    unknown_claims_are_gone,
);

async fn a_repeated_attempt_keeps_its_fence(context: Arc<TestContext>) -> Outcome {
    let (raw, other, name) = (context.raw().await?, context.raw().await?, context.name()?);
    let claim = raw.claim(&name);
    let first = raw.granted(&claim).await?;
    for _ in 0..3 {
        ensure_eq!(raw.granted(&claim).await?.fence, first.fence, "the fence of a repeated attempt");
    }
    let end = End::Done { memo: None };
    ensure_eq!(raw.release(&name, claim.id, end.clone()).await?.outcome, Released::Released, "the release");
    // One place was taken, so one release frees it.
    let theirs = other.claim(&name);
    ensure!(other.granted(&theirs).await?.fence > first.fence, "the next fence is not larger");
    ensure_eq!(raw.release(&name, claim.id, end).await?.outcome, Released::NotHeld, "a repeated release");
    ensure!(matches!(raw.attempt(&raw.claim(&name)).await?, Attempt::Pending(_)), "a repeated release freed another");
    Ok(())
}

async fn a_repeated_wait_keeps_its_place(context: Arc<TestContext>) -> Outcome {
    let (raw, name) = (context.raw().await?, context.name()?);
    let mut claims = Vec::new();
    for number in 0..3 {
        let mut claim = raw.claim(&name);
        claim.wait = number > 0;
        claims.push(claim);
    }
    raw.granted(&claims[0]).await?;
    for _ in 0..3 {
        raw.pending(&claims[1]).await?;
        raw.pending(&claims[2]).await?;
    }
    let waiting = waiters(&raw, &name).await?;
    if let Some(waiting) = waiting {
        ensure_eq!(waiting, 2, "how many wait after repeated attempts of two");
    }
    let end = End::Done { memo: None };
    raw.release(&name, claims[0].id, end.clone()).await?;
    raw.pending(&claims[2]).await.map_err(|_| Failure::new("the second passed the first"))?;
    raw.granted(&claims[1]).await?;
    raw.release(&name, claims[1].id, end.clone()).await?;
    raw.granted(&claims[2]).await?;
    ensure_eq!(raw.release(&name, claims[2].id, end).await?.outcome, Released::Released, "the last release");
    // Had a repeated attempt taken a second place, it would be in the way now.
    raw.granted(&raw.claim(&name)).await?;
    Ok(())
}

async fn a_refusal_leaves_nothing(context: Arc<TestContext>) -> Outcome {
    let (raw, name) = (context.raw().await?, context.name()?);
    let holder = raw.claim(&name);
    raw.granted(&holder).await?;
    let refused = raw.claim(&name);
    raw.pending(&refused).await?;
    ensure!(
        waiters(&raw, &name).await?.is_none_or(|waiting| waiting == 0),
        "a claim that does not wait is shown waiting"
    );
    let release = raw.release(&name, holder.id, End::Done { memo: None }).await?;
    ensure!(release.others_waiting != Some(true), "it reports a waiter, but there is none");
    raw.granted(&raw.claim(&name)).await?;
    Ok(())
}

async fn only_the_claim_itself_is_released(context: Arc<TestContext>) -> Outcome {
    let (raw, other, name) = (context.raw().await?, context.raw().await?, context.name()?);
    let holder = raw.claim(&name);
    raw.granted(&holder).await?;
    for end in [End::Withdrawn, End::Done { memo: None }] {
        let stranger = other.claim(&name);
        ensure_eq!(
            other.release(&name, stranger.id, end).await?.outcome,
            Released::NotHeld,
            "the release of an unknown claim"
        );
    }
    other
        .pending(&other.claim(&name))
        .await
        .map_err(|_| Failure::new("the release of an unknown claim freed the holder"))?;
    Ok(())
}

async fn unknown_claims_are_gone(context: Arc<TestContext>) -> Outcome {
    let (raw, name) = (context.raw().await?, context.name()?);
    let known = raw.claim(&name);
    raw.granted(&known).await?;
    let batch = vec![Renewal::of(Arc::new(raw.claim(&name))), Renewal::of(Arc::new(known))];
    let answers = raw.driver.clone().renew(batch).await;
    let [Ok(unknown), Ok(known)] = &answers[..] else {
        return Err(Failure::new(format!("not one answer for each: {answers:?}")));
    };
    ensure_eq!(*unknown, Renewed::Gone(Gone::Unknown), "the renewal of a claim that never was");
    ensure!(matches!(known, Renewed::Alive { .. }), "the renewal of a holder: {known:?}");
    Ok(())
}

async fn waiters(raw: &Raw, name: &oarlock_core::ResourceName) -> Outcome<Option<usize>> {
    let page = raw.driver.clone().inspect(Query::name(name.clone())).await?;
    let state = page.resources.into_iter().next();
    Ok(state.map_or(Some(0), |state| match state.waiters {
        Waiters::Listed(waiters) => Some(waiters.len()),
        Waiters::Counted(count) => Some(count),
        _ => None,
    }))
}
