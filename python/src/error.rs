//! Errors of the library as exceptions of Python.

use oarlock::Error;
use oarlock::error::{Applied, Retry};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict as _, PyDict};

/// The exception for an error: a class of `oarlock.errors`, chosen by the kind.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    exception(py, error).unwrap_or_else(|failed| failed)
}

fn exception(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let retry = match error.retry() {
        Retry::Now => "now",
        Retry::Later => "later",
        _ => "never",
    };
    let about: Bound<'_, PyDict> = [
        ("kind", Some(words(&format!("{:?}", error.kind())))),
        ("retry", Some(retry.to_owned())),
        ("hint", Some(error.hint().to_owned())),
        ("name", error.resource().map(ToString::to_string)),
        ("scheme", error.scheme().map(str::to_owned)),
        ("reason", error.loss().map(ToString::to_string)),
    ]
    .into_py_dict(py)?;
    about.set_item("applied", (error.applied() == Applied::No).then_some(false))?;
    let raise = py.import("oarlock.errors")?.getattr("_of")?;
    Ok(PyErr::from_value(raise.call((error.to_string(),), Some(&about))?))
}

/// `SelfDeadlock` as `self-deadlock`.
fn words(name: &str) -> String {
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !words.is_empty() {
            words.push('-');
        }
        words.push(letter.to_ascii_lowercase());
    }
    words
}
