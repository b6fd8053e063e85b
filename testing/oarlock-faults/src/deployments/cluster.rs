//! Several servers of which each serves, with a leader or without.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use oarlock_testbed::server::redis_command;
use oarlock_testbed::{EtcdCluster, Redis, RedisCluster, ZooKeeperEnsemble};

use super::{Deployment, ServerFault, until, wait};

pub(super) fn etcd() -> anyhow::Result<Box<dyn Deployment>> {
    Ok(Box::new(Etcd(EtcdCluster::start_apart()?)))
}

pub(super) fn zookeeper() -> anyhow::Result<Box<dyn Deployment>> {
    Ok(Box::new(ZooKeeper { servers: ZooKeeperEnsemble::start_apart()?, moves: Moves::default() }))
}

pub(super) fn redlock() -> anyhow::Result<Box<dyn Deployment>> {
    Ok(Box::new(Redlock([Redis::start()?, Redis::start()?, Redis::start()?])))
}

pub(super) fn redis() -> anyhow::Result<Box<dyn Deployment>> {
    Ok(Box::new(Cluster(RedisCluster::start()?)))
}

struct Etcd(EtcdCluster);

impl Deployment for Etcd {
    fn url(&self) -> String {
        self.0.url()
    }

    fn inject(&mut self, fault: ServerFault, lease: Duration, random: &mut fastrand::Rng) -> anyhow::Result<()> {
        let leader = self.0.leader()?;
        let another = |cluster: &EtcdCluster| {
            let leads =
                |number: usize| cluster.members[number].metric("etcd_server_is_leader").is_ok_and(|is| is > 0.0);
            Ok((0..cluster.members.len()).any(|number| number != leader && leads(number)))
        };
        match fault {
            ServerFault::Failover => {
                self.0.members[leader].kill()?;
                until("another leader", || another(&self.0))?;
                wait(lease, 0.0, 0.5, random);
                self.0.members[leader].restart()
            }
            ServerFault::FreezeLeader => {
                self.0.members[leader].pause()?;
                let elected = until("another leader", || another(&self.0));
                wait(lease, 0.0, 0.5, random);
                self.0.members[leader].resume()?;
                elected
            }
            ServerFault::CutLeader => {
                self.0.cut(leader)?;
                let elected = until("another leader", || another(&self.0));
                wait(lease, 0.0, 0.5, random);
                self.0.heal(leader)?;
                elected
            }
            ServerFault::Restart => self.0.members.iter().try_for_each(|member| {
                member.restart()?;
                self.0.leader().map(drop)
            }),
            other => bail!("{} is no fault of etcd", other.name()),
        }
    }
}

struct ZooKeeper {
    servers: ZooKeeperEnsemble,
    moves: Moves,
}

/// How many sessions went on at another server in a run, where that was tried.
#[derive(Debug, Default)]
struct Moves(Option<usize>);

impl Moves {
    fn add(&mut self, count: usize) {
        *self.0.get_or_insert(0) += count;
    }

    /// At the end of a run: the next one counts its own.
    fn check(&mut self) -> anyhow::Result<()> {
        ensure!(self.0.take() != Some(0), "no session went on at another server");
        Ok(())
    }
}

impl ZooKeeper {
    /// The member that leads, other than this one.
    fn another_leads(&self, old: usize) -> bool {
        (0..self.servers.members.len()).any(|number| number != old && self.servers.leads(number))
    }

    /// The sessions that have a connection to a member.
    fn sessions(&self, number: usize) -> anyhow::Result<BTreeSet<String>> {
        let said = ask(self.servers.members[number].addr(), "cons")?;
        let ids = said.split("sid=").skip(1).filter_map(|rest| rest.split(',').next());
        Ok(ids.map(str::to_owned).collect())
    }

