//! Records that carry the version of their format.

use std::fmt::Display;

use serde::Deserialize;

use crate::error::{Error, ErrorKind, Result};

/// What every version of a record has. It is read before the rest, of which a later version may have another form.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Versioned {
    format: u32,
}

impl Versioned {
    /// Checks that the format is `known` or older.
    ///
    /// # Errors
    /// [`ErrorKind::NewerFormat`], which says that `what` was written by a newer version.
    pub fn check(self, known: u32, what: impl Display) -> Result<()> {
        if self.format > known {
            return Err(Error::new(ErrorKind::NewerFormat, format!("{what} was written by a newer version")));
        }
        Ok(())
    }
}
