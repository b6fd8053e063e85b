//! The user's own fault: a command that hurts the servers.

use std::process::Stdio;
use std::time::Duration;

use crate::record::Header;

/// How long it may take.
const BOUND: Duration = Duration::from_secs(60);

/// The code that is written down for a command that did not end in time, or was killed.
const NO_CODE: i64 = -1;

#[derive(Clone, Debug)]
pub(super) struct Hook {
    command: String,
    run: String,
    seed: u64,
    count: u32,
}

impl Hook {
    pub(super) fn new(command: String, header: &Header) -> Self {
        Self { command, run: header.run.clone(), seed: header.seed, count: 0 }
    }

    /// Runs it with `sh -c`, and returns its exit code. The variables say what is run and when.
    pub(super) async fn call(&mut self, elapsed: Duration) -> i64 {
        self.count += 1;
        let mut command = tokio::process::Command::new("sh");
        command.arg("-c").arg(&self.command).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        command.env("OARLOCK_TORTURE_RUN", &self.run).env("OARLOCK_TORTURE_SEED", self.seed.to_string());
        command.env("OARLOCK_TORTURE_FAULT", self.count.to_string());
        command.env("OARLOCK_TORTURE_AT_MS", elapsed.as_millis().to_string());
        let ended = tokio::time::timeout(BOUND, command.status()).await;
        ended.ok().and_then(Result::ok).and_then(|status| status.code()).map_or(NO_CODE, i64::from)
    }
}
