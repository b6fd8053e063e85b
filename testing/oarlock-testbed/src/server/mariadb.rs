//! MariaDB.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tempfile::TempDir;

use super::made::{FolderRef, Made};
use super::postgres::user_in;
use super::{Missing, Program, Server, Settings, dying_with_us, missing, probe};
use crate::ports::Port;

/// The database that every server has, for locks.
const DATABASE: &str = "locks";

/// What a server keeps.
const DATA: &str = "data";

/// Where it puts temporary tables. A server that starts removes all that it finds there, so it must not be another's:
/// that one would fail in the middle of a statement, and crash.
const SCRATCH: &str = "scratch";

/// Where Debian keeps programs that a plain user's `PATH` lacks.
const FOLDERS: [&str; 2] = ["/usr/sbin", "/usr/bin"];

static MADE: Made = Made::new();

/// The setting that makes a replica: the address of its primary.
const REPLICA_OF: &str = "replica_of";

/// What a server does that can have replicas.
const LOG: (&str, &str) = ("log-bin", "changes");

/// The library that makes a server a node of Galera.
const GALERA: &str = "libgalera_smm.so";

/// `mariadb-install-db` and `mariadbd`, which does not run as root.
#[derive(Debug)]
pub struct MariaDbProgram {
    install: PathBuf,
    server: PathBuf,
    user: Option<(u32, u32)>,
    folder_ref: FolderRef,
}

impl Server<MariaDbProgram> {
    /// The statements that make a replica a primary of its own.
    pub const PROMOTE: &str = "STOP SLAVE; RESET SLAVE ALL; SET GLOBAL read_only = OFF";

    /// [`Server::start_or_skip`] for a server that can have replicas.
    ///
    /// # Errors
    /// As for [`Server::start_or_skip`].
    pub fn primary_or_skip() -> anyhow::Result<Option<Self>> {
        Self::start_with_or_skip(&[LOG])
    }

    /// Starts a replica that follows the server at `primary` without holding it up, and waits until it answers. It only
    /// reads until [`PROMOTE`](Self::PROMOTE) makes it a primary of its own.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn replica_of(primary: SocketAddr) -> anyhow::Result<Self> {
        Self::start_with(&[LOG, ("log-slave-updates", "1"), (REPLICA_OF, &primary.to_string())])
    }

    /// Starts the first node of a Galera cluster, for a test that may be skipped.
    ///
    /// # Errors
    /// As for [`Server::start_or_skip`].
    pub fn galera_or_skip() -> anyhow::Result<Option<Self>> {
        let library = match missing::find("galera", GALERA, &["/usr/lib/galera".into(), "/usr/lib".into()]) {
            Ok(library) => library.display().to_string(),
            Err(missing) => return missing::skip(missing.into()).map(|()| None),
        };
        let port = Port::reserve()?;
        let listen = format!("gmcast.listen_addr=tcp://{};gcache.size=4M;pc.wait_prim=no", port.addr());
        Self::start_with_or_skip(&[
            ("wsrep-on", "ON"),
            ("wsrep-provider", &library),
            ("wsrep-cluster-address", "gcomm://"),
            ("wsrep-provider-options", &listen),
            ("wsrep-node-address", "127.0.0.1"),
            ("binlog-format", "ROW"),
        ])
    }
}

impl Program for MariaDbProgram {
    const NAME: &'static str = "mariadb";
    const SCHEME: &'static str = "mysql";
    const KILLABLE: bool = true;

    fn find() -> Result<Self, Missing> {
        let folders = FOLDERS.map(PathBuf::from);
        let server = missing::find(Self::NAME, "mariadbd", &folders)?;
        let install = missing::find(Self::NAME, "mariadb-install-db", &folders)?;
        let user = if rustix::process::geteuid().is_root() { Some(unprivileged()?) } else { None };
        Ok(Self { install, server, user, folder_ref: FolderRef::default() })
    }

    fn prepare(&self, folder: &Path) -> anyhow::Result<()> {
        // Others have to pass through on the way to the folder that is theirs.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o711))?;
        MADE.copy(&[DATA, SCRATCH], folder, &self.folder_ref, || self.make())
    }

