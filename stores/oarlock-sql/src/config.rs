//! What the configurations and URLs of SQL stores have in common.

use std::fmt;

use oarlock_core::url::{Host, Opt, PathParts, Scheme, Url, Value};
use oarlock_core::{Error, ErrorKind, Result};

/// The longest prefix, so that every name fits beside it into the index of names.
const MAX_PREFIX_BYTES: usize = 512;

/// What an advisory lock (`PostgreSQL`) or a named lock (`MySQL`) is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Keys {
    /// By the SHA-256 of prefix and name: on `MySQL` in 64 lower-case hexadecimal digits, on `PostgreSQL` its first
    /// eight bytes as a number with a sign.
    #[default]
    Named,
    /// By the name itself, without a prefix. `MySQL` takes 64 characters, of which case does not count; on `PostgreSQL`
    /// the name is a number, or two of 32 bits with a comma between.
    Raw,
}

impl Keys {
    pub(crate) fn from_url(url: &Url) -> Self {
        if url.option("key") == Some("raw") { Self::Raw } else { Self::Named }
    }
}

pub(crate) fn check_prefix(scheme: &'static str, prefix: &str) -> Result<()> {
    if prefix.len() > MAX_PREFIX_BYTES {
        let message = format!("a prefix has at most {MAX_PREFIX_BYTES} bytes");
        return Err(Error::new(ErrorKind::Config, message).on(scheme));
    }
    Ok(())
}

/// The address of a database: two name spaces of one database are two places.
pub(crate) fn write_address(
    f: &mut fmt::Formatter<'_>,
    (host, port): (&str, u16),
    database: &str,
    prefix: &str,
) -> fmt::Result {
    write!(f, "{host}:{port}/{database}")?;
    if prefix.is_empty() { Ok(()) } else { write!(f, "?prefix={prefix}") }
}

const OPTIONS: &[Opt] = &[
    Opt::new("sslmode", Value::OneOf(&["disable", "prefer", "require", "verify-full"]), "disable"),
    Opt::new("sslrootcert", Value::File, ""),
    Opt::new("key", Value::OneOf(&["named", "raw"]), "named"),
];

/// A scheme of an SQL store: one host, a database, `mode`, encryption as databases name it, and `key` for session mode.
pub(crate) const fn scheme(name: &'static str, title: &'static str) -> Scheme {
    Scheme::new(name, title).path(database).choices(&[("mode", &["lease", "session", "transaction"])]).options(OPTIONS)
}

fn database(_: &str, path: &str) -> Result<PathParts> {
    let name = path.trim_start_matches('/');
    Ok(vec![("database", if name.is_empty() { "the user's default" } else { name }.to_owned())])
}

/// Checks options that exclude each other, and gives the host.
pub(crate) fn checked_host(url: &Url) -> Result<&Host> {
    if url.choice("mode") == Some("transaction") {
        let message =
            "a lock of a transaction is taken by that transaction itself, in SQL: no client can do it for another";
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    if url.option("key").is_some() && !is_session(url) {
        return Err(Error::new(ErrorKind::Config, "key= needs mode=session"));
    }
    url.hosts().first().ok_or_else(|| Error::new(ErrorKind::Config, format!("{url} has no host")))
}

/// Whether locks end with the connection (`mode=session`).
pub(crate) fn is_session(url: &Url) -> bool {
    url.choice("mode") == Some("session")
}
