//! A Redis master, its replicas and three Sentinels.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use oarlock_testbed::RedisSentinel;
use oarlock_testbed::proxy::Held;
use oarlock_testbed::server::{MASTER, Machine, redis_command};

use super::{Deployment, ServerFault, until, wait};

struct Sentinel {
    servers: RedisSentinel,
    min_replicas: u32,
    /// The place of a master that is cut off from the other servers.
    cut: Option<usize>,
    /// The replicas hear nothing of the master since the beginning of the run.
    apart: bool,
}

/// What the other servers ask of a master, and its clients do not: whether it lives, and for its data.
const OF_SERVERS: [&str; 4] = ["ping", "psync", "sync", "replconf"];

pub(super) fn start(min_replicas: u32) -> anyhow::Result<Box<dyn Deployment>> {
    let servers = RedisSentinel::start()?;
    for sentinel in &servers.sentinels {
        // The next failover waits for twice this time, also after votes that were split.
        redis_command(sentinel.addr(), &["SENTINEL", "SET", MASTER, "failover-timeout", "4000"])?;
    }
    Ok(Box::new(Sentinel { servers, min_replicas, cut: None, apart: false }))
}

impl Sentinel {
    fn master(&self) -> anyhow::Result<&Machine> {
        let addr = self.servers.master()?;
        self.servers.machines.iter().find(|machine| machine.proxy.addr() == addr).context("an unknown master")
    }

    /// The master refuses what other servers ask of it, and serves its clients. So it is with a network that is cut
    /// between machines.
    fn cut(&mut self) -> anyhow::Result<()> {
        let name = self.servers.master()?;
        let place = self.servers.machines.iter().position(|machine| machine.proxy.addr() == name);
        let place = place.context("an unknown master")?;
        let addr = self.servers.machines[place].server.addr();
        refuse(addr, true)?;
        redis_command(addr, &["CLIENT", "KILL", "TYPE", "replica"])?;
        self.cut = Some(place);
        Ok(())
    }

    /// Replicas that [`prepare`](Deployment::prepare) has cut off count that time from now on: Sentinels promote none that
    /// was cut off for long, and a run may take its time until its first fault.
    fn forget_how_long(&self) -> anyhow::Result<()> {
        let master = self.servers.master()?;
        for replica in self.servers.machines.iter().filter(|machine| machine.proxy.addr() != master) {
            let addr = replica.server.addr();
            redis_command(addr, &["REPLICAOF", "NO", "ONE"])?;
            redis_command(addr, &["REPLICAOF", "127.0.0.1", &master.port().to_string()])?;
        }
        Ok(())
    }

    /// The master of before the last cut hears of the new one and follows it.
    fn join(&mut self) -> anyhow::Result<()> {
        let Some(old) = self.cut.take().map(|place| &self.servers.machines[place]) else { return Ok(()) };
        for machine in &self.servers.machines {
            redis_command(machine.server.addr(), &["CONFIG", "SET", "masterauth", ""])?;
        }
        refuse(old.server.addr(), false)?;
        self.follow(old)
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

/// Whether a server refuses what other servers ask of it.
fn refuse(addr: SocketAddr, is_refused: bool) -> anyhow::Result<()> {
    let sign = if is_refused { '-' } else { '+' };
    let rules = OF_SERVERS.map(|command| format!("{sign}{command}"));
    let words = ["ACL", "SETUSER", "default"].into_iter().chain(rules.iter().map(String::as_str));
    redis_command(addr, &words.collect::<Vec<_>>())?;
    Ok(())
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
        if fault != ServerFault::LostFailover && (fault != ServerFault::CutLeader || self.min_replicas > 0) {
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
        self.apart = true;
        Ok(())
    }

    fn inject(&mut self, fault: ServerFault, lease: Duration, random: &mut fastrand::Rng) -> anyhow::Result<()> {
        if std::mem::take(&mut self.apart) {
            self.forget_how_long()?;
        }
        if fault == ServerFault::CutLeader {
            self.join()?;
            self.cut()?;
            let old = self.cut.map(|place| &self.servers.machines[place]).context("a master that was cut off")?;
            let replaced = self.replaced(old);
            // Without `min_replicas` who held must still believe when this returns.
            if self.min_replicas == 0 {
                return replaced;
            }
            // The old one stays cut off for a while. Clients reach all Sentinels, and go to the new one when it is named.
            wait(lease, 0.0, 0.5, random);
            let joined = self.join();
            return replaced.and(joined);
        }
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
