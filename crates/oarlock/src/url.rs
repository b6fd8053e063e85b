//! The URL of a store: scheme, credentials, hosts, path and options. Printing a URL never shows its password.

pub use oarlock_core::url::{DEFAULT_CONNECT_TIMEOUT, Explanation, Host, Secret, Setting, Url};

use crate::Result;
use crate::registry::STORES;

/// Parses the URL of a store, to check it before [`connect`](crate::connect) or to [explain](Url::explain) it.
///
/// # Errors
/// [`ErrorKind::Config`](crate::ErrorKind::Config), with what is wrong and never with the password. If this build has
/// no driver for the URL, the error names the feature that is missing.
///
/// # Examples
/// ```
/// let url = oarlock::url::parse("mem:?prefix=team/")?;
/// assert_eq!(url.prefix(), "team/");
/// # Ok::<(), oarlock::Error>(())
/// ```
pub fn parse(text: &str) -> Result<Url> {
    Url::parse(text, &STORES)
}

/// Implemented by what [`connect`](crate::connect) takes: a [`Url`], or the text of one.
pub trait IntoUrl {
    /// The checked URL.
    ///
    /// # Errors
    /// As [`parse`].
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
        parse(self)
    }
}

impl IntoUrl for &String {
    fn into_url(self) -> Result<Url> {
        parse(self)
    }
}

impl IntoUrl for String {
    fn into_url(self) -> Result<Url> {
        parse(&self)
    }
}

// They need every store.
#[cfg(all(feature = "etcd", feature = "local", feature = "mysql", feature = "postgres"))]
#[cfg(all(feature = "redis", feature = "zookeeper"))]
#[cfg(test)]
mod tests;
