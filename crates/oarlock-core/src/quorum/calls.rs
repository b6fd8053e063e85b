//! One request to each of several nodes, all under way at once.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep};

use super::Core;
use super::node::Node;
use crate::driver::{BoxFuture, DynDriver};
use crate::error::Result;

/// What becomes of an answer that nobody waits for any more.
type Late<T> = Arc<dyn Fn(usize, Result<T>) -> BoxFuture<()> + Send + Sync>;

/// Requests under way. Whoever drops them stops waiting; the requests themselves are run to their end all the same, and what
/// they say is seen to.
pub(super) struct Calls<T: Send + 'static> {
    core: Arc<Core>,
    open: Vec<(usize, BoxFuture<Result<T>>)>,
    patience: Duration,
    /// Runs from when all requests have left.
    until: Option<Pin<Box<Sleep>>>,
    late: Late<T>,
}

impl<T: Send + 'static> Calls<T> {
    /// Sends `request` to each of `nodes`, and waits for no longer than `patience`.
    pub(super) fn send(
        core: &Arc<Core>,
        nodes: impl IntoIterator<Item = usize>,
        patience: Duration,
        request: impl Fn(Arc<dyn DynDriver>) -> BoxFuture<Result<T>>,
        late: impl Fn(usize, Result<T>) -> BoxFuture<()> + Send + Sync + 'static,
    ) -> Self {
        let nodes = nodes.into_iter().filter_map(|at| core.nodes.get(at).map(|node| (at, node)));
        let open = nodes.map(|(at, node)| (at, node.call(&request))).collect();
        Self { core: core.clone(), open, patience, until: None, late: Arc::new(late) }
    }

    /// The next answer, and whose it is; `None` when all have answered or it has taken too long.
    pub(super) async fn next(&mut self) -> Option<(usize, Result<T>)> {
        std::future::poll_fn(|cx| {
            for at in 0..self.open.len() {
                if let Poll::Ready(answer) = self.open[at].1.as_mut().poll(cx) {
                    let (node, _) = self.open.swap_remove(at);
                    self.core.nodes.get(node).inspect(|node| node.heard());
                    return Poll::Ready(Some((node, answer)));
                }
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

impl<T: Send + 'static> Drop for Calls<T> {
    fn drop(&mut self) {
        // Without a runtime nothing can be finished: what is left in the stores ends with its lease.
        let Ok(handle) = Handle::try_current() else { return };
        for (at, request) in self.open.drain(..) {
            let (core, late) = (self.core.clone(), self.late.clone());
            core.nodes.get(at).inspect(|node| node.owes());
            let finish = async move {
                let answer = request.await;
                core.nodes.get(at).inspect(|node| node.paid());
                late(at, answer).await;
            };
            self.core.tasks.spawn_on(finish, &handle);
        }
    }
}

/// For answers that need no care when they come late.
pub(super) fn never_mind<T>(_: usize, _: Result<T>) -> BoxFuture<()> {
    Box::pin(std::future::ready(()))
}

impl Node {
    fn call<T: Send + 'static>(
        &self,
        request: &impl Fn(Arc<dyn DynDriver>) -> BoxFuture<Result<T>>,
    ) -> BoxFuture<Result<T>> {
        match self.silence() {
            Some(error) => Box::pin(std::future::ready(Err(error))),
            None => request(self.driver()),
        }
    }
}
