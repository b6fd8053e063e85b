//! Redis whose wall clock can be moved while it runs.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::ensure;

use super::{Missing, Program, RedisProgram, Server, Settings};

/// What is loaded before the server, so that it sees another clock.
const SHIM: &str = include_str!("clock.c");

/// `redis-server` behind a clock that a file moves.
#[derive(Debug)]
pub struct RedisClockProgram(RedisProgram);

impl Server<RedisClockProgram> {
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

impl Program for RedisClockProgram {
    const NAME: &'static str = "redis";
    const SCHEME: &'static str = "redis";

    fn find() -> Result<Self, Missing> {
        RedisProgram::find().map(Self)
    }

    fn prepare(&self, folder: &Path) -> anyhow::Result<()> {
        fs::write(folder.join("clock"), 0_i64.to_ne_bytes())?;
        fs::write(folder.join("clock.c"), SHIM)?;
        let mut compile = Command::new("cc");
        compile.args(["-O1", "-shared", "-fPIC", "-o", "clock.so", "clock.c"]).current_dir(folder);
        let done = compile.stdin(Stdio::null()).output()?;
        ensure!(done.status.success(), "cc: {}", String::from_utf8_lossy(&done.stderr));
        Ok(())
    }

    fn command(&self, folder: &Path, addr: SocketAddr, settings: Settings<'_>) -> anyhow::Result<Command> {
        let mut command = self.0.command(folder, addr, settings)?;
        command.env("LD_PRELOAD", folder.join("clock.so")).env("OARLOCK_CLOCK", folder.join("clock"));
        Ok(command)
    }

    fn probe(addr: SocketAddr, timeout: Duration) -> io::Result<()> {
        RedisProgram::probe(addr, timeout)
    }
}
