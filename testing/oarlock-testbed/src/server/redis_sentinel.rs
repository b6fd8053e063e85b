//! A Redis master with two replicas, and three Sentinels that watch over them. Every server is reached through a proxy
//! of its own, by its clients, by the other servers and by the Sentinels: cut that, and the machine is off the network.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use super::redis_command::{redis_command, until};
use super::{Missing, Program, Redis, Server, Settings, missing, probe};
use crate::proxy::Proxy;

/// The name of the master.
pub const MASTER: &str = "main";

/// `redis-server --sentinel`.
#[derive(Debug)]
pub struct SentinelProgram {
    program: PathBuf,
}

impl Program for SentinelProgram {
    const NAME: &'static str = "redis";
    const SCHEME: &'static str = "redis+sentinel";

    fn find() -> Result<Self, Missing> {
        Ok(Self { program: missing::find(Self::NAME, "redis-server", &["/usr/sbin".into()])? })
    }

    fn command(&self, folder: &Path, addr: SocketAddr, settings: Settings<'_>) -> anyhow::Result<Command> {
        let file = folder.join("sentinel.conf");
        if !file.exists() {
            // From now on it is the Sentinel's own.
            let mut lines = format!("bind {}\nport {}\ndir {}\n", addr.ip(), addr.port(), folder.display());
            for (name, value) in settings {
                // What is not of encryption is about a master.
                let about = if name.starts_with("tls-") { "" } else { "sentinel " };
                lines.push_str(&format!("{about}{name} {value}\n"));
            }
            fs::write(&file, lines)?;
        }
        let mut command = Command::new(&self.program);
        command.arg(file).arg("--sentinel");
        Ok(command)
    }

    fn probe(addr: SocketAddr, timeout: Duration) -> io::Result<()> {
        probe(addr, timeout, b"PING\r\nQUIT\r\n", |answer| answer.starts_with(b"+PONG"))
    }

    fn url(addr: SocketAddr) -> String {
        format!("redis+sentinel://{addr}/{MASTER}")
    }
}

/// One server and the way to it.
#[derive(Debug)]
pub struct Machine {
    /// The server.
    pub server: Redis,
    /// All other clients connect through it.
    pub proxy: Proxy,
}

/// A master, two replicas, three Sentinels. The master is down after a second without an answer.
#[derive(Debug)]
pub struct RedisSentinel {
    /// The master first, then its replicas.
    pub machines: Vec<Machine>,
    /// The Sentinels.
    pub sentinels: Vec<Server<SentinelProgram>>,
}

impl RedisSentinel {
    /// Starts them all, and waits until they know each other.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn start() -> anyhow::Result<Self> {
        let mut machines = Vec::new();
        for _ in 0..3 {
            let server = Redis::start_with(&[("repl-diskless-sync-delay", "0"), ("repl-ping-replica-period", "1")])?;
            let proxy = Proxy::start(server.addr())?;
            let port = proxy.addr().port().to_string();
            // One by one: Redis 6 sets no two at once.
            for (name, value) in [("replica-announce-ip", "127.0.0.1"), ("replica-announce-port", &port)] {
                redis_command(server.addr(), &["CONFIG", "SET", name, value])?;
            }
            machines.push(Machine { server, proxy });
        }
        let (master, replicas) = machines.split_first().context("three were started")?;
        let port = master.proxy.addr().port().to_string();
        for replica in replicas {
            redis_command(replica.server.addr(), &["REPLICAOF", "127.0.0.1", &port])?;
        }
        let online = |said: &str| said.matches("state=online").count() == replicas.len();
        until(master.server.addr(), &["INFO", "replication"], online)?;

        let watch = format!("{MASTER} 127.0.0.1 {port} 2");
        let settings = [
            ("monitor", watch.as_str()),
            ("down-after-milliseconds", &format!("{MASTER} 1000")),
            ("failover-timeout", &format!("{MASTER} 10000")),
            ("parallel-syncs", &format!("{MASTER} 2")),
        ];
        let sentinels = (0..3).map(|_| Server::start_with(&settings)).collect::<anyhow::Result<Vec<_>>>()?;
        for sentinel in &sentinels {
            let complete = |said: &str| said.contains("num-slaves\n2\n") && said.contains("num-other-sentinels\n2\n");
            until(sentinel.addr(), &["SENTINEL", "MASTER", MASTER], complete)?;
        }
        Ok(Self { machines, sentinels })
    }

    /// [`RedisSentinel::start`] for a test that may be skipped, as with [`Server::start_or_skip`].
    ///
    /// # Errors
    /// As for [`Server::start_or_skip`].
    pub fn start_or_skip() -> anyhow::Result<Option<Self>> {
        match Self::start() {
            Ok(started) => Ok(Some(started)),
            Err(error) => missing::skip(error).map(|()| None),
        }
    }

    /// The URL that reaches the master, whichever it is.
    #[must_use]
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.sentinels.iter().map(|sentinel| sentinel.addr().to_string()).collect();
        format!("redis+sentinel://{}/{MASTER}", hosts.join(","))
    }

    /// The address of the current master, according to the first Sentinel.
    ///
    /// # Errors
    /// When it does not say.
    pub fn master(&self) -> anyhow::Result<SocketAddr> {
        let sentinel = self.sentinels.first().context("there is one")?;
        let said = redis_command(sentinel.addr(), &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER])?;
        Ok(said.replace('\n', ":").parse()?)
    }
}
