//! Hosts with a network of their own, whose packets can be dropped.
//!
//! A host is a network namespace, joined with the others and with this process by a veth pair and a bridge. Packets are
//! dropped where they come in, without a word to the sender: TCP sends them again, and connections go on afterwards. It
//! needs root, and a network namespace that is this program's own: what is made here never touches the machine's network,
//! and is gone with the last process in it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context as _, bail, ensure};

/// Which packets of a host are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drops {
    /// All.
    All,
    /// Those that are sent to it.
    ToHost,
    /// Those that it sends.
    FromHost,
    /// So many of a hundred, by chance, both ways.
    Percent(u8),
}

impl Drops {
    /// The condition on packets to the host and on packets from it; none if they pass.
    fn conditions(self) -> [Option<String>; 2] {
        let all = || Some(String::new());
        match self {
            Self::All => [all(), all()],
            Self::ToHost => [all(), None],
            Self::FromHost => [None, all()],
            Self::Percent(share) => {
                let some = Some(format!("numgen random mod 100 < {share} "));
                [some.clone(), some]
            }
        }
    }
}

/// Hosts that reach each other, and that this process reaches.
#[derive(Debug)]
pub struct Network {
    number: u8,
    hosts: AtomicU8,
}

impl Network {
    /// A network without hosts.
    ///
    /// # Errors
    /// When this process is in the network namespace of the machine, lacks a right, or the kernel lacks a part.
    pub fn start() -> anyhow::Result<Self> {
        static NUMBER: AtomicU8 = AtomicU8::new(0);
        let listed = done(ip(&["-oneline", "link", "show", "up"]))?;
        if let Some(name) = other_interface(&listed) {
            bail!("this network namespace has {name}: it is no namespace of its own, which needs root");
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // With an address that stays when hosts are added.
        let (bridge, address) = (format!("{BRIDGES}{number}"), format!("02:00:00:00:{number:02x}:01"));
        done(ip(&["link", "add", &bridge, "address", &address, "type", "bridge"]))?;
        let network = Self { number, hosts: AtomicU8::new(0) };
        done(ip(&["address", "add", &format!("{}/24", network.ip(1)), "dev", &bridge]))?;
        done(ip(&["link", "set", &bridge, "up"]))?;
        Ok(network)
    }

    /// Why there can be none here.
    ///
    /// # Errors
    /// The reason.
    pub fn check() -> anyhow::Result<()> {
        let network = Self::start()?;
        let host = network.host()?;
        host.cut(Drops::Percent(50))?;
        host.heal().map(drop)
    }

    /// Adds a host.
    ///
    /// # Errors
    /// As for [`Network::start`].
    pub fn host(&self) -> anyhow::Result<Arc<Host>> {
        let number = self.hosts.fetch_add(1, Ordering::Relaxed) + 2;
        let host =
            Host { keeper: Keeper::start()?, outside: format!("{}h{number}", self.bridge()), ip: self.ip(number) };
        let pid = host.keeper.0.id().to_string();
        done(ip(&["link", "add", &host.outside, "type", "veth", "peer", "name", INSIDE, "netns", &pid]))?;
        done(ip(&["link", "set", &host.outside, "master", &self.bridge(), "up"]))?;
        done(host.within(&ip(&["address", "add", &format!("{}/24", host.ip), "dev", INSIDE])))?;
        done(host.within(&ip(&["link", "set", INSIDE, "up"])))?;
        done(host.within(&ip(&["link", "set", "lo", "up"])))?;
        Ok(Arc::new(host))
    }

    fn bridge(&self) -> String {
        format!("{BRIDGES}{}", self.number)
    }

    fn ip(&self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 99, self.number, number)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Err(error) = done(ip(&["link", "delete", &self.bridge()])) {
            eprintln!("{} stays until this program ends: {error:#}", self.bridge());
        }
    }
}

/// What the names of our interfaces begin with.
const BRIDGES: &str = "oarlock";

/// The interface of a host, in its namespace.
const INSIDE: &str = "eth0";

/// The tables of `nft` in which packets are dropped.
const TABLE: &str = "cut";

/// One host. Dropped, its network ends with the last server on it.
#[derive(Debug)]
pub struct Host {
    keeper: Keeper,
    /// The other end of its interface.
    outside: String,
    ip: Ipv4Addr,
}

impl Host {
    /// Its address.
    #[must_use]
    pub fn ip(&self) -> Ipv4Addr {
        self.ip
    }

