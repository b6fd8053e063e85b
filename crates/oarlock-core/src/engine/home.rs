//! Where the background work of a client runs.

use std::future::Future;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::{Error, ErrorKind, Result};

/// A runtime to live on: the caller's, or a thread of our own that a starved runtime cannot hold up.
#[derive(Clone, Debug)]
pub struct Home {
    handle: Handle,
    tasks: TaskTracker,
    _thread: Option<Arc<Thread>>,
}

#[derive(Debug)]
struct Thread {
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.tasks.close();
        self.stop.cancel();
    }
}

impl Home {
    /// The tokio runtime this is called on.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] outside of a runtime.
    pub fn here() -> Result<Self> {
        let handle = Handle::try_current()
            .map_err(|error| Error::new(ErrorKind::Config, "there is no tokio runtime here").because(error))?;
        Ok(Self { handle, tasks: TaskTracker::new(), _thread: None })
    }

    /// A thread of its own, which ends after the last client and guard on it have gone and their releases are done.
    ///
    /// # Errors
    /// [`ErrorKind::Os`] if the thread or its runtime cannot be made.
    pub fn own_thread() -> Result<Self> {
        let failed = |error: std::io::Error| Error::new(ErrorKind::Os, "cannot start the engine").because(error);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let thread = Thread { stop: stop.clone(), tasks: tasks.clone() };
        let work = {
            let tasks = tasks.clone();
            move || {
                runtime.block_on(async {
                    stop.cancelled().await;
                    tasks.wait().await;
                });
            }
        };
        std::thread::Builder::new().name("oarlock".into()).spawn(work).map_err(failed)?;
        Ok(Self { handle, tasks, _thread: Some(Arc::new(thread)) })
    }

    /// Runs `work` here, whether or not the caller is on a runtime, and whatever becomes of the caller.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(work, &self.handle);
    }

    /// Runs `work` here to the end of the home, without holding up that end.
    pub(crate) fn spawn_daemon(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(work);
    }

    /// A task whose end tells that this home's runtime is gone.
    pub(crate) fn pulse(&self) -> tokio::task::AbortHandle {
        self.handle.spawn(std::future::pending::<()>()).abort_handle()
    }

    /// Runs `work` here and waits for it: connections made by it belong to this home.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the runtime is gone, or `work` panicked.
    pub async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T> {
        let (answer, question) = oneshot::channel();
        self.handle.spawn(async move {
            // Nobody is left to tell if the caller has gone.
            let _ = answer.send(work.await);
        });
        question.await.map_err(|_| Error::new(ErrorKind::Closed, "the engine's runtime is gone"))
    }

    /// Waits until no work is left over.
    pub(crate) async fn idle(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.tasks.reopen();
    }
}
