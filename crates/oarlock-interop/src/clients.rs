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
    /// Five Redis that know nothing of each other.
    Redlock(&'static str),
    /// One ZooKeeper.
    ZooKeeper(&'static str),
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
    /// What its program calls it.
    pub(crate) client: &'static str,
    pub(crate) language: Language,
    /// The folder of its program, where a language has several.
    pub(crate) folder: &'static str,
    pub(crate) store: Store,
    pub(crate) terms: Terms,
    /// Only where all was asked for.
    pub(crate) long: bool,
    /// The median from our release to their grant may take this long, on a busy machine.
    pub(crate) they_notice: Duration,
    /// The median from their release to our grant.
    pub(crate) we_notice: Duration,
    /// Why several of them cannot count together in reasonable time.
    pub(crate) stalls: Option<&'static str>,
    /// Other kinds that exclude each other: theirs, ours.
    pub(crate) kinds: &'static [(&'static str, &'static str)],
}

/// A client that asks again now and then.
const POLLS: Duration = Duration::from_millis(600);

/// A client that is told.
const TOLD: Duration = Duration::from_millis(100);

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
    Client {
        name: "redis-py",
        client: "redis-py",
        language: Language::Python,
        folder: "",
        store: Store::Redis("?layout=plain"),
        terms: MUTEX,
        long: false,
        they_notice: POLLS,
        we_notice: POLLS,
        stalls: None,
        kinds: &[],
    },
    Client {
        name: "pottery",
        client: "pottery",
        language: Language::Python,
        folder: "",
        store: Store::Redis("?layout=plain&prefix=redlock:"),
        terms: MUTEX,
        long: false,
        they_notice: POLLS,
        we_notice: POLLS,
        stalls: None,
        kinds: &[],
    },
    Client {
        name: "node-redlock",
        client: "node-redlock",
        language: Language::Node,
        folder: "",
        store: Store::Redis("?layout=plain"),
        terms: MUTEX,
        long: false,
        they_notice: POLLS,
        we_notice: POLLS,
        stalls: None,
        kinds: &[],
    },
    Client {
        name: "redsync",
        client: "redsync",
        language: Language::Go,
        folder: "",
        store: Store::Redis("?layout=plain"),
        terms: MUTEX,
        long: false,
        they_notice: POLLS,
        we_notice: POLLS,
        stalls: None,
        kinds: &[],
    },
    Client {
        name: "redisson",
        client: "redisson",
        language: Language::Java,
        folder: "redisson",
        store: Store::Redis("?layout=redisson"),
        terms: MUTEX,
        long: false,
        they_notice: TOLD,
        we_notice: TOLD,
        stalls: None,
        kinds: REDISSON,
    },
    Client {
        name: "pottery-5",
        client: "pottery",
        language: Language::Python,
        folder: "",
        store: Store::Redlock("?prefix=redlock:"),
        terms: MUTEX,
        long: false,
        they_notice: POLLS,
        we_notice: POLLS,
        stalls: None,
        kinds: &[],
    },
    Client {
        name: "node-redlock-5",
        client: "node-redlock",
        language: Language::Node,
        folder: "",
        store: Store::Redlock(""),
        terms: MUTEX,
        long: false,
        they_notice: POLLS,
        we_notice: POLLS,
        stalls: Some(
            "node-redlock keeps the servers it won in a lost round until its lease ends, so that rivals on five servers \
             stall each other for whole leases (seen without us too)",
        ),
        kinds: &[],
    },
    Client {
        name: "redsync-5",
        client: "redsync",
        language: Language::Go,
        folder: "",
        store: Store::Redlock(""),
        terms: MUTEX,
        long: true,
        they_notice: POLLS,
        we_notice: POLLS,
        stalls: None,
        kinds: &[],
    },
    zookeeper("curator", "curator", terms("mutex", SESSION)),
    zookeeper("curator-rw", "curator", Terms { holds: "read", ..terms("write", SESSION) }),
    zookeeper("curator-semaphore", "curator", terms("semaphore:1", SESSION)),
    zookeeper("curator-latch", "curator", terms("election", SESSION)),
    zookeeper("kazoo", "kazoo", terms("mutex", SESSION)),
    zookeeper("kazoo-rw", "kazoo", Terms { holds: "read", ..terms("write", SESSION) }),
    zookeeper("kazoo-semaphore", "kazoo", terms("semaphore:1", SESSION)),
    zookeeper("kazoo-election", "kazoo", terms("election", SESSION)),
];

/// A session of ZooKeeper: shorter ones end when a busy machine pauses.
const SESSION: u64 = 3000;

/// A recipe on ZooKeeper. Those who wait there watch, and are told.
const fn zookeeper(name: &'static str, client: &'static str, terms: Terms) -> Client {
    let curator = matches!(client.as_bytes(), b"curator");
    let (language, folder) = if curator { (Language::Java, "curator") } else { (Language::Python, "") };
    let store = Store::ZooKeeper(if curator { "?layout=curator" } else { "?layout=kazoo" });
    // One of each library is enough for every day.
    let long = !matches!(terms.holds.as_bytes(), b"mutex");
    let (they_notice, we_notice, stalls) = (POLLS, POLLS, None);
    Client { name, client, language, folder, store, terms, long, they_notice, we_notice, stalls, kinds: &[] }
}

impl Client {
    /// By its own name, or that of the library on any store.
    pub(crate) fn answers_to(&self, name: &str) -> bool {
        self.name == name || self.client == name
    }

    /// The versions to run: the file `versions` of its folder has one in each line, the first is the usual one. A
    /// client without such a file has the version that its language's lock file pins.
    pub(crate) fn versions(&self, root: &Path, all: bool) -> Result<Vec<String>> {
        if self.language != Language::Java {
            return Ok(vec![String::new()]);
        }
        let file = root.join("interop/java").join(self.folder).join("versions");
        let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(text.lines().map(str::to_owned).take(if all { usize::MAX } else { 1 }).collect())
    }

    /// How its program is started; the URL comes last.
    pub(crate) fn command(&self, root: &Path, out: &Path, version: &str) -> Vec<String> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut words = match self.language {
            Language::Python => vec![text(&out.join("python/bin/python")), text(&root.join("interop/python/peer.py"))],
            Language::Node => vec!["node".to_owned(), text(&out.join("node/peer.mjs"))],
            Language::Go => vec![text(&out.join("go/peer"))],
            Language::Java => {
                let built = out.join("java").join(format!("{}-{version}", self.folder));
                let path = format!("{}:{}/*", text(&built.join("classes")), text(&built.join("lib")));
                // A peer lives for seconds: the first compiler alone starts it sooner.
                vec!["java".to_owned(), "-XX:+UseSerialGC".to_owned(), "-cp".to_owned(), path, "Main".to_owned()]
            }
        };
        words.push(self.client.to_owned());
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = CLIENTS.iter().map(|client| client.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CLIENTS.len());
    }
}
