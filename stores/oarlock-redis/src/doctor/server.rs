//! One server: what it keeps, what it throws away, and which replicas it has.

use std::time::{Duration, Instant};

use oarlock_core::Result;
use oarlock_core::doctor::{Answers, OnServer, Report, within};
use redis::Value;

use super::{Asked, checks, text};
use crate::config::Config;
use crate::connection::{Connector, Login, Target};

/// What takes the place of a server that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Surroundings {
    /// Nothing, by itself.
    Alone,
    /// One of its replicas, at once.
    FailsOver,
    /// Nothing: it is one of several independent servers that vote.
    Voter,
}

/// What others must know of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Seen {
    /// Its identity; two addresses with the same one are one server.
    pub run_id: String,
    /// The identity of its data, which its replicas share.
    pub replication_id: String,
    /// How far its clock is ahead of this machine's, in microseconds.
    pub clock_ahead: i64,
}

/// The settings that are asked for; all of them at once would include passwords.
const SETTINGS: [&str; 7] = [
    "appendfsync",
    "min-replicas-to-write",
    "maxclients",
    "save",
    "stop-writes-on-bgsave-error",
    "tcp-keepalive",
    "timeout",
];

pub(super) async fn examine(
    connector: &Connector,
    config: &Config,
    target: &Target,
    surroundings: Surroundings,
    limit: Duration,
    report: &mut Report,
) -> Option<Seen> {
    let name = target.to_string();
    let mut on = report.on(&name);
    match within(limit, examine_server(connector, config, target, surroundings, &mut on)).await {
        Ok(seen) => Some(seen),
        Err(error) => {
            on.failed(&error);
            None
        }
    }
}

async fn examine_server(
    connector: &Connector,
    config: &Config,
    target: &Target,
    surroundings: Surroundings,
    on: &mut OnServer<'_>,
) -> Result<Seen> {
    let server = Asked::open(connector, target, Login::User).await?;
    let clock_ahead = clock(&server, on).await?;
    // A server that denies this to the user may be used all the same.
    let Ok(info) = server.text(&["INFO"]).await else {
        on.cannot_tell("INFO");
        return Ok(Seen { clock_ahead, ..Seen::default() });
    };
    let info = info.lines().filter_map(|line| line.split_once(':'));
    let mut answers: Answers = info.map(|(name, value)| (name.into(), value.trim().into())).collect();
    for setting in SETTINGS {
        // A setting that is denied is missing below.
        answers.merge(server.pairs(&["CONFIG", "GET", setting]).await.unwrap_or_default());
    }
    let server_info = ServerInfo(answers);
    server_info.judge(config, surroundings, on);
    Ok(Seen {
        run_id: server_info.0.text("run_id").to_owned(),
        replication_id: server_info.0.text("master_replid").to_owned(),
        clock_ahead,
    })
}

/// Reads the clock, which is one request.
async fn clock(server: &Asked, on: &mut OnServer<'_>) -> Result<i64> {
    let sent = Instant::now();
    let answer = server.ask(&["TIME"]).await;
    let took = sent.elapsed();
    on.latency(took);
    let Ok(Value::Array(parts)) = answer else {
        // Scripts ask for it as well, so that locks do not work without it.
        server.ask(&["PING"]).await?;
        on.cannot_tell("TIME");
        return Ok(0);
    };
    let number = |at: usize| parts.get(at).map(text).and_then(|part| part.parse::<i64>().ok()).unwrap_or_default();
    let micros = number(0).saturating_mul(1_000_000).saturating_add(number(1));
    Ok(on.clock(micros, took))
}

/// What INFO says, and the settings.
struct ServerInfo(Answers);

