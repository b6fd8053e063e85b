//! The address of a store: scheme, credentials, hosts, path and options. Printing one never shows its password.

mod explain;
mod options;
mod parts;
mod scheme;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub use explain::{Explanation, Setting};
use options::Options;
use parts::Parts;
pub use parts::{Host, Secret};
use scheme::{PathIs, Scheme};

use crate::{Error, ErrorKind, Result, text};

/// How long connecting may take, unless the URL says otherwise.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A checked URL. Every scheme of Oarlock can be read and explained, whether or not this build has its driver.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    scheme: &'static Scheme,
    parts: Parts,
    options: Options,
    inherit_session: bool,
}

impl Url {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`ErrorKind::Config`], with what is wrong and never with the password.
    pub fn parse(text: &str) -> Result<Self> {
        let Some((name, rest)) = text.split_once(':') else {
            return Err(bad("this is not a URL: it has no scheme, as in redis://host".to_owned()));
        };
        let scheme = scheme::find(name)?;
        let parts = parts::split(scheme, rest)?;
        let options = Options::read(scheme, &parts.query)?;
        let url = Self { scheme, parts, options, inherit_session: false };
        url.check_path()?;
        Ok(url)
    }

    fn check_path(&self) -> Result<()> {
        let path = self.parts.path.as_str();
        let problem = match self.scheme.path {
            PathIs::Nothing if !path.is_empty() => format!("{}: takes no path", self.scheme.name),
            PathIs::Directory if !path.is_empty() && !path.starts_with('/') => {
                format!("the directory of {}: must be an absolute path, as in local:/var/lib/oarlock", self.scheme.name)
            }
            PathIs::Socket if path.len() < 2 => format!("{}:// needs the path of a socket", self.scheme.name),
            PathIs::Master if self.master().is_empty() => {
                format!(
                    "{}:// needs the name of the master, as in {}://h1,h2,h3/mymaster",
                    self.scheme.name, self.scheme.name
                )
            }
            PathIs::Number | PathIs::Master if !self.number().is_ok_and(|_| true) => {
                "the database of Redis is a number, as in redis://host/2".to_owned()
            }
            _ => return Ok(()),
        };
        Err(bad(problem))
    }

    /// Lets child processes keep the session of the embedded store alive: a lock then outlives this process for as long as a
    /// child runs, up to its lease. Other stores ignore it. It is not part of the text of the URL.
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

    /// The canonical scheme: aliases are resolved.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        self.scheme.name
    }

    /// The driver that serves it.
    #[must_use]
    pub fn driver(&self) -> &'static str {
        self.scheme.driver
    }

    /// Whether connections are encrypted.
    #[must_use]
    pub fn tls(&self) -> bool {
        self.scheme.tls
    }

    /// The user, decoded.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.parts.user.as_deref()
    }

    /// The password, decoded; it prints as `***`.
    #[must_use]
    pub fn password(&self) -> Option<&Secret> {
        self.parts.password.as_ref()
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

    /// The name of the Sentinel master; empty for other schemes.
    #[must_use]
    pub fn master(&self) -> &str {
        match self.scheme.path {
            PathIs::Master => self.path().trim_start_matches('/').split('/').next().unwrap_or_default(),
            _ => "",
        }
    }

    /// The numbered database, for Redis.
    ///
    /// # Errors
    /// Never for a URL that was [parsed](Self::parse): it is checked there.
    pub fn number(&self) -> Result<u32> {
        let path = self.path().trim_start_matches('/');
        let number = match self.scheme.path {
            PathIs::Number => path,
            PathIs::Master => path.split_once('/').map_or("", |(_, number)| number),
            _ => "",
        };
        if number.is_empty() {
            return Ok(0);
        }
        number.parse().map_err(|_| bad("a numbered database is a whole number".to_owned()))
    }

    /// What goes before every name in the store.
    #[must_use]
    pub fn prefix(&self) -> &str {
        self.options.prefix.as_deref().unwrap_or_else(|| self.default_prefix())
    }

    fn default_prefix(&self) -> &'static str {
        if self.scheme.is_remote() && self.layout().is_none_or(|layout| layout == scheme::NATIVE) {
            "oarlock:"
        } else {
            ""
        }
    }

    /// The lease that locks get unless they say their own.
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

    /// How many claims of one client may stand in the store's queue for one name.
    #[must_use]
    pub fn max_waiters(&self) -> Option<usize> {
        self.options.max_waiters
    }

    /// How names are laid out in the store, where there is a choice.
    #[must_use]
    pub fn layout(&self) -> Option<&str> {
        self.scheme.choice("layout").map(|choice| self.options.layout.as_deref().unwrap_or(choice[0]))
    }

    /// What it says for a key that only some schemes have, such as `min_replicas` or `ca` of Redis.
    #[must_use]
    pub fn option(&self, key: &str) -> Option<&str> {
        self.options.own.get(key).map(String::as_str)
    }

    /// How locks are kept in an SQL store.
    #[must_use]
    pub fn mode(&self) -> Option<&str> {
        self.scheme.choice("mode").map(|choice| self.options.mode.as_deref().unwrap_or(choice[0]))
    }
}

impl FromStr for Url {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

/// What [`connect`](crate::connect) takes: a [`Url`], or the text of one.
pub trait IntoUrl {
    /// The checked URL.
    ///
    /// # Errors
    /// As [`Url::parse`].
    fn into_url(self) -> Result<Url>;
}

impl IntoUrl for Url {
    fn into_url(self) -> Result<Url> {
        Ok(self)
    }
}

impl IntoUrl for &Url {
    fn into_url(self) -> Result<Url> {
        Ok(self.clone())
    }
}

impl IntoUrl for &str {
    fn into_url(self) -> Result<Url> {
        Url::parse(self)
    }
}

impl IntoUrl for &String {
    fn into_url(self) -> Result<Url> {
        Url::parse(self)
    }
}

impl IntoUrl for String {
    fn into_url(self) -> Result<Url> {
        Url::parse(&self)
    }
}

/// The canonical form, with the password as `***`.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.scheme.name)?;
        if self.scheme.is_remote() {
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

fn bad(message: String) -> Error {
    Error::new(ErrorKind::Config, message)
}

#[cfg(test)]
mod tests;
