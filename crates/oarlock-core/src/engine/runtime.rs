//! The runtime of a client's background work.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::ThreadId;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::on_runtime::OnRuntime;
use crate::driver::DynDriver;
use crate::error::{Error, ErrorKind, Result};

/// How long work that yielded on a thread of a runtime waits for the next poll.
const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(10);

/// Where the background work of a client runs: on the caller's tokio runtime, or on a thread of its own that a busy
/// runtime cannot delay.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory, Runtime};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// let runtime = Runtime::own_thread()?;
/// let first = Locks::builder(Memory::new()).runtime(runtime.clone()).build()?;
/// let second = Locks::builder(Memory::new()).runtime(runtime).build()?; // two clients, one thread
/// # drop((first, second));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Runtime {
    handle: Handle,
    tasks: TaskTracker,
    thread: Option<Arc<Thread>>,
    #[cfg(any(test, feature = "testing"))]
    switch: Option<super::StopSwitch>,
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

impl Runtime {
    /// The tokio runtime of the caller.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] outside of a runtime.
    pub fn here() -> Result<Self> {
        let handle = Handle::try_current().map_err(|error| {
            Error::new(
                ErrorKind::Config,
                "not called within a tokio runtime: call it within one, or give the client a thread of its own",
            )
            .because(error)
        })?;
        Ok(Self::new(handle, TaskTracker::new(), None))
    }

    /// A new thread, which ends after the last client, guard and blocking view on it are gone and their releases are
    /// done.
    ///
    /// # Errors
    /// [`ErrorKind::Os`] if the thread or its runtime cannot be started.
    pub fn own_thread() -> Result<Self> {
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Os, "cannot start the client's background thread").because(error)
        };
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
        Ok(Self::new(handle, tasks, Some(thread)))
    }

    fn new(handle: Handle, tasks: TaskTracker, thread: Option<Thread>) -> Self {
        Self {
            handle,
            tasks,
            thread: thread.map(Arc::new),
            #[cfg(any(test, feature = "testing"))]
            switch: None,
        }
    }

    /// The same, whose work this switch stops.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn stoppable(mut self, switch: super::StopSwitch) -> Self {
        self.switch = Some(switch);
        self
    }

    /// `work`, as the switch lets it.
    #[cfg(any(test, feature = "testing"))]
    fn switched(&self, work: impl Future<Output = ()> + Send + 'static) -> crate::driver::BoxFuture<()> {
        match &self.switch {
            Some(switch) => Box::pin(switch.around(work)),
            None => Box::pin(work),
        }
    }

    #[cfg(not(any(test, feature = "testing")))]
    #[expect(clippy::unused_self, reason = "only tests have a switch")]
    fn switched<F>(&self, work: F) -> F {
        work
    }

    /// This driver, with requests that run in the context of this runtime.
    pub(crate) fn of(&self, driver: Arc<dyn DynDriver>) -> Arc<dyn DynDriver> {
        match self.thread {
            Some(_) => Arc::new(OnRuntime { driver, handle: self.handle.clone() }),
            None => driver,
        }
    }

    /// Runs `work` on this runtime, also if the caller is not on a runtime or ends.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(self.switched(work), &self.handle);
    }

    /// Runs `work` on this runtime. It does not delay the end of the runtime.
    pub(crate) fn spawn_daemon(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(self.switched(work));
    }

    /// Whether it may have more than one thread.
    pub(crate) fn has_other_threads(&self) -> bool {
        self.handle.runtime_flavor() != RuntimeFlavor::CurrentThread
    }

    /// A task that is finished when this runtime is gone.
    pub(crate) fn pulse(&self) -> tokio::task::AbortHandle {
        self.handle.spawn(std::future::pending::<()>()).abort_handle()
    }

    /// Runs `work` on this runtime and waits for it: connections that it opens belong to this runtime.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the runtime is gone, or `work` panicked.
    pub async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T> {
        let (answer, question) = oneshot::channel();
        self.spawn_daemon(async move {
            // The receiver is gone if the caller was dropped.
            let _ = answer.send(work.await);
        });
        question.await.map_err(|_| Error::new(ErrorKind::Closed, "the runtime of the client has ended"))
    }

    /// Whether this is a thread of its own.
    #[must_use]
    pub fn has_own_thread(&self) -> bool {
        self.thread.is_some()
    }

    /// Runs `work` on the calling thread, which sleeps while `work` waits. Timers and connections are those of this
    /// runtime, so this works on threads without a runtime, and on threads of another one.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if this runtime has no thread of its own, or if it is called on that thread, which would
    /// wait for itself.
    pub fn block_on<F: Future>(&self, work: F) -> Result<F::Output> {
        let refused = |message| Err(Error::new(ErrorKind::Config, message));
        match &self.thread {
            None => {
                return refused("blocking calls need a client with a thread of its own: build it with `own_thread()`");
            }
            Some(thread) if thread.id == std::thread::current().id() => {
                return refused("a blocking call on the client's background thread would wait for itself");
            }
            Some(_) => {}
        }
        // On a thread of a runtime, tokio delays the wake-ups of work that yields until that thread is free: it is not.
        let on_a_runtime = Handle::try_current().is_ok();
        let _timers = self.handle.enter();
        let sleeper = Arc::new(Sleeper { thread: std::thread::current(), woken: AtomicBool::new(false) });
        let waker = Waker::from(sleeper.clone());
        let mut context = Context::from_waker(&waker);
        // The coop budget of a task on a runtime's thread would never be refilled here.
        let mut work = std::pin::pin!(tokio::task::unconstrained(work));
        loop {
            if let Poll::Ready(done) = work.as_mut().poll(&mut context) {
                return Ok(done);
            }
            while !sleeper.woken.swap(false, Ordering::AcqRel) {
                if on_a_runtime {
                    std::thread::park_timeout(POLL_INTERVAL);
                    break;
                }
                std::thread::park();
            }
        }
    }

    /// Waits until all spawned work is done.
    pub(crate) async fn idle(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.tasks.reopen();
    }
}

/// Wakes a thread that sleeps in `block_on`.
struct Sleeper {
    thread: std::thread::Thread,
    /// Unparking alone can be lost: work may wait for other work on the same thread.
    woken: AtomicBool,
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}
