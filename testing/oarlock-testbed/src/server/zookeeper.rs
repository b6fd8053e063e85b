//! ZooKeeper: one server, and several that agree by majority.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use super::zookeeper_peers::Peers;
use super::{Missing, Program, Server, Settings, contains, missing, probe};
use crate::ports::Port;

/// The setting with the number of a member. It is a file of its own.
const MYID: &str = "myid";

/// The setting with the port of a SOCKS proxy on loopback, for what the server opens to others. It is one of Java.
const SOCKS: &str = "socksProxyPort";

/// How long a majority may take to find a leader, on a busy machine.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Where Debian keeps Java archives. That of ZooKeeper names those it needs itself.
const ARCHIVES: &str = "/usr/share/java";

/// `java`, and the archive it runs.
#[derive(Debug)]
pub struct ZooKeeperProgram {
    java: PathBuf,
    archive: PathBuf,
}

impl Program for ZooKeeperProgram {
    const NAME: &'static str = "zookeeper";
    const SCHEME: &'static str = "zk";

    fn find() -> Result<Self, Missing> {
        Ok(Self {
            java: missing::find(Self::NAME, "java", &[])?,
            archive: missing::find(Self::NAME, "zookeeper.jar", &[ARCHIVES.into()])?,
        })
    }

    fn command(&self, folder: &Path, addr: SocketAddr, settings: Settings<'_>) -> anyhow::Result<Command> {
        let (host, port) = (addr.ip().to_string(), addr.port().to_string());
        self.listening(folder, &[("clientPortAddress", &host), ("clientPort", &port)], settings)
    }

    fn probe(addr: SocketAddr, timeout: Duration) -> io::Result<()> {
        // `ruok` is answered before it serves; a mode is named only once it does.
        probe(addr, timeout, b"srvr", |answer| contains(answer, "\nMode: "))
    }
}

impl ZooKeeperProgram {
    /// How it is started, with these settings for where it listens.
    pub(super) fn listening(
        &self,
        folder: &Path,
        address: Settings<'_>,
        settings: Settings<'_>,
    ) -> anyhow::Result<Command> {
        let config = folder.join("zoo.cfg");
        let data = folder.join("data").display().to_string();
        let own = [
            ("dataDir", data.as_str()),
            ("tickTime", "500"),
            ("maxClientCnxns", "0"),
            // Servers are killed here, machines are not: a busy disk must not end sessions.
            ("forceSync", "no"),
            ("admin.enableServer", "false"),
            ("4lw.commands.whitelist", "srvr,ruok,mntr,cons,dump,wchs"),
        ];
        let mut text = String::new();
        for (name, value) in own.iter().chain(address).chain(settings) {
            if *name == MYID {
                std::fs::create_dir_all(&data)?;
                std::fs::write(Path::new(&data).join(MYID), value)?;
            } else if *name != SOCKS {
                writeln!(text, "{name}={value}")?;
            }
        }
        std::fs::write(&config, text)?;
        let mut command = Command::new(&self.java);
        if let Some((_, port)) = settings.iter().find(|(name, _)| *name == SOCKS) {
            // Without the last one, loopback is reached directly.
            command.args(["-DsocksProxyHost=127.0.0.1", &format!("-D{SOCKS}={port}"), "-DsocksNonProxyHosts="]);
        }
        // A JVM that starts fast and stays small: this saves two thirds of the time to the first answer.
        command.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-cp"]);
        // Where it logs to, and what it needs for TLS and does not name.
        let more = ["slf4j-simple", "netty-codec", "netty-resolver"].map(|name| format!(":{ARCHIVES}/{name}.jar"));
        command.arg(format!("{}{}", self.archive.display(), more.concat()));
        command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(config);
        Ok(command)
    }
}

impl Server<ZooKeeperProgram> {
    /// Where it keeps its snapshots, its log and its epochs.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data").join("version-2")
    }
}

/// Servers of which each serves while a majority runs. A leader that is silent for two seconds is replaced.
#[derive(Debug)]
pub struct ZooKeeperEnsemble {
    /// The servers.
    pub members: Vec<Server<ZooKeeperProgram>>,
    // For the connections between them.
    _ports: Vec<Port>,
    /// The ways between them, where members can be cut off.
    peers: Option<Peers>,
}

