//! A primary and a replica of a database, which is promoted when the primary is dead.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use oarlock_testbed::{Flavour, Postgres, SqlServer};

use super::{Deployment, ServerFault, init, until};

pub(super) fn postgres() -> anyhow::Result<Box<dyn Deployment>> {
    let primary = Postgres::start()?;
    init(&primary.url())?;
    let standby = Postgres::standby_of(primary.addr())?;
    Ok(Box::new(PostgresPair { primary, standby, promoted: false }))
}

pub(super) fn mariadb() -> anyhow::Result<Box<dyn Deployment>> {
    pair(Flavour::MariaDb)
}

pub(super) fn mysql() -> anyhow::Result<Box<dyn Deployment>> {
    pair(Flavour::MySql)
}

struct PostgresPair {
    primary: Postgres,
    standby: Postgres,
    promoted: bool,
}

fn psql(addr: SocketAddr, statement: &str) -> anyhow::Result<String> {
    let (host, port) = (addr.ip().to_string(), addr.port().to_string());
    let mut command = Command::new("psql");
    command.args(["-X", "-A", "-t", "-h", &host, "-p", &port, "-U", "postgres", "-c", statement]);
    answer_of(command)
}

fn answer_of(mut command: Command) -> anyhow::Result<String> {
    let done = command.output().context("the client of the database")?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
}

impl Deployment for PostgresPair {
    fn url(&self) -> String {
        let (url, addr) = (self.primary.url(), self.primary.addr().to_string());
        url.replacen(&addr, &format!("{addr},{}", self.standby.addr()), 1)
    }

    /// The first kills the primary for good and promotes the standby; each further one kills that, and starts it again.
    fn inject(&mut self, fault: ServerFault, _: Duration, _: &mut fastrand::Rng) -> anyhow::Result<()> {
        ensure!(fault == ServerFault::Failover, "{} is not tried on a pair", fault.name());
        if std::mem::replace(&mut self.promoted, true) {
            self.standby.kill()?;
            return self.standby.restart();
        }
        self.primary.kill()?;
        let promoted = psql(self.standby.addr(), "SELECT pg_promote(true, 30)")?;
        ensure!(promoted == "t", "the standby was not promoted");
        Ok(())
    }

    fn version(&self) -> String {
        psql(self.standby.addr(), "SHOW server_version").unwrap_or_default()
    }
}

struct SqlPair {
    primary: SqlServer,
    replica: SqlServer,
    promoted: bool,
}

fn client(addr: SocketAddr, statement: &str) -> anyhow::Result<String> {
    let (host, port) = (addr.ip().to_string(), addr.port().to_string());
    let mut command = Command::new("mariadb");
    command.args(["--no-defaults", "-N", "-B", "-h", &host, "-P", &port, "-u", "root", "-e", statement]);
    answer_of(command)
}

fn pair(flavour: Flavour) -> anyhow::Result<Box<dyn Deployment>> {
    let primary = SqlServer::primary_or_skip(flavour)?.context("the server is not installed")?;
    // Unlike root, it may not write to a server that only reads.
    client(primary.addr(), "CREATE USER app; GRANT ALL ON locks.* TO app")?;
    init(&as_app(&primary.url()))?;
    let replica = SqlServer::replica_of(flavour, primary.addr())?;
    let position = client(primary.addr(), flavour.position())?;
    until("a replica that follows", || Ok(client(replica.addr(), &flavour.catch_up(&position, 1))? == "0"))?;
    Ok(Box::new(SqlPair { primary, replica, promoted: false }))
}

fn as_app(url: &str) -> String {
    match url.split_once('@') {
        Some((scheme, rest)) => {
            let scheme = scheme.split("://").next().unwrap_or_default();
            format!("{scheme}://app@{rest}")
        }
        None => url.replacen("://", "://app@", 1),
    }
}

impl Deployment for SqlPair {
    fn url(&self) -> String {
        let (url, addr) = (as_app(&self.primary.url()), self.primary.addr().to_string());
        url.replacen(&addr, &format!("{addr},{}", self.replica.addr()), 1)
    }

    /// As on PostgreSQL.
    fn inject(&mut self, fault: ServerFault, _: Duration, _: &mut fastrand::Rng) -> anyhow::Result<()> {
        if fault != ServerFault::Failover {
            bail!("{} is not tried on a pair", fault.name());
        }
        if std::mem::replace(&mut self.promoted, true) {
            self.replica.kill()?;
            self.replica.restart()?;
            return client(self.replica.addr(), self.replica.flavour().promote()).map(drop);
        }
        self.primary.kill()?;
        client(self.replica.addr(), self.replica.flavour().promote()).map(drop)
    }

    fn version(&self) -> String {
        client(self.replica.addr(), "SELECT VERSION()").unwrap_or_default()
    }
}
