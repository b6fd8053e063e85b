//! Redis that speaks TLS only, with certificates of its own.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::ensure;

use super::{Missing, Program, Server, Settings, missing};

/// `redis-server` behind certificates that the `openssl` program makes.
#[derive(Debug)]
pub struct RedisTlsProgram {
    program: PathBuf,
    openssl: PathBuf,
}

impl Server<RedisTlsProgram> {
    /// The certificate of the authority that has signed the server's.
    #[must_use]
    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// The certificate of an authority that has signed nothing here.
    #[must_use]
    pub fn other_ca(&self) -> PathBuf {
        self.folder.path().join("other-ca.pem")
    }

    /// A certificate for clients, and its key.
    #[must_use]
    pub fn identity(&self) -> (PathBuf, PathBuf) {
        (self.folder.path().join("client.pem"), self.folder.path().join("client.key"))
    }
}

impl RedisTlsProgram {
    fn openssl(&self, folder: &Path, words: &str) -> anyhow::Result<()> {
        let mut command = Command::new(&self.openssl);
        let done = command.args(words.split(' ')).current_dir(folder).stdin(Stdio::null()).output()?;
        ensure!(done.status.success(), "openssl {words}: {}", String::from_utf8_lossy(&done.stderr));
        Ok(())
    }

    fn authority(&self, folder: &Path, name: &str) -> anyhow::Result<()> {
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        self.openssl(folder, &format!("req -x509 {key} -keyout {name}.key -out {name}.pem -days 2 -subj /CN={name}"))
    }

    fn signed(&self, folder: &Path, name: &str, extensions: &str) -> anyhow::Result<()> {
        fs::write(folder.join(format!("{name}.ext")), extensions)?;
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        self.openssl(folder, &format!("req {key} -keyout {name}.key -out {name}.csr -subj /CN={name}"))?;
        let by = "-CA ca.pem -CAkey ca.key -CAcreateserial -days 2";
        self.openssl(folder, &format!("x509 -req -in {name}.csr {by} -extfile {name}.ext -out {name}.pem"))
    }
}

impl Program for RedisTlsProgram {
    const NAME: &'static str = "redis";
    const SCHEME: &'static str = "rediss";

    fn find() -> Result<Self, Missing> {
        let program = missing::find(Self::NAME, "redis-server", &["/usr/sbin".into()])?;
        Ok(Self { program, openssl: missing::find(Self::NAME, "openssl", &[])? })
    }

    fn prepare(&self, folder: &Path) -> anyhow::Result<()> {
        self.authority(folder, "ca")?;
        self.authority(folder, "other-ca")?;
        self.signed(folder, "server", "subjectAltName=IP:127.0.0.1,DNS:localhost\n")?;
        self.signed(folder, "client", "extendedKeyUsage=clientAuth\n")
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
        // It listens only when it has read its certificates, and answers nobody who does not know them.
        TcpStream::connect_timeout(&addr, timeout).map(drop)
    }
}
