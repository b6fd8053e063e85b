//! The client: connects, acquires, inspects.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use oarlock::state::ResourceState;
use oarlock::{Ending, Error, ErrorKind, Fence, Locks};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::call;
use crate::error;
use crate::guard::{Guard, Slot};
use crate::state::State;

/// The options of a claim: the attributes of an object of Python.
#[derive(FromPyObject)]
struct Options {
    ttl: Option<f64>,
    wait: Option<f64>,
    max_hold: Option<f64>,
    renew: bool,
    fair: bool,
    reason: Option<String>,
}

/// Seconds of Python as a span.
pub(crate) fn span(what: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("{what} is a number of seconds from 0 up, not {seconds}")))
}

/// A lock with its options; every kind has the same.
macro_rules! with_options {
    ($lock:expr, $options:expr) => {{
        let (mut lock, options) = ($lock, &$options);
        if let Some(ttl) = options.ttl {
            lock = lock.ttl(span("ttl", ttl)?);
        }
        if let Some(max_hold) = options.max_hold {
            lock = lock.max_hold(span("max_hold", max_hold)?);
        }
        if let Some(reason) = &options.reason {
            lock = lock.reason(reason);
        }
        if options.fair {
            lock = lock.fair();
        }
        if !options.renew {
            lock = lock.no_renewal();
        }
        match options.wait {
            None => lock,
            Some(f64::INFINITY) => lock.wait_forever(),
            Some(wait) => lock.wait(span("wait", wait)?),
        }
    }};
}

/// A client of one store.
#[pyclass(frozen, module = "oarlock._oarlock")]
pub(crate) struct Client(Arc<Shared>);

/// What a client and its guards share. It lives as long as one of them.
pub(crate) struct Shared {
    locks: Locks,
    pub(crate) pid: u32,
    /// The guards, so that the end of the client ends them.
    slots: Mutex<Vec<Weak<Slot>>>,
}

/// Every client of this process that is in use, for the end of the program. Only threads that have the interpreter's lock
/// use it: a forked child would find it locked for ever otherwise.
static CLIENTS: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds one, and forgets those that are gone.
fn remember<T>(list: &Mutex<Vec<Weak<T>>>, one: &Arc<T>) {
    let mut list = locked(list);
    list.retain(|other| other.strong_count() > 0);
    list.push(Arc::downgrade(one));
}

impl Shared {
    /// Keeps a lock that was granted, for its guard in Python.
    pub(crate) fn keep(&self, guard: oarlock::Guard) -> Arc<Slot> {
        let slot = Arc::new(Mutex::new(Some(guard)));
        remember(&self.slots, &slot);
        slot
    }

    /// Releases every lock of this client, and waits for that.
    async fn close(&self, patience: Duration) -> oarlock::Result<()> {
        let slots: Vec<_> = locked(&self.slots).drain(..).filter_map(|slot| slot.upgrade()).collect();
        // To drop a guard begins its release; to shut down waits for it.
        drop(slots.iter().filter_map(|slot| locked(slot).take()).collect::<Vec<_>>());
        self.locks.shutdown(patience).await
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            // What ends a client talks to threads that a forked child does not have.
            std::mem::forget(self.locks.clone());
        }
    }
}

/// Closes every client of this process, at the end of the program.
#[pyfunction]
pub(crate) fn close_all(py: Python<'_>, patience: f64) -> PyResult<Py<PyAny>> {
    let patience = span("patience", patience)?;
    let clients: Vec<_> = locked(&CLIENTS).drain(..).filter_map(|client| client.upgrade()).collect();
    let ours: Vec<_> = clients.iter().filter(|client| client.pid == std::process::id()).cloned().collect();
    if ours.is_empty() {
        call::end(py, patience);
        return Ok(py.None());
    }
    let closed = call::run(py, None, async move {
        let closing: Vec<_> =
            ours.into_iter().map(|client| tokio::spawn(async move { client.close(patience).await })).collect();
        for client in closing {
            // What could not be released ends with its lease.
            let _ = client.await;
        }
        Ok(())
    });
    call::end(py, patience);
    closed
}

/// Refuses to go on in a child of the process `pid`.
pub(crate) fn same_process(py: Python<'_>, pid: u32, what: &str) -> PyResult<()> {
    if pid == std::process::id() {
        return Ok(());
    }
    let message = format!("this {what} belongs to process {pid}, which forked this one: connect after the fork");
    Err(error::raised(py, &Error::new(ErrorKind::Config, message)))
}

