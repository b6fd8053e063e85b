//! The stores and their topologies: how they are started, reached and broken.

mod cluster;
mod disk;
mod library;
mod local;
mod network;
mod sentinel;
mod single;
mod sql;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use oarlock_testbed::server::{
    EtcdProgram, MariaDbProgram, MySqlProgram, PostgresProgram, RedisProgram, ZooKeeperProgram, newer, redis_command,
};
use oarlock_testbed::{Etcd, MariaDb, MariaDbClock, MySql, Postgres, PostgresClock, Redis, RedisClock, ZooKeeper};
use serde_json::Value;

use self::network::LetIn;
use crate::cases::{Case, Fault};
use crate::run::program;
use crate::runs::Done;

/// Longer than servers need to agree on a busy machine.
const BOUND: Duration = Duration::from_secs(40);

/// What is done to servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerFault {
    /// Killed (SIGKILL), and started again with the data it had.
    Kill,
    /// Stopped (SIGSTOP) for longer than the lease.
    Freeze,
    /// Ended in good order and started again; of several servers one after the other.
    Restart,
    /// Ended in good order, and a newer version is started with its data.
    Upgrade,
    /// The wall clock of the server is moved by some leases, and back.
    Clock,
    /// The disk is full for a while.
    DiskFull,
    /// The machine of the server loses power: what was not synced is gone when it is back.
    PowerCut,
    /// The disk takes a good part of the lease for every sync, for a while.
    SlowDisk,
    /// The disk says that it has synced and has not; then the machine loses power.
    LyingDisk,
    /// The master, the primary or the leader is killed, and another server takes over.
    Failover,
    /// It is stopped for so long that another server takes over, and goes on.
    FreezeLeader,
    /// It is cut off from the other servers, and not from its clients, which reach all other servers too. A master without
    /// `min_replicas` is cut off from its replicas a little earlier.
    CutLeader,
    /// The format of the tables is raised, while clients of the older one run.
    RaiseFormat,
    /// A server that clients have their sessions at is killed or stopped, and they go on with them at other servers.
    MoveSessions,
    /// The master dies with grants that no replica has.
    LostFailover,
    /// The server is killed and has lost everything when it is back.
    Forget,
    /// All packets between the host of the server and its clients are dropped, for longer than the lease.
    NetCut,
    /// Those to the server.
    NetCutRequests,
    /// Those from the server.
    NetCutReplies,
    /// A part of them, by chance.
    NetLoss,
    /// One host of several is cut off from the others and from all clients.
    HostCut,
}

impl ServerFault {
    /// Its name in the table.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Kill => "server-kill",
            Self::Freeze => "server-freeze",
            Self::Restart => "server-restart",
            Self::Upgrade => "server-upgrade",
            Self::Clock => "server-clock",
            Self::DiskFull => "disk-full",
            Self::PowerCut => "power-cut",
            Self::SlowDisk => "slow-disk",
            Self::LyingDisk => "lying-disk",
            Self::Failover => "failover",
            Self::FreezeLeader => "leader-freeze",
            Self::CutLeader => "leader-cut",
            Self::MoveSessions => "session-moved",
            Self::RaiseFormat => "format-raised",
            Self::LostFailover => "lost-failover",
            Self::Forget => "server-forgets",
            Self::NetCut => "net-cut",
            Self::NetCutRequests => "net-cut-requests",
            Self::NetCutReplies => "net-cut-replies",
            Self::NetLoss => "net-loss",
            Self::HostCut => "host-cut",
        }
    }

    /// Whether it must cost a holder that runs its lock: the one server cannot be reached.
    pub(crate) const fn costs_locks(self) -> bool {
        matches!(self, Self::NetCut | Self::NetCutRequests | Self::NetCutReplies)
    }
}

/// Servers that run.
pub(crate) trait Deployment {
    /// How clients reach them.
    fn url(&self) -> String;

    /// How clients reach them that ask for leases of so long: a session lasts as long as the URL says.
    fn url_for(&self, lease: Duration) -> String {
        let _ = lease;
        self.url()
    }

