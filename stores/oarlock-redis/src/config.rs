//! Address, login, layout and time-outs.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::clock::{BootClock, Clock};
use oarlock_core::url::{Choice, Opt, PathParts, Scheme, Store, TLS_FILES, Url, Value, one_of_several};
use oarlock_core::{Error, ErrorKind, Result};

use crate::doctor::DOCTOR;
use crate::guarantees::GUARANTEES;
use crate::{Redis, rights};

/// Redis and Valkey with their schemes: one server, Sentinel, Cluster, encrypted or not.
pub static STORE: Store = Store::new(
    "redis",
    &[
        server("redis").alias(&["valkey"]),
        server("rediss").alias(&["valkeys"]).tls().options(TLS_OPTIONS),
        scheme("redis+unix", "Redis or Valkey").alias(&["valkey+unix"]).socket(),
        sentinel("redis+sentinel").alias(&["redis-sentinel"]),
        sentinel("rediss+sentinel").alias(&["rediss-sentinel"]).tls().options(TLS_OPTIONS),
        cluster("redis+cluster").alias(&["redis-cluster"]),
        cluster("rediss+cluster").alias(&["rediss-cluster"]).tls().options(TLS_OPTIONS),
    ],
    |url| Box::pin(async move { Ok(Arc::new(Redis::open(Config::from_url(&url)?).await?) as _) }),
)
.guarantees(GUARANTEES)
.doctor(DOCTOR)
.rights(|url, user| rights(&Config::from_url(url)?, user));

const LAYOUTS: &[Choice] = &[("layout", &["native", "plain", "redisson"])];
const MIN_REPLICAS: Opt = Opt::new("min_replicas", Value::Number, "0");
/// The option to accept a server that may evict keys.
pub const ALLOW_EVICTION: Opt = Opt::new("allow_eviction", Value::YES_OR_NO, "no");
const TOKENS: Opt = Opt::new("tokens", Value::YES_OR_NO, "no");
const TLS_OPTIONS: &[Opt] = &[MIN_REPLICAS, ALLOW_EVICTION, TLS_FILES[0], TLS_FILES[1], TLS_FILES[2], TOKENS];

const fn scheme(name: &'static str, title: &'static str) -> Scheme {
    Scheme::new(name, title).choices(LAYOUTS).options(&[MIN_REPLICAS, ALLOW_EVICTION, TOKENS])
}

const fn server(name: &'static str) -> Scheme {
    scheme(name, "Redis or Valkey").port(6379).path(database).routes()
}

const fn sentinel(name: &'static str) -> Scheme {
    let scheme = scheme(name, "Redis behind Sentinel").port(26379).hosts(1).path(master_and_database);
    scheme.warnings(one_of_several).routes().announces()
}

const fn cluster(name: &'static str) -> Scheme {
    scheme(name, "Redis Cluster").port(6379).hosts(1).warnings(one_of_several).routes().announces()
}

/// Reads the path of a URL that names a numbered database.
///
/// # Errors
/// [`ErrorKind::Config`] if it is not a number.
pub fn database(_: &str, path: &str) -> Result<PathParts> {
    Ok(vec![("database", number(path.trim_start_matches('/'))?.to_string())])
}

fn master_and_database(scheme: &str, path: &str) -> Result<PathParts> {
    let path = path.trim_start_matches('/');
    let (master, database) = path.split_once('/').unwrap_or((path, ""));
    if master.is_empty() {
        let message = format!("{scheme}:// needs the name of the master, as in {scheme}://h1,h2,h3/mymaster");
        return Err(Error::new(ErrorKind::Config, message));
    }
    Ok(vec![("master", master.to_owned()), ("database", number(database)?.to_string())])
}

