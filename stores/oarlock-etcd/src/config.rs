//! Options of this store.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::url::{PathParts, Scheme, Store, TLS_FILES, Url, one_of_several};
use oarlock_core::{Error, ErrorKind, Result};

use crate::doctor::DOCTOR;
use crate::guarantees::GUARANTEES;
use crate::{Etcd, rights};

/// etcd and its schemes `etcd://` and `etcds://`.
pub static STORE: Store = Store::new("etcd", &[scheme("etcd"), scheme("etcds").tls().options(&TLS_FILES)], |url| {
    Box::pin(async move { Ok(Arc::new(Etcd::open(Config::from_url(&url)?).await?) as _) })
})
.guarantees(GUARANTEES)
.doctor(DOCTOR)
.rights(|url, user| Ok(rights(&Config::from_url(url)?, user)));

const fn scheme(name: &'static str) -> Scheme {
    let scheme = Scheme::new(name, "etcd").port(2379).hosts(1).path(root).warnings(one_of_several);
    scheme.choices(&[("layout", &["native", "go"])])
}

fn root(_: &str, path: &str) -> Result<PathParts> {
    Ok(vec![("root", path.to_owned())])
}

/// How names are laid out in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// Keys of Oarlock: every kind of lock.
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
    /// The files (PEM) of a certificate and its key, for servers that require client certificates.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Options of an [`Etcd`](crate::Etcd) store.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// The members, as `host:port`. One is enough, several survive its failure.
    pub members: Vec<String>,
    /// The prefix of every key. Clients that share locks use the same.
    pub prefix: String,
    /// How names are laid out.
    pub layout: Layout,
    /// Encryption; `None` for plain TCP.
    pub tls: Option<Tls>,
    /// The user; without one, the user in the certificate, or none.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// A file whose only line is the password. It is read again for each token; while it cannot be read, `password`
    /// counts.
    pub password_file: Option<PathBuf>,
    /// The timeout for opening a connection.
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
            password_file: None,
            connect_timeout: Duration::from_secs(5),
        }
    }

    /// The cluster that an `etcd://` or `etcds://` URL names.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a certificate without a key; [`ErrorKind::Unsupported`] for an unknown layout.
    pub fn from_url(url: &Url) -> Result<Self> {
        let mut config = Self::new(url.hosts().iter().map(ToString::to_string));
        config.layout = match url.layout() {
            None | Some("native") => Layout::Native,
            Some("go") => Layout::Go,
            Some(layout) => return Err(Error::new(ErrorKind::Unsupported, format!("there is no layout {layout}"))),
        };
        if url.tls() {
            config.tls = Some(Tls { ca: url.file("ca"), identity: url.identity()? });
        }
        config.user = url.user().map(str::to_owned);
        config.password = url.password()?.map(|secret| secret.reveal().to_owned());
        config.password_file = url.password_file();
        config.prefix = match url.path().trim_matches('/') {
            "" => url.prefix().to_owned(),
            root => format!("{root}/{}", url.prefix()),
        };
        config.connect_timeout = url.connect_timeout();
        Ok(config)
    }

    /// The address of its locks: two name spaces of one cluster have two addresses.
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
            .field("password_file", &self.password_file)
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