    /// Further words for `oarlock torture`: servers that others announce, or another library.
    fn flags(&self) -> Vec<String> {
        Vec::new()
    }

    /// Runs a case by itself, where `oarlock torture` cannot: the machine that loses power is the one that it runs on.
    fn run(&mut self, case: &Case, seed: u64, seconds: u64) -> anyhow::Result<Option<Done>> {
        let _ = (case, seed, seconds);
        Ok(None)
    }

    /// What a fault needs before the run begins.
    fn prepare(&mut self, fault: ServerFault) -> anyhow::Result<()> {
        let _ = fault;
        Ok(())
    }

    /// Breaks them, and returns when they serve again.
    fn inject(&mut self, fault: ServerFault, lease: Duration, random: &mut fastrand::Rng) -> anyhow::Result<()>;

    /// After a run: whether its faults did what they are to do.
    fn check(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// The version of the first server.
    fn version(&self) -> String {
        version(&self.url()).unwrap_or_default()
    }
}

/// A store, and how its servers are put together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Topology {
    pub(crate) store: &'static str,
    pub(crate) name: &'static str,
    /// Whether there are connections to break.
    pub(crate) connected: bool,
    /// Whether only faults of servers are tried: those of clients are tried on another topology of this store.
    pub(crate) servers_only: bool,
    /// Whether another lock library is tried instead of Oarlock.
    pub(crate) library: bool,
    /// Whether each run needs new servers.
    pub(crate) fresh: bool,
    /// Whether faults of its servers may give a lock to two holders, by what the page of the store says.
    pub(crate) may_overlap: bool,
    /// Whether a reset of all connections of a process ends its locks before it knows.
    pub(crate) ends_with_connections: bool,
    /// The lease of its runs.
    pub(crate) ttl_ms: u64,
    pub(crate) faults: &'static [ServerFault],
    /// The newer server that it needs.
    pub(crate) newer: Option<Newer>,
    /// Whether its tables are those of an older build of Oarlock.
    pub(crate) older: bool,
    /// Whether its servers have a network of their own.
    pub(crate) network: bool,
    pub(crate) start: fn() -> anyhow::Result<Box<dyn Deployment>>,
}

impl Topology {
    pub(crate) fn title(&self) -> String {
        format!("{} {}", self.store, self.name)
    }

    /// Whether another server takes over that has not heard of the last grants.
    pub(crate) fn loses_grants(&self, fault: ServerFault) -> bool {
        fault == ServerFault::LostFailover || fault == ServerFault::CutLeader && self.may_overlap
    }

    /// The lease of a run. Where a holder must still believe when another server has taken over, it is longer than that
    /// takes.
    pub(crate) fn lease_of(&self, fault: Fault) -> Duration {
        match fault {
            Fault::Server(fault) if self.loses_grants(fault) => Duration::from_secs(12),
            Fault::Server(ServerFault::LyingDisk) => Duration::from_secs(8),
            _ => Duration::from_millis(self.ttl_ms),
        }
    }
}

const SINGLE: &[ServerFault] = &[ServerFault::Kill, ServerFault::Freeze, ServerFault::Restart];
const LED_OR_CUT: &[ServerFault] =
    &[ServerFault::Failover, ServerFault::FreezeLeader, ServerFault::CutLeader, ServerFault::Restart];
const CLUSTER: &[ServerFault] = &[ServerFault::Failover, ServerFault::Restart];
const ENSEMBLE: &[ServerFault] = &[
    ServerFault::Failover,
    ServerFault::FreezeLeader,
    ServerFault::CutLeader,
    ServerFault::MoveSessions,
    ServerFault::Restart,
];

type Start = fn() -> anyhow::Result<Box<dyn Deployment>>;

const fn topology(
    store: &'static str,
    name: &'static str,
    ttl_ms: u64,
    faults: &'static [ServerFault],
    start: Start,
) -> Topology {
    Topology {
        store,
        name,
        connected: true,
        servers_only: false,
        library: false,
        fresh: false,
        may_overlap: false,
        ends_with_connections: false,
        ttl_ms,
        faults,
        newer: None,
        older: false,
        network: false,
        start,
    }
}

