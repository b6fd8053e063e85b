//! A store that does not answer delays no caller for longer than its wait.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::ErrorKind;

use super::cases;
use crate::context::{TestContext, now, within};
use crate::failure::{Failure, Outcome, ensure, ensure_eq};
use crate::faulty::Faulty;

cases!("silence":
    a_bounded_wait_ends_in_time [Cut],
    a_bounded_wait_ends_in_time_although_nothing_can_be_seen,
    a_downgrade_ends_in_time [Units],
    a_shutdown_ends_in_time [Cut],
);

/// What may come on top of a bound: the last requests, and a busy machine.
const GRACE: Duration = Duration::from_millis(1_900);

async fn a_bounded_wait_ends_in_time(context: Arc<TestContext>) -> Outcome {
    let (one, name) = (context.peer().await?, context.name()?);
    let _guard = one.mutex(name.as_str()).lock().await?;
    for cut_first in [true, false] {
        let two = context.peer().await?;
        let (lock, wait) = (two.mutex(name.as_str()), context.ttl());
        if cut_first {
            two.connection.cut().await?;
        }
        let asked = now();
        let waiting = tokio::spawn(async move { lock.wait(wait).lock().await.map(drop) });
        if !cut_first {
            two.waits(&name, 1).await?;
            two.connection.cut().await?;
        }
        let refused = within(wait + GRACE * 2, "the end of a wait", waiting).await;
        let took = now().since(asked);
        two.connection.heal().await?;
        ensure!(refused??.is_err(), "a held lock was given");
        ensure!(took < wait + GRACE, "a wait of {wait:?} took {took:?}");
    }
    Ok(())
}

/// Arming a watch, naming the holder, leaving the queue: each would take as long as a request may.
async fn a_bounded_wait_ends_in_time_although_nothing_can_be_seen(context: Arc<TestContext>) -> Outcome {
    let (one, name) = (context.peer().await?, context.name()?);
    let _guard = one.mutex(name.as_str()).lock().await?;
    let connection = context.connection().await?;
    let faulty = Arc::new(Faulty::new(connection.driver()));
    faulty.mute_reads();
    let two = context.peer_over(faulty, connection)?;
    let (asked, wait) = (now(), Duration::from_millis(100));
    let Err(error) = two.mutex(name.as_str()).wait(wait).lock().await else {
        return Err(Failure::new("a held lock was given"));
    };
    ensure_eq!(error.kind(), ErrorKind::Busy, "the error");
    let took = now().since(asked);
    ensure!(took < wait + GRACE, "a wait of {wait:?} took {took:?}");
    Ok(())
}

/// It is renewed all the while, so that no loss ends it.
async fn a_downgrade_ends_in_time(context: Arc<TestContext>) -> Outcome {
    let name = context.name()?;
    let connection = context.connection().await?;
    let faulty = Arc::new(Faulty::new(connection.driver()));
    let peer = context.peer_over(faulty.clone(), connection)?;
    let guard = peer.rwlock(name.as_str()).write().await?;
    faulty.mute_attempts();
    let (asked, bound) = (now(), context.pace.soon);
    let done = within(bound + GRACE, "the end of a downgrade", guard.downgrade()).await?;
    let took = now().since(asked);
    ensure_eq!(done.err().map(|error| error.kind()), Some(ErrorKind::Unreachable), "the answer after {took:?}");
    Ok(())
}

async fn a_shutdown_ends_in_time(context: Arc<TestContext>) -> Outcome {
    let (peer, name) = (context.peer().await?, context.name()?);
    let guard = peer.mutex(name.as_str()).lock().await?;
    peer.connection.cut().await?;
    drop(guard);
    let patience = Duration::from_millis(500);
    let done = within(patience + GRACE, "the end of a shutdown", peer.shutdown(patience)).await;
    peer.connection.heal().await?;
    ensure!(done?.is_err(), "what could not be released was called released");
    Ok(())
}
