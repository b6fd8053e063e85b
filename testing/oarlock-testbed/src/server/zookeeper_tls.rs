//! ZooKeeper with TLS only and certificates of its own.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::certificates::{Certificates, Encrypted};
use super::zookeeper::ZooKeeperProgram;
use super::{Missing, Program, Settings};

/// `zookeeper.jar` behind certificates that the `openssl` program makes. It wants a certificate and its key in one
/// file: `server-and-key.pem`, and so on.
#[derive(Debug)]
pub struct ZooKeeperTlsProgram {
    plain: ZooKeeperProgram,
    certificates: Certificates,
}

impl Encrypted for ZooKeeperTlsProgram {}

impl Program for ZooKeeperTlsProgram {
    const NAME: &'static str = "zookeeper";
    const SCHEME: &'static str = "zks";

    fn find() -> Result<Self, Missing> {
        Ok(Self { plain: ZooKeeperProgram::find()?, certificates: Certificates::find(Self::NAME)? })
    }

    fn prepare(&self, folder: &Path) -> anyhow::Result<()> {
        self.certificates.make(folder)?;
        let key = fs::read_to_string(folder.join("server.key"))?;
        for name in ["server", "expired", "elsewhere"] {
            let certificate = fs::read_to_string(folder.join(format!("{name}.pem")))?;
            fs::write(folder.join(format!("{name}-and-key.pem")), format!("{certificate}{key}"))?;
        }
        Ok(())
    }

    fn command(&self, folder: &Path, addr: SocketAddr, settings: Settings<'_>) -> anyhow::Result<Command> {
        let (host, port) = (addr.ip().to_string(), addr.port().to_string());
        let own = [
            ("secureClientPortAddress", host.as_str()),
            ("secureClientPort", port.as_str()),
            ("serverCnxnFactory", "org.apache.zookeeper.server.NettyServerCnxnFactory"),
            ("ssl.keyStore.type", "PEM"),
            ("ssl.keyStore.location", "server-and-key.pem"),
            ("ssl.trustStore.type", "PEM"),
            ("ssl.trustStore.location", "ca.pem"),
            ("ssl.clientAuth", "none"),
        ];
        self.plain.listening(folder, &[], &[&own[..], settings].concat())
    }

    fn probe(addr: SocketAddr, timeout: Duration) -> io::Result<()> {
        // It listens once it serves, and answers nothing that is not encrypted.
        TcpStream::connect_timeout(&addr, timeout).map(drop)
    }
}
