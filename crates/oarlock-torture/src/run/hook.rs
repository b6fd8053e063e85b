//! The user's own fault: a command that hurts the servers.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::record::Header;

/// How long it may take.
const BOUND: Duration = Duration::from_secs(60);

/// The code that is written down for a command that did not end in time, or was killed.
const NO_CODE: i64 = -1;

/// When it is called: what the command learns of the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Occasion {
    /// Since the start of the run.
    pub(super) elapsed: Duration,
    /// The phase of the run.
    pub(super) phase: &'static str,
    pub(super) holder: Holder,
}

/// The holder whose lock is to outlive the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// It cannot renew, and believes until its lease ends.
    Stopped,
    Runs,
    /// No worker got the lock in time.
    None,
    /// In the storm: any worker may hold, or none.
    Any,
}

impl Holder {
    const fn word(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Runs => "runs",
            Self::None => "none",
            Self::Any => "any",
        }
    }
}

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
    pub(super) async fn call(&mut self, occasion: Occasion) -> i64 {
        self.call_within(occasion, BOUND).await
    }

    async fn call_within(&mut self, occasion: Occasion, bound: Duration) -> i64 {
        self.count += 1;
        let mut command = tokio::process::Command::new("sh");
        command.arg("-c").arg(&self.command).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        command.env("OARLOCK_TORTURE_RUN", &self.run).env("OARLOCK_TORTURE_SEED", self.seed.to_string());
        command.env("OARLOCK_TORTURE_FAULT", self.count.to_string());
        command.env("OARLOCK_TORTURE_AT_MS", occasion.elapsed.as_millis().to_string());
        command.env("OARLOCK_TORTURE_PHASE", occasion.phase).env("OARLOCK_TORTURE_HOLDER", occasion.holder.word());
        let Ok(mut child) = command.process_group(0).spawn() else { return NO_CODE };
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let mut group = Group(pid);
        let ended = tokio::time::timeout(bound, child.wait()).await;
        if ended.is_ok() {
            // What it leaves running is meant to run: a server that it has started again.
            group.0 = None;
        }
        ended.ok().and_then(Result::ok).and_then(|status| status.code()).map_or(NO_CODE, i64::from)
    }
}

/// The command with all that it has started: killed if it is given up.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        // It may have ended just now.
        let _ = self.0.map(|pid| kill_process_group(pid, Signal::KILL));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(command: &str) -> Hook {
        Hook { command: command.to_owned(), run: "r".to_owned(), seed: 1, count: 0 }
    }

    const SCENE: Occasion = Occasion { elapsed: Duration::from_millis(70), phase: "scenes", holder: Holder::Stopped };

    #[tokio::test]
    async fn a_command_learns_what_it_is_called_for_and_when() {
        let said = "$OARLOCK_TORTURE_RUN $OARLOCK_TORTURE_SEED $OARLOCK_TORTURE_FAULT $OARLOCK_TORTURE_AT_MS \
                    $OARLOCK_TORTURE_PHASE $OARLOCK_TORTURE_HOLDER";
        let mut hook = hook(&format!("test \"{said}\" = \"$EXPECTED\""));
        hook.command = format!("EXPECTED='r 1 1 70 scenes stopped'; {}", hook.command);
        assert_eq!(hook.call(SCENE).await, 0);
        assert_eq!(hook.call(SCENE).await, 1, "this is the second fault");
        let words = [Holder::Stopped, Holder::Runs, Holder::None, Holder::Any].map(Holder::word);
        assert_eq!(words, ["stopped", "runs", "none", "any"]);
    }

    #[tokio::test]
    async fn a_command_that_takes_too_long_is_killed_with_its_children() {
        let file = std::env::temp_dir().join(format!("oarlock-hook-{}", std::process::id()));
        let mut slow = hook(&format!("sleep 1000 & echo $! > '{}'; wait", file.display()));
        assert_eq!(slow.call_within(SCENE, Duration::from_secs(10)).await, NO_CODE);
        let pid = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        let is_alive = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        for _ in 0..500 {
            if !is_alive() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(!is_alive(), "{pid}");
        assert_eq!(hook("exit 3").call(SCENE).await, 3);
    }
}
