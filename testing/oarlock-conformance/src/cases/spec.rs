//! Claims must agree on what they share.

use std::num::NonZeroU32;
use std::sync::Arc;

use oarlock_core::{ErrorKind, Limit};

use super::cases;
use crate::context::TestContext;
use crate::failure::{Failure, Outcome, ensure, ensure_eq};

cases!("spec":
    two_capacities_are_a_mismatch [Units],
    readers_and_permits_are_a_mismatch [Units, OneRule],
    a_claim_can_adopt_the_stored_capacity [Units],
    too_heavy_is_refused_at_once [Units],
    a_free_resource_forgets_its_capacity [Units, OneRule],
    a_mutex_agrees_with_every_capacity [Units, OneRule],
);

fn units(permits: u32) -> Option<Limit> {
    NonZeroU32::new(permits).map(Limit::Units)
}

async fn two_capacities_are_a_mismatch(context: Arc<TestContext>) -> Outcome {
    let (one, two, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let guard = one.semaphore(name.as_str(), 3).acquire(1).await?;
    let Err(error) = two.semaphore(name.as_str(), 5).acquire(1).await else {
        return Err(Failure::new("another capacity was accepted"));
    };
    ensure_eq!(error.kind(), ErrorKind::SpecMismatch, "the kind of error");
    ensure_eq!(error.stored_capacity(), units(3), "the stored capacity in the error");
    guard.release().await?;
    context.left_clean(&two, &name).await
}

async fn readers_and_permits_are_a_mismatch(context: Arc<TestContext>) -> Outcome {
    let (one, two, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let guard = one.semaphore(name.as_str(), 3).acquire(1).await?;
    let Err(error) = two.rwlock(name.as_str()).try_read().await else {
        return Err(Failure::new("a reader was let in beside permits"));
    };
    ensure_eq!(error.kind(), ErrorKind::SpecMismatch, "the kind of error");
    guard.release().await?;
    context.left_clean(&two, &name).await
}

async fn a_claim_can_adopt_the_stored_capacity(context: Arc<TestContext>) -> Outcome {
    let (one, two, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let _guard = one.semaphore(name.as_str(), 3).acquire(1).await?;
    let larger = two.semaphore(name.as_str(), 9).use_stored_permits();
    let pair = larger.try_acquire(2).await?;
    ensure!(pair.is_some(), "2 more of 3 were refused");
    ensure!(larger.try_acquire(1).await?.is_none(), "adopted, and yet a fourth of 3 was given");
    Ok(())
}

async fn too_heavy_is_refused_at_once(context: Arc<TestContext>) -> Outcome {
    let (one, name) = (context.peer().await?, context.name()?);
    let refused = context.soon("a refusal", one.semaphore(name.as_str(), 2).acquire(3)).await?;
    ensure_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::TooHeavy), "3 of 2");
    context.left_clean(&one, &name).await
}

async fn a_free_resource_forgets_its_capacity(context: Arc<TestContext>) -> Outcome {
    let (one, two, name) = (context.peer().await?, context.peer().await?, context.name()?);
    one.semaphore(name.as_str(), 3).acquire(3).await?.release().await?;
    two.semaphore(name.as_str(), 5).acquire(5).await?.release().await?;
    Ok(())
}

async fn a_mutex_agrees_with_every_capacity(context: Arc<TestContext>) -> Outcome {
    let (one, two, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let guard = one.semaphore(name.as_str(), 3).acquire(1).await?;
    ensure!(two.mutex(name.as_str()).try_lock().await?.is_none(), "a mutex was granted beside a permit");
    guard.release().await?;
    let guard = two.mutex(name.as_str()).lock().await?;
    ensure!(one.semaphore(name.as_str(), 3).try_acquire(1).await?.is_none(), "a permit was given beside a mutex");
    guard.release().await?;
    Ok(())
}
