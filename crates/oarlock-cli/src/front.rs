//! Job control. On a terminal `run` is two processes: the front, which the shell sees, stops and continues, and the
//! keeper, which holds the lock and minds the command in a process group of its own. So a stopped job keeps its lock.
//!
//! The command's group has the terminal while it runs. When it is stopped, the keeper gives the terminal back to the
//! front's group and stops that, so that the shell prompts; `fg` and `bg` continue the front, which tells the keeper.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::time::Duration;

use nix::sys::signal::SigSet;
use rustix::fs::FileType;
use rustix::process::{Pid, Signal, WaitOptions};
use tokio::time::Instant;

use crate::child::{Child, shim, this_program};
use crate::exit::{Code, Exit, Failure};
use crate::signals::{self, FORWARDED, JOB, Signals};
use crate::store::block_on;

/// The hidden subcommand of the keeper.
pub(crate) const SUBCOMMAND: &str = "__keep";

/// How long the kernel may take to stop a job.
const STOPPING: Duration = Duration::from_secs(1);

fn terminal() -> Option<File> {
    File::options().read(true).write(true).open("/dev/tty").ok()
}

/// Whether there is a terminal that could stop us.
pub(crate) fn is_wanted() -> bool {
    terminal().is_some()
}

/// The front: starts the keeper, passes on signals, and ends as it ends.
pub(crate) fn run() -> Result<Exit, Failure> {
    block_on(async {
        let mut signals = Signals::new(FORWARDED.iter().chain(JOB).copied())?;
        let mut changes = signals::stream(Signal::CHILD)?;
        let us = rustix::process::getpid();
        let keeper = this_program()
            .arg(SUBCOMMAND)
            .arg(us.as_raw_nonzero().to_string())
            .args(std::env::args_os().skip(1))
            .process_group(0)
            .spawn()
            .map_err(|error| Failure::os("cannot start a process", error))?;
        let keeper = i32::try_from(keeper.id()).ok().and_then(Pid::from_raw);
        let keeper = keeper.ok_or_else(|| Failure::quiet(Code::Internal))?;
        loop {
            if let Ok(Some((_, status))) = rustix::process::waitpid(Some(keeper), WaitOptions::NOHANG) {
                return Ok(match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => Exit(u8::try_from(code).unwrap_or(u8::MAX)),
                    (None, Some(number)) => {
                        take_terminal();
                        Exit::signal(number)
                    }
                    (None, None) => Code::Internal.into(),
                });
            }
            tokio::select! {
                _ = changes.recv() => {}
                signal = signals.next() => {
                    // It has ended if it cannot be told, and that is seen above.
                    let _ = rustix::process::kill_process(keeper, signal);
                }
            }
        }
    })
}

/// A keeper that was killed could not give the terminal back.
fn take_terminal() {
    if let Some(terminal) = terminal()
        && block_ttou().is_ok()
    {
        let _ = rustix::termios::tcsetpgrp(&terminal, rustix::process::getpgrp());
    }
}

/// Lets a background process change who has the terminal.
fn block_ttou() -> Result<(), Failure> {
    let mut set = SigSet::empty();
    set.add(nix::sys::signal::Signal::SIGTTOU);
    set.thread_block().map_err(|error| Failure::os("cannot block a signal", std::io::Error::from(error)))
}

/// The keeper's view of the job that the shell sees.
#[derive(Debug)]
pub(crate) struct Job {
    front: Pid,
    group: Pid,
    terminal: File,
    /// Whether the command may have the terminal.
    interactive: bool,
}

impl Job {
    /// For a process that the front has started.
    pub(crate) fn of_keeper(front: Option<&OsString>) -> Result<Self, Failure> {
        let alone = || Failure::usage(format!("{SUBCOMMAND} is internal: do not call it"));
        let front = front.ok_or_else(alone)?;
        if !shim::die_with(front) {
            return Err(alone());
        }
        block_ttou()?;
        let front = rustix::process::getppid().ok_or_else(alone)?;
        let group = rustix::process::getpgid(Some(front)).map_err(|_| alone())?;
        let terminal = terminal().ok_or_else(alone)?;
        Ok(Self { front, group, terminal, interactive: is_interactive() })
    }

    fn front_has_terminal(&self) -> bool {
        rustix::termios::tcgetpgrp(&self.terminal) == Ok(self.group)
    }

    /// Whether the command is to have the terminal now.
    pub(crate) fn is_foreground(&self) -> bool {
        self.interactive && self.front_has_terminal()
    }

    /// Gives the terminal to the command's group, if it is ours to give.
    pub(crate) fn hand_over(&self, group: Pid) {
        if self.is_foreground() {
            let _ = rustix::termios::tcsetpgrp(&self.terminal, group);
        }
    }

    /// Gives the terminal back to the front's group, if the command's group has it.
    pub(crate) fn take_back(&self, group: Pid) {
        if rustix::termios::tcgetpgrp(&self.terminal) == Ok(group) {
            let _ = rustix::termios::tcsetpgrp(&self.terminal, self.group);
        }
    }

    /// Stops what the shell sees; the keeper goes on. Says when to look whether that worked.
    pub(crate) fn stop(&self, child: Option<Pid>) -> Instant {
        if let Some(group) = child {
            self.take_back(group);
        }
        // Not TSTP, which the front hears and would send back to us.
        let _ = rustix::process::kill_process_group(self.group, Signal::TTIN);
        Instant::now() + STOPPING
    }

    pub(crate) fn is_stopped(&self) -> bool {
        let path = format!("/proc/{}/stat", self.front.as_raw_nonzero());
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        // The name of the program, in parentheses, may hold anything; the state follows it.
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['T', 't']))
    }

    /// Continues the command, with the terminal if the shell gave it to the job.
    pub(crate) fn resume(&self, child: &Child) {
        self.hand_over(child.group());
        child.signal(Signal::CONT);
    }
}

/// The terminal is the command's unless it shares it with the rest of a pipeline.
fn is_interactive() -> bool {
    let piped = rustix::fs::fstat(rustix::stdio::stdout())
        .is_ok_and(|stat| matches!(FileType::from_raw_mode(stat.st_mode), FileType::Fifo | FileType::Socket));
    rustix::termios::isatty(rustix::stdio::stdin()) && !piped
}
