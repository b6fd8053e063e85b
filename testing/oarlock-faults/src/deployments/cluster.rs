//! Several servers of which each serves, with a leader or without.

use std::time::Duration;

use anyhow::bail;
use oarlock_testbed::server::redis_command;
use oarlock_testbed::{EtcdCluster, Redis, RedisCluster, ZooKeeperEnsemble};

use super::{Deployment, ServerFault, until, wait};

pub(super) fn etcd() -> anyhow::Result<Box<dyn Deployment>> {
    Ok(Box::new(Etcd(EtcdCluster::start_apart()?)))
}

pub(super) fn zookeeper() -> anyhow::Result<Box<dyn Deployment>> {
    Ok(Box::new(ZooKeeper(ZooKeeperEnsemble::start()?)))
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

struct ZooKeeper(ZooKeeperEnsemble);

impl Deployment for ZooKeeper {
    fn url(&self) -> String {
        format!("{}?ttl=2s", self.0.url())
    }

    fn inject(&mut self, fault: ServerFault, lease: Duration, random: &mut fastrand::Rng) -> anyhow::Result<()> {
        let leader = self.0.leader()?;
        match fault {
            ServerFault::Failover => {
                self.0.members[leader].kill()?;
                self.0.leader()?;
                wait(lease, 0.0, 0.5, random);
                self.0.members[leader].restart()
            }
            ServerFault::FreezeLeader => {
                self.0.members[leader].pause()?;
                let elected = until("another leader", || Ok(self.0.leader()? != leader));
                wait(lease, 0.0, 0.5, random);
                self.0.members[leader].resume()?;
                elected
            }
            ServerFault::Restart => self.0.members.iter().try_for_each(|member| {
                member.restart()?;
                self.0.leader().map(drop)
            }),
            other => bail!("{} is no fault of ZooKeeper", other.name()),
        }
    }
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