    fn command(&self, folder: &Path, addr: SocketAddr, settings: Settings<'_>) -> anyhow::Result<Command> {
        let (data, host, port) = (folder.join(DATA), addr.ip().to_string(), addr.port().to_string());
        let mut command = Command::new(&self.server);
        command.arg("--no-defaults").arg(format!("--datadir={}", data.display()));
        command.arg(format!("--tmpdir={}", folder.join(SCRATCH).display()));
        command.arg(format!("--socket={}", data.join("socket").display()));
        command.arg(format!("--pid-file={}", data.join("pid").display()));
        let own = [
            ("bind-address", host.as_str()),
            ("port", port.as_str()),
            // Of those that follow each other, no two may have the same.
            ("server-id", port.as_str()),
            ("skip-name-resolve", "1"),
            ("max-connections", "500"),
            // Every client that is cut off counts as one.
            ("max-connect-errors", "1000000"),
            // It survives its own death, not that of the machine.
            ("innodb-flush-log-at-trx-commit", "2"),
            ("innodb-doublewrite", "0"),
            ("innodb-log-file-size", "4M"),
            ("innodb-buffer-pool-size", "32M"),
        ];
        for (name, value) in own.iter().chain(settings.iter().filter(|(name, _)| *name != REPLICA_OF)) {
            command.arg(format!("--{name}={value}"));
        }
        if let Some((_, primary)) = settings.iter().find(|(name, _)| *name == REPLICA_OF) {
            command.args(follow(folder, primary.parse()?)?);
        }
        Ok(command)
    }

    fn user(&self) -> Option<(u32, u32)> {
        self.user
    }

    fn probe(addr: SocketAddr, timeout: Duration) -> io::Result<()> {
        // The server sends the first packet, with the version of its protocol, 10.
        probe(addr, timeout, b"", |answer| answer.len() > 5 && answer[4] == 10)
    }

    fn url(addr: SocketAddr) -> String {
        format!("mysql://root@{addr}/{DATABASE}")
    }
}

impl MariaDbProgram {
    /// A folder with the system's tables, a user `root` without a password, and the database for locks.
    fn make(&self) -> anyhow::Result<TempDir> {
        let folder = tempfile::Builder::new().prefix("oarlock-mariadb-made-").tempdir()?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711))?;
        let (data, scratch) = (folder.path().join(DATA), folder.path().join(SCRATCH));
        for part in [&data, &scratch] {
            self.make_folder(part)?;
        }
        let mut install = Command::new(&self.install);
        install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
        install.args(["--skip-name-resolve", "--innodb-log-file-size=4M", "--innodb-doublewrite=0"]);
        install.arg(format!("--datadir={}", data.display())).arg(format!("--tmpdir={}", scratch.display()));
        let output = dying_with_us(&install, self.user).current_dir(folder.path()).output();
        let output = output.context("cannot start mariadb-install-db")?;
        if !output.status.success() {
            bail!("mariadb-install-db failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        // A database is a folder.
        self.make_folder(&data.join(DATABASE))?;
        Ok(folder)
    }

    fn make_folder(&self, path: &Path) -> anyhow::Result<()> {
        fs::create_dir(path)?;
        if let Some((user, group)) = self.user {
            chown(path, Some(user), Some(group))?;
        }
        Ok(())
    }
}

/// What lets a server follow its primary, as long as it was not promoted: it begins once, and remembers it.
fn follow(folder: &Path, primary: SocketAddr) -> anyhow::Result<Vec<String>> {
    let (begin, remembered) = (folder.join("follow.sql"), folder.join(DATA).join("master.info"));
    let mut arguments = Vec::new();
    if !begin.exists() {
        let (host, port) = (primary.ip(), primary.port());
        let change = format!("CHANGE MASTER TO master_host = '{host}', master_port = {port}, master_user = 'root'");
        let text = format!("{change}, master_use_gtid = slave_pos, master_connect_retry = 1;\nSTART SLAVE;\n");
        super::write_for_all(&begin, &text)?;
        arguments.push(format!("--init-file={}", begin.display()));
    }
    if !arguments.is_empty() || remembered.exists() {
        arguments.push("--read-only=1".to_owned());
    }
    Ok(arguments)
}

/// The user that the package brings along, or the one that may do nothing: user and group.
fn unprivileged() -> Result<(u32, u32), Missing> {
    let text = fs::read_to_string("/etc/passwd").unwrap_or_default();
    ["mysql", "nobody"]
        .iter()
        .find_map(|name| user_in(&text, name))
        .ok_or(Missing { server: MariaDbProgram::NAME, file: "user mysql" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_tables_go_to_its_own_folder() {
        let program = MariaDbProgram {
            install: PathBuf::new(),
            server: PathBuf::from("mariadbd"),
            user: None,
            folder_ref: FolderRef::default(),
        };
        let addr = SocketAddr::from(([127, 0, 0, 1], 3306));
        let command = program.command(Path::new("/own"), addr, &[]).expect("a command");
        assert!(command.get_args().any(|arg| arg == "--tmpdir=/own/scratch"), "{command:?}");
    }
}
