//! Where the ensemble is, and how long a session lives.

use std::fmt;
use std::time::Duration;

use crate::foreign::Dialect;

/// How long a session lives unheard, unless said otherwise. The server clamps it, usually to 2..20 of its ticks.
pub(crate) const DEFAULT_SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// Where our own locks are unless said otherwise.
const NATIVE_ROOT: &str = "/oarlock";

/// How locks are laid out in the tree, and so with whom they are shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// Our own: everything that the rule can do, for every name.
    #[default]
    Native,
    /// The nodes of Apache Curator's recipes; a name is a path below the root.
    Curator,
    /// The nodes of kazoo's recipes; a name is a path below the root.
    Kazoo,
}

impl Layout {
    pub(crate) fn dialect(self) -> Option<Dialect> {
        match self {
            Self::Native => None,
            Self::Curator => Some(Dialect::Curator),
            Self::Kazoo => Some(Dialect::Kazoo),
        }
    }
}

/// Choices for [`ZooKeeper`](crate::ZooKeeper).
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// The servers, as `host:port`.
    pub hosts: Vec<String>,
    /// The node under which every lock is; it is made if it is missing. Empty, in the layouts of others, for the whole tree.
    pub root: String,
    /// How locks are laid out below it.
    pub layout: Layout,
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
            root: NATIVE_ROOT.into(),
            layout: Layout::Native,
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

    /// Shares locks with others, by their layout. A root of our own does not fit that: it becomes the whole tree.
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        if layout != Layout::Native && self.root == NATIVE_ROOT {
            self.root.clear();
        }
        self.layout = layout;
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
            .field("layout", &self.layout)
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
