//! The servers that a load is put on, and what they keep meanwhile.

use std::fmt;
use std::fs;
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use oarlock_testbed::server::{Program, Server, redis_command};
use oarlock_testbed::{Etcd, Postgres, Redis, ZooKeeper};

use crate::deployments::init;

/// The stores that a load can be put on.
pub(crate) const STORES: [&str; 4] = ["redis", "postgres", "etcd", "zookeeper"];

pub(super) enum Loaded {
    Redis(Redis),
    Postgres(Postgres),
    Etcd(Etcd),
    ZooKeeper(ZooKeeper),
}

/// What a server keeps, and what it uses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kept {
    /// What the next figure counts.
    what: &'static str,
    pub(super) records: u64,
    /// Sockets of its processes, which are connections of clients and a few of its own.
    pub(super) sockets: u64,
    pub(super) memory_kb: u64,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = self.memory_kb as f64 / 1024.0;
        write!(f, "{} {}, {} sockets, {memory:.0} MiB", self.records, self.what, self.sockets)
    }
}

impl Loaded {
    pub(super) fn start(store: &str) -> anyhow::Result<Self> {
        let started = match store {
            "redis" => Self::Redis(Redis::start()?),
            "postgres" => Self::Postgres(Postgres::start_with(&[("max_connections", "600")])?),
            "etcd" => Self::Etcd(Etcd::start()?),
            "zookeeper" => Self::ZooKeeper(ZooKeeper::start()?),
            other => bail!("there are no loads on {other}: they are on {}", STORES.join(", ")),
        };
        init(&started.url())?;
        Ok(started)
    }

    pub(super) fn url(&self) -> String {
        match self {
            Self::Redis(server) => server.url(),
            Self::Postgres(server) => server.url(),
            Self::Etcd(server) => server.url(),
            Self::ZooKeeper(server) => server.url(),
        }
    }

    pub(super) fn kept(&self) -> anyhow::Result<Kept> {
        match self {
            Self::Redis(server) => kept(server, "keys", redis_command(server.addr(), &["DBSIZE"])?.trim().parse()?),
            Self::Postgres(server) => kept(server, "rows", rows(server)?),
            // As a whole number: it counts keys.
            Self::Etcd(server) => kept(server, "keys", server.metric("etcd_debugging_mvcc_keys_total")? as u64),
            Self::ZooKeeper(server) => kept(server, "nodes", nodes(server)?),
        }
    }
}

fn kept<P: Program>(server: &Server<P>, what: &'static str, records: u64) -> anyhow::Result<Kept> {
    let mut kept = Kept { what, records, ..Kept::default() };
    for pid in server.pids()? {
        // A backend may have ended since it was listed.
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { continue };
        kept.memory_kb += field(&status, "RssAnon:").unwrap_or(0);
        kept.sockets += sockets(pid).unwrap_or(0);
    }
    Ok(kept)
}

/// A number of `/proc/PID/status`.
pub(super) fn field(status: &str, name: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// How many sockets a process has open.
pub(super) fn sockets(pid: u32) -> anyhow::Result<u64> {
    let files = fs::read_dir(format!("/proc/{pid}/fd"))?.flatten();
    let is_socket = |file: &fs::DirEntry| {
        fs::read_link(file.path()).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
    };
    Ok(files.filter(is_socket).count() as u64)
}

fn rows(server: &Postgres) -> anyhow::Result<u64> {
    let (host, port) = (server.addr().ip().to_string(), server.addr().port().to_string());
    let tables = "(SELECT count(*) FROM oarlock.claim) + (SELECT count(*) FROM oarlock.resource)";
    let mut psql = Command::new("psql");
    psql.args(["-X", "-A", "-t", "-h", &host, "-p", &port, "-U", "postgres", "-c", &format!("SELECT {tables}")]);
    let done = psql.output().context("psql")?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(String::from_utf8_lossy(&done.stdout).trim().parse()?)
}

fn nodes(server: &ZooKeeper) -> anyhow::Result<u64> {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(server.addr())?;
    stream.write_all(b"mntr")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let line = answer.lines().find_map(|line| line.strip_prefix("zk_znode_count"));
    Ok(line.context("zk_znode_count")?.trim().parse()?)
}
