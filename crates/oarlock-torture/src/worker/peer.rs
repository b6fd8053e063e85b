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

/// A hold of another library. It has no end that is known here: the library is asked again and again.
///
/// It is known to have believed until the last question was asked that it answered with "yes": it may have decided on its
/// answer as soon as it was asked, and it may have told its user of a loss at any time after that. So no library is
/// accused of a belief that it did not have. It may have believed until its "no" came, or until its lock was given back.
pub(super) struct PeerHold {
    pub(super) fence: Option<u64>,
    /// Until when it is known to have believed.
    pub(super) believed: Moment,
    /// Its words when it said that the lock is lost.
    pub(super) lost: Option<String>,
    /// When it said that.
    refused: Option<Moment>,
}

impl PeerHold {
    /// A hold that was granted now.
    pub(super) fn new(fence: Option<u64>) -> Self {
        Self { fence, believed: now(), lost: None, refused: None }
    }

    /// Asks the library, once it has not said that the lock is lost.
    pub(super) async fn ask(&mut self, peer: &mut Peer) {
        if self.lost.is_none() {
            let asked = now();
            self.lost = peer.loss().await;
            if self.lost.is_none() {
                self.believed = asked;
            } else {
                self.refused = Some(now());
            }
        }
    }

    /// Until when it may have believed: until its "no", or else until now.
    pub(super) fn perhaps(&self) -> Moment {
        self.refused.unwrap_or_else(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::hold::Hold;

    /// A library that takes 200 ms to say "yes", once, and says "no" at once.
    const LIBRARY: &str = "echo ready library 1
        while read verb handle rest; do
          case $verb in
            lock) echo \"held $handle 0 -\" ;;
            held) [ -z \"$asked\" ] && sleep 0.2 && echo \"yes $handle\" || echo \"no $handle\"; asked=1 ;;
            *) echo \"freed $handle 0\" ;;
          esac
        done";

    #[tokio::test]
    async fn belief_is_certain_until_the_last_question_that_was_answered_with_yes() {
        let mut launch = std::process::Command::new("env");
        launch.env("LIBRARY", LIBRARY);
        let mut peer = Peer::start(launch, "sh -c \"$LIBRARY\"", "", Duration::from_secs(1)).await.unwrap();
        let taken = peer.acquire("a", Duration::from_secs(1), Duration::ZERO).await;
        assert!(matches!(taken, Taken::Held { fence: None }));

        let mut hold = PeerHold::new(None);
        let asks = now();
        hold.ask(&mut peer).await;
        let answered = now();
        let believed = hold.believed;
        assert!(believed >= asks, "a \"yes\" is proof of belief");
        assert!(believed + Duration::from_millis(200) <= answered, "what it decided at once may be answered late");
        assert!(hold.perhaps() >= answered, "it may believe until it says that it does not");

        // It tells its user at once, and is asked for that later.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let asks = now();
        hold.ask(&mut peer).await;
        let answered = now();
        assert_eq!((hold.believed, hold.lost.as_deref()), (believed, Some("no h1")));
        tokio::time::sleep(Duration::from_millis(5)).await;
        let hold = Hold::Peer(hold);
        assert!(!hold.is_held());
        assert_eq!((hold.ends_at(), hold.believed_until()), (believed, believed));
        assert!(hold.perhaps().is_some_and(|perhaps| (asks..=answered).contains(&perhaps)), "until its \"no\"");
    }
}
