//! Servers on hosts with a network of their own, whose packets are dropped.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{bail, ensure};
use oarlock_testbed::server::{Drops, Host, Network, Program, Server};
use oarlock_testbed::{EtcdCluster, Redis};
use tempfile::TempDir;

use super::{Deployment, ServerFault, init, until, wait};
use crate::run::NO_PROXIES;

type Started = anyhow::Result<Box<dyn Deployment>>;

/// A setting that lets clients in which are not on the host of the server: its name, and its value or what the file has
/// that it names.
#[derive(Clone, Copy)]
pub(super) enum LetIn {
    Always,
    Value(&'static str, &'static str),
    File(&'static str, &'static str),
}

impl LetIn {
    pub(super) const REDIS: Self = Self::Value("protected-mode", "no");
    pub(super) const POSTGRES: Self = Self::File("hba_file", "host all all samenet trust\n");
    pub(super) const MARIADB: Self =
        Self::File("init-file", "GRANT ALL ON *.* TO 'root'@'%' IDENTIFIED BY '' WITH GRANT OPTION;\n");

    fn setting(self, folder: &Path) -> anyhow::Result<Option<(&'static str, String)>> {
        Ok(match self {
            Self::Always => None,
            Self::Value(name, value) => Some((name, value.to_owned())),
            Self::File(name, text) => {
                // The user of the server reads it.
                fs::set_permissions(folder, fs::Permissions::from_mode(0o711))?;
                let path = folder.join(name);
                fs::write(&path, text)?;
                fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
                Some((name, path.display().to_string()))
            }
        })
    }
}

/// In this order: the server ends before its host, and that before the network.
struct OnHost<P: Program> {
    server: Server<P>,
    host: Arc<Host>,
    _network: Network,
    _folder: TempDir,
}

pub(super) fn one<P: Program + 'static>(let_in: LetIn) -> Started {
    let (network, folder) = (Network::start()?, TempDir::new()?);
    let host = network.host()?;
    let setting = let_in.setting(folder.path())?;
    let settings: Vec<_> = setting.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let server = Server::<P>::start_at(&host, &settings)?;
    let started = OnHost { server, host, _network: network, _folder: folder };
    init(&started.url())?;
    Ok(Box::new(started))
}

/// Clients connect to the servers themselves: the sockets of the drivers must notice what is dropped, and not those of a
/// proxy.
fn directly() -> Vec<String> {
    vec![NO_PROXIES.to_owned()]
}

/// Drops packets for longer than the lease. Connections go on afterwards.
fn cut(host: &Host, drops: Drops, lease: Duration, random: &mut fastrand::Rng) -> anyhow::Result<()> {
    host.cut(drops)?;
    wait(lease, 1.6, 2.2, random);
    healed(host)
}

fn healed(host: &Host) -> anyhow::Result<()> {
    ensure!(host.heal()? > 0, "no packet was dropped");
    Ok(())
}

impl<P: Program> Deployment for OnHost<P> {
    fn url(&self) -> String {
        let url = self.server.url();
        if P::SCHEME == "zk" { format!("{url}?ttl=2s") } else { url }
    }

    fn flags(&self) -> Vec<String> {
        directly()
    }

    fn inject(&mut self, fault: ServerFault, lease: Duration, random: &mut fastrand::Rng) -> anyhow::Result<()> {
        let drops = match fault {
            ServerFault::NetCut => Drops::All,
            ServerFault::NetCutRequests => Drops::ToHost,
            ServerFault::NetCutReplies => Drops::FromHost,
            ServerFault::NetLoss => Drops::Percent(30),
            other => bail!("{} is no fault of the network of one server", other.name()),
        };
        cut(&self.host, drops, lease, random)
    }
}

fn three(network: &Network) -> anyhow::Result<[Arc<Host>; 3]> {
    Ok([network.host()?, network.host()?, network.host()?])
}

pub(super) fn etcd() -> Started {
    let network = Network::start()?;
    let hosts = three(&network)?;
    let servers = EtcdCluster::start_at(&hosts)?;
    Ok(Box::new(Etcd { servers, hosts, _network: network }))
}

struct Etcd {
    servers: EtcdCluster,
    hosts: [Arc<Host>; 3],
    _network: Network,
}

impl Deployment for Etcd {
    fn url(&self) -> String {
        self.servers.url()
    }

    fn flags(&self) -> Vec<String> {
        directly()
    }

    /// The leader is cut off from the other members and from all clients.
    fn inject(&mut self, fault: ServerFault, lease: Duration, random: &mut fastrand::Rng) -> anyhow::Result<()> {
        ensure!(fault == ServerFault::HostCut, "{} is not tried on three hosts", fault.name());
        let (leader, members) = (self.servers.leader()?, &self.servers.members);
        self.hosts[leader].cut(Drops::All)?;
        let leads = |number: usize| members[number].metric("etcd_server_is_leader").is_ok_and(|is| is > 0.0);
        let elected =
            until("another leader", || Ok((0..members.len()).any(|number| number != leader && leads(number))));
        wait(lease, 0.5, 1.5, random);
        healed(&self.hosts[leader])?;
        elected
    }
}

pub(super) fn redlock() -> Started {
    let network = Network::start()?;
    let hosts = three(&network)?;
    let LetIn::Value(name, value) = LetIn::REDIS else { bail!("Redis needs a setting") };
    let start = |number: usize| Redis::start_at(&hosts[number], &[(name, value)]);
    let masters = [start(0)?, start(1)?, start(2)?];
    Ok(Box::new(Redlock { masters, hosts, _network: network }))
}

struct Redlock {
    masters: [Redis; 3],
    hosts: [Arc<Host>; 3],
    _network: Network,
}

impl Deployment for Redlock {
    fn url(&self) -> String {
        let hosts = self.masters.each_ref().map(|master| master.addr().to_string());
        format!("redlock://{}", hosts.join(","))
    }

    fn flags(&self) -> Vec<String> {
        directly()
    }

    fn inject(&mut self, fault: ServerFault, lease: Duration, random: &mut fastrand::Rng) -> anyhow::Result<()> {
        ensure!(fault == ServerFault::HostCut, "{} is not tried on three hosts", fault.name());
        cut(&self.hosts[random.usize(0..self.hosts.len())], Drops::All, lease, random)
    }
}
