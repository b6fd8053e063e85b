//! Examines the servers of a store: settings, replicas, Sentinels, nodes of a cluster.

pub(crate) mod checks;
mod cluster;
mod sentinel;
mod server;

use std::time::Duration;

use oarlock_core::doctor::{Answers, Doctor, Report, UNREACHABLE, examined, list, patience, within};
use oarlock_core::driver::Driver as _;
use oarlock_core::{Error, Result};
use redis::{Cmd, Value};

use crate::Redis;
use crate::config::{Address, Config};
use crate::connection::{Connection, Connector, Login, Target};
use crate::error::failed;
pub use server::Seen;
use server::Surroundings;

pub(crate) const DOCTOR: Doctor = Doctor {
    checks: checks::ALL,
    examine: |url| {
        Box::pin(examined(url, async |url, report| examine(Config::from_url(url)?, patience(url), report).await))
    },
};

async fn examine(config: Config, limit: Duration, report: &mut Report) -> Result<()> {
    let connector = Connector::new(&config)?;
    match &config.address {
        Address::Tcp(host, port) => {
            let target = Target::Tcp(host.clone(), *port);
            server::examine(&connector, &config, &target, Surroundings::Alone, limit, report).await;
        }
        Address::Unix(path) => {
            let target = Target::Unix(path.clone());
            server::examine(&connector, &config, &target, Surroundings::Alone, limit, report).await;
        }
        Address::Sentinel { hosts, master } => {
            for master in sentinel::examine(&connector, hosts, master, limit, report).await {
                server::examine(&connector, &config, &master, Surroundings::FailsOver, limit, report).await;
            }
        }
        Address::Cluster(seeds) => {
            for (master, surroundings) in cluster::examine(&connector, seeds, limit, report).await {
                server::examine(&connector, &config, &master, surroundings, limit, report).await;
            }
        }
    }
    if report.findings.iter().any(|finding| finding.check.id == UNREACHABLE.id) {
        // It was said, and takes as long again.
        return Ok(());
    }
    within(limit, list_locks(config, report)).await
}

/// A client of this store writes nothing before it asks for a lock.
async fn list_locks(config: Config, report: &mut Report) -> Result<()> {
    let store = Redis::open(config).await?;
    let info = store.info();
    if info.capabilities.listing {
        report.locks = list(async |query| store.inspect(&query).await).await?;
    } else {
        report.on(&info.address).fact("locks", "not looked at: this layout has no list of names");
    }
    store.close().await
}

/// Examines one server of a quorum. It has no replicas that may take its place. `None` if it does not answer.
pub async fn member(config: &Config, limit: Duration, report: &mut Report) -> Option<Seen> {
    let Address::Tcp(host, port) = &config.address else { return None };
    let target = Target::Tcp(host.clone(), *port);
    match Connector::new(config) {
        Ok(connector) => server::examine(&connector, config, &target, Surroundings::Voter, limit, report).await,
        Err(error) => {
            report.on(&target.to_string()).failed(&error);
            None
        }
    }
}

/// A connection that is only asked.
struct Asked(Connection);

impl Asked {
    async fn open(connector: &Connector, target: &Target, login: Login) -> Result<Self> {
        connector.open(target, login, |_| ()).await.map(Self)
    }

    async fn ask(&self, words: &[&str]) -> Result<Value> {
        let mut command = Cmd::new();
        for word in words {
            command.arg(*word);
        }
        let mut client = self.0.client.clone();
        command.query_async(&mut client).await.map_err(failed)
    }

    /// The answer as text; empty if the server has none.
    async fn text(&self, words: &[&str]) -> Result<String> {
        Ok(text(&self.ask(words).await?))
    }

    /// Pairs of names and values, as a map or as a list.
    async fn pairs(&self, words: &[&str]) -> Result<Answers> {
        Ok(match self.ask(words).await? {
            Value::Map(pairs) => pairs.iter().map(|(name, value)| (text(name), text(value))).collect(),
            Value::Array(parts) => parts.chunks_exact(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect(),
            _ => Answers::default(),
        })
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => text.clone(),
        Value::Int(number) => number.to_string(),
        Value::Okay => "OK".to_owned(),
        _ => String::new(),
    }
}

/// What the server itself said, without what we add.
fn cause(error: &Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}
