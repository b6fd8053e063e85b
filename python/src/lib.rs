//! The native part of the Python package `oarlock`: the engine, behind four classes. Names, defaults, context managers
//! and exceptions are Python, in the folder `oarlock`.
//!
//! Each call that waits takes `done`. Without it, the call blocks its thread, without the interpreter's lock, and ends
//! early for a signal whose Python handler raises. With it, the call returns at once, and `done(value, error)` is called
//! on a thread of this module.

mod call;
mod client;
mod error;
mod guard;
mod state;

use pyo3::prelude::*;

/// The native part of `oarlock`.
#[pymodule]
mod _oarlock {
    #[pymodule_export]
    use crate::call::Pending;
    #[pymodule_export]
    use crate::client::{Client, close_all, connect};
    #[pymodule_export]
    use crate::guard::Guard;
    #[pymodule_export]
    use crate::state::{Holder, State};
}
