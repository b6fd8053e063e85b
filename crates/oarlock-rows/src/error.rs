//! What can go wrong with one row.

use std::fmt;

use crate::{Classify, Contention};

/// Why a row was not changed, or not locked. `R` is a row of the client, `E` its error.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error<R, E> {
    /// Another transaction changed or deleted the row since it was read.
    Conflict {
        /// The row as it is now, and its version; `None` when it is gone.
        current: Option<(R, String)>,
    },
    /// It cannot be done on this database, or with this row. Nothing was changed.
    Refused(String),
    /// The client's own error.
    Client(E),
}

impl<R, E> From<E> for Error<R, E> {
    fn from(error: E) -> Self {
        Self::Client(error)
    }
}

impl<R, E: Classify> Classify for Error<R, E> {
    fn contention(&self) -> Option<Contention> {
        match self {
            Self::Conflict { .. } => Some(Contention::Stale),
            Self::Refused(_) => None,
            Self::Client(error) => error.contention(),
        }
    }
}

impl<R, E: fmt::Display> fmt::Display for Error<R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict { current: Some((_, version)) } => {
                write!(f, "another transaction changed the row; it is at version {version} now")
            }
            Self::Conflict { current: None } => f.write_str("another transaction deleted the row"),
            Self::Refused(why) => f.write_str(why),
            Self::Client(error) => error.fmt(f),
        }
    }
}

impl<R: fmt::Debug, E: std::error::Error + 'static> std::error::Error for Error<R, E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Client(error) => Some(error),
            Self::Conflict { .. } | Self::Refused(_) => None,
        }
    }
}
