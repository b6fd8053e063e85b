//! The failure of a case.

use std::fmt;

/// What went wrong, in a sentence. `?` converts any error.
#[derive(Clone)]
pub struct Failure(pub(crate) String);

/// The end of a case.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure with this message.
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

/// Fails the case with the message unless the condition is true.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::failure::Failure::new(format!($($message)+)));
        }
    };
}

/// Fails the case unless both are equal, and shows them.
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($message:tt)+) => {
        match (&$left, &$right) {
            (left, right) if left != right => {
                let message = format!($($message)+);
                return Err($crate::failure::Failure::new(format!("{message}: {left:?}, expected {right:?}")));
            }
            _ => {}
        }
    };
}

pub(crate) use {ensure, ensure_eq};