fn number(text: &str) -> Result<u32> {
    let wrong = |_| Error::new(ErrorKind::Config, "the database of Redis is a number, as in redis://host/2");
    if text.is_empty() { Ok(0) } else { text.parse().map_err(wrong) }
}

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
    /// The files (PEM) of a certificate and its key, for servers that ask for a client certificate.
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
    /// The objects of Redisson, chosen by the kind of lock: its locks, read-write locks and semaphores. No queue of
    /// ours.
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
    /// A file whose only line is the password. It is read again for each connection; while it cannot be read,
    /// `password` counts.
    pub password_file: Option<PathBuf>,
    /// The numbered database.
    pub database: u32,
    /// What goes before every key and channel.
    pub prefix: String,
    /// How names are laid out.
    pub layout: Layout,
    /// Whether mutexes are fenced locks of Redisson, whose programs read the fence as their token. A lock that has a
    /// token already keeps it in any case. For [`Layout::Redisson`] only.
    pub tokens: bool,
    /// Whether the claims of this client that wait stand in a queue beside the lock. A quorum has no order and does
    /// without: each release then saves a command, and wakes no claim that another client put into such a queue. For
    /// [`Layout::Plain`] only.
    pub queue: bool,
    /// How many replicas must have a grant or a renewal before it counts.
    pub min_replicas: u32,
    /// Whether a server that may throw keys away to make room is good enough.
    pub allow_eviction: bool,
    /// Where to connect instead, for servers that announce addresses which cannot be reached from here: from what they
    /// say to what works. Certificates are checked against what they say.
    pub detours: HashMap<Host, Host>,
    /// The clock of the clients that are built on this store, if they have one of their own: a grant that comes with a
    /// turn is believed from the moment at which its claim last asked, by this clock.
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
            password_file: None,
            database: 0,
            prefix: "oarlock:".to_owned(),
            layout: Layout::Native,
            tokens: false,
            queue: true,
            min_replicas: 0,
            allow_eviction: false,
            detours: HashMap::new(),
            clock: Arc::new(BootClock),
            connect_timeout: Duration::from_secs(5),
            silence_timeout: Duration::from_secs(20),
        }
    }

    /// The store that a URL of one of the schemes of [`STORE`] names.
    ///
    /// # Errors
    /// As [`with_options`](Self::with_options).
    pub fn from_url(url: &Url) -> Result<Self> {
        let hosts = || url.hosts().iter().map(|host| (host.name.clone(), host.port)).collect();
        let address = match (url.scheme(), url.hosts()) {
            ("redis+unix", _) => Address::Unix(url.path().into()),
            ("redis+sentinel" | "rediss+sentinel", _) => {
                Address::Sentinel { hosts: hosts(), master: url.path_part("master").to_owned() }
            }
            ("redis+cluster" | "rediss+cluster", _) => Address::Cluster(hosts()),
            (_, [host]) => Address::Tcp(host.name.clone(), host.port),
            (scheme, _) => return Err(Error::new(ErrorKind::Config, format!("{scheme}:// needs one host"))),
        };
        Self::with_options(address, url)
    }

    /// The store at `address`, with everything but the address taken from the URL.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for options that exclude each other; [`ErrorKind::Unsupported`] for an unknown layout.
    pub fn with_options(address: Address, url: &Url) -> Result<Self> {
        let mut config = Self::new(address);
        config.layout = match url.layout() {
            None | Some("native") => Layout::Native,
            Some("plain") => Layout::Plain,
            Some("redisson") => Layout::Redisson,
            Some(layout) => {
                return Err(Error::new(ErrorKind::Unsupported, format!("the layout {layout} is not supported yet")));
            }
        };
        if url.tls() {
            config.tls = Some(Tls { ca: url.file("ca"), identity: url.identity()? });
        }
        config.tokens = url.is_yes("tokens");
        if config.tokens && config.layout != Layout::Redisson {
            return Err(Error::new(ErrorKind::Config, "tokens=yes needs layout=redisson"));
        }
        config.min_replicas = url.option("min_replicas").and_then(|count| count.parse().ok()).unwrap_or(0);
        config.allow_eviction = url.is_yes("allow_eviction");
        config.user = url.user().map(str::to_owned);
        config.password = url.password()?.map(|secret| secret.reveal().to_owned());
        config.password_file = url.password_file();
        config.database = number(url.path_part("database"))?;
        config.prefix = url.prefix().to_owned();
        let routes = url.routes().iter();
        config.detours =
            routes.map(|(server, way)| ((server.name.clone(), server.port), (way.name.clone(), way.port))).collect();
        config.connect_timeout = url.connect_timeout();
        config.silence_timeout = url.silence_timeout(config.silence_timeout);
        Ok(config)
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("address", &self.address)
            .field("tls", &self.tls)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("password_file", &self.password_file)
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
