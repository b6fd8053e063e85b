//! etcd with TLS only and certificates of its own. Clients must have a certificate too.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::certificates::{Certificates, Encrypted};
use super::etcd::EtcdProgram;
use super::{Missing, Program, Settings};

/// `etcd` behind certificates that the `openssl` program makes.
#[derive(Debug)]
pub struct EtcdTlsProgram {
    plain: EtcdProgram,
    certificates: Certificates,
}

impl Encrypted for EtcdTlsProgram {}

impl Program for EtcdTlsProgram {
    const NAME: &'static str = "etcd";
    const SCHEME: &'static str = "etcds";

    fn find() -> Result<Self, Missing> {
        Ok(Self { plain: EtcdProgram::find()?, certificates: Certificates::find(Self::NAME)? })
    }

    fn prepare(&self, folder: &Path) -> anyhow::Result<()> {
        self.certificates.make(folder)
    }

    fn command(&self, folder: &Path, addr: SocketAddr, settings: Settings<'_>) -> anyhow::Result<Command> {
        let url = format!("https://{addr}");
        let file = |name: &str| folder.join(name).display().to_string();
        let (cert, key, ca) = (file("server.pem"), file("server.key"), file("ca.pem"));
        let own = [
            ("listen-client-urls", url.as_str()),
            ("advertise-client-urls", url.as_str()),
            ("cert-file", &cert),
            ("key-file", &key),
            ("trusted-ca-file", &ca),
            ("client-cert-auth", "true"),
        ];
        self.plain.command(folder, addr, &[&own[..], settings].concat())
    }

    fn probe(addr: SocketAddr, timeout: Duration) -> io::Result<()> {
        // It refuses clients without a certificate. Requests wait until it has a leader.
        TcpStream::connect_timeout(&addr, timeout).map(drop)
    }
}