    /// A follower with sessions is killed, or stopped: their clients go on with them at other members. Those of a member
    /// that was stopped find it with sessions that it still takes for its own.
    fn move_sessions(&mut self, lease: Duration, random: &mut fastrand::Rng) -> anyhow::Result<()> {
        let leader = self.servers.leader()?;
        let mut members = Vec::new();
        for number in (0..self.servers.members.len()).filter(|number| *number != leader) {
            members.push((self.sessions(number)?, number));
        }
        let (sessions, from) = members.into_iter().max_by_key(|(sessions, _)| sessions.len()).context("no follower")?;
        let member = &self.servers.members[from];
        let is_killed = random.bool();
        if is_killed {
            member.kill()?;
        } else {
            member.pause()?;
        }
        // Clients whose server is silent look for another one before their session ends.
        let (late, mut moved) = (Instant::now() + lease * 2, BTreeSet::new());
        while moved.len() < sessions.len() && Instant::now() < late {
            for number in (0..self.servers.members.len()).filter(|number| *number != from) {
                moved.extend(self.sessions(number)?.intersection(&sessions).cloned());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.moves.add(moved.len());
        if is_killed { member.restart() } else { member.resume() }
    }
}

impl Deployment for ZooKeeper {
    fn url(&self) -> String {
        format!("{}?ttl=2s", self.servers.url())
    }

    fn inject(&mut self, fault: ServerFault, lease: Duration, random: &mut fastrand::Rng) -> anyhow::Result<()> {
        if fault == ServerFault::MoveSessions {
            return self.move_sessions(lease, random);
        }
        let leader = self.servers.leader()?;
        let member = &self.servers.members[leader];
        match fault {
            ServerFault::Failover => {
                member.kill()?;
                self.servers.leader()?;
                wait(lease, 0.0, 0.5, random);
                member.restart()
            }
            ServerFault::FreezeLeader => {
                member.pause()?;
                let elected = until("another leader", || Ok(self.another_leads(leader)));
                wait(lease, 0.0, 0.5, random);
                member.resume()?;
                elected
            }
            ServerFault::CutLeader => {
                self.servers.cut(leader)?;
                let elected = until("another leader", || Ok(self.another_leads(leader)));
                wait(lease, 0.0, 0.5, random);
                self.servers.heal(leader)?;
                elected
            }
            ServerFault::Restart => self.servers.members.iter().try_for_each(|member| {
                member.restart()?;
                self.servers.leader().map(drop)
            }),
            other => bail!("{} is no fault of ZooKeeper", other.name()),
        }
    }

    fn check(&mut self) -> anyhow::Result<()> {
        self.moves.check()
    }
}

/// What a server of ZooKeeper answers to a command of four letters.
fn ask(addr: SocketAddr, command: &str) -> anyhow::Result<String> {
    let mut server = TcpStream::connect_timeout(&addr, Duration::from_secs(2))?;
    server.set_read_timeout(Some(Duration::from_secs(2)))?;
    server.write_all(command.as_bytes())?;
    let mut said = String::new();
    server.read_to_string(&mut said)?;
    Ok(said)
}

/// Three masters that know nothing of each other.
struct Redlock([Redis; 3]);

impl Deployment for Redlock {
    fn url(&self) -> String {
        let hosts = self.0.each_ref().map(|master| master.addr().to_string());
        format!("redlock://{}", hosts.join(","))
    }

    fn inject(&mut self, fault: ServerFault, lease: Duration, random: &mut fastrand::Rng) -> anyhow::Result<()> {
        let one = &self.0[random.usize(0..self.0.len())];
        match fault {
            ServerFault::Kill => {
                one.kill()?;
                wait(lease, 0.2, 1.5, random);
                one.restart()
            }
            ServerFault::Freeze => {
                one.pause()?;
                wait(lease, 0.3, 2.0, random);
                one.resume()
            }
            ServerFault::Restart => self.0.iter().try_for_each(Redis::restart),
            other => bail!("{} is no fault of Redlock", other.name()),
        }
    }
}

struct Cluster(RedisCluster);

impl Deployment for Cluster {
    fn url(&self) -> String {
        self.0.url()
    }

    fn flags(&self) -> Vec<String> {
        let replicas = self.0.replicas.iter();
        replicas.flat_map(|replica| ["--server".to_owned(), replica.addr().to_string()]).collect()
    }

    fn inject(&mut self, fault: ServerFault, lease: Duration, random: &mut fastrand::Rng) -> anyhow::Result<()> {
        let pair = random.usize(0..self.0.masters.len());
        let (one, other) = (&self.0.masters[pair], &self.0.replicas[pair]);
        let is = |addr, role: &str| Ok(redis_command(addr, &["INFO", "replication"])?.contains(role));
        let leads = is(one.addr(), "role:master")?;
        let (master, replica) = if leads { (one, other) } else { (other, one) };
        match fault {
            ServerFault::Failover => {
                until("a replica that is up to date", || is(replica.addr(), "master_link_status:up"))?;
                master.kill()?;
                until("another master", || is(replica.addr(), "role:master"))?;
                wait(lease, 0.0, 0.5, random);
                master.restart()?;
                until("the old master to follow", || is(master.addr(), "master_link_status:up"))
            }
            ServerFault::Restart => {
                for node in [replica, master] {
                    node.restart()?;
                    until("a node that serves", || {
                        Ok(redis_command(node.addr(), &["CLUSTER", "INFO"])?.contains("cluster_state:ok"))
                    })?;
                }
                Ok(())
            }
            other => bail!("{} is no fault of a cluster", other.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_that_moved_in_another_run_do_not_count() {
        let mut moves = Moves::default();
        moves.check().expect("it was not tried");
        moves.add(0);
        moves.add(2);
        moves.check().expect("two have moved");
        moves.add(0);
        assert!(moves.check().is_err(), "none of this run");
        moves.check().expect("it was not tried");
    }
}
