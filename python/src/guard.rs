//! A held lock.

use std::sync::{Arc, Mutex, PoisonError};

use oarlock::{Ended, Held, Released};
use pyo3::prelude::*;

use crate::call::{self, runtime};
use crate::client::{Shared, same_process, span};
use crate::error;

/// Where a guard of the library is until it is released, by its own object or by the end of the client.
pub(crate) type Slot = Mutex<Option<oarlock::Guard>>;

/// A held lock; to drop it releases it.
#[pyclass(frozen, module = "oarlock._oarlock")]
pub(crate) struct Guard {
    held: Held,
    slot: Arc<Slot>,
    client: Arc<Shared>,
}

impl Guard {
    pub(crate) fn new(guard: oarlock::Guard, client: Arc<Shared>) -> Self {
        Self { held: guard.held(), slot: client.keep(guard), client }
    }

    /// Whether this process is the one that holds it, and not a child that was forked.
    fn is_here(&self) -> bool {
        self.client.pid == std::process::id()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_here() {
            // The lock is the parent's.
            std::mem::forget(self.slot.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

#[pymethods]
impl Guard {
    /// The number of this grant.
    #[getter]
    fn fence(&self) -> u64 {
        self.held.fence().get()
    }

    /// The name of the lock.
    #[getter]
    fn name(&self) -> &str {
        self.held.resource().as_str()
    }

    /// How long the claim waited, in seconds.
    #[getter]
    fn waited(&self) -> f64 {
        self.held.waited().as_secs_f64()
    }

    /// What the last holder left.
    #[getter]
    fn memo(&self) -> Option<&[u8]> {
        self.held.memo()
    }

    /// Whether it is held; no I/O.
    fn is_held(&self) -> bool {
        self.is_here() && self.held.is_held()
    }

    /// Raises if it is not held; no I/O.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        same_process(py, self.client.pid, "lock")?;
        self.held.check().map_err(|error| error::raised(py, &error))
    }

    /// How long it is certainly held without another renewal, in seconds.
    fn time_left(&self) -> f64 {
        if self.is_here() { self.held.time_left().as_secs_f64() } else { 0.0 }
    }

    /// Why it was lost, if it was.
    #[getter]
    fn loss(&self) -> Option<String> {
        self.held.loss().map(|reason| reason.to_string())
    }

    /// Waits for the loss: the reason, or `None` if it was released or the time has passed.
    #[pyo3(signature = (timeout=None, *, done=None))]
    fn lost(&self, py: Python<'_>, timeout: Option<f64>, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        same_process(py, self.client.pid, "lock")?;
        let held = self.held.clone();
        let timeout = timeout.filter(|timeout| *timeout != f64::INFINITY).map(|timeout| span("timeout", timeout));
        let timeout = timeout.transpose()?;
        call::run(py, done, async move {
            let ended = match timeout {
                None => Some(held.ended().await),
                Some(timeout) => tokio::time::timeout(timeout, held.ended()).await.ok(),
            };
            Ok(ended.and_then(reason))
        })
    }

    /// Calls `callback(reason)` once when the lock is lost, on a thread of this module.
    fn on_loss(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<()> {
        same_process(py, self.client.pid, "lock")?;
        let held = self.held.clone();
        runtime()?.spawn(async move {
            if let Some(reason) = reason(held.ended().await) {
                call::later(move |py| callback.call1(py, (reason,)));
            }
        });
        Ok(())
    }

    /// Releases it: true if it was held until now. A second call does nothing.
    #[pyo3(signature = (memo=None, *, done=None))]
    fn release(&self, py: Python<'_>, memo: Option<Vec<u8>>, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        same_process(py, self.client.pid, "lock")?;
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(guard), Some(memo)) = (slot.as_mut(), memo) {
            guard.leave_memo(memo).map_err(|error| error::raised(py, &error))?;
        }
        let guard = slot.take();
        drop(slot);
        call::run(py, done, async move {
            match guard {
                Some(guard) => Ok(guard.release().await? == Released::Released),
                None => Ok(false),
            }
        })
    }

    /// As `release`, for coroutines.
    #[pyo3(signature = (memo=None))]
    fn release_async<'py>(this: &Bound<'py, Self>, memo: Option<Vec<u8>>) -> PyResult<Bound<'py, PyAny>> {
        awaited(this.getattr("release")?, memo)
    }

    /// As `lost`, for coroutines.
    #[pyo3(signature = (timeout=None))]
    fn lost_async<'py>(this: &Bound<'py, Self>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        awaited(this.getattr("lost")?, timeout)
    }

    fn __repr__(&self) -> String {
        let state = if self.is_held() { "held" } else { "not held" };
        format!("<oarlock.Guard {:?} fence {} {state}>", self.name(), self.fence())
    }
}

fn reason(ended: Ended) -> Option<String> {
    match ended {
        Ended::Lost(reason) => Some(reason.to_string()),
        _ => None,
    }
}

/// The coroutine that starts `method`, and waits for it.
fn awaited<'py>(method: Bound<'py, PyAny>, argument: impl IntoPyObject<'py>) -> PyResult<Bound<'py, PyAny>> {
    method.py().import("oarlock._call")?.getattr("call")?.call1((method, argument))
}