/// A database whose tables a build of Oarlock creates that knows an older format.
const fn older_format(store: &'static str, start: Start) -> Topology {
    const RAISE: &[ServerFault] = &[ServerFault::RaiseFormat];
    Topology { fresh: true, older: true, ..servers_only(topology(store, "older format", 2000, RAISE, start)) }
}

/// A newer server, by its folder and its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Newer {
    server: &'static str,
    program: &'static str,
}

impl Newer {
    const REDIS: Self = Self { server: "redis", program: "redis-server" };
    const ETCD: Self = Self { server: "etcd", program: "etcd" };

    /// Writes a key of its data, past Oarlock.
    fn write(self, addr: SocketAddr, key: &str, value: &str) -> anyhow::Result<()> {
        if self == Self::REDIS {
            redis_command(addr, &["SET", key, value])?;
        } else {
            etcdctl(addr, &["put", key, value])?;
        }
        Ok(())
    }

    /// The value of a key; nothing if there is none.
    fn read(self, addr: SocketAddr, key: &str) -> anyhow::Result<String> {
        if self == Self::REDIS {
            return Ok(redis_command(addr, &["GET", key])?);
        }
        Ok(etcdctl(addr, &["get", key, "--print-value-only"])?.trim().to_owned())
    }

    fn program(&self) -> Option<PathBuf> {
        newer(self.server, self.program)
    }

    /// Why it cannot be tried.
    pub(crate) fn missing(&self) -> Option<String> {
        let Self { server, program } = self;
        let why = || format!("there is no newer {program}: `cargo xtask test --only versions={server}` gets it");
        if self.program().is_some() { None } else { Some(why()) }
    }
}

