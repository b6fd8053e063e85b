//! Where the servers are, how they are spoken to, and who asks.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::clock::{BootClock, Clock};

/// A host and a port.
pub type Host = (String, u16);

/// Where the store is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Address {
    /// One server, at a host and a port.
    Tcp(String, u16),
    /// One server, at a socket on this machine.
    Unix(PathBuf),
    /// Whichever server these Sentinels call the master of that name.
    Sentinel {
        /// The Sentinels.
        hosts: Vec<Host>,
        /// The name they have for the master.
        master: String,
    },
    /// A cluster, of which these nodes are known.
    Cluster(Vec<Host>),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) => write_host(f, host, *port),
            Self::Unix(path) => path.display().fmt(f),
            Self::Sentinel { hosts, master } => {
                write_hosts(f, hosts)?;
                write!(f, "/{master}")
            }
            Self::Cluster(hosts) => write_hosts(f, hosts),
        }
    }
}

fn write_hosts(f: &mut fmt::Formatter<'_>, hosts: &[Host]) -> fmt::Result {
    for (number, (host, port)) in hosts.iter().enumerate() {
        if number > 0 {
            f.write_str(",")?;
        }
        write_host(f, host, *port)?;
    }
    Ok(())
}

pub(crate) fn write_host(f: &mut fmt::Formatter<'_>, host: &str, port: u16) -> fmt::Result {
    if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
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

/// How names are laid out in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// Our own: everything that the rule can do.
    #[default]
    Native,
    /// One string key for each name, as redis-py, redsync and node-redlock have it: one holder, no queue.
    Plain,
    /// The objects of Redisson, chosen by the kind of lock: its locks, read-write locks and semaphores. No queue of ours.
    Redisson,
}

/// Choices for a [`Redis`](crate::Redis) store.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// Where the store is.
    pub address: Address,
    /// Encryption; none if there is nothing here.
    pub tls: Option<Tls>,
    /// The user; the default one if there is none.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// The numbered database.
    pub database: u32,
    /// What goes before every key and channel.
    pub prefix: String,
    /// How names are laid out.
    pub layout: Layout,
    /// Whether mutexes are fenced locks of Redisson, whose programs read the fence as their token. A lock that has a token
    /// already keeps it in any case. For [`Layout::Redisson`] only.
    pub tokens: bool,
    /// How many replicas must have a grant or a renewal before it counts.
    pub min_replicas: u32,
    /// Whether a server that may throw keys away to make room is good enough.
    pub allow_eviction: bool,
    /// Where to connect instead, for servers that announce addresses which cannot be reached from here: from what they
    /// say to what works. Certificates are checked against what they say.
    pub detours: HashMap<Host, Host>,
    /// The clock of the clients that are built on this store, if they have one of their own: a grant that comes with a turn is
    /// believed from the moment at which its claim last asked, by this clock.
    pub clock: Arc<dyn Clock>,
    /// How long opening a connection may take, and how long sent data may stay unconfirmed by the other side's
    /// system before a connection counts as ended.
    pub connect_timeout: Duration,
    /// How long a request may stay unanswered before its connection counts as ended and is replaced. Keep it well above
    /// the time that a request may take by the client's settings: it is for peers that fell silent and never hang up.
    pub silence_timeout: Duration,
}

impl Config {
    /// The store at this address: database 0, no password, no encryption, our own layout under `oarlock:`.
    #[must_use]
    pub fn new(address: Address) -> Self {
        Self {
            address,
            tls: None,
            user: None,
            password: None,
            database: 0,
            prefix: "oarlock:".to_owned(),
            layout: Layout::Native,
            tokens: false,
            min_replicas: 0,
            allow_eviction: false,
            detours: HashMap::new(),
            clock: Arc::new(BootClock),
            connect_timeout: Duration::from_secs(5),
            silence_timeout: Duration::from_secs(20),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("address", &self.address)
            .field("tls", &self.tls)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("database", &self.database)
            .field("prefix", &self.prefix)
            .field("layout", &self.layout)
            .field("tokens", &self.tokens)
            .field("min_replicas", &self.min_replicas)
            .field("allow_eviction", &self.allow_eviction)
            .field("detours", &self.detours)
            .field("connect_timeout", &self.connect_timeout)
            .field("silence_timeout", &self.silence_timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_printed() {
        let mut config = Config::new(Address::Tcp("localhost".into(), 6379));
        config.password = Some("swordfish".into());
        assert!(!format!("{config:?}").contains("swordfish"));
    }
}