/// Connects to the store behind a URL.
#[pyfunction]
#[pyo3(signature = (url, *, ttl=None, wait=None, op_timeout=None, done=None))]
pub(crate) fn connect(
    py: Python<'_>,
    url: String,
    ttl: Option<f64>,
    wait: Option<f64>,
    op_timeout: Option<f64>,
    done: Option<Py<PyAny>>,
) -> PyResult<Py<PyAny>> {
    let mut builder = oarlock::builder(url);
    if let Some(ttl) = ttl {
        builder = builder.ttl(span("ttl", ttl)?);
    }
    if let Some(wait) = wait {
        builder = builder.wait(span("wait", wait)?);
    }
    if let Some(op_timeout) = op_timeout {
        builder = builder.op_timeout(span("op_timeout", op_timeout)?);
    }
    call::run(py, done, async move {
        let locks = builder.connect().await?;
        let shared = Arc::new(Shared { locks, pid: std::process::id(), slots: Mutex::default() });
        Ok(Client(shared))
    })
}

#[pymethods]
impl Client {
    /// The scheme of the store's URL.
    #[getter]
    fn scheme(&self) -> &'static str {
        self.0.locks.info().scheme
    }

    /// Lets the end of the program close it.
    fn register(&self) {
        remember(&CLIENTS, &self.0);
    }

    /// Acquires a lock; with `once`, `None` if it is not free.
    #[pyo3(signature = (kind, name, permits, take, options, *, once=false, done=None))]
    #[expect(clippy::too_many_arguments, reason = "called by one function of Python")]
    fn acquire(
        &self,
        py: Python<'_>,
        kind: &str,
        name: &str,
        permits: u32,
        take: u32,
        options: Options,
        once: bool,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        same_process(py, self.0.pid, "client")?;
        let (locks, shared) = (&self.0.locks, self.0.clone());
        match kind {
            "mutex" => {
                let lock = with_options!(locks.mutex(name), options);
                call::run(py, done, async move {
                    Ok(if once { lock.try_lock().await? } else { Some(lock.lock().await?) }
                        .map(|guard| Guard::new(guard, shared)))
                })
            }
            "read" => {
                let lock = with_options!(locks.rwlock(name), options);
                call::run(py, done, async move {
                    Ok(if once { lock.try_read().await? } else { Some(lock.read().await?) }
                        .map(|guard| Guard::new(guard, shared)))
                })
            }
            "write" => {
                let lock = with_options!(locks.rwlock(name), options);
                call::run(py, done, async move {
                    let guard = if once { lock.try_write().await? } else { Some(lock.write().await?) };
                    Ok(guard.map(|guard| Guard::new(guard.into_guard(), shared)))
                })
            }
            "semaphore" => {
                let lock = with_options!(locks.semaphore(name, permits), options);
                call::run(py, done, async move {
                    let guard = if once { lock.try_acquire(take).await? } else { Some(lock.acquire(take).await?) };
                    Ok(guard.map(|guard| Guard::new(guard, shared)))
                })
            }
            other => Err(PyValueError::new_err(format!("there is no kind of lock `{other}`"))),
        }
    }

    /// The holders and waiters of a lock.
    #[pyo3(signature = (name, *, done=None))]
    fn inspect(&self, py: Python<'_>, name: String, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        same_process(py, self.0.pid, "client")?;
        let locks = self.0.locks.clone();
        call::run(py, done, async move { locks.inspect(name).await.map(State::from) })
    }

    /// All locks that are held or waited for.
    #[pyo3(signature = (*, done=None))]
    fn list(&self, py: Python<'_>, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        same_process(py, self.0.pid, "client")?;
        let locks = self.0.locks.clone();
        let all = |states: Vec<ResourceState>| states.into_iter().map(State::from).collect::<Vec<_>>();
        call::run(py, done, async move { locks.list().await.map(all) })
    }

    /// Ends the hold with this fence; false if there is none.
    #[pyo3(signature = (name, fence, by, why, grace, *, done=None))]
    #[expect(clippy::too_many_arguments, reason = "called by one function of Python")]
    fn break_hold(
        &self,
        py: Python<'_>,
        name: String,
        fence: u64,
        by: String,
        why: String,
        grace: f64,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        same_process(py, self.0.pid, "client")?;
        let (locks, grace) = (self.0.locks.clone(), span("grace", grace)?);
        call::run(py, done, async move {
            let outcome = locks.break_hold(name, Fence::new(fence), Ending::new(by, why), grace).await?;
            Ok(outcome != oarlock::Released::NotHeld)
        })
    }

    /// Releases all locks of this client, and waits for that, at most `patience`.
    #[pyo3(signature = (patience, *, done=None))]
    fn close(&self, py: Python<'_>, patience: f64, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        same_process(py, self.0.pid, "client")?;
        let (shared, patience) = (self.0.clone(), span("patience", patience)?);
        call::run(py, done, async move { shared.close(patience).await })
    }
}
