//! Every scheme there is, as data.

use super::bad;
use crate::{Result, text};

/// The layout of our own, the default where there is a choice.
pub(super) const NATIVE: &str = "native";

/// What the path of a URL means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathIs {
    Nothing,
    Directory,
    Socket,
    /// A numbered database.
    Number,
    /// A Sentinel master, and perhaps a numbered database.
    Master,
    /// What goes before every key.
    Root,
    Database,
}

/// A key that some schemes have, what it may say, and what holds where it says nothing.
pub(super) type Own = (&'static str, Says, &'static str);

/// What the value of a key may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Says {
    Number,
    YesOrNo,
    File,
    Encryption,
    Keys,
}

/// A key with its allowed values; the first is the default.
type Choice = (&'static str, &'static [&'static str]);

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Scheme {
    pub(super) name: &'static str,
    aliases: &'static [&'static str],
    pub(super) store: &'static str,
    pub(super) driver: &'static str,
    pub(super) tls: bool,
    pub(super) port: Option<u16>,
    pub(super) many_hosts: bool,
    pub(super) least_hosts: usize,
    pub(super) path: PathIs,
    pub(super) choices: &'static [Choice],
    /// Further keys of its own.
    pub(super) own: &'static [Own],
}

impl Scheme {
    const fn new(name: &'static str, store: &'static str, driver: &'static str) -> Self {
        Self {
            name,
            aliases: &[],
            store,
            driver,
            tls: false,
            port: None,
            many_hosts: false,
            least_hosts: 1,
            path: PathIs::Nothing,
            choices: &[],
            own: &[],
        }
    }

    const fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    const fn alias(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    const fn path(mut self, path: PathIs) -> Self {
        self.path = path;
        self
    }

    const fn hosts(mut self, least: usize) -> Self {
        self.many_hosts = true;
        self.least_hosts = least;
        self
    }

    const fn choices(mut self, choices: &'static [Choice]) -> Self {
        self.choices = choices;
        self
    }

    const fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    const fn own(mut self, own: &'static [Own]) -> Self {
        self.own = own;
        self
    }

    /// Whether it has hosts or a socket, and so `//`.
    pub(super) fn is_remote(&self) -> bool {
        self.port.is_some() || self.path == PathIs::Socket
    }

    pub(super) fn choice(&self, key: &str) -> Option<&'static [&'static str]> {
        self.choices.iter().find(|(name, _)| *name == key).map(|(_, values)| *values)
    }
}

const REDIS: &[Choice] = &[("layout", &[NATIVE, "plain", "redisson"])];
const REDLOCK: &[Choice] = &[("layout", &["plain"])];
const ETCD: &[Choice] = &[("layout", &[NATIVE, "go"])];
const ZOOKEEPER: &[Choice] = &[("layout", &[NATIVE, "curator", "kazoo"])];
const SQL: &[Choice] = &[("mode", &["lease", "session", "transaction"])];

const SAFETY: &[Own] =
    &[("min_replicas", Says::Number, "0"), ("allow_eviction", Says::YesOrNo, "no"), ("tokens", Says::YesOrNo, "no")];
const TLS_SAFETY: &[Own] =
    &[SAFETY[0], SAFETY[1], ("ca", Says::File, ""), ("cert", Says::File, ""), ("key", Says::File, ""), SAFETY[2]];

const CERTIFICATES: &[Own] = &[TLS_SAFETY[2], TLS_SAFETY[3], TLS_SAFETY[4]];

const DATABASE: &[Own] =
    &[("sslmode", Says::Encryption, "disable"), ("sslrootcert", Says::File, ""), ("key", Says::Keys, "named")];

const SHARING: &[Own] = &[("group", Says::YesOrNo, "no")];

// Each server of a Redlock is alone: it has no replicas that could count.
const EVICTION: &[Own] = &[SAFETY[1]];
const TLS_EVICTION: &[Own] = &[SAFETY[1], TLS_SAFETY[2], TLS_SAFETY[3], TLS_SAFETY[4]];

const fn redis(name: &'static str) -> Scheme {
    Scheme::new(name, "Redis or Valkey", "redis").port(6379).path(PathIs::Number).choices(REDIS).own(SAFETY)
}

const fn sentinel(name: &'static str) -> Scheme {
    Scheme::new(name, "Redis behind Sentinel", "redis")
        .port(26379)
        .hosts(1)
        .path(PathIs::Master)
        .choices(REDIS)
        .own(SAFETY)
}

const fn cluster(name: &'static str) -> Scheme {
    Scheme::new(name, "Redis Cluster", "redis").port(6379).hosts(1).choices(REDIS).own(SAFETY)
}

const fn redlock(name: &'static str) -> Scheme {
    Scheme::new(name, "Redlock over independent Redis servers", "redlock")
        .port(6379)
        .hosts(3)
        .path(PathIs::Number)
        .choices(REDLOCK)
        .own(EVICTION)
}

const fn etcd(name: &'static str) -> Scheme {
    Scheme::new(name, "etcd", "etcd").port(2379).hosts(1).path(PathIs::Root).choices(ETCD)
}

static SCHEMES: &[Scheme] = &[
    Scheme::new("local", "the embedded store", "local").path(PathIs::Directory).own(SHARING),
    Scheme::new("mem", "the memory of one process, for tests", "mem"),
    redis("redis").alias(&["valkey"]),
    redis("rediss").alias(&["valkeys"]).tls().own(TLS_SAFETY),
    Scheme::new("redis+unix", "Redis or Valkey", "redis")
        .alias(&["valkey+unix"])
        .path(PathIs::Socket)
        .choices(REDIS)
        .own(SAFETY),
    sentinel("redis+sentinel").alias(&["redis-sentinel"]),
    sentinel("rediss+sentinel").alias(&["rediss-sentinel"]).tls().own(TLS_SAFETY),
    cluster("redis+cluster").alias(&["redis-cluster"]),
    cluster("rediss+cluster").alias(&["rediss-cluster"]).tls().own(TLS_SAFETY),
    redlock("redlock"),
    redlock("redlocks").tls().own(TLS_EVICTION),
    etcd("etcd"),
    etcd("etcds").tls().own(CERTIFICATES),
    Scheme::new("zk", "ZooKeeper", "zookeeper")
        .alias(&["zookeeper"])
        .port(2181)
        .hosts(1)
        .path(PathIs::Root)
        .choices(ZOOKEEPER),
    Scheme::new("postgres", "PostgreSQL", "postgres")
        .alias(&["postgresql"])
        .port(5432)
        .path(PathIs::Database)
        .choices(SQL)
        .own(DATABASE),
    Scheme::new("mysql", "MySQL or MariaDB", "mysql")
        .alias(&["mariadb"])
        .port(3306)
        .path(PathIs::Database)
        .choices(SQL)
        .own(DATABASE),
];

/// The scheme called `name`, or an error that names the nearest one.
pub(super) fn find(name: &str) -> Result<&'static Scheme> {
    let wanted = name.to_ascii_lowercase();
    let found = SCHEMES.iter().find(|scheme| scheme.name == wanted || scheme.aliases.contains(&wanted.as_str()));
    found.ok_or_else(|| {
        let names = SCHEMES.iter().flat_map(|scheme| [scheme.name].into_iter().chain(scheme.aliases.iter().copied()));
        bad(format!("unknown scheme {}; did you mean {}?", text::quoted(name), nearest(&wanted, names)))
    })
}

/// The one of `names` that takes the fewest changes of a letter to reach from `word`.
pub(super) fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> &'a str {
    names.into_iter().min_by_key(|name| distance(word, name)).unwrap_or_default()
}

/// How many letters must be added, taken away or replaced to make `b` of `a`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
