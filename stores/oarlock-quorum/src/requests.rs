//! One request to each of several nodes, all under way at once.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep};

use super::Core;
use super::node::Owed;
use oarlock_core::driver::{BoxFuture, DynDriver};
use oarlock_core::error::{Error, Result};

/// Handles an answer that arrives after the caller has stopped waiting.
type Late<T> = Arc<dyn Fn(usize, Result<T>) -> BoxFuture<()> + Send + Sync>;

/// Requests under way. Dropping them ends the wait; the requests themselves run to their end, and their answers are
/// handled.
pub(super) struct Requests<T: Send + 'static> {
    core: Arc<Core>,
    open: Vec<(usize, BoxFuture<Result<T>>)>,
    /// Not sent yet.
    kept_back: Vec<(usize, BoxFuture<Result<T>>)>,
    /// Those that are not asked, and why.
    unasked: Vec<(usize, Error)>,
    patience: Duration,
    /// Runs from when all requests have left.
    until: Option<Pin<Box<Sleep>>>,
    late: Late<T>,
    /// Whether a late answer may be handled a few milliseconds later.
    can_wait: bool,
}

impl<T: Send + 'static> Requests<T> {
    /// Sends `request` to each of `nodes`, and waits for no longer than `patience`.
    pub(super) fn send(
        core: &Arc<Core>,
        nodes: impl IntoIterator<Item = usize>,
        patience: Duration,
        request: impl Fn(Arc<dyn DynDriver>) -> BoxFuture<Result<T>>,
        late: impl Fn(usize, Result<T>) -> BoxFuture<()> + Send + Sync + 'static,
    ) -> Self {
        let (mut open, mut unasked) = (Vec::with_capacity(core.nodes.len()), Vec::new());
        for at in nodes {
            let Some(node) = core.nodes.get(at) else { continue };
            match core.refrain(node) {
                Some(error) => unasked.push((at, error)),
                None => open.push((at, request(node.driver()))),
            }
        }
        let (kept_back, late) = (Vec::new(), Arc::new(late));
        Self { core: core.clone(), open, kept_back, unasked, patience, until: None, late, can_wait: false }
    }

    /// What is still to be answered changes nothing for other clients: it is handled when the late answers of all
    /// requests are, which costs no task and no wake-up of its own.
    pub(super) fn let_late_ones_wait(&mut self) {
        self.can_wait = true;
    }

    /// The nodes that were not asked, and of which nothing was said yet.
    pub(super) fn unasked(&self) -> impl Iterator<Item = usize> {
        self.unasked.iter().map(|(node, _)| *node)
    }

    /// Keeps back all but the request to this node, for the time being. It must not have been waited for an answer yet.
    pub(super) fn only(&mut self, node: usize, patience: Duration) {
        self.kept_back.extend(self.open.extract_if(.., |(at, _)| *at != node));
        self.patience = patience;
    }

    /// Sends what was kept back.
    pub(super) fn all(&mut self, patience: Duration) {
        self.open.append(&mut self.kept_back);
        (self.patience, self.until) = (patience, None);
    }

    /// The next answer, and whose it is; `None` when all have answered or it has taken too long.
    pub(super) async fn next(&mut self) -> Option<(usize, Result<T>)> {
        std::future::poll_fn(move |cx| {
            for at in 0..self.open.len() {
                if let Poll::Ready(answer) = self.open[at].1.as_mut().poll(cx) {
                    let (node, _) = self.open.swap_remove(at);
                    self.core.nodes.get(node).inspect(|node| node.note_answer(&answer));
                    return Poll::Ready(Some((node, answer)));
                }
            }
            // All requests have been sent by now. A round that asks one node first needs the answer of that node.
            if self.kept_back.is_empty()
                && let Some((node, error)) = self.unasked.pop()
            {
                return Poll::Ready(Some((node, Err(error))));
            }
            if self.open.is_empty() {
                return Poll::Ready(None);
            }
            let until = self.until.get_or_insert_with(|| Box::pin(sleep(self.patience)));
            until.as_mut().poll(cx).map(|()| None)
        })
        .await
    }
}

impl<T: Send + 'static> Drop for Requests<T> {
    fn drop(&mut self) {
        if self.open.is_empty() {
            return;
        }
        // Without a runtime nothing can be finished: what is left in the stores ends with its lease.
        let Ok(handle) = Handle::try_current() else { return };
        let mut rest: Vec<BoxFuture<()>> = Vec::with_capacity(self.open.len());
        for (at, request) in self.open.drain(..) {
            let (owed, late) = (Owed::new(self.core.clone(), at), self.late.clone());
            rest.push(Box::pin(async move {
                let answer = request.await;
                owed.paid(&answer);
                late(at, answer).await;
            }));
        }
        if self.can_wait {
            return self.core.late_answers.add(rest, &self.core, &handle);
        }
        // One task for all of them: each costs as much as a request.
        let finish = std::future::poll_fn(move |cx| {
            rest.retain_mut(|each| each.as_mut().poll(cx).is_pending());
            if rest.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        });
        self.core.tasks.spawn_on(finish, &handle);
    }
}

/// For answers that need no care when they come late.
pub(super) fn never_mind<T>(_: usize, _: Result<T>) -> BoxFuture<()> {
    Box::pin(std::future::ready(()))
}
