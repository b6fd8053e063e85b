//! Where the ensemble is, and how long a session lives.

use std::fmt;
use std::time::Duration;

/// How long a session lives unheard, unless said otherwise. The server clamps it, usually to 2..20 of its ticks.
pub(crate) const DEFAULT_SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// Choices for [`ZooKeeper`](crate::ZooKeeper).
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// The servers, as `host:port`.
    pub hosts: Vec<String>,
    /// The node under which every lock is; it is made if it is missing.
    pub root: String,
    /// What to ask the server for: how long a session, and every claim of it, outlives its process.
    pub session_timeout: Duration,
    digest: Option<String>,
}

impl Config {
    /// Locks under `/oarlock` of these servers.
    #[must_use]
    pub fn new(hosts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            hosts: hosts.into_iter().map(Into::into).collect(),
            root: "/oarlock".into(),
            session_timeout: DEFAULT_SESSION_TIMEOUT,
            digest: None,
        }
    }

    /// Locks under this node instead: an absolute path without a slash at its end.
    #[must_use]
    pub fn root(mut self, root: impl Into<String>) -> Self {
        self.root = root.into();
        self
    }

    /// Another session time-out to ask for.
    #[must_use]
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// Speaks as this user (scheme `digest`); every node made is this user's alone.
    #[must_use]
    pub fn digest(mut self, user: &str, password: &str) -> Self {
        self.digest = Some(format!("{user}:{password}"));
        self
    }

    pub(crate) fn credentials(&self) -> Option<&str> {
        self.digest.as_deref()
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("hosts", &self.hosts)
            .field("root", &self.root)
            .field("session_timeout", &self.session_timeout)
            .field("digest", &self.digest.as_ref().map(|_| "***"))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        let config = Config::new(["localhost:2181"]).digest("ada", "secret");
        assert!(!format!("{config:?}").contains("secret"));
    }
}
