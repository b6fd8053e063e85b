//! Which libraries are measured beside each other, and on which stores.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::args::Args;
use crate::clients::{CLIENTS, Language, MEASURED, Store};
use crate::process::Peer;
use crate::servers::Servers;

/// A lease that nothing here outlives.
const LEASE: Duration = Duration::from_secs(30);

/// The fewest raw requests, in tables.
pub(super) const BASELINE: &str = "baseline";

/// Libraries in Rust, which are measured but not in the table of clients, and what their program calls them.
pub(super) const IN_RUST: &[(&str, &str)] = &[
    ("rslock", "rslock"),
    ("rslock-5", "rslock"),
    ("etcd-client", "etcd-client"),
    ("zookeeper-client", "zookeeper-client"),
    ("pg_advisory_lock", "pg_advisory_lock"),
    ("GET_LOCK", "GET_LOCK"),
];

/// Other requests of a client of Redis than scripts.
#[derive(Clone, Copy, Default)]
pub(super) struct ExtraRequests {
    /// It does not set keys by scripts alone.
    pub(super) set: bool,
    /// After each release it deletes a key, besides the one that its script deletes.
    pub(super) del: bool,
}

const SCRIPTS: ExtraRequests = ExtraRequests { set: false, del: false };
const SETS: ExtraRequests = ExtraRequests { set: true, del: false };
const DELETES: ExtraRequests = ExtraRequests { set: false, del: true };

/// Another library: its name, as it is shown, its kind of lock, and its other requests.
type Other = (&'static str, &'static str, &'static str, ExtraRequests);

/// One store, and what is measured on it.
pub(super) struct Arena {
    /// For `--only` and names of files.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    store: Store,
    /// As it is shown, kind of lock, and what the URL ends with.
    ours: &'static [(&'static str, &'static str, &'static str)],
    others: &'static [Other],
    /// Whether the baseline has hand-offs.
    pub(super) has_rivals: bool,
    /// Tasks that each acquire and release a name of their own.
    pub(super) tasks: &'static [u32],
    /// Contenders for one name, and the processes that they are spread over.
    pub(super) shapes: &'static [(usize, usize)],
    /// How the servers are set up, and what to know when reading the figures.
    pub(super) note: &'static str,
}

const OARLOCK: (&str, &str, &str) = ("oarlock", "single", "");

pub(super) const ARENAS: &[Arena] = &[
    Arena {
        name: "redis",
        title: "Redis",
        store: Store::Redis(""),
        ours: &[
            OARLOCK,
            ("oarlock, fair", "fair", ""),
            ("oarlock, cohort", "cohort", ""),
            ("oarlock, re-entrant", "mutex", ""),
            ("oarlock, layout=plain", "single", "?layout=plain"),
            ("oarlock, layout=redisson", "single", "?layout=redisson"),
        ],
        others: &[
            ("redisson", "Redisson RLock", "mutex", DELETES),
            ("redisson", "Redisson RFairLock", "fair", DELETES),
            ("redis-py", "redis-py", "mutex", SETS),
            ("pottery", "pottery", "mutex", SETS),
            ("node-redlock", "node-redlock", "mutex", SCRIPTS),
            ("redsync", "redsync", "mutex", SETS),
            ("rslock", "rslock", "mutex", SETS),
        ],
        has_rivals: true,
        tasks: &[1, 64],
        shapes: &[(2, 2), (16, 2), (128, 8)],
        note: "One server, append-only file without fsync.",
    },
    Arena {
        name: "redlock",
        title: "Redlock, five servers",
        store: Store::Redlock(""),
        ours: &[OARLOCK],
        others: &[
            ("node-redlock-5", "node-redlock", "mutex", SCRIPTS),
            ("pottery-5", "pottery", "mutex", SETS),
            ("redsync-5", "redsync", "mutex", SETS),
            ("rslock-5", "rslock", "mutex", SETS),
        ],
        has_rivals: false,
        tasks: &[1],
        shapes: &[(4, 4)],
        note: "Five servers of Redis that know nothing of each other.",
    },
    Arena {
        name: "etcd",
        title: "etcd",
        store: Store::Etcd(""),
        ours: &[OARLOCK],
        others: &[
            ("concurrency", "etcd concurrency (Go)", "mutex", SCRIPTS),
            ("jetcd", "jetcd", "mutex", SCRIPTS),
            ("etcd-client", "etcd-client (Rust)", "mutex", SCRIPTS),
        ],
        has_rivals: true,
        tasks: &[1, 64],
        shapes: &[(4, 4), (128, 8)],
        note: "One member, with fsync.",
    },
    Arena {
        name: "zookeeper",
        title: "ZooKeeper",
        store: Store::ZooKeeper(""),
        ours: &[OARLOCK],
        others: &[
            ("curator", "Curator", "mutex", SCRIPTS),
            ("kazoo", "kazoo", "mutex", SCRIPTS),
            ("zookeeper-client", "zookeeper-client (Rust)", "mutex", SCRIPTS),
        ],
        has_rivals: true,
        tasks: &[1, 64],
        shapes: &[(4, 4), (128, 8)],
        note: "One server, without fsync.",
    },
    Arena {
        name: "postgres",
        title: "PostgreSQL",
        store: Store::Postgres(""),
        ours: &[OARLOCK, ("oarlock, mode=session", "single", "?mode=session")],
        others: &[("pg_advisory_lock", "pg_advisory_lock", "mutex", SCRIPTS)],
        has_rivals: true,
        tasks: &[1, 16],
        shapes: &[(4, 4), (32, 8)],
        note: "One server, with fsync. An advisory lock writes nothing: it has no fence, no lease and no record, and \
               takes a connection for each contender.",
    },
    Arena {
        name: "mariadb",
        title: "MariaDB",
        store: Store::MariaDb(""),
        ours: &[OARLOCK, ("oarlock, mode=session", "single", "?mode=session")],
        others: &[("GET_LOCK", "GET_LOCK", "mutex", SCRIPTS)],
        has_rivals: true,
        tasks: &[1, 16],
        shapes: &[(4, 4), (32, 8)],
        note: "One server, with fsync. `GET_LOCK` writes nothing: it has no fence, no lease and no record, and takes a \
               connection for each contender.",
    },
    Arena {
        name: "local",
        title: "Embedded store, one machine",
        store: Store::Local,
        ours: &[OARLOCK],
        others: &[("filelock", "filelock (Python)", "mutex", SCRIPTS)],
        has_rivals: false,
        tasks: &[1, 64],
        shapes: &[(4, 4), (16, 2)],
        note: "No server. The baseline of a pair is `flock(2)`, which stores nothing; hand-offs have none here.",
    },
];