/// What `etcdctl` says when asked this.
fn etcdctl(addr: SocketAddr, words: &[&str]) -> anyhow::Result<String> {
    let mut ctl = Command::new("etcdctl");
    let done = ctl.env("ETCDCTL_API", "3").arg(format!("--endpoints=http://{addr}")).args(words).output();
    let done = done.context("cannot start etcdctl")?;
    ensure!(done.status.success(), "etcdctl {words:?}: {}", String::from_utf8_lossy(&done.stderr));
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// A server that a newer one takes the place of, with the same data.
const fn upgraded(store: &'static str, ttl_ms: u64, newer: Newer, start: Start) -> Topology {
    const UPGRADE: &[ServerFault] = &[ServerFault::Upgrade];
    let plain = servers_only(topology(store, "upgraded", ttl_ms, UPGRADE, start));
    Topology { fresh: true, newer: Some(newer), ..plain }
}

const fn database(store: &'static str, start: Start) -> Topology {
    Topology { ends_with_connections: true, ..topology(store, "one server", 1000, SINGLE, start) }
}

const fn servers_only(topology: Topology) -> Topology {
    Topology { servers_only: true, ..topology }
}

/// Servers of which one takes over, and may lack what the other had granted.
const fn asynchronous(
    store: &'static str,
    name: &'static str,
    faults: &'static [ServerFault],
    start: Start,
) -> Topology {
    Topology { fresh: true, may_overlap: true, ..servers_only(topology(store, name, 2000, faults, start)) }
}

/// A server that syncs what it answers, with a disk of its own.
const fn own_disk(store: &'static str, start: Start) -> Topology {
    const DISK: &[ServerFault] =
        &[ServerFault::PowerCut, ServerFault::SlowDisk, ServerFault::DiskFull, ServerFault::LyingDisk];
    servers_only(topology(store, "own disk", 2000, DISK, start))
}

/// Servers on hosts of their own, whose packets are dropped.
const fn networked(
    store: &'static str,
    name: &'static str,
    ttl_ms: u64,
    faults: &'static [ServerFault],
    start: Start,
) -> Topology {
    Topology { network: true, ..servers_only(topology(store, name, ttl_ms, faults, start)) }
}

const fn own_network(store: &'static str, ttl_ms: u64, start: Start) -> Topology {
    const CUTS: &[ServerFault] =
        &[ServerFault::NetCut, ServerFault::NetCutRequests, ServerFault::NetCutReplies, ServerFault::NetLoss];
    networked(store, "own network", ttl_ms, CUTS, start)
}

/// Another lock library, on one server.
const fn library(store: &'static str, name: &'static str, start: Start) -> Topology {
    Topology { library: true, ..topology(store, name, 2000, &[], start) }
}

const fn moved_clock(store: &'static str, start: Start) -> Topology {
    const CLOCK: &[ServerFault] = &[ServerFault::Clock];
    Topology { may_overlap: true, ..servers_only(topology(store, "moved clock", 1000, CLOCK, start)) }
}

/// Everything that is tried, the stores that most people have first.
pub(crate) static ALL: &[Topology] = &[
    topology("redis", "one server", 1000, SINGLE, || single::start(Redis::start_with, &[])),
    database("postgres", || single::start(Postgres::start_with, &[])),
    topology("etcd", "one server", 2000, SINGLE, || single::start(Etcd::start_with, &[])),
    Topology { connected: false, ..topology("local", "one folder", 1000, &[], local::start) },
    servers_only(topology("local", "small tmpfs", 1000, &[ServerFault::DiskFull], local::start_small)),
    database("mariadb", || single::start(MariaDb::start_with, &[])),
    database("mysql", || single::start(MySql::start_with, &[])),
    topology("zookeeper", "one server", 2000, SINGLE, || single::start(ZooKeeper::start_with, &[])),
    servers_only(topology("redis", "without persistence", 2000, &[ServerFault::Forget], || {
        single::start(Redis::start_with, &[("appendonly", "no")])
    })),
    upgraded("redis", 2000, Newer::REDIS, || single::start_older(Redis::start_with, Newer::REDIS)),
    upgraded("etcd", 2000, Newer::ETCD, || single::start_older(Etcd::start_with, Newer::ETCD)),
    older_format("postgres", || single::start_without_tables(Postgres::start_with)),
    older_format("mariadb", || single::start_without_tables(MariaDb::start_with)),
    older_format("mysql", || single::start_without_tables(MySql::start_with)),
    moved_clock("redis", || single::start_clocked(RedisClock::start_with)),
    moved_clock("postgres", || single::start_clocked(PostgresClock::start_with)),
    moved_clock("mariadb", || single::start_clocked(MariaDbClock::start_with)),
    servers_only(topology("local", "own disk", 2000, &[ServerFault::PowerCut, ServerFault::LyingDisk], disk::local)),
    own_disk("redis", || disk::start::<RedisProgram>(&[("appendfsync", "always")])),
    Topology {
        may_overlap: true,
        ..servers_only(topology("redis", "own disk, everysec", 2000, &[ServerFault::PowerCut], || {
            disk::start::<RedisProgram>(&[("appendfsync", "everysec")])
        }))
    },
    own_disk("postgres", || disk::start::<PostgresProgram>(&[("fsync", "on")])),
    own_disk("mariadb", || disk::start::<MariaDbProgram>(disk::INNODB)),
    own_disk("mysql", || disk::start::<MySqlProgram>(disk::INNODB)),
    own_disk("etcd", || disk::start::<EtcdProgram>(&[])),
    own_disk("zookeeper", || disk::start::<ZooKeeperProgram>(&[("forceSync", "yes")])),
    own_network("redis", 1000, || network::one::<RedisProgram>(LetIn::REDIS)),
    own_network("postgres", 1000, || network::one::<PostgresProgram>(LetIn::POSTGRES)),
    own_network("mariadb", 1000, || network::one::<MariaDbProgram>(LetIn::MARIADB)),
    own_network("etcd", 2000, || network::one::<EtcdProgram>(LetIn::Always)),
    own_network("zookeeper", 2000, || network::one::<ZooKeeperProgram>(LetIn::Always)),
    networked("etcd", "three hosts", 2000, &[ServerFault::HostCut], network::etcd),
    networked("redlock", "three hosts", 1000, &[ServerFault::HostCut], network::redlock),
    topology("etcd", "three members", 2000, LED_OR_CUT, cluster::etcd),
    topology("zookeeper", "three members", 2000, ENSEMBLE, cluster::zookeeper),
    topology("redlock", "three masters", 1000, SINGLE, cluster::redlock),
    Topology { may_overlap: true, ..topology("redis", "cluster", 1000, CLUSTER, cluster::redis) },
    topology("redis", "sentinel, min_replicas=2", 2000, LED_OR_CUT, || sentinel::start(2)),
    asynchronous(
        "redis",
        "sentinel",
        &[ServerFault::Failover, ServerFault::LostFailover, ServerFault::CutLeader],
        || sentinel::start(0),
    ),
    asynchronous("postgres", "primary and standby", &[ServerFault::Failover], sql::postgres),
    asynchronous("mariadb", "primary and replica", &[ServerFault::Failover], sql::mariadb),
    asynchronous("mysql", "primary and replica", &[ServerFault::Failover], sql::mysql),
    Topology {
        may_overlap: true,
        ..servers_only(topology("postgres", "mode=session", 2000, SINGLE, || {
            single::start_with_query(Postgres::start_with, "mode=session")
        }))
    },
    library("redis", "redis-py", || library::on_redis("redis-py")),
    library("redis", "pottery", || library::on_redis("pottery")),
    library("redis", "node-redlock", || library::on_redis("node-redlock")),
    library("redis", "redsync", || library::on_redis("redsync")),
    library("redis", "redisson", || library::on_redis("redisson")),
    library("etcd", "concurrency", || library::on_etcd("concurrency")),
    library("etcd", "jetcd", || library::on_etcd("jetcd")),
    library("zookeeper", "curator", || library::on_zookeeper("curator")),
    library("zookeeper", "kazoo", || library::on_zookeeper("kazoo")),
];

/// The names that `--only` takes.
pub(crate) fn names() -> String {
    let mut names: Vec<_> = ALL.iter().map(|topology| topology.store).collect();
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}

/// Waits for a part of the lease.
fn wait(lease: Duration, least: f64, most: f64, random: &mut fastrand::Rng) {
    std::thread::sleep(lease.mul_f64(least + random.f64() * (most - least)));
}

/// Waits until `is` says so: an election, a failover or a replica that catches up.
fn until(what: &str, mut is: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let give_up = Instant::now() + BOUND;
    loop {
        match is() {
            Ok(true) => return Ok(()),
            Ok(false) | Err(_) if Instant::now() < give_up => std::thread::sleep(Duration::from_millis(50)),
            Ok(false) => bail!("timed out waiting for {what}"),
            Err(error) => return Err(error).with_context(|| format!("timed out waiting for {what}")),
        }
    }
}

/// Creates what a store needs before its first lock.
pub(crate) fn init(url: &str) -> anyhow::Result<()> {
    init_with(&program()?, url)
}

/// The same with another build.
pub(crate) fn init_with(program: &Path, url: &str) -> anyhow::Result<()> {
    let done = Command::new(program).args(["init", "-u", url]).env_remove("OARLOCK_URL").output()?;
    ensure!(done.status.success(), "oarlock init: {}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

/// The version of the first server, as `oarlock doctor` reads it.
pub(crate) fn version(url: &str) -> anyhow::Result<String> {
    let done = Command::new(program()?).args(["doctor", "-o", "json", "-u", url]).env_remove("OARLOCK_URL").output()?;
    let found: Value = serde_json::from_slice(&done.stdout)?;
    let facts = found["facts"].as_array().into_iter().flatten();
    let mut versions = facts.filter(|fact| fact["what"].as_str().is_some_and(|what| what.contains("version")));
    Ok(versions.next().and_then(|fact| fact["value"].as_str()).unwrap_or_default().to_owned())
}
