//! A lock that is waited for by timer only, in bounded pauses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oarlock_core::driver::{Attempt, BoxFuture, End, Info, Interest, Release, Renewal, Renewed, Watch};
use oarlock_core::state::{Page, Query};
use oarlock_core::{Claim, ClaimId, DynDriver, ErrorKind, Kind, ResourceName, Result};

use super::cancel::{LONG, Sender, dropped_at};
use super::cases;
use crate::context::{Peer, TestContext};
use crate::failure::{Outcome, ensure, ensure_eq};

cases!("spin":
    nothing_is_watched_and_pauses_are_bounded,
    it_is_handed_over,
    it_excludes_every_other_kind,
    its_wait_is_bounded,
    at_every_await_of_a_spin,
);

/// Counts what is asked of a driver.
struct Counting {
    inner: Arc<dyn DynDriver>,
    attempts: AtomicUsize,
    turns_watched: AtomicUsize,
}

impl Counting {
    async fn peer(context: &TestContext) -> Outcome<(Peer, Arc<Self>)> {
        let connection = context.connection().await?;
        let (attempts, turns_watched) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let counting = Arc::new(Self { inner: connection.driver(), attempts, turns_watched });
        Ok((context.peer_over(counting.clone(), connection)?, counting))
    }
}

impl DynDriver for Counting {
    fn info(&self) -> Info {
        self.inner.info()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>) -> BoxFuture<Result<Attempt>> {
        self.attempts.fetch_add(1, Ordering::SeqCst);
        self.inner.clone().attempt(claim)
    }

    fn renew(self: Arc<Self>, batch: Vec<Renewal>) -> BoxFuture<Vec<Result<Renewed>>> {
        self.inner.clone().renew(batch)
    }

    fn release(self: Arc<Self>, resource: ResourceName, id: ClaimId, end: End) -> BoxFuture<Result<Release>> {
        self.inner.clone().release(resource, id, end)
    }

    fn watch(self: Arc<Self>, interest: Interest) -> BoxFuture<Result<Watch>> {
        if let Interest::Turn(..) = interest {
            self.turns_watched.fetch_add(1, Ordering::SeqCst);
        }
        self.inner.clone().watch(interest)
    }

    fn inspect(self: Arc<Self>, query: Query) -> BoxFuture<Result<Page>> {
        self.inner.clone().inspect(query)
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        self.inner.clone().close()
    }
}

async fn nothing_is_watched_and_pauses_are_bounded(context: Arc<TestContext>) -> Outcome {
    let ((peer, counts), rival, name) = (Counting::peer(&context).await?, context.peer().await?, context.name()?);
    let _theirs = rival.mutex(name.as_str()).lock().await?;
    let wait = Duration::from_secs(1);
    let refused = peer.mutex(name.as_str()).spin().wait(wait).lock().await;
    ensure_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::Busy), "the error");
    let attempts = counts.attempts.load(Ordering::SeqCst);
    ensure_eq!(counts.turns_watched.load(Ordering::SeqCst), 0, "watches of a spinning claim");
    // Pauses of 1, 2, 4 … 50 ms, each by up to a quarter shorter.
    ensure!((3..=40).contains(&attempts), "{attempts} attempts in {wait:?}");
    let refused = peer.mutex(name.as_str()).wait(wait / 10).lock().await;
    ensure!(refused.is_err(), "a held lock was given");
    ensure!(counts.turns_watched.load(Ordering::SeqCst) > 0, "the counter counts nothing");
    Ok(())
}

async fn it_is_handed_over(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let theirs = rival.mutex(name.as_str()).lock().await?;
    let lock = peer.mutex(name.as_str()).spin();
    let spinning = tokio::spawn(async move { lock.lock().await });
    peer.waits(&name, 1).await?;
    let fence = theirs.fence();
    theirs.release().await?;
    let guard = context.soon("the lock", spinning).await???;
    ensure!(guard.fence() > fence, "the next fence is not larger");
    ensure_eq!(guard.kind(), Kind::Spin, "the kind");
    // It is renewed like any other.
    tokio::time::sleep(context.ttl() * 2).await;
    ensure!(guard.is_held(), "lost: {:?}", guard.loss());
    guard.release().await?;
    context.left_clean(&rival, &name).await
}

async fn it_excludes_every_other_kind(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let guard = peer.mutex(name.as_str()).spin().lock().await?;
    ensure!(rival.mutex(name.as_str()).try_lock().await?.is_none(), "a mutex beside it");
    ensure!(rival.mutex(name.as_str()).spin().try_lock().await?.is_none(), "another spin lock beside it");
    if context.info.capabilities.records {
        ensure!(rival.election(name.as_str()).try_campaign("a").await?.is_none(), "a leader beside it");
    }
    guard.release().await?;
    context.left_clean(&rival, &name).await
}

async fn its_wait_is_bounded(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let theirs = rival.mutex(name.as_str()).lock().await?;
    let lock = peer.mutex(name.as_str()).spin().wait(Duration::from_millis(60));
    let refused = context.soon("the end of the wait", lock.lock()).await?;
    ensure_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::Busy), "the error");
    theirs.release().await?;
    context.left_clean(&rival, &name).await
}

async fn at_every_await_of_a_spin(context: Arc<TestContext>) -> Outcome {
    let (peer, rival) = (Sender::new(&context).await?, context.peer().await?);
    for polls in 0..16 {
        let name = context.name()?;
        let theirs = rival.mutex(name.as_str()).lock().await?;
        let lock = peer.mutex(name.as_str()).spin().ttl(LONG);
        let (output, _) = dropped_at(lock.lock(), polls, context.pace.soon).await;
        ensure!(output.is_none(), "a held lock was granted");
        theirs.release().await?;
        peer.left_clean(&context, &rival, &name).await?;
    }
    Ok(())
}
