//! Redis with TLS only and certificates of its own.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::certificates::{Certificates, Encrypted};
use super::{Missing, Program, Settings, missing};

/// `redis-server` behind certificates that the `openssl` program makes.
#[derive(Debug)]
pub struct RedisTlsProgram {
    program: PathBuf,
    certificates: Certificates,
}

impl Encrypted for RedisTlsProgram {}

impl Program for RedisTlsProgram {
    const NAME: &'static str = "redis";
    const SCHEME: &'static str = "rediss";

    fn find() -> Result<Self, Missing> {
        let program = missing::find(Self::NAME, "redis-server", &["/usr/sbin".into()])?;
        Ok(Self { program, certificates: Certificates::find(Self::NAME)? })
    }

    fn prepare(&self, folder: &Path) -> anyhow::Result<()> {
        self.certificates.make(folder)
    }

    fn command(&self, folder: &Path, addr: SocketAddr, settings: Settings<'_>) -> anyhow::Result<Command> {
        let mut command = Command::new(&self.program);
        command.args(["--bind", &addr.ip().to_string(), "--port", "0", "--tls-port", &addr.port().to_string()]);
        command.arg("--dir").arg(folder);
        for (name, file) in [("cert-file", "server.pem"), ("key-file", "server.key"), ("ca-cert-file", "ca.pem")] {
            command.arg(format!("--tls-{name}")).arg(folder.join(file));
        }
        let own = [("tls-auth-clients", "optional"), ("save", ""), ("appendonly", "yes"), ("appendfsync", "no")];
        for (name, value) in own.iter().chain(settings) {
            command.arg(format!("--{name}")).arg(value);
        }
        Ok(command)
    }

    fn probe(addr: SocketAddr, timeout: Duration) -> io::Result<()> {
        // It listens only after it has read its certificates, and refuses clients that do not trust them.
        TcpStream::connect_timeout(&addr, timeout).map(drop)
    }
}
