//! Injects faults between the engine and any driver: for stores whose own connection cannot be cut, or not verb by
//! verb.

use std::sync::Arc;

use oarlock_core::driver::{Attempt, BoxFuture, End, Info, Interest, Release, Renewal, Renewed, Watch};
use oarlock_core::memory::Verb;
use oarlock_core::state::{Page, Query};
use oarlock_core::{Claim, ClaimId, DynDriver, Error, ResourceName, Result};
use tokio::sync::watch;

/// A driver whose connection can be cut and whose replies can be lost.
pub struct Faulty {
    inner: Arc<dyn DynDriver>,
    faults: watch::Sender<Faults>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    cut: bool,
    mailbox_held: bool,
    attempts_muted: bool,
    reads_muted: bool,
    drop_reply: Option<Verb>,
}

impl Faulty {
    /// Wraps `inner`, without faults so far.
    #[must_use]
    pub fn new(inner: Arc<dyn DynDriver>) -> Self {
        Self { inner, faults: watch::Sender::default() }
    }

    /// Cuts the connection: requests neither arrive nor fail.
    pub fn cut(&self) {
        self.faults.send_modify(|faults| faults.cut = true);
    }

    /// Ends a [`cut`](Self::cut). Requests that were sent meanwhile fail.
    pub fn heal(&self) {
        self.faults.send_modify(|faults| faults.cut = false);
    }

    /// Arms no mailbox until [`arm_mailbox`](Self::arm_mailbox).
    pub fn hold_mailbox(&self) {
        self.faults.send_modify(|faults| faults.mailbox_held = true);
    }

    /// Ends a [`hold_mailbox`](Self::hold_mailbox).
    pub fn arm_mailbox(&self) {
        self.faults.send_modify(|faults| faults.mailbox_held = false);
    }

    /// Answers no more attempts, but renews and releases.
    pub fn mute_attempts(&self) {
        self.faults.send_modify(|faults| faults.attempts_muted = true);
    }

    /// Answers no more watches and inspections, but answers attempts.
    pub fn mute_reads(&self) {
        self.faults.send_modify(|faults| faults.reads_muted = true);
    }

    /// Lets the next `verb` take effect, but loses the answer.
    pub fn drop_reply(&self, verb: Verb) {
        self.faults.send_modify(|faults| faults.drop_reply = Some(verb));
    }

    /// Waits until the faults allow a request.
    async fn until_answered(&self, allows: impl FnMut(&Faults) -> bool) {
        // The sender lives in `self`.
        let _ = self.faults.subscribe().wait_for(allows).await;
    }

    /// Sends a request; its answer may be lost as that of one of these verbs.
    async fn call<T>(self: Arc<Self>, verbs: &[Verb], request: BoxFuture<T>) -> Result<T> {
        let mut faults = self.faults.subscribe();
        if faults.borrow().cut {
            // The sender lives in `self`, so this ends only by healing.
            let _ = faults.wait_for(|faults| !faults.cut).await;
            return Err(Error::unreachable("the connection was cut"));
        }
        let answer = request.await;
        let mut lost = false;
        self.faults.send_if_modified(|faults| {
            lost = faults.drop_reply.is_some_and(|verb| verbs.contains(&verb));
            if lost {
                faults.drop_reply = None;
            }
            lost
        });
        // An answer that is in flight when the connection is cut does not arrive either.
        if faults.borrow_and_update().cut {
            let _ = faults.wait_for(|faults| !faults.cut).await;
            lost = true;
        }
        if lost { Err(Error::unreachable("the reply was lost")) } else { Ok(answer) }
    }
}

impl DynDriver for Faulty {
    fn info(&self) -> Info {
        self.inner.info()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>) -> BoxFuture<Result<Attempt>> {
        let request = self.inner.clone().attempt(claim);
        Box::pin(async move {
            self.until_answered(|faults| !faults.attempts_muted).await;
            self.call(&[Verb::Attempt], request).await?
        })
    }

    fn renew(self: Arc<Self>, batch: Vec<Renewal>) -> BoxFuture<Vec<Result<Renewed>>> {
        let count = batch.len();
        let request = self.inner.clone().renew(batch);
        Box::pin(
            async move { self.call(&[Verb::Renew], request).await.unwrap_or_else(|error| vec![Err(error); count]) },
        )
    }

    fn release(self: Arc<Self>, resource: ResourceName, id: ClaimId, end: End) -> BoxFuture<Result<Release>> {
        let request = self.inner.clone().release(resource, id, end);
        Box::pin(async move { self.call(&[Verb::Release], request).await? })
    }

    fn release_and_attempt(
        self: Arc<Self>,
        resource: ResourceName,
        id: ClaimId,
        end: End,
        next: Arc<Claim>,
    ) -> BoxFuture<(Result<Release>, Result<Attempt>)> {
        if self.faults.borrow().attempts_muted {
            let release = self.release(resource, id, end);
            return Box::pin(async move { (release.await, Err(Error::unreachable("the reply was lost"))) });
        }
        let request = self.inner.clone().release_and_attempt(resource, id, end, next);
        let verbs = [Verb::Release, Verb::Attempt];
        Box::pin(async move { self.call(&verbs, request).await.unwrap_or_else(|lost| (Err(lost.clone()), Err(lost))) })
    }

    fn watch(self: Arc<Self>, interest: Interest) -> BoxFuture<Result<Watch>> {
        let is_mailbox = matches!(interest, Interest::Mailbox);
        let request = self.inner.clone().watch(interest);
        Box::pin(async move {
            self.until_answered(|faults| !(faults.reads_muted || is_mailbox && faults.mailbox_held)).await;
            self.call(&[], request).await?
        })
    }

    fn inspect(self: Arc<Self>, query: Query) -> BoxFuture<Result<Page>> {
        let request = self.inner.clone().inspect(query);
        Box::pin(async move {
            self.until_answered(|faults| !faults.reads_muted).await;
            self.call(&[], request).await?
        })
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        self.inner.clone().close()
    }
}
