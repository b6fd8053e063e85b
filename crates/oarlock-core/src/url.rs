//! The URL of a store: scheme, credentials, hosts, path and options. Printing a URL never shows its password.
//!
//! A store describes its schemes as data ([`Scheme`]) and registers them with one [`Store`]. This module knows no
//! store.

mod explain;
mod options;
mod parts;
mod route;
mod scheme;
mod store;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub use explain::{Explanation, Setting};
use options::Options;
use parts::Parts;
pub use parts::{Host, Secret, current_password};
pub use scheme::{Choice, Opt, PathParts, Scheme, TLS_FILES, Value, one_of_several};
pub use store::{Missing, Open, Rights, Setup, Store, Stores};

use crate::{Error, ErrorKind, Result, text};

/// How long connecting may take, unless the URL says otherwise.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The checked URL of a store.
#[derive(Clone)]
pub struct Url {
    store: &'static Store,
    scheme: &'static Scheme,
    parts: Parts,
    options: Options,
    path_parts: PathParts,
    inherit_session: bool,
    routes: Vec<(Host, Host)>,
}

impl Url {
    /// Parses the URL of one of `stores`.
    ///
    /// # Errors
    /// [`ErrorKind::Config`], with what is wrong and never with the password.
    #[doc(hidden)]
    pub fn parse(text: &str, stores: &Stores) -> Result<Self> {
        let Some((name, rest)) = text.split_once(':') else {
            return Err(bad("this is not a URL: it has no scheme, as in redis://host"));
        };
        let (store, scheme) = stores.find(name)?;
        let parts = parts::split(scheme, rest)?;
        let options = Options::read(scheme, &parts.query)?;
        if parts.password.is_some() && options.password_file.is_some() {
            return Err(bad("give the password or password_file, not both"));
        }
        let path_parts = (scheme.path)(scheme.name, &parts.path)?;
        Ok(Self { store, scheme, parts, options, path_parts, inherit_session: false, routes: Vec::new() })
    }

    /// Lets child processes keep the session of the embedded store alive: a lock then outlives this process for as long
    /// as a child runs, up to its lease. Other stores ignore it. It is not part of the text of the URL.
    #[must_use]
    pub fn inherit_session(mut self, inherit: bool) -> Self {
        self.inherit_session = inherit;
        self
    }

    /// Whether child processes keep the session of the embedded store alive.
    #[must_use]
    pub fn inherits_session(&self) -> bool {
        self.inherit_session
    }

