//! Where the background work of a client runs.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::ThreadId;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::at_home::AtHome;
use crate::driver::DynDriver;
use crate::error::{Error, ErrorKind, Result};

/// How long work that yielded on a thread of a runtime waits to be looked at again.
const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_millis(10);

/// A runtime to live on: the caller's, or a thread of our own that a starved runtime cannot hold up.
#[derive(Clone, Debug)]
pub struct Home {
    handle: Handle,
    tasks: TaskTracker,
    thread: Option<Arc<Thread>>,
}

#[derive(Debug)]
struct Thread {
    id: ThreadId,
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
        Ok(Self { handle, tasks: TaskTracker::new(), thread: None })
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
        let work = {
            let (stop, tasks) = (stop.clone(), tasks.clone());
            move || {
                runtime.block_on(async {
                    stop.cancelled().await;
                    tasks.wait().await;
                });
            }
        };
        let started = std::thread::Builder::new().name("oarlock".into()).spawn(work).map_err(failed)?;
        let thread = Thread { id: started.thread().id(), stop, tasks: tasks.clone() };
        Ok(Self { handle, tasks, thread: Some(Arc::new(thread)) })
    }

    /// This driver, with requests that belong here whoever polls them. On the caller's own runtime they do so anyway.
    pub(crate) fn of(&self, driver: Arc<dyn DynDriver>) -> Arc<dyn DynDriver> {
        match self.thread {
            Some(_) => Arc::new(AtHome { driver, handle: self.handle.clone() }),
            None => driver,
        }
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

    /// Whether it has a thread of its own.
    #[must_use]
    pub fn has_own_thread(&self) -> bool {
        self.thread.is_some()
    }

    /// Runs `work` on the calling thread, which sleeps while `work` waits. Timers and connections are this home's, so this
    /// works without a runtime, and within one.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if this home has no thread of its own, or this is that thread: it would wait for itself.
    pub fn block_on<F: Future>(&self, work: F) -> Result<F::Output> {
        let refused = |message| Err(Error::new(ErrorKind::Config, message));
        match &self.thread {
            None => return refused("only a client on a thread of its own can be waited for by blocking"),
            Some(thread) if thread.id == std::thread::current().id() => {
                return refused("the engine's own thread must not wait for the engine");
            }
            Some(_) => {}
        }
        // On a thread of a runtime tokio keeps the wake-ups of work that yields until that thread comes back: it does not.
        let on_a_runtime = Handle::try_current().is_ok();
        let _timers = self.handle.enter();
        let sleeper = Arc::new(Sleeper { thread: std::thread::current(), woken: AtomicBool::new(false) });
        let waker = Waker::from(sleeper.clone());
        let mut context = Context::from_waker(&waker);
        // On a worker of a runtime, its task's budget is not ours to run out of: it would never be refilled.
        let mut work = std::pin::pin!(tokio::task::unconstrained(work));
        loop {
            if let Poll::Ready(done) = work.as_mut().poll(&mut context) {
                return Ok(done);
            }
            while !sleeper.woken.swap(false, Ordering::AcqRel) {
                if on_a_runtime {
                    std::thread::park_timeout(LOOK_AGAIN);
                    break;
                }
                std::thread::park();
            }
        }
    }

    /// Waits until no work is left over.
    pub(crate) async fn idle(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.tasks.reopen();
    }
}

/// A thread that sleeps until its work can go on.
struct Sleeper {
    thread: std::thread::Thread,
    /// Work may wait for other work on the same thread, which would swallow a mere unparking.
    woken: AtomicBool,
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}
