//! A few bytes outlive their holder.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Attempt, End, Released, Renewal, Renewed};
use oarlock_core::state::{Ending, MAX_MEMO_BYTES, Memo, Query};
use oarlock_core::{Claim, ErrorKind, ResourceName};

use super::cases;
use crate::context::{Raw, TestContext, within};
use crate::failure::{Failure, Outcome, ensure, ensure_eq};

cases!("memo":
    the_next_holder_reads_it [Memo],
    a_release_without_one_keeps_it [Memo],
    the_longest_one_is_kept [Memo],
    one_that_would_be_lost_is_refused,
    that_of_a_broken_claim_is_not_written [Memo],
    that_of_an_expired_claim_is_not_written [Memo, Leases],
    that_of_a_waiter_is_not_written [Memo, Order],
    a_holder_asked_to_end_can_leave_one [Memo],
);

/// Renews a claim with a memo.
async fn leave(raw: &Raw, claim: &Claim, memo: &[u8]) -> Outcome<Renewed> {
    let mut renewal = Renewal::of(Arc::new(claim.clone()));
    renewal.memo = Some(memo.into());
    let answer = raw.driver.clone().renew(vec![renewal]).await.pop();
    Ok(answer.ok_or_else(|| Failure::new("a renewal without an answer"))??)
}

fn done(memo: &[u8]) -> End {
    End::Done { memo: Some(memo.into()) }
}

fn broken(grace: Duration) -> End {
    End::Broken { ending: Ending::new("ops", ""), grace }
}

async fn shown(raw: &Raw, name: &ResourceName) -> Outcome<Option<Memo>> {
    let page = raw.driver.clone().inspect(Query::name(name.clone())).await?;
    Ok(page.resources.into_iter().next().and_then(|state| state.memo))
}

/// Another holds now, and leaves memos of its own: whatever the one before it says of memos counts no more.
async fn has_no_effect(late: &Raw, old: &Claim, rival: &Raw, new: &Claim) -> Outcome {
    let name = &old.resource;
    let alive = leave(rival, new, b"new").await?;
    ensure!(matches!(alive, Renewed::Alive { fence: Some(_), .. }), "the renewal of a holder: {alive:?}");
    for (memo, held) in [(&b"new"[..], true), (b"last", false)] {
        let gone = leave(late, old, b"old").await?;
        ensure!(matches!(gone, Renewed::Gone(_)), "a claim that is gone was renewed: {gone:?}");
        ensure_eq!(shown(rival, name).await?.as_deref(), Some(memo), "the memo after a late renewal");
        let released = late.release(name, old.id, done(b"old")).await?.outcome;
        ensure_eq!(released, Released::NotHeld, "the release of a claim that is gone");
        ensure_eq!(shown(rival, name).await?.as_deref(), Some(memo), "the memo after a late release");
        if held {
            let released = rival.release(name, new.id, done(b"last")).await?.outcome;
            ensure_eq!(released, Released::Released, "the release of the holder");
        }
    }
    let next = rival.granted(&rival.claim(name)).await?;
    ensure_eq!(next.memo.as_deref(), Some(&b"last"[..]), "the memo that the next holder reads");
    Ok(())
}

async fn that_of_a_broken_claim_is_not_written(context: Arc<TestContext>) -> Outcome {
    let (late, rival, name) = (context.raw().await?, context.raw().await?, context.name()?);
    let (old, new) = (late.claim(&name), rival.claim(&name));
    late.granted(&old).await?;
    rival.release(&name, old.id, broken(Duration::ZERO)).await?;
    rival.granted(&new).await?;
    has_no_effect(&late, &old, &rival, &new).await
}

