//! An etcd cluster of three members.

use anyhow::{Context as _, bail};

use super::etcd::EtcdProgram;
use super::{Server, missing};
use crate::ports::Port;

/// How many members.
const MEMBERS: usize = 3;

/// Three members. A leader that is gone is replaced after an election timeout, a second by default.
#[derive(Debug)]
pub struct EtcdCluster {
    /// The members.
    pub members: Vec<Server<EtcdProgram>>,
    /// Where they talk to each other.
    peers: Vec<Port>,
}

impl EtcdCluster {
    /// Starts them all, and waits until they have a leader.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn start() -> anyhow::Result<Self> {
        Self::start_with(&[])
    }

    /// [`EtcdCluster::start`] with settings for every member.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn start_with(settings: &[(&str, &str)]) -> anyhow::Result<Self> {
        let peers = (0..MEMBERS).map(|_| Port::reserve()).collect::<Result<Vec<_>, _>>()?;
        let cluster = (0..MEMBERS).map(|number| format!("m{number}={}", url(&peers[number]))).collect::<Vec<_>>();
        let cluster = cluster.join(",");
        // None of them answers before a majority is there.
        let members = std::thread::scope(|scope| {
            let start = |number: usize| member(number, &peers[number], &cluster, settings);
            let started: Vec<_> = (0..MEMBERS).map(|number| scope.spawn(move || start(number))).collect();
            let joined = started.into_iter().map(|member| member.join().map_err(|_| anyhow::anyhow!("a start failed")));
            joined.map(|member| member.and_then(|member| member)).collect::<anyhow::Result<Vec<_>>>()
        })?;
        Ok(Self { members, peers })
    }

    /// [`EtcdCluster::start`] for a test that may be skipped, as with [`Server::start_or_skip`].
    ///
    /// # Errors
    /// As for [`Server::start_or_skip`].
    pub fn start_or_skip() -> anyhow::Result<Option<Self>> {
        match Self::start() {
            Ok(started) => Ok(Some(started)),
            Err(error) => missing::skip(error).map(|()| None),
        }
    }

    /// The number of the member that leads now.
    ///
    /// # Errors
    /// When none says so.
    pub fn leader(&self) -> anyhow::Result<usize> {
        let leads = |member: &Server<EtcdProgram>| member.metric("etcd_server_is_leader").is_ok_and(|is| is > 0.0);
        self.members.iter().position(leads).context("no member leads")
    }

    /// Removes a member for good and starts another, empty one in its place, at other addresses.
    ///
    /// # Errors
    /// When the others do not agree.
    pub fn replace(&mut self, number: usize) -> anyhow::Result<()> {
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
        let cluster = kept.map(|kept| format!("m{kept}={}", url(&self.peers[kept])));
        let cluster = cluster.chain([format!("{new}={}", url(&peer))]).collect::<Vec<_>>().join(",");
        let member = start(&new, &peer, &cluster, &[("initial-cluster-state", "existing")])?;
        (self.members[number], self.peers[number]) = (member, peer);
        Ok(())
    }

    /// The URL that reaches it.
    #[must_use]
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.members.iter().map(|member| member.addr().to_string()).collect();
        format!("etcd://{}", hosts.join(","))
    }
}

fn url(peer: &Port) -> String {
    format!("http://{}", peer.addr())
}

fn member(number: usize, peer: &Port, cluster: &str, settings: &[(&str, &str)]) -> anyhow::Result<Server<EtcdProgram>> {
    start(&format!("m{number}"), peer, cluster, settings)
}

fn start(name: &str, peer: &Port, cluster: &str, settings: &[(&str, &str)]) -> anyhow::Result<Server<EtcdProgram>> {
    let peer = url(peer);
    let own = [
        ("name", name),
        ("listen-peer-urls", &peer),
        ("initial-advertise-peer-urls", &peer),
        ("initial-cluster", cluster),
        // Members are replaced while others are only just back.
        ("strict-reconfig-check", "false"),
    ];
    Server::start_with(&[&own[..], settings].concat())
}
