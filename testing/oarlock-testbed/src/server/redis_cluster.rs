//! A Redis Cluster of three masters, or as many as a test wants, with a replica each.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::redis_command::{redis_command, until};
use super::{Missing, Program, Server, Settings, missing, probe};
use crate::ports::Port;

/// `redis-server` as a node of a cluster.
#[derive(Debug)]
pub struct RedisNodeProgram {
    program: PathBuf,
    /// For the connections between nodes.
    bus: Port,
}

impl Program for RedisNodeProgram {
    const NAME: &'static str = "redis";
    const SCHEME: &'static str = "redis+cluster";

    fn find() -> Result<Self, Missing> {
        let missing = Missing { server: Self::NAME, file: "a free port for the bus" };
        let program = missing::find(Self::NAME, "redis-server", &["/usr/sbin".into()])?;
        Ok(Self { program, bus: Port::reserve().map_err(|_| missing)? })
    }

    fn command(&self, folder: &Path, addr: SocketAddr, settings: Settings<'_>) -> anyhow::Result<Command> {
        let mut command = Command::new(&self.program);
        command.args(["--bind", &addr.ip().to_string(), "--port", &addr.port().to_string()]).arg("--dir").arg(folder);
        command.args(["--cluster-enabled", "yes", "--cluster-port", &self.bus.number().to_string()]);
        let own = [
            ("cluster-node-timeout", "1000"),
            ("repl-diskless-sync-delay", "0"),
            ("save", ""),
            ("appendonly", "yes"),
            ("appendfsync", "no"),
        ];
        for (name, value) in own.iter().chain(settings) {
            command.arg(format!("--{name}")).arg(value);
        }
        Ok(command)
    }

    fn probe(addr: SocketAddr, timeout: Duration) -> io::Result<()> {
        probe(addr, timeout, b"PING\r\nQUIT\r\n", |answer| {
            answer.starts_with(b"+PONG") || answer.starts_with(b"-NOAUTH")
        })
    }
}

/// The slots of a cluster.
const SLOTS: usize = 16_384;

/// Masters and their replicas. A node is down after a second without an answer.
#[derive(Debug)]
pub struct RedisCluster {
    /// The masters.
    pub masters: Vec<Server<RedisNodeProgram>>,
    /// The replica of each, in the same order.
    pub replicas: Vec<Server<RedisNodeProgram>>,
}

impl RedisCluster {
    /// Starts three masters and their replicas, and waits until every slot is served and every replica up to date.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn start() -> anyhow::Result<Self> {
        Self::start_of(3)
    }

    /// [`RedisCluster::start`] with so many masters.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn start_of(count: usize) -> anyhow::Result<Self> {
        let nodes = || (0..count).map(|_| Server::<RedisNodeProgram>::start()).collect::<anyhow::Result<Vec<_>>>();
        let (masters, replicas) = (nodes()?, nodes()?);
        for (number, node) in masters.iter().enumerate() {
            let (first, next) = (SLOTS * number / count, SLOTS * (number + 1) / count);
            let range = [first.to_string(), (next - 1).to_string()];
            redis_command(node.addr(), &["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]])?;
        }
        let all = || masters.iter().chain(&replicas);
        for (number, node) in all().enumerate() {
            redis_command(node.addr(), &["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()])?;
            let (port, bus) = (node.addr().port().to_string(), node.program.bus.number().to_string());
            redis_command(masters[0].addr(), &["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
        }
        for node in all() {
            let known = format!("cluster_known_nodes:{}", 2 * count);
            until(node.addr(), &["CLUSTER", "INFO"], |said| said.contains(&known))?;
        }
        for (master, replica) in masters.iter().zip(&replicas) {
            let id = redis_command(master.addr(), &["CLUSTER", "MYID"])?;
            until(replica.addr(), &["CLUSTER", "REPLICATE", &id], |said| said == "OK")?;
        }
        for node in all() {
            until(node.addr(), &["CLUSTER", "INFO"], |said| {
                said.contains("cluster_state:ok") && said.contains("cluster_slots_ok:16384")
            })?;
        }
        for replica in &replicas {
            until(replica.addr(), &["INFO", "replication"], |said| said.contains("master_link_status:up"))?;
        }
        for node in all() {
            // All nodes must know the replicas, or clients ask a replica for the slots of its master.
            until(node.addr(), &["CLUSTER", "NODES"], |said| said.matches("slave ").count() == count)?;
        }
        Ok(Self { masters, replicas })
    }

    /// [`RedisCluster::start`] for a test that may be skipped, as with [`Server::start_or_skip`].
    ///
    /// # Errors
    /// As for [`Server::start_or_skip`].
    pub fn start_or_skip() -> anyhow::Result<Option<Self>> {
        Self::start_of_or_skip(3)
    }

    /// [`RedisCluster::start_of`] for a test that may be skipped.
    ///
    /// # Errors
    /// As for [`Server::start_or_skip`].
    pub fn start_of_or_skip(count: usize) -> anyhow::Result<Option<Self>> {
        match Self::start_of(count) {
            Ok(started) => Ok(Some(started)),
            Err(error) => missing::skip(error).map(|()| None),
        }
    }

    /// The URL that reaches it.
    #[must_use]
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.masters.iter().map(|node| node.addr().to_string()).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }
}
