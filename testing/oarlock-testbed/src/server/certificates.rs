//! Certificates that the `openssl` program makes: for tests, and good for two days.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::ensure;
use tempfile::TempDir;

use super::{Missing, Program, Server, missing};

/// A certificate and its key.
const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

/// The hosts that a server of a test has.
const HOSTS: &str = "subjectAltName=IP:127.0.0.1,DNS:localhost\n";

/// A server with certificates of its own in its folder, where it also runs: a setting names one of them by its file.
///
/// | file | certificate |
/// |---|---|
/// | `server.pem`, `server.key` | for 127.0.0.1 and localhost; a server starts with it unless told otherwise |
/// | `expired.pem` | the same key, and over since yesterday |
/// | `elsewhere.pem` | the same key, for another host |
pub trait Encrypted: Program {}

impl<P: Encrypted> Server<P> {
    /// The certificate of the authority that has signed the server's.
    #[must_use]
    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// The certificate of an authority that has signed nothing of the server.
    #[must_use]
    pub fn other_ca(&self) -> PathBuf {
        self.folder.path().join("other-ca.pem")
    }

    /// A certificate for clients, of the user `client`, and its key.
    #[must_use]
    pub fn identity(&self) -> (PathBuf, PathBuf) {
        (self.folder.path().join("client.pem"), self.folder.path().join("client.key"))
    }

    /// The same of the other authority, which the server does not trust.
    #[must_use]
    pub fn other_identity(&self) -> (PathBuf, PathBuf) {
        (self.folder.path().join("stranger.pem"), self.folder.path().join("client.key"))
    }
}

/// The same files in a folder of their own, for a server that cannot have them in its own. Every user may read them.
#[derive(Debug)]
pub struct CertificateFolder(TempDir);

impl CertificateFolder {
    /// Makes them.
    ///
    /// # Errors
    /// [`Missing`] when there is no `openssl`; when it fails.
    pub fn make(server: &'static str) -> anyhow::Result<Self> {
        let (certificates, folder) = (Certificates::find(server)?, tempfile::tempdir()?);
        certificates.make(folder.path())?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        for file in fs::read_dir(folder.path())? {
            fs::set_permissions(file?.path(), fs::Permissions::from_mode(0o644))?;
        }
        Ok(Self(folder))
    }

    /// One of the files, such as `ca.pem`.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A certificate for clients, of the user `client`, and its key.
    #[must_use]
    pub fn identity(&self) -> (PathBuf, PathBuf) {
        (self.file("client.pem"), self.file("client.key"))
    }

    /// The same of an authority that the server does not trust.
    #[must_use]
    pub fn other_identity(&self) -> (PathBuf, PathBuf) {
        (self.file("stranger.pem"), self.file("client.key"))
    }
}

/// Makes certificates in the folder of a server.
#[derive(Debug)]
pub(super) struct Certificates(PathBuf);

impl Certificates {
    /// For a server of this name.
    pub(super) fn find(server: &'static str) -> Result<Self, Missing> {
        missing::find(server, "openssl", &[]).map(Self)
    }

    /// Those that [`Encrypted`] lists, an authority (`ca`), one that has signed nothing of the server (`other-ca`), and
    /// a client of each.
    pub(super) fn make(&self, folder: &Path) -> anyhow::Result<()> {
        for authority in ["ca", "other-ca"] {
            self.openssl(
                folder,
                &format!("req -x509 {KEY} -keyout {authority}.key -out {authority}.pem -days 2 -subj /CN={authority}"),
            )?;
        }
        for name in ["server", "client"] {
            self.openssl(folder, &format!("req {KEY} -keyout {name}.key -out {name}.csr -subj /CN={name}"))?;
        }
        self.sign(folder, ("server", "server"), "ca", 2, HOSTS)?;
        self.sign(folder, ("server", "expired"), "ca", -1, HOSTS)?;
        self.sign(folder, ("server", "elsewhere"), "ca", 2, "subjectAltName=DNS:elsewhere.invalid\n")?;
        self.sign(folder, ("client", "client"), "ca", 2, "extendedKeyUsage=clientAuth\n")?;
        self.sign(folder, ("client", "stranger"), "other-ca", 2, "extendedKeyUsage=clientAuth\n")
    }

    fn openssl(&self, folder: &Path, arguments: &str) -> anyhow::Result<()> {
        let mut command = Command::new(&self.0);
        let done = command.args(arguments.split(' ')).current_dir(folder).stdin(Stdio::null()).output()?;
        ensure!(done.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&done.stderr));
        Ok(())
    }

    fn sign(&self, folder: &Path, names: (&str, &str), by: &str, days: i32, extensions: &str) -> anyhow::Result<()> {
        let (request, name) = names;
        fs::write(folder.join(format!("{name}.ext")), extensions)?;
        let by = format!("-CA {by}.pem -CAkey {by}.key -CAcreateserial -days {days}");
        self.openssl(folder, &format!("x509 -req -in {request}.csr {by} -extfile {name}.ext -out {name}.pem"))
    }
}
