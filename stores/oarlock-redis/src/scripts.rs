//! The scripts of each layout, concatenated from their files; the form of their arguments and replies.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::state::{Ending, Memo};
use oarlock_core::{ClaimId, Error, Fence, Limit, Result};
use redis::{Cmd, Value};

use crate::config::{Config, Layout};
use crate::error::{cannot_ask, exhausted, foreign, newer, older, too_heavy, unexpected, upgrade};

/// A script and its SHA-1, by which a server knows it.
#[derive(Debug)]
pub(crate) struct Script {
    code: String,
    hash: String,
}

impl Script {
    pub(crate) fn new(code: String) -> Self {
        let hash = redis::Script::new(&code).get_hash().to_owned();
        Self { code, hash }
    }

    pub(crate) fn hash(&self) -> &str {
        &self.hash
    }

    /// The command that loads it.
    pub(crate) fn load(&self) -> Cmd {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(&self.code);
        load
    }
}

/// One script for each verb.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) attempt: Arc<Script>,
    pub(crate) renew: Arc<Script>,
    pub(crate) release: Arc<Script>,
    pub(crate) inspect: Arc<Script>,
    /// A release and an attempt; not in the layout of Redisson.
    pub(crate) joint: Option<Arc<Script>>,
    /// Notes that an observer listens; not in the layout of Redisson.
    pub(crate) observe: Option<Arc<Script>>,
}

macro_rules! parts {
    ($layout:literal: $($file:literal),+) => {
        concat!($(include_str!(concat!("scripts/", $layout, "/", $file, ".lua"))),+)
    };
}

impl Scripts {
    /// The scripts of this layout; `sharded` in a cluster, where a notification stays on the node of its slot.
    pub(crate) fn of(config: &Config, sharded: bool) -> Self {
        let publish = if sharded {
            "local PUBLISH, NUMSUB = 'SPUBLISH', 'SHARDNUMSUB'\n"
        } else {
            "local PUBLISH, NUMSUB = 'PUBLISH', 'NUMSUB'\n"
        };
        let script = |code: &str| Arc::new(Script::new(format!("{publish}{code}")));
        match config.layout {
            Layout::Native => {
                let attempt = parts!(
                    "native": "load", "attempt.free", "attempt.behind", "attempt.held", "store", "keep", "position", "attempt.again", "hand",
                    "rule", "attempt"
                );
                let release = parts!(
                    "native": "load", "release.alone", "release.next", "store", "keep", "position", "release.position", "hand",
                    "rule", "release"
                );
                let (release_of, attempt_of) = (function("release", release), function("attempt", attempt));
                let both =
                    [parts!("native": "load", "joint.short"), &release_of, &attempt_of, parts!("native": "joint")];
                Self {
                    attempt: script(attempt),
                    renew: script(parts!("native": "load", "keep", "position", "renew.alone", "hand", "rule", "renew")),
                    release: script(release),
                    inspect: script(parts!("native": "load", "keep", "hand", "rule", "inspect")),
                    joint: Some(script(&both.concat())),
                    observe: Some(script(parts!("native": "load", "keep", "observe"))),
                }
            }
            Layout::Plain => {
                let queue = parts!("plain": "queue");
                let wake_next =
                    if config.queue { parts!("plain": "queue.next") } else { parts!("plain": "queue.none") };
                let release = [wake_next, parts!("plain": "release.done", "load", "release")].concat();
                let both = [queue, &function("release", &release), parts!("plain": "joint")];
                Self {
                    attempt: script(parts!(
                        "plain": "queue", "attempt.free", "load", "beside", "queue.join", "attempt"
                    )),
                    renew: script(parts!("plain": "load", "beside", "renew")),
                    release: script(&[queue, &release].concat()),
                    inspect: script(parts!("plain": "load", "beside", "inspect")),
                    joint: Some(script(&both.concat())),
                    observe: Some(script(parts!("plain": "observe"))),
                }
            }
            Layout::Redisson => {
                let tokens = format!("local TOKENS = {}\n", config.tokens);
                let script = |code: &str| script(&[&tokens, code].concat());
                Self {
                    attempt: script(parts!("redisson": "load", "change", "attempt")),
                    renew: script(parts!("redisson": "load", "change", "renew")),
                    release: script(parts!("redisson": "load", "change", "release")),
                    inspect: script(parts!("redisson": "load", "inspect")),
                    joint: None,
                    observe: None,
                }
            }
        }
    }
}

