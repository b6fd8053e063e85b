//! What can go wrong with stock.

use std::error::Error as StdError;
use std::fmt;

use oarlock_rows::{Classify, Contention};

/// Why it was not done.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The request is invalid. Nothing was sent.
    Invalid(String),
    /// There is no such item.
    NoSuchItem(String),
    /// The id stands for something else: another item, another quantity, a delivery.
    Reused {
        /// The id.
        id: String,
    },
    /// The store's own error. Whether it was done is not known; ask again with the same id.
    Store(Box<dyn StdError + Send + Sync>),
}

impl Error {
    pub(crate) fn store(error: impl StdError + Send + Sync + 'static) -> Self {
        Self::Store(Box::new(error))
    }

    /// For an unexpected answer.
    pub(crate) fn answer(what: &str) -> Self {
        Self::Store(format!("unexpected reply from the store: {what}").into())
    }
}

impl Classify for Error {
    fn contention(&self) -> Option<Contention> {
        match self {
            Self::Store(error) => error.contention(),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(why) => f.write_str(why),
            Self::NoSuchItem(sku) => write!(f, "there is no item `{sku}`: create it first"),
            Self::Reused { id } => write!(f, "the id `{id}` stands for another order: every order line needs its own"),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Store(error) => Some(error.as_ref()),
            _ => None,
        }
    }
}
