//! What the URLs of SQL stores have in common.

use oarlock_core::url::{Host, Opt, PathParts, Scheme, Url, Value};
use oarlock_core::{Error, ErrorKind, Result};

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
