//! The scripts of each layout, put together from their files.

use std::sync::Arc;

use redis::Cmd;

use crate::config::{Config, Layout};

/// A script, and the name that a server has for it.
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

    /// Teaches it to a server.
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
}

macro_rules! parts {
    ($layout:literal: $($file:literal),+) => {
        &[$(include_str!(concat!("scripts/", $layout, "/", $file, ".lua"))),+]
    };
}

impl Scripts {
    /// The scripts of this layout; `sharded` where news stay on the node of their slot.
    pub(crate) fn of(config: &Config, sharded: bool) -> Self {
        let publish = if sharded {
            "local PUBLISH, NUMSUB = 'SPUBLISH', 'SHARDNUMSUB'\n"
        } else {
            "local PUBLISH, NUMSUB = 'PUBLISH', 'NUMSUB'\n"
        };
        let script = |parts: &[&str]| Arc::new(Script::new(format!("{publish}{}", parts.concat())));
        match config.layout {
            Layout::Native => Self {
                attempt: script(
                    parts!("native": "load", "place", "attempt.free", "attempt.behind", "hand", "rule", "attempt"),
                ),
                renew: script(parts!("native": "load", "place", "renew.alone", "hand", "rule", "renew")),
                release: script(parts!(
                    "native": "load", "place", "release.alone", "release.place", "hand", "release.next", "rule", "release"
                )),
                inspect: script(parts!("native": "load", "hand", "rule", "inspect")),
            },
            Layout::Plain => Self {
                attempt: script(parts!("plain": "attempt.free", "load", "beside", "attempt")),
                renew: script(parts!("plain": "load", "beside", "renew")),
                release: script(parts!("plain": "release.done", "load", "release")),
                inspect: script(parts!("plain": "load", "beside", "inspect")),
            },
            Layout::Redisson => {
                let tokens = format!("local TOKENS = {}\n", config.tokens);
                let script = |parts: &[&str]| script(&[&[tokens.as_str()], parts].concat());
                Self {
                    attempt: script(parts!("redisson": "load", "change", "attempt")),
                    renew: script(parts!("redisson": "load", "change", "renew")),
                    release: script(parts!("redisson": "load", "change", "release")),
                    inspect: script(parts!("redisson": "load", "inspect")),
                }
            }
        }
    }
}
