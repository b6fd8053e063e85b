//! What the configurations and URLs of SQL stores have in common.

use std::fmt;
use std::path::PathBuf;

use oarlock_core::url::{Opt, PathParts, Scheme, Url, Value};
use oarlock_core::{Error, ErrorKind, Result};

use crate::route::{self, Host, Route};

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
pub(crate) fn write_address(f: &mut fmt::Formatter<'_>, route: &Route, database: &str, prefix: &str) -> fmt::Result {
    write!(f, "{route}/{database}")?;
    if prefix.is_empty() { Ok(()) } else { write!(f, "?prefix={prefix}") }
}

const OPTIONS: &[Opt] = &[
    Opt::new("sslmode", Value::OneOf(&["disable", "prefer", "require", "verify-ca", "verify-full"]), "disable"),
    Opt::new("sslrootcert", Value::File, ""),
    Opt::new("sslcert", Value::File, ""),
    Opt::new("sslkey", Value::File, ""),
    Opt::new("key", Value::OneOf(&["named", "raw"]), "named"),
];

/// A scheme of an SQL store: hosts, a database, `mode`, encryption as databases name it, and `key` for session mode.
pub(crate) const fn scheme(name: &'static str, title: &'static str) -> Scheme {
    Scheme::new(name, title)
        .hosts(1)
        .path(database)
        .choices(&[("mode", &["lease", "session", "transaction"])])
        .options(OPTIONS)
        .warnings(route::several)
}

fn database(_: &str, path: &str) -> Result<PathParts> {
    let name = path.trim_start_matches('/');
    Ok(vec![("database", if name.is_empty() { "the user's default" } else { name }.to_owned())])
}

/// Whether a connection is encrypted, and whether the server is authenticated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Encryption {
    /// Never.
    #[default]
    Disable,
    /// If the server supports it, on `PostgreSQL` alone. An attacker on the network can switch it off.
    Prefer,
    /// Always. Without a root certificate the server is not authenticated; with one it is, as by
    /// [`VerifyFull`](Self::VerifyFull).
    Require,
    /// Always, with a certificate that is trusted, whichever host it names; on `PostgreSQL` alone. Use it with an authority of your own: a
    /// public one gives every owner of a domain such a certificate.
    VerifyCa,
    /// Always, with a certificate that is trusted and names the host.
    VerifyFull,
}

impl Encryption {
    /// Reads `sslmode`.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for files of certificates that would not be used.
    pub(crate) fn from_url(url: &Url) -> Result<Self> {
        let encryption = match url.option("sslmode") {
            Some("prefer") => Self::Prefer,
            Some("require") => Self::Require,
            Some("verify-ca") => Self::VerifyCa,
            Some("verify-full") => Self::VerifyFull,
            _ => Self::Disable,
        };
        let unused = ["sslrootcert", "sslcert", "sslkey"].into_iter().find(|file| url.option(file).is_some());
        match unused {
            Some(file) if encryption == Self::Disable => Err(Error::new(
                ErrorKind::Config,
                format!("{file} has no effect without encryption: add sslmode=verify-full"),
            )),
            _ => Ok(encryption),
        }
    }

    /// Whether the certificate of the server is checked. One that is trusted explicitly is always checked.
    pub(crate) fn checks(self, root_certificate: bool) -> bool {
        root_certificate || matches!(self, Self::VerifyCa | Self::VerifyFull)
    }
}

/// The files of the client's certificate and its key: `sslcert` and `sslkey`.
///
/// # Errors
/// [`ErrorKind::Config`] for one without the other.
pub(crate) fn identity(url: &Url) -> Result<Option<(PathBuf, PathBuf)>> {
    match (url.file("sslcert"), url.file("sslkey")) {
        (Some(cert), Some(key)) => Ok(Some((cert, key))),
        (None, None) => Ok(None),
        _ => Err(Error::new(ErrorKind::Config, "sslcert and sslkey go together")),
    }
}

/// Checks options that exclude each other, and gives the first host and the others.
pub(crate) fn checked_hosts(url: &Url) -> Result<(Host, Vec<Host>)> {
    if url.choice("mode") == Some("transaction") {
        let message =
            "a lock of a transaction is taken by that transaction itself, in SQL: no client can do it for another";
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    if url.option("key").is_some() && !is_session(url) {
        return Err(Error::new(ErrorKind::Config, "key= needs mode=session"));
    }
    let mut hosts = url.hosts().iter().map(|host| (host.name.clone(), host.port));
    let first = hosts.next().ok_or_else(|| Error::new(ErrorKind::Config, format!("{url} has no host")))?;
    Ok((first, hosts.collect()))
}

/// Whether locks end with the connection (`mode=session`).
pub(crate) fn is_session(url: &Url) -> bool {
    url.choice("mode") == Some("session")
}
