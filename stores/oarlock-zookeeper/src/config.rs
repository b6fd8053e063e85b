//! Options of this store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::url::{PathParts, Scheme, Store, Url, one_of_several};
use oarlock_core::{Error, ErrorKind, Result};

#[cfg(feature = "tls")]
use crate::Tls;
use crate::compat::Dialect;
use crate::doctor::DOCTOR;
use crate::error::SCHEME;
use crate::guarantees::GUARANTEES;
use crate::{ZooKeeper, rights};

/// ZooKeeper and its schemes: `zk://`, and `zks://` with the feature `tls`.
pub static STORE: Store = Store::new("zookeeper", SCHEMES, |url| {
    Box::pin(async move { Ok(Arc::new(ZooKeeper::open(Config::from_url(&url)?).await?) as _) })
})
.guarantees(GUARANTEES)
.doctor(DOCTOR)
.rights(|url, user| rights(&Config::from_url(url)?, user));

const SCHEMES: &[Scheme] = &[
    scheme("zk").alias(&["zookeeper"]).port(2181),
    #[cfg(feature = "tls")]
    scheme("zks").port(2281).tls().options(&oarlock_core::url::TLS_FILES),
];

const fn scheme(name: &'static str) -> Scheme {
    let scheme = Scheme::new(name, "ZooKeeper").hosts(1).path(root).warnings(one_of_several);
    scheme.choices(&[("layout", &["native", "curator", "kazoo"])])
}

fn root(_: &str, path: &str) -> Result<PathParts> {
    Ok(vec![("root", path.to_owned())])
}

/// The default session time-out. The server clamps it, usually to 2..20 of its ticks.
pub(crate) const DEFAULT_SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// The default root of the native layout.
const NATIVE_ROOT: &str = "/oarlock";

/// The layout of locks in the tree, and so the programs that they are shared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// Nodes of Oarlock: every kind of lock, for every name.
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

/// Options of [`ZooKeeper`](crate::ZooKeeper).
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// The servers, as `host:port`.
    pub hosts: Vec<String>,
    /// The node under which every lock is; it is created if it is missing. Empty for the whole tree, in the layouts of
    /// other programs.
    pub root: String,
    /// How locks are laid out below it.
    pub layout: Layout,
    /// The session time-out to request: how long a session, with all its claims, outlives its process.
    pub session_timeout: Duration,
    /// Encrypts connections with these certificates.
    #[cfg(feature = "tls")]
    pub tls: Option<Tls>,
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
            #[cfg(feature = "tls")]
            tls: None,
            digest: None,
        }
    }

    /// The servers that a `zk://` or `zks://` URL names, with locks below its path and prefix.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a password without a user, and for `zks://` without `ca`.
    pub fn from_url(url: &Url) -> Result<Self> {
        // The prefix is a node of its own here.
        let (path, prefix) = (url.path().trim_end_matches('/'), url.prefix().trim_end_matches([':', '/']));
        let root = if prefix.is_empty() { path.to_owned() } else { format!("{path}/{prefix}") };
        let mut config = Self::new(url.hosts().iter().map(ToString::to_string)).root(root);
        config.layout = match url.layout() {
            Some("curator") => Layout::Curator,
            Some("kazoo") => Layout::Kazoo,
            _ => Layout::Native,
        };
        match (url.user(), url.password()?) {
            (Some(user), Some(password)) => config = config.digest(user, password.reveal()),
            (None, None) => {}
            _ => return Err(Error::new(ErrorKind::Config, "user and password go together").on(SCHEME)),
        }
        #[cfg(feature = "tls")]
        if url.tls() {
            let missing = || Error::new(ErrorKind::Config, "zks:// needs ca=FILE: the authority of the servers");
            let mut tls = Tls::new(url.file("ca").ok_or_else(|| missing().on(SCHEME))?);
            tls.identity = url.identity()?;
            config.tls = Some(tls);
        }
        config.session_timeout = url.ttl().unwrap_or(config.session_timeout);
        Ok(config)
    }

    /// Locks under this node instead: an absolute path without a slash at its end.
    #[must_use]
    pub fn root(mut self, root: impl Into<String>) -> Self {
        self.root = root.into();
        self
    }

    /// Shares locks with other programs, by their layout. The default root then becomes the whole tree.
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        if layout != Layout::Native && self.root == NATIVE_ROOT {
            self.root.clear();
        }
        self.layout = layout;
        self
    }

    /// Sets the session time-out to request.
    #[must_use]
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// Authenticates as this user (scheme `digest`); every node that is created belongs to this user alone.
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
        let mut shown = f.debug_struct("Config");
        #[cfg(feature = "tls")]
        shown.field("tls", &self.tls);
        shown
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
    use oarlock_core::url::Stores;

    use super::*;

    #[test]
    fn locks_are_below_the_path_and_the_prefix() {
        static STORES: Stores = Stores { built_in: &[&STORE], missing: &[] };
        for (url, root) in [
            ("zk://h", "/oarlock"),
            ("zk://h/team", "/team/oarlock"),
            ("zk://h1,h2/team/?prefix=locks", "/team/locks"),
            ("zk://h/team/a%20b?prefix=locks:", "/team/a b/locks"),
            ("zk://h/team?prefix=&layout=curator", "/team"),
        ] {
            let parsed = Url::parse(url, &STORES).unwrap();
            assert_eq!(Config::from_url(&parsed).unwrap().root, root, "{url}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let config = Config::new(["localhost:2181"]).digest("ada", "secret");
        assert!(!format!("{config:?}").contains("secret"));
    }
}