/// A script as a function of its arguments.
fn function(name: &str, code: &str) -> String {
    format!("local function {name}(ARGV)\n{code}end\n")
}

/// An optional argument of a script: nothing, or `=` and the bytes.
pub(crate) fn optional(bytes: Option<&[u8]>) -> Vec<u8> {
    bytes.map_or_else(Vec::new, |bytes| [b"=", bytes].concat())
}

pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// The reply of a script, read part by part.
pub(crate) struct Reply(std::vec::IntoIter<Value>);

impl Reply {
    /// The outcome that a reply begins with, and the rest of it.
    pub(crate) fn of(reply: Value) -> Result<(String, Self)> {
        let mut parts = Self::list(reply)?;
        Ok((parts.text()?, parts))
    }

    pub(crate) fn rest(self) -> impl Iterator<Item = Value> {
        self.0
    }

    pub(crate) fn list(value: Value) -> Result<Self> {
        let Value::Array(parts) = value else { return Err(unexpected()) };
        Ok(Self(parts.into_iter()))
    }

    pub(crate) fn bytes(&mut self) -> Result<Option<Vec<u8>>> {
        match self.0.next() {
            None | Some(Value::Nil) => Ok(None),
            Some(Value::BulkString(bytes)) => Ok(Some(bytes)),
            Some(_) => Err(unexpected()),
        }
    }

    pub(crate) fn maybe_text(&mut self) -> Result<Option<String>> {
        self.bytes()?.map(|bytes| String::from_utf8(bytes).map_err(|error| unexpected().because(error))).transpose()
    }

    /// The id of a claim: its bits, or as a text.
    pub(crate) fn id(&mut self) -> Result<ClaimId> {
        let bytes = self.bytes()?.ok_or_else(unexpected)?;
        if let Ok(bits) = <[u8; 16]>::try_from(&*bytes) {
            return Ok(ClaimId::from_bits(u128::from_be_bytes(bits)));
        }
        std::str::from_utf8(&bytes).map_err(|error| unexpected().because(error))?.parse()
    }

    pub(crate) fn text(&mut self) -> Result<String> {
        self.maybe_text()?.ok_or_else(unexpected)
    }

    /// A number; `None` if it is negative.
    pub(crate) fn maybe_number(&mut self) -> Result<Option<u64>> {
        let Some(Value::Int(number)) = self.0.next() else { return Err(unexpected()) };
        Ok(u64::try_from(number).ok())
    }

    pub(crate) fn number(&mut self) -> Result<u64> {
        self.maybe_number()?.ok_or_else(unexpected)
    }

    pub(crate) fn small(&mut self) -> Result<u32> {
        u32::try_from(self.number()?).map_err(|error| unexpected().because(error))
    }

    pub(crate) fn span(&mut self) -> Result<Duration> {
        self.number().map(Duration::from_micros)
    }

    pub(crate) fn fence(&mut self) -> Result<Option<Fence>> {
        Ok(self.maybe_number()?.map(Fence::new))
    }

    pub(crate) fn limit(&mut self) -> Result<Limit> {
        Ok(NonZeroU32::new(self.small()?).map_or(Limit::Unlimited, Limit::Units))
    }

    pub(crate) fn memo(&mut self) -> Result<Option<Memo>> {
        Ok(self.bytes()?.map(Into::into))
    }

    pub(crate) fn ending(&mut self) -> Result<Option<Ending>> {
        let (by, why) = (self.maybe_text()?, self.maybe_text()?);
        Ok(by.map(|by| Ending::new(by, why.unwrap_or_default())))
    }

    /// The error that a script may reply with instead of a result.
    pub(crate) fn refusal(mut self, outcome: &str) -> Error {
        let refusal = match outcome {
            "foreign" => self.text().map(|what| foreign(&what)),
            "older" => self.text().map(|format| older(&format)),
            "newer" => self.text().map(|format| newer(&format)),
            "heavy" => self.limit().map(too_heavy),
            "upgrade" => Ok(upgrade()),
            "cannot ask" => Ok(cannot_ask()),
            "exhausted" => Ok(exhausted()),
            _ => Ok(unexpected()),
        };
        refusal.unwrap_or_else(|error| error)
    }
}
