//! Why a case failed.

use std::fmt;

/// What went wrong, in a sentence; made from any error by `?`.
#[derive(Clone)]
pub struct Failure(pub(crate) String);

/// The end of a case.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure with these words.
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Fails the case with the words unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($words:tt)+) => {
        if !$condition {
            return Err($crate::failure::Failure::new(format!($($words)+)));
        }
    };
}

/// Fails the case unless both are equal, and shows them.
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($words:tt)+) => {
        match (&$left, &$right) {
            (left, right) if left != right => {
                let words = format!($($words)+);
                return Err($crate::failure::Failure::new(format!("{words}: {left:?}, expected {right:?}")));
            }
            _ => {}
        }
    };
}

pub(crate) use {ensure, ensure_eq};