impl ServerInfo {
    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.0.number(name)
    }

    fn judge(&self, config: &Config, surroundings: Surroundings, on: &mut OnServer<'_>) {
        on.fact("version", self.text("redis_version").unwrap_or("unknown"));
        if self.text("loading") == Some("1") {
            on.find(&checks::LOADING, "it reads its data from the disk, and answers no request meanwhile");
        }
        let judged = [
            ("the role and the replicas", self.role(config, surroundings, on)),
            ("maxmemory and maxmemory-policy", self.memory(on)),
            ("appendonly and appendfsync", self.persistence(on)),
            ("maxclients", self.connections(on)),
        ];
        for (what, _) in judged.iter().filter(|(_, judged)| judged.is_none()) {
            on.cannot_tell(what);
        }
    }

    fn connections(&self, on: &mut OnServer<'_>) -> Option<()> {
        on.connections(self.number("connected_clients")?, self.number("maxclients")?);
        // Where these are denied, the service decides about them.
        if self.number("tcp-keepalive") == Some(0) && self.number("timeout") == Some(0) {
            let reason = "tcp-keepalive and timeout are 0: a connection stays for ever whose client lost its power or its \
                          network, and maxclients is reached one day";
            on.find(&checks::KEEPALIVE, reason);
        }
        Some(())
    }

    fn role(&self, config: &Config, surroundings: Surroundings, on: &mut OnServer<'_>) -> Option<()> {
        let (role, replicas) = (self.text("role")?, self.number("connected_slaves")?);
        on.fact("role", format!("{role}, {replicas} replicas"));
        let required = u64::from(config.min_replicas);
        if role == "slave" {
            let master = (self.text("master_host").unwrap_or_default(), self.text("master_port").unwrap_or_default());
            let reason =
                format!("it is a replica of {}:{}: it refuses writes, or forgets them later", master.0, master.1);
            on.find(&checks::REPLICA, reason);
        } else if surroundings == Surroundings::Voter {
            // No replica takes its place.
        } else if required > replicas {
            let reason =
                format!("min_replicas is {required}, and {replicas} replicas are connected: no lock is granted");
            on.find(&checks::TOO_FEW_REPLICAS, reason);
        } else if required > 0 && required < replicas {
            let reason = format!(
                "min_replicas is {required} of {replicas} replicas: one that lacks a grant may take its master's place"
            );
            on.find(&checks::LAG, reason);
        } else if required == 0 && surroundings == Surroundings::FailsOver {
            let least = self.number("min-replicas-to-write")?;
            let reason = "a replica takes its place when it fails, and may lack the last grants: then a second client \
                          holds the same lock. The URL has no min_replicas";
            on.find(if least > 0 { &checks::LAG } else { &checks::FAILOVER }, reason);
        } else if required == 0 && replicas > 0 {
            on.find(&checks::LAG, "a replica that is made the master by hand may lack the last grants");
        }
        Some(())
    }

    fn memory(&self, on: &mut OnServer<'_>) -> Option<()> {
        let (limit, policy) = (self.number("maxmemory")?, self.text("maxmemory_policy")?);
        let used = self.number("used_memory")?;
        on.fact(
            "memory",
            if limit == 0 { "no limit".to_owned() } else { format!("{used} of {limit} bytes, {policy}") },
        );
        if limit > 0 && policy != "noeviction" {
            let reason = format!("maxmemory-policy is {policy}: a full server evicts keys, including locks");
            on.find(&checks::EVICTION, reason);
        } else if limit > 0 && used.saturating_mul(10) >= limit.saturating_mul(9) {
            let reason = format!("{used} of {limit} bytes are in use; a full server refuses new locks");
            on.find(&checks::MEMORY, reason);
        }
        Some(())
    }

    fn persistence(&self, on: &mut OnServer<'_>) -> Option<()> {
        let stops = self.text("stop-writes-on-bgsave-error") == Some("yes")
            && self.text("save").is_some_and(|points| !points.is_empty());
        if self.text("aof_last_write_status") == Some("err")
            || (stops && self.text("rdb_last_bgsave_status") == Some("err"))
        {
            on.find(&checks::DISK, "its last write to the disk failed, and it refuses writes until one succeeds");
        }
        if self.text("aof_enabled")? == "0" {
            on.fact("persistence", "snapshots, or none");
            let reason = "appendonly is off: a restart forgets every grant since the last snapshot, while its holder \
                          goes on";
            on.find(&checks::NO_PERSISTENCE, reason);
            return Some(());
        }
        let fsync = self.text("appendfsync")?;
        on.fact("persistence", format!("append-only file, fsync {fsync}"));
        if fsync != "always" {
            on.find(&checks::POWER_LOSS, format!("appendfsync is {fsync}: a power cut forgets the last grants"));
        }
        Some(())
    }
}