impl ZooKeeperEnsemble {
    /// Starts three that vote, and waits until they serve.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn start() -> anyhow::Result<Self> {
        Self::start_of(3)
    }

    /// [`ZooKeeperEnsemble::start`] with so many servers.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn start_of(count: usize) -> anyhow::Result<Self> {
        Self::start_as(&vec!["participant"; count], false)
    }

    /// [`ZooKeeperEnsemble::start`] with members that can be cut off from each other.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn start_apart() -> anyhow::Result<Self> {
        Self::start_as(&["participant"; 3], true)
    }

    /// [`ZooKeeperEnsemble::start_apart`] for a test that may be skipped, as with [`Server::start_or_skip`].
    ///
    /// # Errors
    /// As for [`Server::start_or_skip`].
    pub fn start_apart_or_skip() -> anyhow::Result<Option<Self>> {
        match Self::start_apart() {
            Ok(started) => Ok(Some(started)),
            Err(error) => missing::skip(error).map(|()| None),
        }
    }

    /// Starts an observer, which does not vote, and two that do; and waits until they serve. The observer comes first.
    /// `None` for a test that may be skipped, as with [`Server::start_or_skip`].
    ///
    /// # Errors
    /// As for [`Server::start_or_skip`].
    pub fn with_observer_or_skip() -> anyhow::Result<Option<Self>> {
        match Self::start_as(&["observer", "participant", "participant"], false) {
            Ok(started) => Ok(Some(started)),
            Err(error) => missing::skip(error).map(|()| None),
        }
    }

    fn start_as(roles: &[&str], apart: bool) -> anyhow::Result<Self> {
        let ports = (0..2 * roles.len()).map(|_| Port::reserve()).collect::<io::Result<Vec<_>>>()?;
        let peers = if apart { Some(Peers::of(&ports)?) } else { None };
        let socks: Vec<_> =
            peers.iter().flat_map(|peers| (0..roles.len()).map(|place| peers.proxy(place).to_string())).collect();
        let names: Vec<_> = (1..=roles.len()).map(|member| (format!("server.{member}"), member.to_string())).collect();
        let addr =
            |(pair, role): (&[Port], &&str)| format!("127.0.0.1:{}:{}:{role}", pair[0].number(), pair[1].number());
        let addrs: Vec<_> = ports.chunks(2).zip(roles).map(addr).collect();
        let common: Vec<_> = [("initLimit", "20"), ("syncLimit", "4")]
            .into_iter()
            .chain(names.iter().zip(&addrs).map(|((name, _), addr)| (name.as_str(), addr.as_str())))
            .collect();
        // None of them serves before another does.
        let started: Vec<_> = std::thread::scope(|scope| {
            let start = |place: usize, role| {
                let mut settings = common.clone();
                settings.extend([(MYID, names[place].1.as_str()), ("peerType", role)]);
                settings.extend(socks.get(place).map(|port| (SOCKS, port.as_str())));
                scope.spawn(move || Server::start_with(&settings))
            };
            let starting: Vec<_> = roles.iter().enumerate().map(|(place, role)| start(place, *role)).collect();
            starting
                .into_iter()
                .map(|thread| thread.join().map_err(|_| anyhow::anyhow!("starting it panicked")))
                .collect()
        });
        let members = started.into_iter().map(|member| member?).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self { members, _ports: ports, peers })
    }

    /// Lets nothing pass between a member and the others, either way, until it is healed. Its clients go on reaching
    /// it.
    ///
    /// # Errors
    /// When members were not started apart.
    pub fn cut(&self, number: usize) -> anyhow::Result<()> {
        self.peers()?.cut(number);
        Ok(())
    }

    /// Undoes [`ZooKeeperEnsemble::cut`]. What was held up arrives, late.
    ///
    /// # Errors
    /// When members were not started apart.
    pub fn heal(&self, number: usize) -> anyhow::Result<()> {
        Ok(self.peers()?.heal(number)?)
    }

    fn peers(&self) -> anyhow::Result<&Peers> {
        self.peers.as_ref().context("these members cannot be cut off: start them apart")
    }

    /// [`ZooKeeperEnsemble::start`] for a test that may be skipped, as with [`Server::start_or_skip`].
    ///
    /// # Errors
    /// As for [`Server::start_or_skip`].
    pub fn start_or_skip() -> anyhow::Result<Option<Self>> {
        Self::start_of_or_skip(3)
    }

    /// [`ZooKeeperEnsemble::start_of`] for a test that may be skipped.
    ///
    /// # Errors
    /// As for [`Server::start_or_skip`].
    pub fn start_of_or_skip(count: usize) -> anyhow::Result<Option<Self>> {
        match Self::start_of(count) {
            Ok(started) => Ok(Some(started)),
            Err(error) => missing::skip(error).map(|()| None),
        }
    }

    /// Ends all of them, lets `change` work on the data of each, and starts them again.
    ///
    /// # Errors
    /// Those of `change`, and as for [`Server::start`].
    pub fn restart_after(&self, change: impl Fn(usize, &Path) -> io::Result<()>) -> anyhow::Result<()> {
        for member in &self.members {
            member.stop()?;
        }
        for (number, member) in self.members.iter().enumerate() {
            change(number, &member.data())?;
        }
        // None of them serves before another does.
        std::thread::scope(|scope| {
            let starting: Vec<_> = self.members.iter().map(|member| scope.spawn(|| member.restart())).collect();
            let mut started = starting.into_iter().map(std::thread::ScopedJoinHandle::join);
            started.try_for_each(|member| member.map_err(|_| anyhow::anyhow!("a start failed"))?)
        })
    }

    /// Where clients find the members.
    #[must_use]
    pub fn hosts(&self) -> Vec<String> {
        self.members.iter().map(|member| member.addr().to_string()).collect()
    }

    /// The URL that reaches them all.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://{}", ZooKeeperProgram::SCHEME, self.hosts().join(","))
    }

    /// Whether a member leads now, as it sees it.
    #[must_use]
    pub fn leads(&self, number: usize) -> bool {
        let is_leader = |answer: &[u8]| contains(answer, "\nMode: leader");
        probe(self.members[number].addr(), Duration::from_millis(200), b"srvr", is_leader).is_ok()
    }

    /// The member that leads, once there is one.
    ///
    /// # Errors
    /// When none does after half a minute.
    pub fn leader(&self) -> anyhow::Result<usize> {
        let deadline = std::time::Instant::now() + ELECTION_TIMEOUT;
        loop {
            if let Some(leader) = (0..self.members.len()).find(|number| self.leads(*number)) {
                return Ok(leader);
            }
            (std::time::Instant::now() < deadline).then_some(()).context("the ensemble has no leader")?;
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
