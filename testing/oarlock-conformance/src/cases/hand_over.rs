//! A lock is handed from one process to another and stays the same lock.

use std::sync::Arc;

use oarlock_core::{ErrorKind, Lifetime, LockTicket};

use super::cases;
use crate::context::{TestContext, now, within};
use crate::failure::{Failure, Outcome, ensure, ensure_eq};

cases!(
    "hand_over":
    it_goes_on_with_the_same_fence [OutlivesProcess, Fences],
    a_ticket_that_is_not_adopted_ends_with_its_lease [OutlivesProcess],
    an_ended_one_is_refused [OutlivesProcess],
    an_explicit_lease_is_not_extended_by_it [OutlivesProcess],
    what_ends_with_its_process_is_refused,
);

/// As it would travel.
fn posted(ticket: &LockTicket) -> Outcome<LockTicket> {
    Ok(serde_json::from_str(&serde_json::to_string(ticket)?)?)
}

async fn it_goes_on_with_the_same_fence(context: Arc<TestContext>) -> Outcome {
    let (giver, taker, rival) = (context.peer().await?, context.peer().await?, context.peer().await?);
    let name = context.name()?;
    let guard = giver.mutex(name.as_str()).lifetime(Lifetime::Lease).lock().await?;
    let (fence, seen) = (guard.fence(), guard.held());
    let ticket = posted(&guard.hand_over()?)?;
    ensure!(!seen.is_held(), "the giver still believes in it");
    ensure_eq!(seen.loss(), None, "what was given away is not lost");
    let adopted = taker.adopt(&ticket).await?;
    ensure_eq!(adopted.fence(), fence, "the fence of the adopted lock");
    // The end of the giver is not its end, and it is renewed from here.
    giver.shutdown(context.pace.soon).await?;
    tokio::time::sleep(context.ttl() * 2).await;
    ensure!(adopted.is_held(), "lost after the hand-over: {:?}", adopted.loss());
    ensure!(rival.mutex(name.as_str()).try_lock().await?.is_none(), "held, and granted to a rival");
    adopted.release().await?;
    let next = context.soon("the released lock", rival.mutex(name.as_str()).lock()).await??;
    ensure!(next.fence() > fence, "the next fence is not larger");
    Ok(())
}

async fn a_ticket_that_is_not_adopted_ends_with_its_lease(context: Arc<TestContext>) -> Outcome {
    let (giver, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    drop(giver.mutex(name.as_str()).lifetime(Lifetime::Lease).lock().await?.hand_over()?);
    ensure!(rival.mutex(name.as_str()).try_lock().await?.is_none(), "given away, and free");
    let next = within(context.lease_ends_within(), "the end of its lease", rival.mutex(name.as_str()).lock()).await??;
    next.release().await?;
    Ok(())
}

async fn an_ended_one_is_refused(context: Arc<TestContext>) -> Outcome {
    let (giver, taker, rival) = (context.peer().await?, context.peer().await?, context.peer().await?);
    let name = context.name()?;
    let ticket = giver.mutex(name.as_str()).lifetime(Lifetime::Lease).lock().await?.hand_over()?;
    let theirs =
        within(context.lease_ends_within(), "the end of its lease", rival.mutex(name.as_str()).lock()).await??;
    match taker.adopt(&ticket).await {
        Err(error) => ensure_eq!(error.kind(), ErrorKind::Lost, "the answer to a ticket that is over"),
        Ok(_) => return Err(Failure::new("two hold it")),
    }
    ensure!(theirs.is_held(), "the attempt hurt its holder");
    Ok(())
}

async fn an_explicit_lease_is_not_extended_by_it(context: Arc<TestContext>) -> Outcome {
    let (giver, taker, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let lease = context.ttl() * 2;
    let guard = giver.mutex(name.as_str()).ttl(lease).no_renewal().lifetime(Lifetime::Lease).lock().await?;
    let granted = now();
    tokio::time::sleep(lease / 2).await;
    let adopted = taker.adopt(&posted(&guard.hand_over()?)?).await?;
    let ends = adopted.ends_at();
    ensure!(
        ends <= granted + lease,
        "an explicit lease of {lease:?} was extended by {:?}",
        ends.since(granted + lease)
    );
    within(lease, "the end of the lease", adopted.lost()).await?;
    Ok(())
}

async fn what_ends_with_its_process_is_refused(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let lasting = peer.mutex(name.as_str()).lifetime(Lifetime::Lease).try_lock().await;
    if !context.info.capabilities.outlives_process {
        let kind = lasting.err().map(|error| error.kind());
        ensure_eq!(kind, Some(ErrorKind::Unsupported), "a lease without a process, where that cannot be");
    } else if let Some(guard) = lasting? {
        guard.release().await?;
    }
    let refused = peer.mutex(name.as_str()).lock().await?.hand_over();
    ensure_eq!(
        refused.map_err(|error| error.kind()),
        Err(ErrorKind::InvalidClaim),
        "a lock that ends with its process"
    );
    context.left_clean(&rival, &name).await
}
