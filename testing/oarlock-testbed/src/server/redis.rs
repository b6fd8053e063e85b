//! Redis.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Missing, Program, Settings, missing, probe, program_in};

/// `redis-server`.
#[derive(Debug)]
pub struct RedisProgram {
    program: PathBuf,
}

impl Program for RedisProgram {
    const NAME: &'static str = "redis";
    const SCHEME: &'static str = "redis";

    fn find() -> Result<Self, Missing> {
        Ok(Self { program: missing::find(Self::NAME, "redis-server", &["/usr/sbin".into()])? })
    }

    fn command(&self, folder: &Path, addr: SocketAddr, settings: Settings<'_>) -> anyhow::Result<Command> {
        let (program, settings) = program_in(settings, &self.program);
        let mut command = Command::new(program);
        command.args(["--bind", &addr.ip().to_string(), "--port", &addr.port().to_string()]).arg("--dir").arg(folder);
        for (name, value) in [("save", ""), ("appendonly", "yes"), ("appendfsync", "no")].iter().chain(&settings) {
            command.arg(format!("--{name}")).arg(value);
        }
        Ok(command)
    }

    fn probe(addr: SocketAddr, timeout: Duration) -> io::Result<()> {
        // A server that wants a password is ready too. One that still loads its data is not: it answers QUIT with an
        // error.
        probe(addr, timeout, b"PING\r\nQUIT\r\n", |answer| {
            answer.starts_with(b"+PONG") || answer.starts_with(b"-NOAUTH")
        })
    }
}
