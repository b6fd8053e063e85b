//! Errors that both servers share.

use oarlock_core::{Error, ErrorKind, Result};

/// The URL scheme of a store, with which its errors are marked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Store(pub(crate) &'static str);

impl Store {
    /// An error that a request did not cause, or that had no effect.
    pub(crate) fn error(self, kind: ErrorKind, message: impl Into<String>) -> Error {
        Error::new(kind, message).on(self.0)
    }

    /// Random bytes of the operating system.
    pub(crate) fn random<const N: usize>(self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        let none = |error| self.error(ErrorKind::Os, "no random numbers").because(error);
        getrandom::fill(&mut bytes).map_err(none)?;
        Ok(bytes)
    }

    /// A random number of two bits less than it could have, so that it is positive here and in the two halves that
    /// PostgreSQL shows of a lock.
    pub(crate) fn random_number(self) -> Result<i64> {
        Ok(i64::from_ne_bytes(self.random()?) & (i64::MAX >> 1))
    }

    /// The connection could not be opened in time. Nothing was sent.
    pub(crate) fn no_answer(self) -> Error {
        self.error(ErrorKind::Unreachable, "no connection in time").retry_later()
    }

    /// The server did not answer a request for so long that its connection was closed.
    pub(crate) fn silent(self) -> Error {
        Error::unreachable("no reply from the server; the connection is replaced").on(self.0)
    }

    /// A reply that this version does not understand.
    pub(crate) fn unexpected(self, what: impl Into<String>) -> Error {
        self.error(ErrorKind::Foreign, what).applied_unknown()
    }

    /// A newer version wrote the row of this name.
    pub(crate) fn newer(self) -> Error {
        self.error(ErrorKind::NewerFormat, "a newer version of oarlock wrote the row of this lock")
    }

    pub(crate) fn closed(self) -> Error {
        self.error(ErrorKind::Closed, "this store was closed")
    }

    /// The tables have the format `found`, and this version needs `known`.
    pub(crate) fn other_format(self, found: i64, known: i64) -> Error {
        if found > known {
            let message = format!("the tables have format {found}, this version knows {known}: update this program");
            return self.error(ErrorKind::NewerFormat, message);
        }
        let message = format!(
            "the tables have format {found}, this version needs {known}: stop all clients of the older version, then run \
             oarlock init (clients of two formats cannot share a database)"
        );
        self.error(ErrorKind::Foreign, message)
    }
}
