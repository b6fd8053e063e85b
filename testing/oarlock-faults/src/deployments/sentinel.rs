//! A Redis master, its replicas and three Sentinels.

use std::time::Duration;

use anyhow::{Context as _, bail};
use oarlock_testbed::RedisSentinel;
use oarlock_testbed::proxy::Held;
use oarlock_testbed::server::{MASTER, Machine, redis_command};

use super::{Deployment, ServerFault, until, wait};

struct Sentinel {
    servers: RedisSentinel,
    min_replicas: u32,
}

pub(super) fn start(min_replicas: u32) -> anyhow::Result<Box<dyn Deployment>> {
    Ok(Box::new(Sentinel { servers: RedisSentinel::start()?, min_replicas }))
}

impl Sentinel {
    fn master(&self) -> anyhow::Result<&Machine> {
        let addr = self.servers.master()?;
        self.servers.machines.iter().find(|machine| machine.proxy.addr() == addr).context("an unknown master")
    }

    /// Waits until the Sentinels name another master than `old`, and it is one.
    fn replaced(&self, old: &Machine) -> anyhow::Result<()> {
        until("another master", || {
            let master = self.master()?;
            let said = redis_command(master.server.addr(), &["INFO", "replication"])?;
            Ok(!std::ptr::eq(master, old) && said.contains("role:master"))
        })
    }

    /// Brings a server back as a replica of the master that there is.
    fn follow(&self, old: &Machine) -> anyhow::Result<()> {
        let (master, announced) = (self.master()?.proxy.addr().port().to_string(), old.proxy.addr().port().to_string());
        for (name, value) in [("replica-announce-ip", "127.0.0.1"), ("replica-announce-port", &announced)] {
            redis_command(old.server.addr(), &["CONFIG", "SET", name, value])?;
        }
        redis_command(old.server.addr(), &["REPLICAOF", "127.0.0.1", &master])?;
        old.proxy.heal(Held::Reset)?;
        until("a replica that follows", || {
            Ok(redis_command(old.server.addr(), &["INFO", "replication"])?.contains("master_link_status:up"))
        })
    }
}

impl Deployment for Sentinel {
    fn url(&self) -> String {
        format!("{}?min_replicas={}", self.servers.url(), self.min_replicas)
    }

    fn flags(&self) -> Vec<String> {
        let machines = self.servers.machines.iter();
        machines.flat_map(|machine| ["--server".to_owned(), machine.proxy.addr().to_string()]).collect()
    }

    fn prepare(&mut self, fault: ServerFault) -> anyhow::Result<()> {
        if fault != ServerFault::LostFailover {
            return Ok(());
        }
        // A replica is promoted only if its link was not down for ten times as long.
        for sentinel in &self.servers.sentinels {
            redis_command(sentinel.addr(), &["SENTINEL", "SET", MASTER, "down-after-milliseconds", "2500"])?;
        }
        // The replicas hear nothing more of the master: it refuses their password. The Sentinels still see all of them.
        let master = self.master()?.proxy.addr();
        for replica in self.servers.machines.iter().filter(|machine| machine.proxy.addr() != master) {
            let addr = replica.server.addr();
            redis_command(addr, &["CONFIG", "SET", "masterauth", "wrong"])?;
            redis_command(addr, &["CLIENT", "KILL", "TYPE", "master"])?;
            until("a replica without its master", || {
                Ok(redis_command(addr, &["INFO", "replication"])?.contains("master_link_status:down"))
            })?;
        }
        Ok(())
    }

    fn inject(&mut self, fault: ServerFault, lease: Duration, random: &mut fastrand::Rng) -> anyhow::Result<()> {
        let master = self.master()?;
        match fault {
            // A process that is killed still sends what it had written: the network of a dead machine is dead, too.
            ServerFault::Failover => {
                master.proxy.refuse();
                master.server.kill()?;
                self.replaced(master)?;
                master.server.restart()?;
                wait(lease, 0.0, 0.5, random);
                self.follow(master)
            }
            // Who held must still believe when this returns: the dead one comes back only before the next is killed.
            ServerFault::LostFailover => {
                for dead in self.servers.machines.iter().filter(|machine| machine.server.pid().is_none()) {
                    dead.server.restart()?;
                    self.follow(dead)?;
                }
                master.proxy.refuse();
                master.server.kill()?;
                self.replaced(master)
            }
            ServerFault::FreezeLeader => {
                master.server.pause()?;
                let replaced = self.replaced(master);
                master.server.resume()?;
                replaced?;
                self.follow(master)
            }
            ServerFault::Restart => {
                let name = master.proxy.addr();
                let replicas = self.servers.machines.iter().filter(|machine| machine.proxy.addr() != name);
                for replica in replicas {
                    replica.server.restart()?;
                    self.follow(replica)?;
                }
                master.server.restart()?;
                // Back before the Sentinels noticed, or another one is master by now.
                until("a master", || {
                    let master = self.master()?;
                    Ok(redis_command(master.server.addr(), &["INFO", "replication"])?.contains("role:master"))
                })
            }
            other => bail!("{} is no fault of Sentinel", other.name()),
        }
    }
}
