//! What a server reports about itself (`INFO`, `CONFIG`), which decides how far its replies can be trusted.

use oarlock_core::capabilities::Consistency;
use oarlock_core::{Error, ErrorKind, Result};
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Value};

use crate::config::{Address, Config};
use crate::connection::Target;
use crate::error::{SCHEME, failed};

/// Which acknowledged writes survive the death of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Persistence {
    /// Every write is on disk before it is acknowledged.
    Always,
    /// Every write is given to the operating system before it is acknowledged: it survives the server, not the machine.
    Written,
    /// Writes since the last snapshot are lost with the server.
    None,
}

/// What a server reports about itself. A field is `None` where the server does not report it, or denies it to this
/// user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerInfo {
    /// Its version.
    pub version: Option<String>,
    /// The policy by which it evicts keys (`maxmemory-policy`).
    pub eviction: Option<String>,
    /// The memory limit at which it evicts keys (`maxmemory`); 0 is no limit.
    pub memory_limit: Option<u64>,
    /// Which writes survive its death.
    pub persistence: Option<Persistence>,
    /// Whether it is a replica, which takes no writes.
    pub replica: bool,
    /// How many replicas it has.
    pub replicas: Option<u32>,
}

/// What the configuration requires of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requirements {
    pub(crate) replicas: u32,
    allow_eviction: bool,
    /// Channels that belong to slots, as in a cluster.
    sharded_channels: bool,
}

impl Requirements {
    pub(crate) fn of(config: &Config) -> Self {
        let sharded_channels = matches!(config.address, Address::Cluster(_));
        Self { replicas: config.min_replicas, allow_eviction: config.allow_eviction, sharded_channels }
    }
}

impl ServerInfo {
    /// Asks a server. A command that it denies leaves its fields empty.
    pub(crate) async fn fetch(connection: &mut MultiplexedConnection) -> Result<Self> {
        let mut questions = Pipeline::new();
        questions.cmd("INFO").cmd("CONFIG").arg("GET").arg("appendfsync").cmd("HELLO").arg("3");
        let answers = connection.send_packed_commands(&questions, 0, 3).await.map_err(failed)?;
        let mut texts = answers.iter().map(text);
        let mut info = Self::read(&texts.next().unwrap_or_default(), &texts.next().unwrap_or_default());
        // Every user may say HELLO.
        info.version = info.version.or_else(|| greeting(answers.last()?, "version"));
        Ok(info)
    }

    fn read(info: &str, fsync: &str) -> Self {
        let field = |name: &str| {
            let mut lines = info.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(key, _)| *key == name).map(|(_, value)| value.trim().to_owned())
        };
        let number = |name: &str| field(name).and_then(|value| value.parse::<u64>().ok());
        let persistence = number("aof_enabled").map(|enabled| match enabled {
            0 => Persistence::None,
            _ if fsync.contains("always") => Persistence::Always,
            _ => Persistence::Written,
        });
        Self {
            version: field("redis_version"),
            eviction: field("maxmemory_policy"),
            memory_limit: number("maxmemory"),
            persistence,
            replica: field("role").is_some_and(|role| role == "slave"),
            replicas: number("connected_slaves").and_then(|count| u32::try_from(count).ok()),
        }
    }

    /// The weaker promises of two servers.
    pub(crate) fn weaker(self, other: Self) -> Self {
        let rank = |info: &Self| (info.evicts(), info.persistence.map_or(3, |kept| kept as u8));
        let replicas = self.replicas.zip(other.replicas).map(|(one, two)| one.min(two));
        let mut weaker = if rank(&self) >= rank(&other) { self } else { other };
        weaker.replicas = replicas;
        weaker
    }

    /// Whether it evicts keys, and so locks, when it is full.
    #[must_use]
    pub fn evicts(&self) -> bool {
        self.eviction.as_ref().is_some_and(|policy| policy != "noeviction") && self.memory_limit != Some(0)
    }

    pub(crate) fn check(&self, required: Requirements, target: &Target) -> Result<()> {
        if self.evicts() && !required.allow_eviction {
            let policy = self.eviction.as_deref().unwrap_or_default();
            let message = format!(
                "{target} evicts keys when it is full (maxmemory-policy {policy}), and a lock is a key: set the policy to \
                 noeviction, or set allow_eviction=yes"
            );
            return Err(Error::new(ErrorKind::Config, message).on(SCHEME));
        }
        match &self.version {
            Some(version) if required.sharded_channels && major(version).is_some_and(|major| major < 7) => {
                let message = format!(
                    "{target} is version {version}: locks in a cluster need sharded pub/sub, of Redis 7 or later or \
                     Valkey"
                );
                Err(Error::new(ErrorKind::Config, message).on(SCHEME))
            }
            _ => Ok(()),
        }
    }

    /// What this server promises about its data; `replicated` if a replica may take its place.
    pub(crate) fn consistency(&self, replicated: bool, required: Requirements) -> Consistency {
        let keeps = self.persistence == Some(Persistence::Always) && self.eviction.is_some() && !self.evicts();
        match () {
            () if self.evicts() => Consistency::BestEffort,
            () if required.replicas > 0 => Consistency::Timing,
            () if replicated || self.replicas.is_none_or(|replicas| replicas > 0) => Consistency::BestEffort,
            () if keeps => Consistency::Single,
            () => Consistency::BestEffort,
        }
    }
}

/// The first number of a version.
fn major(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}

/// A field of the reply to `HELLO`.
fn greeting(reply: &Value, field: &str) -> Option<String> {
    let Value::Map(pairs) = reply else { return None };
    pairs.iter().find(|(name, _)| text(name) == field).map(|(_, value)| text(value))
}

fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::VerbatimString { text, .. } => text.clone(),
        Value::SimpleString(text) => text.clone(),
        Value::Map(pairs) => pairs.iter().map(|(_, value)| text(value)).collect(),
        Value::Array(parts) => parts.iter().map(text).collect(),
        _ => String::new(),
    }
}