async fn that_of_an_expired_claim_is_not_written(context: Arc<TestContext>) -> Outcome {
    let (late, rival, name) = (context.raw().await?, context.raw().await?, context.name()?);
    let (old, new) = (late.claim(&name), rival.claim(&name));
    late.granted(&old).await?;
    let takeover = async {
        while let Attempt::Pending(_) = rival.attempt(&new).await? {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok::<_, oarlock_core::Error>(())
    };
    within(context.lease_ends_within(), "the end of a lease", takeover).await??;
    has_no_effect(&late, &old, &rival, &new).await
}

async fn that_of_a_waiter_is_not_written(context: Arc<TestContext>) -> Outcome {
    let (holder, waiter, name) = (context.raw().await?, context.raw().await?, context.name()?);
    let (holds, mut waits) = (holder.claim(&name), waiter.claim(&name));
    waits.wait = true;
    holder.granted(&holds).await?;
    waiter.pending(&waits).await?;
    let alive = leave(&waiter, &waits, b"mine").await?;
    ensure!(matches!(alive, Renewed::Alive { fence: None, .. }), "the renewal of a waiter: {alive:?}");
    ensure_eq!(shown(&holder, &name).await?, None, "the memo of one who waits");
    let released = waiter.release(&name, waits.id, done(b"mine")).await?.outcome;
    ensure_eq!(released, Released::Released, "the release of a waiter");
    ensure_eq!(shown(&holder, &name).await?, None, "the memo of one who waited");
    Ok(())
}

async fn a_holder_asked_to_end_can_leave_one(context: Arc<TestContext>) -> Outcome {
    let (holder, operator, name) = (context.raw().await?, context.raw().await?, context.name()?);
    let claim = holder.claim(&name);
    holder.granted(&claim).await?;
    let asked = operator.release(&name, claim.id, broken(context.ttl())).await?.outcome;
    ensure_eq!(asked, Released::Asked, "the break");
    let alive = leave(&holder, &claim, b"mine").await?;
    ensure!(matches!(alive, Renewed::Alive { ending: Some(_), .. }), "the renewal of one asked to end: {alive:?}");
    ensure_eq!(shown(&operator, &name).await?.as_deref(), Some(&b"mine"[..]), "the memo that a renewal said was left");
    let released = holder.release(&name, claim.id, done(b"last")).await?.outcome;
    ensure_eq!(released, Released::Released, "a release within the grace");
    ensure_eq!(shown(&operator, &name).await?.as_deref(), Some(&b"last"[..]), "the memo that a release left");
    Ok(())
}

async fn the_next_holder_reads_it(context: Arc<TestContext>) -> Outcome {
    let (one, two, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let bytes: Vec<u8> = (0..=255).collect();
    let guard = one.mutex(name.as_str()).lock().await?;
    ensure_eq!(guard.memo(), None, "the memo of a fresh name");
    guard.release_leaving(bytes.clone()).await?;
    let guard = two.mutex(name.as_str()).lock().await?;
    ensure_eq!(guard.memo(), Some(&bytes[..]), "the memo that was left");
    ensure_eq!(one.inspect(&name).await?.memo.as_deref(), Some(&bytes[..]), "the memo shown");
    guard.release_leaving(&b""[..]).await?;
    ensure_eq!(one.mutex(name.as_str()).lock().await?.memo(), Some(&b""[..]), "an empty memo");
    Ok(())
}

async fn a_release_without_one_keeps_it(context: Arc<TestContext>) -> Outcome {
    let (peer, name) = (context.peer().await?, context.name()?);
    let lock = peer.mutex(name.as_str());
    lock.lock().await?.release_leaving(&b"slot 7"[..]).await?;
    lock.lock().await?.release().await?;
    drop(lock.lock().await?);
    ensure_eq!(lock.lock().await?.memo(), Some(&b"slot 7"[..]), "the memo after releases without a memo");
    Ok(())
}

async fn the_longest_one_is_kept(context: Arc<TestContext>) -> Outcome {
    let (one, two, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let memo = [0xff; MAX_MEMO_BYTES];
    one.mutex(name.as_str()).lock().await?.release_leaving(memo).await?;
    ensure_eq!(two.mutex(name.as_str()).lock().await?.memo(), Some(&memo[..]), "the longest memo");
    Ok(())
}

async fn one_that_would_be_lost_is_refused(context: Arc<TestContext>) -> Outcome {
    let (peer, name) = (context.peer().await?, context.name()?);
    let mut guard = peer.mutex(name.as_str()).lock().await?;
    let keeps = peer.info().capabilities.memo;
    let why = if keeps { ErrorKind::InvalidClaim } else { ErrorKind::Unsupported };
    let refused = guard.leave_memo([7; MAX_MEMO_BYTES + 1]).map_err(|error| error.kind());
    ensure_eq!(refused, Err(why), "a memo that is too long");
    ensure_eq!(guard.leave_memo("slot 7").is_ok(), keeps, "whether a memo was accepted");
    guard.check()?;
    ensure_eq!(guard.release().await?, Released::Released, "the release after the refusal");
    Ok(())
}
