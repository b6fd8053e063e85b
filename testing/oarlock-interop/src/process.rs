//! The process of a peer, and its protocol.

use std::collections::{HashMap, VecDeque};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::oneshot;

/// The longest that any command may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// The longest that a peer may take to start, on a machine that starts many.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// How many of the last lines of standard error are kept.
const KEPT_LINES: usize = 12;

/// The answer of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Held { at: u64, fence: Option<u64> },
    Busy,
    Freed { at: u64 },
    Free,
    Lost { at: u64, why: String },
    Kept,
    Yes,
    No,
    Counted,
    Loaded { grants: u64 },
    Pairs { count: u64, p50: u64, p99: u64 },
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The client does not support it.
    Cannot(String),
    Failed(String),
}

impl From<anyhow::Error> for Trouble {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(format!("{error:#}"))
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

type Pending = Arc<Mutex<HashMap<String, oneshot::Sender<String>>>>;

/// One process of one client. It ends when dropped.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) version: String,
    child: Mutex<Child>,
    input: tokio::sync::Mutex<ChildStdin>,
    pending: Pending,
    errors: Arc<Mutex<VecDeque<String>>>,
}

impl Peer {
    /// Starts it, and waits until it is connected.
    pub(crate) async fn start(command: &[String], url: &str, lease: Duration) -> Result<Self> {
        let (program, args) = command.split_first().context("no program")?;
        let mut child = Command::new(program)
            .args(args)
            .arg(url)
            .env("PEER_LEASE", lease.as_millis().to_string())
            // The last lines of its errors are shown: they should say what, not where.
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        let input = child.stdin.take().context("no input")?;
        let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        let errors = Arc::new(Mutex::new(VecDeque::new()));
        let stderr = child.stderr.take().context("no errors")?;
        tokio::spawn(keep(BufReader::new(stderr).lines(), errors.clone()));
        let first =
            tokio::time::timeout(READY_TIMEOUT, lines.next_line()).await.context("it was not ready in time")??;
        let Some(first) = first else { return Err(anyhow!("its program ended at once: {}", said(&errors).await)) };
        let mut fields = first.split(' ').skip(1);
        let (Some(name), Some(version)) = (fields.next(), fields.next()) else {
            return Err(anyhow!("{program} began with `{first}`"));
        };
        let pending = Pending::default();
        tokio::spawn(deliver(lines, pending.clone()));
        let (name, version) = (name.to_owned(), version.trim_start_matches('v').to_owned());
        Ok(Self { name, version, child: Mutex::new(child), input: tokio::sync::Mutex::new(input), pending, errors })
    }

    /// A new handle for a hold.
    pub(crate) fn handle() -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        format!("h{}", NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Sends one command and waits for its answer. The second field is the handle.
    pub(crate) async fn request(&self, line: impl AsRef<str>) -> Result<Answer, Trouble> {
        let line = line.as_ref();
        let handle = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let (sender, answer) = oneshot::channel();
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, sender);
        self.input.lock().await.write_all(format!("{line}\n").as_bytes()).await?;
        let failed = |why: String| Trouble::Failed(format!("{}, asked to `{line}`: {why}", self.name));
        match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
            Ok(Ok(answer)) => parse(&answer).map_err(|trouble| match trouble {
                Trouble::Failed(why) => failed(why),
                cannot @ Trouble::Cannot(_) => cannot,
            }),
            Ok(Err(_)) => Err(failed(format!("it ended: {}", said(&self.errors).await))),
            Err(_) => Err(failed("no answer".to_owned())),
        }
    }

    /// Kills it with a signal that cannot be refused.
    pub(crate) fn kill(&self) -> Result<(), Trouble> {
        Ok(self.child.lock().unwrap_or_else(PoisonError::into_inner).start_kill()?)
    }
}

async fn keep(mut lines: tokio::io::Lines<BufReader<tokio::process::ChildStderr>>, kept: Arc<Mutex<VecDeque<String>>>) {
    while let Ok(Some(line)) = lines.next_line().await {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT_LINES {
            kept.pop_front();
        }
        kept.push_back(line);
    }
}

/// The last lines of its standard error, after a moment.
async fn said(errors: &Mutex<VecDeque<String>>) -> String {
    tokio::time::sleep(Duration::from_millis(100)).await;
    let errors = errors.lock().unwrap_or_else(PoisonError::into_inner);
    errors.iter().cloned().collect::<Vec<_>>().join(" | ")
}

/// Passes each line to the command with its handle; at the end of the output all waiting commands fail.
async fn deliver(mut lines: tokio::io::Lines<BufReader<ChildStdout>>, pending: Pending) {
    while let Ok(Some(line)) = lines.next_line().await {
        let handle = line.split(' ').nth(1).unwrap_or_default();
        let waiting = pending.lock().unwrap_or_else(PoisonError::into_inner).remove(handle);
        // A command that timed out does not wait for its answer.
        let _ = waiting.map(|waiting| waiting.send(line.clone()));
    }
    pending.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

fn parse(line: &str) -> Result<Answer, Trouble> {
    let mut fields = line.splitn(3, ' ');
    let (verb, _, rest) = (fields.next().unwrap_or_default(), fields.next(), fields.next().unwrap_or_default());
    let strange = || Trouble::Failed(format!("it answered `{line}`"));
    let numbers: Vec<Option<u64>> = rest.split(' ').map(|field| field.parse().ok()).collect();
    let number = |place: usize| numbers.get(place).copied().flatten().ok_or_else(strange);
    Ok(match verb {
        "held" => Answer::Held { at: number(0)?, fence: numbers.get(1).copied().flatten() },
        "busy" => Answer::Busy,
        "freed" => Answer::Freed { at: number(0)? },
        "free" => Answer::Free,
        "lost" => {
            let why = rest.split_once(' ').map_or("", |(_, why)| why);
            Answer::Lost { at: number(0)?, why: why.to_owned() }
        }
        "kept" => Answer::Kept,
        "yes" => Answer::Yes,
        "no" => Answer::No,
        "counted" => Answer::Counted,
        "loaded" => Answer::Loaded { grants: number(0)? },
        "pairs" => Answer::Pairs { count: number(0)?, p50: number(1)?, p99: number(2)? },
        "cannot" => return Err(Trouble::Cannot(rest.to_owned())),
        "error" => return Err(Trouble::Failed(rest.to_owned())),
        _ => return Err(strange()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_understood() {
        for (line, answer) in [
            ("held h1 12 34", Ok(Answer::Held { at: 12, fence: Some(34) })),
            ("held h1 12 -", Ok(Answer::Held { at: 12, fence: None })),
            ("busy h1", Ok(Answer::Busy)),
            ("lost h1 5 the key is gone", Ok(Answer::Lost { at: 5, why: "the key is gone".to_owned() })),
            ("pairs h1 3 4 5", Ok(Answer::Pairs { count: 3, p50: 4, p99: 5 })),
            ("cannot h1 no such lock", Err(Trouble::Cannot("no such lock".to_owned()))),
            ("error h1 no way", Err(Trouble::Failed("no way".to_owned()))),
            ("held h1", Err(Trouble::Failed("it answered `held h1`".to_owned()))),
            ("what", Err(Trouble::Failed("it answered `what`".to_owned()))),
        ] {
            assert_eq!(parse(line), answer, "{line}");
        }
    }
}
