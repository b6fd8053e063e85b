//! Where the cluster is.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// How names are laid out in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// Our own: everything that the rule can do.
    #[default]
    Native,
    /// The keys of Go's `concurrency` package and of `etcdctl lock`: one holder, in order of arrival, or a leader.
    Go,
}

/// How connections are encrypted. The certificate of a server is always checked, and so is its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tls {
    /// A file of certificates (PEM) to trust instead of those of the system.
    pub ca: Option<PathBuf>,
    /// The files (PEM) of a certificate and its key, for servers that ask who is there.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Choices for an [`Etcd`](crate::Etcd) store.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// The members, as `host:port`; any of them will do.
    pub members: Vec<String>,
    /// What goes before every key. Everyone who shares locks names the same.
    pub prefix: String,
    /// How names are laid out.
    pub layout: Layout,
    /// Encryption; none if there is nothing here.
    pub tls: Option<Tls>,
    /// The user; nobody if there is none, or whom the certificate names.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// How long opening a connection may take.
    pub connect_timeout: Duration,
}

impl Config {
    /// The cluster with these members: keys under `oarlock:`, no encryption, no password.
    #[must_use]
    pub fn new(members: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            members: members.into_iter().map(Into::into).collect(),
            prefix: "oarlock:".to_owned(),
            layout: Layout::Native,
            tls: None,
            user: None,
            password: None,
            connect_timeout: Duration::from_secs(5),
        }
    }

    /// Where its locks are: two name spaces of one cluster are two addresses.
    pub(crate) fn address(&self) -> String {
        format!("{}/{}", self.members.join(","), self.prefix)
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("members", &self.members)
            .field("prefix", &self.prefix)
            .field("layout", &self.layout)
            .field("tls", &self.tls)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("connect_timeout", &self.connect_timeout)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_printed() {
        let config = Config { password: Some("swordfish".into()), ..Config::new(["localhost:2379"]) };
        assert!(!format!("{config:?}").contains("swordfish"));
    }

    #[test]
    fn name_spaces_have_addresses_of_their_own() {
        let one = Config::new(["a:2379", "b:2379"]);
        let two = Config { prefix: "team/".into(), ..one.clone() };
        assert_eq!((&*one.address(), &*two.address()), ("a:2379,b:2379/oarlock:", "a:2379,b:2379/team/"));
    }
}
