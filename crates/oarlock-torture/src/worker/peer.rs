//! The lock of another library: a program that takes and releases it on command. The protocol is that of the peers in
//! `interop/README.md`.

use std::process::Stdio;
use std::time::Duration;

use oarlock_core::clock::Moment;
use oarlock_core::{Error, ErrorKind, Result};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::now;

/// How long it may take to connect.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// How long any other answer may take beyond what was asked for. A store that is cut off does not answer at all.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);

/// One program. It ends with its input.
pub(super) struct Peer {
    _child: Child,
    input: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    handle: u64,
}

/// What it answered to a request for a lock.
pub(super) enum Taken {
    Held { fence: Option<u64> },
    Busy,
    Failed(String),
}

impl Peer {
    /// Starts it: `command` with `sh -c`; `hosts` are the addresses of the proxies.
    pub(super) async fn start(
        launch: std::process::Command,
        command: &str,
        hosts: &str,
        lease: Duration,
    ) -> Result<Self> {
        let failed = |why: String| Error::new(ErrorKind::Config, format!("the program of --with {why}"));
        let started = Command::from(launch)
            .args(["sh", "-c", &format!("exec {command}")])
            .env("OARLOCK_TORTURE_HOSTS", hosts)
            .env("PEER_LEASE", lease.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let mut child = started.map_err(|error| failed("cannot be started".to_owned()).because(error))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("ended at once".to_owned()));
        };
        let mut peer = Self { _child: child, input, answers: BufReader::new(output).lines(), handle: 0 };
        match tokio::time::timeout(READY_WITHIN, peer.answers.next_line()).await {
            Ok(Ok(Some(line))) if line.starts_with("ready ") => Ok(peer),
            Ok(Ok(Some(line))) => Err(failed(format!("began with {}", oarlock_core::text::quoted(&line)))),
            _ => Err(failed("was not ready".to_owned())),
        }
    }

    pub(super) async fn acquire(&mut self, name: &str, lease: Duration, wait: Duration) -> Taken {
        self.handle += 1;
        let (lease, wait) = (lease.as_millis(), wait.as_millis());
        let answer = self.ask(&format!("lock h{} mutex {name} renew:{lease} {wait}", self.handle)).await;
        let mut fields = answer.split(' ');
        match fields.next() {
            Some("held") => Taken::Held { fence: fields.nth(2).and_then(|fence| fence.parse().ok()) },
            Some("busy") => Taken::Busy,
            _ => Taken::Failed(answer),
        }
    }

    /// Whether the library says that it still holds; its words if not.
    pub(super) async fn loss(&mut self) -> Option<String> {
        let answer = self.ask(&format!("held h{}", self.handle)).await;
        (!answer.starts_with("yes ")).then_some(answer)
    }

    pub(super) async fn release(&mut self) -> String {
        self.ask(&format!("unlock h{}", self.handle)).await
    }

    /// Answers of earlier commands, which came too late, are skipped.
    async fn ask(&mut self, line: &str) -> String {
        let handle = format!("h{}", self.handle);
        let asking = async {
            self.input.write_all(format!("{line}\n").as_bytes()).await.ok()?;
            loop {
                let answer = self.answers.next_line().await.ok()??;
                if answer.split(' ').nth(1) == Some(&handle) {
                    return Some(answer);
                }
            }
        };
        let answered = tokio::time::timeout(ANSWER_WITHIN, asking).await.ok().flatten();
        answered.unwrap_or_else(|| "error: no answer".to_owned())
    }
}

/// A hold of another library. It has no end of its own: the library believes until it is told otherwise.
pub(super) struct PeerHold {
    pub(super) fence: Option<u64>,
    pub(super) lost: Option<(Moment, String)>,
}

impl PeerHold {
    /// Asks the library, once it has not said that the lock is lost.
    pub(super) async fn ask(&mut self, peer: &mut Peer) {
        if self.lost.is_none() {
            // A library that asks its server may hang; no caller would act meanwhile.
            let asked = now();
            self.lost = peer.loss().await.map(|why| (asked, why));
        }
    }
}
