//! Runs a future of the library for a caller in Python, who blocks or is called back.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::IntoPyObjectExt as _;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;

use crate::error;

/// How often a call that blocks looks for signals: the interpreter only notes them, and wakes no thread.
const LOOK_FOR_SIGNALS: Duration = Duration::from_millis(50);

/// The runtime of this process. A child that was forked has none of its threads, and gets one of its own: the parent's
/// is left as it is, because to end it would wait for threads that are not there.
static RUNTIME: Mutex<Option<(u32, &'static Runtime)>> = Mutex::new(None);

/// The runtime on which the clients of this process work.
pub(crate) fn runtime() -> PyResult<&'static Runtime> {
    let mut current = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    if let Some((_, runtime)) = current.filter(|(of, _)| *of == pid) {
        return Ok(runtime);
    }
    let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("oarlock").enable_all().build()?;
    let runtime: &'static Runtime = Box::leak(Box::new(runtime));
    // Of threads that a forked child does not have.
    IN_PYTHON.store(0, Ordering::SeqCst);
    *current = Some((pid, runtime));
    Ok(runtime)
}

/// A call under way.
#[pyclass(frozen, module = "oarlock._oarlock")]
pub(crate) struct Pending(AbortHandle);

#[pymethods]
impl Pending {
    /// Gives the call up: a claim that waits leaves the queue, a release goes on in the background.
    fn cancel(&self) {
        self.0.abort();
    }
}

/// Runs `work`: with `done` in the background, else until it is done.
pub(crate) fn run<T>(
    py: Python<'_>,
    done: Option<Py<PyAny>>,
    work: impl Future<Output = oarlock::Result<T>> + Send + 'static,
) -> PyResult<Py<PyAny>>
where
    T: for<'py> IntoPyObject<'py> + Send + 'static,
{
    match done {
        None => wait(py, work)?.into_py_any(py),
        Some(done) => start(done, work)?.into_py_any(py),
    }
}

fn wait<T: Send + 'static>(
    py: Python<'_>,
    work: impl Future<Output = oarlock::Result<T>> + Send + 'static,
) -> PyResult<T> {
    let (sender, mut receiver) = mpsc::sync_channel(1);
    let task = runtime()?.spawn(async move {
        // A result that comes after a signal is dropped: a lock is released then.
        let _ = sender.send(work.await);
    });
    loop {
        let receiver = &mut receiver;
        match py.detach(move || receiver.recv_timeout(LOOK_FOR_SIGNALS)) {
            Ok(result) => return result.map_err(|error| error::raised(py, &error)),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("a call of oarlock ended early"));
            }
            Err(RecvTimeoutError::Timeout) => py.check_signals().inspect_err(|_| task.abort())?,
        }
    }
}

fn start<T>(done: Py<PyAny>, work: impl Future<Output = oarlock::Result<T>> + Send + 'static) -> PyResult<Pending>
where
    T: for<'py> IntoPyObject<'py> + Send + 'static,
{
    let task = runtime()?.spawn(async move {
        let result = work.await;
        later(move |py| {
            let result = match result {
                Ok(value) => value.into_py_any(py),
                Err(error) => Err(error::raised(py, &error)),
            };
            match result {
                Ok(value) => done.call1(py, (value, py.None())),
                Err(error) => done.call1(py, (py.None(), error)),
            }
        });
    });
    Ok(Pending(task.abort_handle()))
}

/// Calls into Python on a thread that may wait for the interpreter: the one that renews locks may not. At the end of the
/// interpreter nothing is called any more.
pub(crate) fn later(call: impl FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send + 'static) {
    tokio::task::spawn_blocking(move || {
        IN_PYTHON.fetch_add(1, Ordering::SeqCst);
        if !ENDING.load(Ordering::SeqCst) {
            Python::try_attach(|py| {
                if let Err(error) = call(py) {
                    error.write_unraisable(py, None);
                }
            });
        }
        IN_PYTHON.fetch_sub(1, Ordering::SeqCst);
    });
}

/// How many threads of this module are in Python, or about to be.
static IN_PYTHON: AtomicUsize = AtomicUsize::new(0);
/// None may enter any more.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Lets no thread of this module into Python any more, and waits for those that are inside: an interpreter that ends
/// while one of them leaves would abort the program.
pub(crate) fn end(py: Python<'_>, patience: Duration) {
    let current = *RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if current.is_none_or(|(pid, _)| pid != std::process::id()) {
        return;
    }
    ENDING.store(true, Ordering::SeqCst);
    let start = Instant::now();
    py.detach(|| {
        while IN_PYTHON.load(Ordering::SeqCst) > 0 && start.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}