/// A library that is measured.
pub(super) struct Contestant {
    pub(super) shown: &'static str,
    /// The client's kind for acquire and release alone, and for contention; none where it is not asked.
    pub(super) pair: Option<&'static str>,
    pub(super) load: Option<&'static str>,
    pub(super) extra: ExtraRequests,
    /// What its process says of itself.
    pub(super) version: Option<String>,
    command: Vec<String>,
    url: String,
    peers: Vec<Arc<Peer>>,
}

impl Contestant {
    fn new(shown: &'static str, command: Vec<String>, kind: &'static str, url: String) -> Self {
        let (extra, peers) = (ExtraRequests::default(), Vec::new());
        Self { shown, pair: Some(kind), load: Some(kind), extra, version: None, command, url, peers }
    }

    /// As many processes as asked for, started when first needed.
    pub(super) async fn peers(&mut self, many: usize) -> Result<&[Arc<Peer>]> {
        while self.peers.len() < many {
            let peer = Peer::start(&self.command, &self.url, LEASE).await?;
            self.version = Some(peer.version.clone());
            self.peers.push(Arc::new(peer));
        }
        Ok(&self.peers[..many])
    }
}

impl Arena {
    /// The arenas that were asked for: by their own name, or by that of a client in them.
    pub(super) fn asked(args: &Args) -> impl Iterator<Item = &'static Self> {
        let has = |arena: &Self, name: &str| arena.name == name || arena.others.iter().any(|other| other.0 == name);
        ARENAS.iter().filter(move |arena| args.wants(|name| has(arena, name)))
    }

    /// The libraries that were asked for and are installed.
    pub(super) fn others(&self, args: &Args) -> Result<Vec<(Vec<String>, &'static Other)>> {
        let all = args.wants(|name| name == self.name);
        let mut found = Vec::new();
        for other in self.others.iter().filter(|other| all || args.wants(|name| name == other.0)) {
            match theirs(args, other.0)? {
                Some(command) => found.push((command, other)),
                None => eprintln!("{}: {} is left out, because it is not installed", self.name, other.1),
            }
        }
        Ok(found)
    }

    /// How many contestants there are.
    pub(super) fn count(&self, args: &Args) -> Result<usize> {
        Ok(1 + self.ours.len() + self.others(args)?.len())
    }

    pub(super) async fn start(&self) -> Result<Servers> {
        let store = self.store;
        tokio::task::spawn_blocking(move || Servers::start(store)).await?
    }

    /// The baseline, Oarlock, and the others.
    pub(super) fn contestants(&self, args: &Args, servers: &Servers) -> Result<Vec<Contestant>> {
        let (url, theirs) = (servers.base(), servers.theirs());
        let baseline = Contestant::new(BASELINE, ours("baseline")?, "pair", url.clone());
        let mut all = vec![Contestant { load: self.has_rivals.then_some("rival"), ..baseline }];
        for (shown, kind, query) in self.ours {
            all.push(Contestant::new(shown, ours("oarlock")?, kind, format!("{url}{query}")));
        }
        for (command, (_, shown, kind, extra)) in self.others(args)? {
            all.push(Contestant { extra: *extra, ..Contestant::new(shown, command, kind, theirs.clone()) });
        }
        Ok(all)
    }
}

fn ours(client: &str) -> Result<Vec<String>> {
    let program = std::env::current_exe()?.with_file_name("interop-peer");
    Ok(vec![program.to_string_lossy().into_owned(), client.to_owned()])
}

/// The newest version of a client, where it can be run.
fn theirs(args: &Args, name: &str) -> Result<Option<Vec<String>>> {
    if let Some((_, client)) = IN_RUST.iter().find(|(known, _)| *known == name) {
        // It is built beside ours.
        let program = std::env::current_exe()?.with_file_name("oarlock-interop-peer");
        let is_there = program.is_file() && !args.lacks_client(client);
        return Ok(is_there.then(|| vec![program.to_string_lossy().into_owned(), (*client).to_owned()]));
    }
    let client = CLIENTS.iter().chain(MEASURED).find(|client| client.name == name).context("no such client")?;
    if args.lacks(client.language) {
        return Ok(None);
    }
    let versions = client.versions(&args.root, false)?;
    let version = versions.first().context("no version")?;
    let mut command = client.command(&args.root, &args.out, version);
    if client.language == Language::Java {
        // What is measured here lives for minutes, so the collector that a server would have.
        command.retain(|arg| arg != "-XX:+UseSerialGC");
    }
    Ok(Some(command))
}