    /// The same command on this host.
    pub(super) fn within(&self, wanted: &Command) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.keeper.0.id())).arg("--").arg(wanted.get_program());
        command.args(wanted.get_args());
        for (name, value) in wanted.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// Drops packets from now on, until it is healed.
    ///
    /// # Errors
    /// When the kernel does not know how, or packets are dropped already.
    pub fn cut(&self, drops: Drops) -> anyhow::Result<()> {
        let [to, from] = drops.conditions();
        let rules = |device: &str, condition: &str| {
            format!(
                "create table netdev {TABLE}-{device}\n\
                 add chain netdev {TABLE}-{device} in {{ type filter hook ingress device {device} priority 0; }}\n\
                 add rule netdev {TABLE}-{device} in ether type ip {condition}counter drop\n"
            )
        };
        if let Some(condition) = to {
            fed(self.within(&nft()), &rules(INSIDE, &condition))?;
        }
        if let Some(condition) = from {
            fed(nft(), &rules(&self.outside, &condition))?;
        }
        Ok(())
    }

    /// Lets all packets pass, and says how many were dropped.
    ///
    /// # Errors
    /// When that fails.
    pub fn heal(&self) -> anyhow::Result<u64> {
        let inside = self.lifted(INSIDE, |command| self.within(&command))?;
        let outside = self.lifted(&self.outside, |command| command)?;
        Ok(inside + outside)
    }

    /// Removes the table of a device if there is one.
    fn lifted(&self, device: &str, on: impl Fn(Command) -> Command) -> anyhow::Result<u64> {
        let table = format!("table netdev {TABLE}-{device}");
        if !fed(on(nft()), "list tables\n")?.lines().any(|line| line == table) {
            return Ok(0);
        }
        let listed = fed(on(nft()), &format!("list {table}\n"))?;
        fed(on(nft()), &format!("delete {table}\n"))?;
        let count = listed.split_once("counter packets ").and_then(|(_, rest)| rest.split(' ').next());
        count.and_then(|count| count.parse().ok()).with_context(|| format!("no counter in {listed}"))
    }
}

/// A process that keeps a namespace while no server is in it. It ends with the thread that started it.
#[derive(Debug)]
struct Keeper(Child);

impl Keeper {
    fn start() -> anyhow::Result<Self> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "unshare", "--net", "--"]);
        command.args(["sh", "-c", "echo ready; exec sleep infinity"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut keeper = Self(child.context("cannot start setpriv")?);
        let mut said = String::new();
        let output = keeper.0.stdout.take().context("no output")?;
        BufReader::new(output).read_line(&mut said)?;
        if said != "ready\n" {
            let errors = keeper.0.stderr.take().map(std::io::read_to_string).transpose()?;
            bail!("no further network namespace: {}", errors.unwrap_or_default().trim());
        }
        Ok(keeper)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // It may have been killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An interface that is not made here, of those that `ip` lists: this is the network of a machine.
fn other_interface(listed: &str) -> Option<&str> {
    let mut names = listed.lines().filter_map(|line| line.split(": ").nth(1));
    names.find(|name| *name != "lo" && !name.starts_with(BRIDGES))
}

fn ip(words: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(words);
    command
}

/// With its commands on standard input: all of them come about, or none.
fn nft() -> Command {
    let mut command = Command::new("nft");
    command.args(["-f", "-"]);
    command
}

fn done(command: Command) -> anyhow::Result<String> {
    fed(command, "")
}

/// What a command says that is given this.
fn fed(mut command: Command, input: &str) -> anyhow::Result<String> {
    let shown = format!("{command:?}");
    let missing = || format!("cannot start {shown}");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(missing)?;
    if let Some(mut pipe) = child.stdin.take() {
        // It may end without reading: its own words say why.
        let _ = pipe.write_all(input.as_bytes());
    }
    let done = child.wait_with_output()?;
    ensure!(done.status.success(), "{shown}: {}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_of_a_machine_is_left_alone() {
        let lo =
            "1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN mode DEFAULT\\    link/loopback\n";
        let own = "2: oarlock0: <BROADCAST,UP> mtu 1500\\    link/ether 02:00:00:00:00:01\n\
                   3: oarlock0h2@if2: <BROADCAST,UP> mtu 1500 master oarlock0\\    link/ether 02:00:00:00:00:02\n";
        assert_eq!(other_interface(lo), None);
        assert_eq!(other_interface(&format!("{lo}{own}")), None);
        for name in ["eth0", "net0", "tap1"] {
            let more = format!("{lo}{own}4: {name}: <BROADCAST,UP> mtu 1400\\    link/ether 02:00:00:00:00:03\n");
            assert_eq!(other_interface(&more), Some(name));
        }
    }
}
