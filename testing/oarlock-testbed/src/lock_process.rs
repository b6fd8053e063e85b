//! Another process that holds a lock, to be stopped and killed.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use oarlock::Fence;
use oarlock::driver::clock::Moment;
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::mpsc;

use crate::child::plain;

/// What a lock process reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// It must wait.
    Waiting,
    /// It holds the lock.
    Held {
        /// Its fence.
        fence: Fence,
        /// When, on the boot clock, which all processes of a machine share.
        at: Moment,
    },
    /// It lost the lock.
    Lost {
        /// When it noticed.
        at: Moment,
        /// Why.
        reason: String,
    },
    /// It released the lock.
    Released {
        /// When.
        at: Moment,
    },
}

/// A process that takes a lock. It is killed when this is dropped.
#[derive(Debug)]
pub struct LockProcess {
    child: Child,
    reports: mpsc::UnboundedReceiver<String>,
}

impl LockProcess {
    /// Starts a process that takes `name` on the store behind `url`, with a lease of `ttl`.
    ///
    /// # Errors
    /// If the program is not there, or cannot be started.
    pub fn spawn(url: &str, name: &str, ttl: Duration) -> Result<Self> {
        let program = program()?;
        let mut command = plain(&program);
        command.arg(url).arg(name).arg(ttl.as_millis().to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let lines = child.stdout.take().context("no output to read")?;
        let (send, reports) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(std::io::Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, reports })
    }

    /// Its next report, other than `Waiting`.
    ///
    /// # Errors
    /// If it reports nothing within `bound`, fails, or ends.
    pub async fn next(&mut self, bound: Duration) -> Result<Report> {
        let until = Instant::now() + bound;
        loop {
            match self.any(until.saturating_duration_since(Instant::now())).await? {
                Report::Waiting => {}
                reports => return Ok(reports),
            }
        }
    }

    /// Waits until it reports that it waits.
    ///
    /// # Errors
    /// If it reports anything else, or nothing within `bound`.
    pub async fn waits(&mut self, bound: Duration) -> Result<()> {
        match self.any(bound).await? {
            Report::Waiting => Ok(()),
            other => bail!("expected it to wait, but it reported {other:?}"),
        }
    }

    /// Waits until it holds the lock.
    ///
    /// # Errors
    /// If it reports anything else, or nothing within `bound`.
    pub async fn holds(&mut self, bound: Duration) -> Result<(Fence, Moment)> {
        match self.next(bound).await? {
            Report::Held { fence, at } => Ok((fence, at)),
            other => bail!("expected it to hold, but it reported {other:?}"),
        }
    }

    async fn any(&mut self, bound: Duration) -> Result<Report> {
        let line = tokio::time::timeout(bound, self.reports.recv());
        let line = line.await.with_context(|| format!("the lock process reported nothing for {bound:?}"))?;
        parse(&line.context("the lock process has ended")?)
    }

    /// Makes it release the lock and end.
    ///
    /// # Errors
    /// If it has ended.
    pub fn release(&mut self) -> Result<()> {
        let commands = self.child.stdin.as_mut().context("the lock process has no standard input")?;
        Ok(commands.write_all(b"release\n").and_then(|()| commands.flush())?)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("no such process")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Stops it as a debugger or a paused machine would; it does not notice.
    ///
    /// # Errors
    /// If it has ended.
    pub fn stop(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// If it has ended.
    pub fn cont(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Kills it without warning.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for LockProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn parse(line: &str) -> Result<Report> {
    let mut fields = line.splitn(3, ' ');
    let mut field = || fields.next().unwrap_or_default();
    let moment = |text: &str| text.parse().map(Moment::from_nanos).context("not a moment");
    Ok(match field() {
        "waiting" => Report::Waiting,
        "held" => Report::Held { fence: field().parse()?, at: moment(field())? },
        "lost" => Report::Lost { at: moment(field())?, reason: field().to_owned() },
        "released" => Report::Released { at: moment(field())? },
        _ => bail!("the lock process reported {line:?}"),
    })
}

/// The program, beside the tests that were built with it.
fn program() -> Result<PathBuf> {
    if let Some(program) = std::env::var_os("OARLOCK_LOCK_PROCESS") {
        return Ok(program.into());
    }
    let here = std::env::current_exe()?;
    let mut folders = here.ancestors().skip(1).take(2).map(|folder| folder.join("lock-process"));
    folders.find(|program| program.is_file()).context("there is no lock-process: cargo build -p oarlock-testbed")
}
