//! Fences only rise.

use std::sync::Arc;

use oarlock_core::driver::{End, Fences, Renewal, Renewed};
use oarlock_core::{Fence, ResourceName};

use super::cases;
use crate::context::TestContext;
use crate::failure::{Failure, Outcome, ensure, ensure_eq};

cases!("fencing":
    fences_rise_from_grant_to_grant [Fences],
    fences_rise_across_clients_that_share [Fences, Units],
    the_store_shows_the_fence [Fences],
    a_fence_can_be_raised_and_reserved [Fences, Raise],
);

async fn fences_rise_from_grant_to_grant(context: Arc<TestContext>) -> Outcome {
    let (one, two, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let mut last = Fence::new(0);
    for round in 0..20 {
        let peer = if round % 2 == 0 { &one } else { &two };
        let guard = peer.mutex(name.as_str()).lock().await?;
        ensure!(guard.fence() > last, "fence {} after {last}", guard.fence());
        ensure!(guard.fence().get() < Fence::LIMIT, "fence {} is too large", guard.fence());
        last = guard.fence();
        guard.release().await?;
    }
    Ok(())
}

async fn fences_rise_across_clients_that_share(context: Arc<TestContext>) -> Outcome {
    let (one, two, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let mut guards = Vec::new();
    for round in 0..10 {
        let peer = if round % 2 == 0 { &one } else { &two };
        guards.push(peer.rwlock(name.as_str()).read().await?);
    }
    let fences: Vec<_> = guards.iter().map(|guard| guard.fence()).collect();
    ensure!(fences.is_sorted_by(|a, b| a < b), "fences of readers do not rise: {fences:?}");
    Ok(())
}

async fn the_store_shows_the_fence(context: Arc<TestContext>) -> Outcome {
    let (one, two, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let guard = one.mutex(name.as_str()).lock().await?;
    let state = two.inspect(&name).await?;
    ensure_eq!(state.holders.len(), 1, "holders");
    ensure_eq!(state.holders[0].fence, Some(guard.fence()), "the fence shown");
    ensure!(state.last_fence.is_none_or(|last| last >= guard.fence()), "the last fence is behind");
    guard.release().await?;
    Ok(())
}

async fn a_fence_can_be_raised_and_reserved(context: Arc<TestContext>) -> Outcome {
    let (raw, name) = (context.raw().await?, context.name()?);
    let claim = Arc::new(raw.claim(&name));
    let first = raw.granted(&claim).await?.fence;
    let renew = |fences: Fences| {
        let mut renewal = Renewal::of(claim.clone());
        renewal.fences = fences;
        raw.driver.clone().renew(vec![renewal])
    };
    let goal = Fence::new(first.get() + 1_000_000_000);
    ensure_eq!(fence(&renew(Fences::AtLeast(goal)).await, &name)?, goal, "a raised fence");
    ensure_eq!(fence(&renew(Fences::AtLeast(first)).await, &name)?, goal, "a fence raised to less");
    let block = fence(&renew(Fences::Reserve(10)).await, &name)?;
    ensure!(block.get() >= goal.get() + 10, "reserved 10 beyond {goal}, got {block}");
    raw.release(&name, claim.id, End::Done { memo: None }).await?;
    let next = raw.granted(&raw.claim(&name)).await?.fence;
    ensure!(next > block, "fence {next} was given after {block} was reserved");
    Ok(())
}

fn fence(answers: &[oarlock_core::Result<Renewed>], name: &ResourceName) -> Outcome<Fence> {
    match answers {
        [Ok(Renewed::Alive { fence: Some(fence), .. })] => Ok(*fence),
        other => Err(Failure::new(format!("the renewal of {name} answered {other:?}"))),
    }
}
