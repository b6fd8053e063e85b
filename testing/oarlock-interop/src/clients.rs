//! Whom we share locks with: one row for each client and kind of store.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// In which language a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    Go,
    Java,
    Node,
    Python,
}

impl Language {
    pub(crate) fn named(name: &str) -> Result<Self> {
        Ok(match name {
            "go" => Self::Go,
            "java" => Self::Java,
            "node" => Self::Node,
            "python" => Self::Python,
            other => bail!("there is no language `{other}`"),
        })
    }
}

/// Where both sides meet. The words are what our URL ends with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Store {
    /// One Redis.
    Redis(&'static str),
    /// A Redis Cluster of three masters, each with a replica.
    RedisCluster(&'static str),
    /// Five Redis that know nothing of each other.
    Redlock(&'static str),
    /// One etcd.
    Etcd(&'static str),
    /// One ZooKeeper.
    ZooKeeper(&'static str),
    /// One PostgreSQL.
    Postgres(&'static str),
    /// One MariaDB.
    MariaDb(&'static str),
    /// A folder of this machine.
    Local,
}

/// What both sides ask for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// The kind that is held.
    pub(crate) holds: &'static str,
    /// The kind that waits meanwhile, and that several count by.
    pub(crate) waits: &'static str,
    /// What is renewed. Short, so that three of them pass soon; long enough for a busy machine.
    pub(crate) lease: Duration,
}

/// One kind for all.
const fn terms(kind: &'static str, lease_ms: u64) -> Terms {
    Terms { holds: kind, waits: kind, lease: Duration::from_millis(lease_ms) }
}

const MUTEX: Terms = terms("mutex", 1500);

/// A lock library, and what can be asked of it.
#[derive(Debug)]
pub(crate) struct Client {
    /// In tables, and for `--only`.
    pub(crate) name: &'static str,
    /// What its program calls it, and the folder of that where a language has several.
    pub(crate) client: &'static str,
    pub(crate) language: Language,
    pub(crate) store: Store,
    pub(crate) terms: Terms,
    /// Only where all was asked for.
    pub(crate) long: bool,
    /// The median from our release to their grant may take this long, on a busy machine.
    pub(crate) they_notice: Duration,
    /// The median from their release to our grant.
    pub(crate) we_notice: Duration,
    /// Why several of them need very long to count together.
    pub(crate) stalls: Option<&'static str>,
    /// Other kinds that exclude each other: theirs, ours.
    pub(crate) kinds: &'static [(&'static str, &'static str)],
    /// A kind of theirs whose fences come from a counter that we share.
    pub(crate) fenced: Option<&'static str>,
}

/// For a client that polls.
const POLLS: Duration = Duration::from_millis(600);

/// For a client that gets notifications.
const NOTIFIED: Duration = Duration::from_millis(100);

/// Redisson's objects, and what of ours they exclude.
const REDISSON: &[(&str, &str)] = &[
    ("fenced", "mutex"),
    ("fair", "mutex"),
    ("spin", "spin"),
    ("read", "write"),
    ("write", "read"),
    ("write", "write"),
    ("semaphore:1", "semaphore:1"),
    ("permit:1", "semaphore:1"),
];

pub(crate) const CLIENTS: &[Client] = &[
    new("redis-py", "redis-py", Language::Python, PLAIN, MUTEX),
    new("pottery", "pottery", Language::Python, Store::Redis("?layout=plain&prefix=redlock:"), MUTEX),
    new("node-redlock", "node-redlock", Language::Node, PLAIN, MUTEX),
    new("redsync", "redsync", Language::Go, PLAIN, MUTEX),
    redisson("redisson", Store::Redis("?layout=redisson")),
    redisson("redisson-cluster", Store::RedisCluster("?layout=redisson")),
    // It publishes on the channels of the whole cluster, which Oarlock does not subscribe to: Oarlock polls.
    Client {
        we_notice: POLLS,
        long: true,
        ..redisson("redisson-cluster-old", Store::RedisCluster("?layout=redisson"))
    },
    new("pottery-5", "pottery", Language::Python, Store::Redlock("?prefix=redlock:"), MUTEX),
    Client {
        stalls: Some(
            "node-redlock keeps the servers it won in a lost round until its lease ends, so that rivals on five servers \
             stall each other for a whole lease of 10 s at a time, also without us",
        ),
        ..new("node-redlock-5", "node-redlock", Language::Node, Store::Redlock(""), MUTEX)
    },
    Client { long: true, ..new("redsync-5", "redsync", Language::Go, Store::Redlock(""), MUTEX) },
    new("concurrency", "concurrency", Language::Go, ETCD, terms("mutex", ETCD_LEASE)),
    rarely("concurrency-election", "concurrency", Language::Go, ETCD, terms("election", ETCD_LEASE)),
    new("jetcd", "jetcd", Language::Java, ETCD, terms("mutex", ETCD_LEASE)),
    rarely("jetcd-election", "jetcd", Language::Java, ETCD, terms("election", ETCD_LEASE)),
    new("etcdctl", "etcdctl", Language::Go, ETCD, terms("mutex", ETCD_LEASE)),
    new("curator", "curator", Language::Java, CURATOR, terms("mutex", SESSION)),
    rarely("curator-rw", "curator", Language::Java, CURATOR, Terms { holds: "read", ..terms("write", SESSION) }),
    rarely("curator-semaphore", "curator", Language::Java, CURATOR, terms("semaphore:1", SESSION)),
    rarely("curator-latch", "curator", Language::Java, CURATOR, terms("election", SESSION)),
    new("kazoo", "kazoo", Language::Python, KAZOO, terms("mutex", SESSION)),
    rarely("kazoo-rw", "kazoo", Language::Python, KAZOO, Terms { holds: "read", ..terms("write", SESSION) }),
    rarely("kazoo-semaphore", "kazoo", Language::Python, KAZOO, terms("semaphore:1", SESSION)),
    rarely("kazoo-election", "kazoo", Language::Python, KAZOO, terms("election", SESSION)),
    new("psql", "psql", Language::Python, Store::Postgres("?mode=session&prefix="), MUTEX),
    new("mariadb", "mariadb", Language::Python, Store::MariaDb("?mode=session&key=raw"), MUTEX),
];

/// Clients that are measured beside ours, and share no lock with it.
pub(crate) const MEASURED: &[Client] = &[new("filelock", "filelock", Language::Python, Store::Local, MUTEX)];

const PLAIN: Store = Store::Redis("?layout=plain");
const ETCD: Store = Store::Etcd("?layout=go");
const CURATOR: Store = Store::ZooKeeper("?layout=curator");
const KAZOO: Store = Store::ZooKeeper("?layout=kazoo");

/// The shortest lease that etcd gives.
const ETCD_LEASE: u64 = 2000;

/// A session of ZooKeeper: shorter ones end when a busy machine pauses.
const SESSION: u64 = 3000;

/// A client as most are.
const fn new(name: &'static str, client: &'static str, language: Language, store: Store, terms: Terms) -> Client {
    let (they_notice, we_notice) = (POLLS, POLLS);
    let (stalls, kinds, fenced) = (None, &[], None);
    Client { name, client, language, store, terms, long: false, they_notice, we_notice, stalls, kinds, fenced }
}

/// Redisson, where both sides notify each other.
const fn redisson(name: &'static str, store: Store) -> Client {
    Client {
        they_notice: NOTIFIED,
        we_notice: NOTIFIED,
        kinds: REDISSON,
        fenced: Some("fenced"),
        ..new(name, "redisson", Language::Java, store, MUTEX)
    }
}

/// One of each library is enough for every day.
const fn rarely(name: &'static str, client: &'static str, language: Language, store: Store, terms: Terms) -> Client {
    Client { long: true, ..new(name, client, language, store, terms) }
}

impl Client {
    /// By its own name, or that of the library on any store.
    pub(crate) fn answers_to(&self, name: &str) -> bool {
        self.name == name || self.client == name
    }

    /// The versions to run: the file `versions` of its folder has one in each line, the first is the usual one. A line
    /// may name the clients that it is for, which then have no other. A client without such a file has the version that
    /// its language's lock file pins.
    pub(crate) fn versions(&self, root: &Path, all: bool) -> Result<Vec<String>> {
        if self.language != Language::Java {
            return Ok(vec![String::new()]);
        }
        let file = root.join("interop/java").join(self.client).join("versions");
        let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(listed(&text, self.name, all))
    }

    /// How its program is started; the URL comes last.
    pub(crate) fn command(&self, root: &Path, out: &Path, version: &str) -> Vec<String> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut words = match self.language {
            // Without a folder for compiled modules in the tree.
            Language::Python => {
                vec![text(&out.join("python/bin/python")), "-B".to_owned(), text(&root.join("interop/python/peer.py"))]
            }
            Language::Node => vec!["node".to_owned(), text(&out.join("node/peer.mjs"))],
            Language::Go => vec![text(&out.join("go/peer"))],
            Language::Java => {
                let built = out.join("java").join(format!("{}-{version}", self.client));
                let path = format!("{}:{}/*", text(&built.join("classes")), text(&built.join("lib")));
                // A peer lives for seconds: the first compiler alone starts it sooner.
                vec!["java".to_owned(), "-XX:+UseSerialGC".to_owned(), "-cp".to_owned(), path, "Main".to_owned()]
            }
        };
        words.push(self.client.to_owned());
        words
    }
}

/// The versions in such a file that are for this client.
fn listed(text: &str, name: &str, all: bool) -> Vec<String> {
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    let is_named = lines.iter().any(|line| line[1..].contains(&name));
    let is_for = |line: &&Vec<&str>| line[1..].contains(&name) || (line.len() == 1 && !is_named);
    let usual = if all { lines.len() } else { 1 };
    lines.iter().take(usual).filter(is_for).map(|line| line[0].to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_can_be_for_one_client_alone() {
        let text = "4.7.0\n3.52.0\n3.21.3 old\n";
        assert_eq!(listed(text, "new", true), ["4.7.0", "3.52.0"]);
        assert_eq!(listed(text, "new", false), ["4.7.0"]);
        assert_eq!(listed(text, "old", true), ["3.21.3"]);
        assert!(listed(text, "old", false).is_empty());
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = CLIENTS.iter().map(|client| client.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CLIENTS.len());
    }
}
