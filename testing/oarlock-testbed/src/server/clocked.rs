//! A server whose wall clock can be moved while it runs.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::ensure;
use rustix::process::Signal;

use super::{Missing, Program, Server, Settings};

/// What is loaded before the server, so that it sees another clock.
const SHIM: &str = include_str!("clock.c");

/// A program behind a clock that a file moves.
#[derive(Debug)]
pub struct Clocked<P>(P);

impl<P: Program> Server<Clocked<P>> {
    /// Moves its wall clock so many microseconds away from the machine's, at once. Timers go on as they did.
    ///
    /// # Errors
    /// When the file that says so cannot be written.
    pub fn set_clock(&self, micros: i64) -> anyhow::Result<()> {
        use std::io::Write as _;
        // In place: the server has mapped this very file.
        let mut file = fs::OpenOptions::new().write(true).open(self.folder.path().join("clock"))?;
        Ok(file.write_all(&micros.to_ne_bytes())?)
    }
}

impl<P: Program> Program for Clocked<P> {
    const NAME: &'static str = P::NAME;
    const SCHEME: &'static str = P::SCHEME;
    const STOP: Signal = P::STOP;

    fn find() -> Result<Self, Missing> {
        P::find().map(Self)
    }

    fn prepare(&self, folder: &Path) -> anyhow::Result<()> {
        self.0.prepare(folder)?;
        fs::write(folder.join("clock"), 0_i64.to_ne_bytes())?;
        fs::write(folder.join("clock.c"), SHIM)?;
        let mut compile = Command::new("cc");
        compile.args(["-O1", "-shared", "-fPIC", "-o", "clock.so", "clock.c"]).current_dir(folder);
        let done = compile.stdin(Stdio::null()).output()?;
        ensure!(done.status.success(), "cc: {}", String::from_utf8_lossy(&done.stderr));
        // The server may run as another user, and this one's umask may be strict.
        for file in ["clock", "clock.so"] {
            fs::set_permissions(folder.join(file), fs::Permissions::from_mode(0o644))?;
        }
        Ok(())
    }

    fn command(&self, folder: &Path, addr: SocketAddr, settings: Settings<'_>) -> anyhow::Result<Command> {
        let mut command = self.0.command(folder, addr, settings)?;
        command.env("LD_PRELOAD", folder.join("clock.so")).env("OARLOCK_CLOCK", folder.join("clock"));
        Ok(command)
    }

    fn user(&self) -> Option<(u32, u32)> {
        self.0.user()
    }

    fn probe(addr: SocketAddr, timeout: Duration) -> io::Result<()> {
        P::probe(addr, timeout)
    }

    fn url(addr: SocketAddr) -> String {
        P::url(addr)
    }
}
