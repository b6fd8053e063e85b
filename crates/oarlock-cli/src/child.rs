//! The command: a process group of its own that does not outlive us, nor its lock.

pub(crate) mod cause;
pub(crate) mod shim;
pub(crate) mod supervise;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use nix::sys::wait::{self, WaitPidFlag};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions};
use serde::Serialize;
use tokio::signal::unix;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::exit::{Exit, Failure};
use crate::front::Job;
use crate::signals;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Status {
    pub(crate) fn exit(self) -> Exit {
        match self {
            Self::Code(code) => Exit(u8::try_from(code & 0xff).unwrap_or(u8::MAX)),
            Self::Signal(number) => Exit::signal(number),
        }
    }
}

/// What the command did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Ended(Status),
    Stopped,
}

pub(crate) struct Child {
    /// The command, and the group it leads.
    pid: Pid,
    changes: unix::Signal,
    /// Receives every stop; `None` where no caller wants to know.
    stops: mpsc::UnboundedReceiver<()>,
}

impl Child {
    /// Starts `command`. Must be called on the main thread: the kernel binds the parent-death signal to it.
    pub(crate) fn spawn(
        command: &[OsString],
        variables: impl IntoIterator<Item = (&'static str, String)>,
        job: Option<&Job>,
    ) -> Result<Self, Failure> {
        // Orphans of the group come to us, so that we see when none is left; elsewhere we look again and again.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let changes = signals::stream(Signal::CHILD)?;
        let child = this_program()
            .arg(shim::SUBCOMMAND)
            .args(shim::orders(job.is_some_and(Job::is_foreground)))
            .args(command)
            .envs(variables)
            .process_group(0)
            .spawn()
            .map_err(|error| Failure::os("cannot start a process", error))?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| Failure::os("cannot start a process", Errno::SRCH))?;
        let (stopped, stops) = mpsc::unbounded_channel();
        if let Some(job) = job {
            job.hand_over(pid);
            tell_stops(pid, stopped);
        }
        Ok(Self { pid, changes, stops })
    }

    pub(crate) fn group(&self) -> Pid {
        self.pid
    }

    /// Sends `signal` to all of the group. Those that have gone need none.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = rustix::process::kill_process_group(self.pid, signal);
    }

    /// Asks the group to end, also where it is stopped.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
    }

    /// The next thing the command does. Dropping the future loses nothing.
    pub(crate) async fn changed(&mut self) -> Change {
        loop {
            if let Some(change) = self.poll() {
                return change;
            }
            tokio::select! {
                _ = self.changes.recv() => {}
                Some(()) = self.stops.recv() => return Change::Stopped,
            }
        }
    }

    fn poll(&self) -> Option<Change> {
        // An ended command is not reaped yet: as long as it is a zombie, no other process can get the number of its
        // group.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if let Ok(Some(status)) = rustix::process::waitid(WaitId::Pid(self.pid), options) {
            let status = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Status::Code(code),
                (None, Some(number)) => Status::Signal(number),
                (None, None) => Status::Code(-1),
            };
            return Some(Change::Ended(status));
        }
        self.reap_orphans();
        None
    }

    /// Takes leave of the orphans of the group that have ended, but not of the command.
    fn reap_orphans(&self) {
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        while let Ok(Some(pid)) = wait::waitid(wait::Id::All, look).map(|status| status.pid()) {
            // Once the command itself has ended, the rest is done with the group.
            if pid.as_raw() == self.pid.as_raw_nonzero().get() || wait::waitpid(pid, None).is_err() {
                return;
            }
        }
    }

    /// Ends what is left of the group after the command has ended: TERM, then KILL at `kill_at`, or at once when `lost`
    /// resolves.
    pub(crate) async fn end_group(mut self, kill_at: Instant, lost: impl Future<Output = ()>) {
        self.terminate();
        let mut lost = std::pin::pin!(lost);
        let mut killed = false;
        let give_up = kill_at + Duration::from_secs(2);
        loop {
            while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
            let gone = rustix::process::test_kill_process_group(self.pid) == Err(Errno::SRCH);
            if gone || (killed && Instant::now() >= give_up) {
                return;
            }
            tokio::select! {
                biased;
                () = &mut lost, if !killed => {
                    killed = true;
                    self.signal(Signal::KILL);
                }
                () = tokio::time::sleep_until(kill_at), if !killed => {
                    killed = true;
                    self.signal(Signal::KILL);
                }
                _ = self.changes.recv() => {}
                // Members whose parent is alive elsewhere do not come to us.
                () = tokio::time::sleep(Duration::from_millis(20)) => {}
            }
        }
    }
}

/// Tells when `pid` is stopped. The handler that hears of its end does not hear of that, so a thread waits for it; the
/// thread ends with the command.
fn tell_stops(pid: Pid, stopped: mpsc::UnboundedSender<()>) {
    std::thread::spawn(move || {
        while let Ok(status) = rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED) {
            if status.is_some() && stopped.send(()).is_err() {
                return;
            }
        }
    });
}

/// This very program, even if its file was replaced since it was started.
pub(crate) fn this_program() -> Command {
    const LINK: &str = "/proc/self/exe";
    let path =
        if std::path::Path::new(LINK).exists() { LINK.into() } else { std::env::current_exe().unwrap_or_default() };
    let mut command = Command::new(path);
    command.arg0("oarlock");
    command
}
