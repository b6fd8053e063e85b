//! `--report`: what happened, exactly, where the exit code is only a hint.

use std::fs::File;
use std::io::Write;

use oarlock::Fence;
use oarlock::state::ResourceName;
use serde::Serialize;

use crate::child::Status;
use crate::child::cause::Cause;
use crate::messages::Messages;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Ran,
    Busy,
    /// The slot was done before.
    Done,
    Skipped,
    Lost,
    Unreachable,
    /// By a signal, before the command was started.
    Stopped,
    Failed,
}

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) outcome: Outcome,
    pub(crate) names: Vec<ResourceName>,
    pub(crate) exit_code: u8,
    /// RFC 3339.
    pub(crate) acquired_at: Option<String>,
    pub(crate) waited_ms: u64,
    pub(crate) held_ms: u64,
    /// Of the first name.
    pub(crate) fence: Option<Fence>,
    pub(crate) fences: Vec<Fence>,
    pub(crate) renewals: u64,
    pub(crate) child_status: Option<Status>,
    /// Why the lock was lost, or the command ended before it could be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lost_because: Option<Cause>,
    /// Of `once`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slot: Option<String>,
    /// What was said about it.
    pub(crate) message: Option<String>,
    /// The signal that asked us to end while the command ran.
    #[serde(skip)]
    pub(crate) stop: Option<rustix::process::Signal>,
}

impl Report {
    /// Nothing was done yet.
    pub(crate) fn new(names: &[ResourceName]) -> Self {
        Self {
            outcome: Outcome::Failed,
            names: names.to_vec(),
            exit_code: 0,
            acquired_at: None,
            waited_ms: 0,
            held_ms: 0,
            fence: None,
            fences: Vec::new(),
            renewals: 0,
            child_status: None,
            lost_because: None,
            slot: None,
            message: None,
            stop: None,
        }
    }

    pub(crate) fn write(&self, file: Option<File>, messages: Messages) {
        let Some(mut file) = file else { return };
        let written = serde_json::to_string(self).map_err(std::io::Error::from);
        let written = written.and_then(|text| writeln!(file, "{text}"));
        if let Err(error) = written {
            messages.warning(&format!("the report could not be written: {error}"));
        }
    }
}