    /// The store that registered the scheme.
    #[doc(hidden)]
    #[must_use]
    pub fn store(&self) -> &'static Store {
        self.store
    }

    /// The canonical scheme: aliases are resolved.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        self.scheme.name
    }

    /// The name of the driver that serves this URL.
    #[must_use]
    pub fn driver(&self) -> &'static str {
        self.store.name
    }

    /// Whether connections are always encrypted: by the scheme, or by `sslmode` as databases name it.
    #[must_use]
    pub fn tls(&self) -> bool {
        self.scheme.tls || self.option("sslmode").is_some_and(|mode| !matches!(mode, "disable" | "prefer"))
    }

    /// The user, decoded.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.parts.user.as_deref()
    }

    /// The password: the one in the URL, or the content of the file that `password_file` names. The file is read at
    /// each call. It prints as `***`.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if the file cannot be read or has more than one line.
    pub fn password(&self) -> Result<Option<Secret>> {
        match &self.options.password_file {
            Some(path) => Secret::from_file(path).map(Some),
            None => Ok(self.parts.password.clone()),
        }
    }

    /// The file of the password: a store reads it again for each connection ([`current_password`]).
    #[must_use]
    pub fn password_file(&self) -> Option<PathBuf> {
        self.options.password_file.clone()
    }

    /// Whether there is a password, or a file with one.
    #[must_use]
    pub fn has_password(&self) -> bool {
        self.parts.password.is_some() || self.options.password_file.is_some()
    }

    /// The hosts, with the default port filled in.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.parts.hosts
    }

    /// The path, decoded: a directory, a socket, a database, a prefix, or empty.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.parts.path
    }

    /// The part of the path that the scheme calls `name`, as [`explain`](Self::explain) shows it; empty if there is
    /// none.
    #[must_use]
    pub fn path_part(&self, name: &str) -> &str {
        self.path_parts.iter().find(|(part, _)| *part == name).map_or("", |(_, value)| value)
    }

    /// The text before every name in the store.
    #[must_use]
    pub fn prefix(&self) -> &str {
        self.options.prefix.as_deref().unwrap_or_else(|| self.default_prefix())
    }

    fn default_prefix(&self) -> &'static str {
        if self.scheme.remote && self.layout().is_none_or(|layout| layout == "native") { "oarlock:" } else { "" }
    }

    /// The lease of locks that do not set their own.
    #[must_use]
    pub fn ttl(&self) -> Option<Duration> {
        self.options.ttl
    }

    /// How long connecting may take.
    #[must_use]
    pub fn connect_timeout(&self) -> Duration {
        self.options.connect_timeout.unwrap_or(DEFAULT_CONNECT_TIMEOUT)
    }

    /// How long one request may take.
    #[must_use]
    pub fn op_timeout(&self) -> Option<Duration> {
        self.options.op_timeout
    }

    /// How long a request may stay unanswered before its connection is replaced: `default`, or longer if requests may
    /// take longer.
    #[must_use]
    pub fn silence_timeout(&self, default: Duration) -> Duration {
        self.op_timeout().map_or(default, |op_timeout| default.max(op_timeout.saturating_mul(4)))
    }

    /// How many claims of one client may wait in the store's queue for one name.
    #[must_use]
    pub fn max_waiters(&self) -> Option<usize> {
        self.options.max_waiters
    }

    /// How names are laid out in the store, if the scheme has a choice of layouts.
    #[must_use]
    pub fn layout(&self) -> Option<&str> {
        self.choice("layout")
    }

    /// The chosen value of a [choice](Scheme::choices), or its default; `None` if the scheme has no such key.
    #[must_use]
    pub fn choice(&self, key: &str) -> Option<&str> {
        self.scheme.choice(key).map(|values| self.option(key).unwrap_or(values[0]))
    }

    /// The value of an option that only some schemes have, such as `min_replicas` of Redis; `None` if the URL does not
    /// say.
    #[must_use]
    pub fn option(&self, key: &str) -> Option<&str> {
        self.options.own.get(key).map(String::as_str)
    }

    /// Whether an option that only some schemes have is `yes`.
    #[must_use]
    pub fn is_yes(&self, key: &str) -> bool {
        self.option(key) == Some("yes")
    }

    /// The path of a file that an option names.
    #[must_use]
    pub fn file(&self, key: &str) -> Option<PathBuf> {
        self.option(key).map(PathBuf::from)
    }

    /// The files of this client's certificate and its key: the options `cert` and `key` of [`TLS_FILES`].
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a certificate without a key, or a key without a certificate.
    pub fn identity(&self) -> Result<Option<(PathBuf, PathBuf)>> {
        match (self.file("cert"), self.file("key")) {
            (Some(cert), Some(key)) => Ok(Some((cert, key))),
            (None, None) => Ok(None),
            _ => Err(bad("cert and key go together")),
        }
    }
}

impl PartialEq for Url {
    fn eq(&self, other: &Self) -> bool {
        // Options and the parts of the path follow from these.
        (self.scheme.name, &self.parts, self.inherit_session, &self.routes)
            == (other.scheme.name, &other.parts, other.inherit_session, &other.routes)
    }
}

impl Eq for Url {}

/// The canonical form, with the password as `***`.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.scheme.name)?;
        if self.scheme.remote {
            f.write_str("//")?;
        }
        match (&self.parts.user, &self.parts.password) {
            (None, None) => {}
            (user, None) => write!(f, "{}@", text::plain(user.as_deref().unwrap_or_default()))?,
            (user, Some(secret)) => write!(f, "{}:{secret}@", text::plain(user.as_deref().unwrap_or_default()))?,
        }
        for (index, host) in self.parts.hosts.iter().enumerate() {
            write!(f, "{}{host}", if index > 0 { "," } else { "" })?;
        }
        f.write_str(&text::plain(&self.parts.path))?;
        for (index, (key, value)) in self.parts.query.iter().enumerate() {
            write!(f, "{}{key}={}", if index > 0 { '&' } else { '?' }, text::plain(value))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Url({self})")
    }
}

fn bad(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Config, message)
}
