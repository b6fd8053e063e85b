//! An etcd cluster of three members.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use super::etcd::EtcdProgram;
use super::etcd_peers::Peers;
use super::{Host, Server, missing};
use crate::ports::Port;

/// How many members.
const MEMBERS: usize = 3;

/// Three members. A leader that is gone is replaced after an election timeout, a second by default.
#[derive(Debug)]
pub struct EtcdCluster {
    /// The members.
    pub members: Vec<Server<EtcdProgram>>,
    /// For the connections between them.
    ports: Vec<Port>,
    /// Where each of them runs, if not on this machine's own network.
    hosts: Vec<Arc<Host>>,
    /// The ways between them, where members can be cut off.
    peers: Option<Peers>,
}

impl EtcdCluster {
    /// Starts them all, and waits until they have a leader.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn start() -> anyhow::Result<Self> {
        Self::launch(ports()?, None, &[])
    }

    /// [`EtcdCluster::start`] with each member on a host of its own.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn start_at(hosts: &[Arc<Host>; MEMBERS]) -> anyhow::Result<Self> {
        Self::launch(ports()?, None, hosts)
    }

    /// [`EtcdCluster::start`] with members that can be cut off from each other, and not replaced.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn start_apart() -> anyhow::Result<Self> {
        let ports = ports()?;
        let peers = Peers::of(&ports)?;
        Self::launch(ports, Some(peers), &[])
    }

    /// [`EtcdCluster::start`] for a test that may be skipped, as with [`Server::start_or_skip`].
    ///
    /// # Errors
    /// As for [`Server::start_or_skip`].
    pub fn start_or_skip() -> anyhow::Result<Option<Self>> {
        or_skip(Self::start())
    }

    /// [`EtcdCluster::start_apart`] for a test that may be skipped, as with [`Server::start_or_skip`].
    ///
    /// # Errors
    /// As for [`Server::start_or_skip`].
    pub fn start_apart_or_skip() -> anyhow::Result<Option<Self>> {
        or_skip(Self::start_apart())
    }

    fn launch(ports: Vec<Port>, peers: Option<Peers>, hosts: &[Arc<Host>]) -> anyhow::Result<Self> {
        let own = |number: usize| match hosts.get(number) {
            Some(host) => format!("http://{}:{}", host.ip(), ports[number].number()),
            None => url(&ports[number]),
        };
        let urls: Vec<_> =
            (0..MEMBERS).map(|number| peers.as_ref().map_or_else(|| own(number), |peers| peers.url(number))).collect();
        let cluster: Vec<_> = urls.iter().enumerate().map(|(number, url)| format!("m{number}={url}")).collect();
        let cluster = cluster.join(",");
        let start = |number: usize| {
            let proxy = peers.as_ref().map(|peers| peers.proxy(number));
            let proxy: Vec<_> = proxy.iter().map(|proxy| ("HTTP_PROXY", proxy.as_str())).collect();
            let (name, own) = (format!("m{number}"), own(number));
            start(hosts.get(number), &name, [&own, &urls[number]], &cluster, &proxy)
        };
        let start = &start;
        // None of them answers before a majority is there.
        let members = std::thread::scope(|scope| {
            let started: Vec<_> = (0..MEMBERS).map(|number| scope.spawn(move || start(number))).collect();
            let joined = started.into_iter().map(|member| member.join().map_err(|_| anyhow::anyhow!("a start failed")));
            joined.map(|member| member.and_then(|member| member)).collect::<anyhow::Result<Vec<_>>>()
        })?;
        Ok(Self { members, ports, hosts: hosts.to_vec(), peers })
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

    /// Undoes [`EtcdCluster::cut`]. What was held up arrives, late.
    ///
    /// # Errors
    /// When members were not started apart.
    pub fn heal(&self, number: usize) -> anyhow::Result<()> {
        Ok(self.peers()?.heal(number)?)
    }

    fn is_plain(&self) -> bool {
        self.peers.is_none() && self.hosts.is_empty()
    }

    fn peers(&self) -> anyhow::Result<&Peers> {
        self.peers.as_ref().context("these members cannot be cut off: start them apart")
    }

    /// The number of the member that leads now. If there is none for the moment, one is waited for.
    ///
    /// # Errors
    /// When none says so for half a minute.
    pub fn leader(&self) -> anyhow::Result<usize> {
        let leads = |member: &Server<EtcdProgram>| member.metric("etcd_server_is_leader").is_ok_and(|is| is > 0.0);
        let give_up = Instant::now() + Duration::from_secs(30);
        loop {
            let leader = self.members.iter().position(leads);
            if leader.is_some() || Instant::now() > give_up {
                return leader.context("no member leads");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Removes a member for good and starts another, empty one in its place, at other addresses.
    ///
    /// # Errors
    /// When the others do not agree, or members were started apart.
    pub fn replace(&mut self, number: usize) -> anyhow::Result<()> {
        ensure!(self.is_plain(), "members that can be cut off are not replaced");
        let other = &self.members[(number + 1) % MEMBERS];
        let listed = other.ctl(&["member", "list"])?;
        let name = format!(", m{number}, ");
        let Some(id) = listed.lines().find(|line| line.contains(&name)).and_then(|line| line.split(',').next()) else {
            bail!("m{number} is not among {listed}");
        };
        let _ = self.members[number].kill();
        other.ctl(&["member", "remove", id])?;
        let peer = Port::reserve()?;
        let new = format!("n{number}");
        other.ctl(&["member", "add", &new, &format!("--peer-urls={}", url(&peer))])?;
        let kept = (0..MEMBERS).filter(|kept| *kept != number);
        let cluster = kept.map(|kept| format!("m{kept}={}", url(&self.ports[kept])));
        let cluster = cluster.chain([format!("{new}={}", url(&peer))]).collect::<Vec<_>>().join(",");
        let found = url(&peer);
        let member = start(None, &new, [&found, &found], &cluster, &[("initial-cluster-state", "existing")])?;
        (self.members[number], self.ports[number]) = (member, peer);
        Ok(())
    }

    /// Starts one more member that only learns: it has no vote, and answers hardly anything.
    ///
    /// # Errors
    /// When the others do not agree, or members were started apart.
    pub fn start_learner(&self) -> anyhow::Result<Server<EtcdProgram>> {
        ensure!(self.is_plain(), "members that can be cut off have no learner");
        let peer = Port::reserve()?;
        self.members[0].ctl(&["member", "add", "learner", "--learner", &format!("--peer-urls={}", url(&peer))])?;
        let voting = self.ports.iter().enumerate().map(|(number, port)| format!("m{number}={}", url(port)));
        let cluster = voting.chain([format!("learner={}", url(&peer))]).collect::<Vec<_>>().join(",");
        let found = url(&peer);
        start(None, "learner", [&found, &found], &cluster, &[("initial-cluster-state", "existing")])
    }

    /// The URL that reaches it.
    #[must_use]
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.members.iter().map(|member| member.addr().to_string()).collect();
        format!("etcd://{}", hosts.join(","))
    }
}

fn ports() -> anyhow::Result<Vec<Port>> {
    Ok((0..MEMBERS).map(|_| Port::reserve()).collect::<Result<_, _>>()?)
}

fn or_skip(started: anyhow::Result<EtcdCluster>) -> anyhow::Result<Option<EtcdCluster>> {
    match started {
        Ok(started) => Ok(Some(started)),
        Err(error) => missing::skip(error).map(|()| None),
    }
}

fn url(port: &Port) -> String {
    format!("http://{}", port.addr())
}

/// A member that listens at the first URL for the others, which find it at the second one.
fn start(
    host: Option<&Arc<Host>>,
    name: &str,
    [own, found]: [&str; 2],
    cluster: &str,
    settings: &[(&str, &str)],
) -> anyhow::Result<Server<EtcdProgram>> {
    let own = [
        ("name", name),
        ("listen-peer-urls", own),
        ("initial-advertise-peer-urls", found),
        ("initial-cluster", cluster),
        // Members are replaced while others are only just back.
        ("strict-reconfig-check", "false"),
    ];
    let settings = [&own[..], settings].concat();
    host.map_or_else(|| Server::start_with(&settings), |host| Server::start_at(host, &settings))
}
