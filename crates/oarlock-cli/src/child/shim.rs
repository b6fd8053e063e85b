//! The last step before the command: in the new process, ask the kernel to kill it when we die, and become it.
//!
//! Asking must happen in the child between fork and exec, which safe Rust cannot do; so the child is first this
//! program once more.

use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::exit::{Code, Exit};
use crate::messages::Messages;

/// The hidden subcommand.
pub(crate) const SUBCOMMAND: &str = "__exec";

/// How long to wait for the terminal.
const PATIENCE: Duration = Duration::from_secs(1);

/// What stands between [`SUBCOMMAND`] and the command: our parent, and whether it will give us the terminal.
pub(crate) fn orders(foreground: bool) -> [OsString; 2] {
    let parent = rustix::process::getpid().as_raw_nonzero().to_string();
    [parent.into(), if foreground { "foreground" } else { "background" }.into()]
}

pub(crate) fn main(args: &[OsString]) -> Exit {
    let [parent, ground, program, arguments @ ..] = args else { return Code::Usage.into() };
    if !die_with(parent) {
        return Exit::signal(Signal::KILL.as_raw());
    }
    if ground == "foreground" {
        await_terminal();
    }
    let error = Command::new(program).args(arguments).exec();
    Messages::default()
        .error(&format!("cannot run {}: {error}", oarlock_core::text::quoted(&program.to_string_lossy())));
    match error.kind() {
        ErrorKind::NotFound => Code::NotFound.into(),
        _ => Code::NotExecutable.into(),
    }
}

/// Asks to be killed with the parent; false if it has died already.
pub(crate) fn die_with(parent: &OsString) -> bool {
    // Where the kernel cannot do that, the lease is what is left.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let parent = parent.to_str().and_then(|text| text.parse().ok()).and_then(Pid::from_raw);
    parent.is_some() && rustix::process::getppid() == parent
}

/// A command that reads the terminal before it has it would be stopped.
fn await_terminal() {
    let Ok(terminal) = File::open("/dev/tty") else { return };
    let give_up = Instant::now() + PATIENCE;
    while Instant::now() < give_up {
        match rustix::termios::tcgetpgrp(&terminal) {
            Ok(group) if group != rustix::process::getpgrp() => std::thread::sleep(Duration::from_millis(1)),
            Ok(_) | Err(_) => return,
        }
    }
}
