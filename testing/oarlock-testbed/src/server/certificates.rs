//! Certificates that the `openssl` program makes: for tests, and good for two days.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::ensure;

use super::{Missing, missing};

/// Makes certificates in the folder of a server.
#[derive(Debug)]
pub(super) struct Certificates(PathBuf);

impl Certificates {
    /// For a server of this name.
    pub(super) fn find(server: &'static str) -> Result<Self, Missing> {
        missing::find(server, "openssl", &[]).map(Self)
    }

    /// An authority (`ca`), one that has signed nothing (`other-ca`), a server and a client.
    pub(super) fn make(&self, folder: &Path) -> anyhow::Result<()> {
        self.authority(folder, "ca")?;
        self.authority(folder, "other-ca")?;
        self.signed(folder, "server", "subjectAltName=IP:127.0.0.1,DNS:localhost\n")?;
        self.signed(folder, "client", "extendedKeyUsage=clientAuth\n")
    }

    fn openssl(&self, folder: &Path, arguments: &str) -> anyhow::Result<()> {
        let mut command = Command::new(&self.0);
        let done = command.args(arguments.split(' ')).current_dir(folder).stdin(Stdio::null()).output()?;
        ensure!(done.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&done.stderr));
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
