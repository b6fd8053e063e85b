//! What a server says about itself, as far as it lets itself be asked: what its answers are worth depends on it.

use oarlock_core::capabilities::Consistency;
use oarlock_core::{Error, ErrorKind, Result};
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Value};

use crate::config::Config;
use crate::dial::Target;
use crate::error::{SCHEME, failed};

/// How a server keeps what it has acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Persistence {
    /// Every write is on disk before it is acknowledged.
    Always,
    /// Every write is handed to the system before it is acknowledged: it survives the server, not the machine.
    Written,
    /// What was written since the last snapshot goes with the server.
    None,
}

/// What a server says about itself. `None` where it does not say, or this user may not ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Facts {
    /// Its version.
    pub version: Option<String>,
    /// Whether it may throw keys away to make room: the policy.
    pub eviction: Option<String>,
    /// Whether it has a limit of memory at which it would.
    pub memory_limit: Option<u64>,
    /// What survives its death.
    pub persistence: Option<Persistence>,
    /// Whether it copies another server and takes no writes of its own.
    pub replica: bool,
    /// How many replicas follow it.
    pub replicas: Option<u32>,
}

/// What a server must be like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) replicas: u32,
    allow_eviction: bool,
}

impl Wanted {
    pub(crate) fn by(config: &Config) -> Self {
        Self { replicas: config.min_replicas, allow_eviction: config.allow_eviction }
    }
}

impl Facts {
    /// Asks. What is not allowed is not known.
    pub(crate) async fn ask(connection: &mut MultiplexedConnection) -> Result<Self> {
        let mut questions = Pipeline::new();
        questions.cmd("INFO").cmd("CONFIG").arg("GET").arg("appendfsync");
        let answers = connection.send_packed_commands(&questions, 0, 2).await.map_err(failed)?;
        let mut texts = answers.iter().map(text);
        Ok(Self::read(&texts.next().unwrap_or_default(), &texts.next().unwrap_or_default()))
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

    /// What is true of this server and of another.
    pub(crate) fn weaker(self, other: Self) -> Self {
        let rank = |facts: &Self| (facts.evicts(), facts.persistence.map_or(3, |kept| kept as u8));
        let replicas = self.replicas.zip(other.replicas).map(|(one, two)| one.min(two));
        let mut weaker = if rank(&self) >= rank(&other) { self } else { other };
        weaker.replicas = replicas;
        weaker
    }

    /// Whether it would throw away locks when it is full.
    #[must_use]
    pub fn evicts(&self) -> bool {
        self.eviction.as_ref().is_some_and(|policy| policy != "noeviction") && self.memory_limit != Some(0)
    }

    pub(crate) fn check(&self, wanted: Wanted, target: &Target) -> Result<()> {
        if self.evicts() && !wanted.allow_eviction {
            let policy = self.eviction.as_deref().unwrap_or_default();
            let message = format!(
                "{target} throws keys away when it is full (maxmemory-policy {policy}), and locks are keys: set it to \
                 noeviction, or say allow_eviction=yes"
            );
            return Err(Error::new(ErrorKind::Config, message).on(SCHEME));
        }
        Ok(())
    }

    /// What a server like this promises about its data, where `replicated` says that another may take its place.
    pub(crate) fn consistency(&self, replicated: bool, wanted: Wanted) -> Consistency {
        let keeps = self.persistence == Some(Persistence::Always) && self.eviction.is_some() && !self.evicts();
        match () {
            () if self.evicts() => Consistency::BestEffort,
            () if wanted.replicas > 0 => Consistency::Timing,
            () if replicated || self.replicas.is_none_or(|replicas| replicas > 0) => Consistency::BestEffort,
            () if keeps => Consistency::Single,
            () => Consistency::BestEffort,
        }
    }
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
