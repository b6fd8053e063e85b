//! PostgreSQL.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::Signal;
use tempfile::TempDir;

use super::made::{FolderRef, Made};
use super::{Missing, Program, Server, Settings, dying_with_us, missing, probe};

/// Where Debian keeps the programs of each version.
const VERSIONS: &str = "/usr/lib/postgresql";

/// What a server keeps.
const DATA: &str = "data";

static MADE: Made = Made::new();

/// `initdb` and `postgres`, neither of which runs as root.
#[derive(Debug)]
pub struct PostgresProgram {
    bin: PathBuf,
    user: Option<(u32, u32)>,
    folder_ref: FolderRef,
}

/// The setting that makes a standby: the address of its primary.
const STANDBY_OF: &str = "standby_of";

impl Server<PostgresProgram> {
    /// Starts a standby that follows the server at `primary` without holding it up, and waits until it answers. `SELECT
    /// pg_promote()` makes it a primary of its own.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn standby_of(primary: SocketAddr) -> anyhow::Result<Self> {
        Self::start_with(&[(STANDBY_OF, &primary.to_string())])
    }
}

impl Program for PostgresProgram {
    const NAME: &'static str = "postgres";
    const SCHEME: &'static str = "postgres";
    // The polite signal waits until the last client has left by itself.
    const STOP: Signal = Signal::INT;

    fn find() -> Result<Self, Missing> {
        let mut folders: Vec<_> =
            fs::read_dir(VERSIONS).into_iter().flatten().flatten().map(|entry| entry.path().join("bin")).collect();
        folders.sort();
        folders.reverse();
        let mut bin = missing::find(Self::NAME, "postgres", &folders)?;
        bin.pop();
        let user = if rustix::process::geteuid().is_root() { Some(unprivileged()?) } else { None };
        Ok(Self { bin, user, folder_ref: FolderRef::default() })
    }

    fn prepare(&self, folder: &Path) -> anyhow::Result<()> {
        // Others have to pass through on the way to the folder that is theirs.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o711))?;
        MADE.copy(&[DATA], folder, &self.folder_ref, || self.make())
    }

    fn command(&self, folder: &Path, addr: SocketAddr, settings: Settings<'_>) -> anyhow::Result<Command> {
        if let Some((_, primary)) = settings.iter().find(|(name, _)| *name == STANDBY_OF) {
            self.copy(primary.parse()?, folder)?;
        }
        let (host, port) = (addr.ip().to_string(), addr.port().to_string());
        let own = [
            ("listen_addresses", host.as_str()),
            ("port", port.as_str()),
            ("unix_socket_directories", ""),
            ("max_connections", "200"),
            ("fsync", "off"),
        ];
        let mut command = Command::new(self.bin.join("postgres"));
        command.arg("-D").arg(folder.join(DATA));
        for (name, value) in own.iter().chain(settings.iter().filter(|(name, _)| *name != STANDBY_OF)) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        Ok(command)
    }

    fn user(&self) -> Option<(u32, u32)> {
        self.user
    }

    fn probe(addr: SocketAddr, timeout: Duration) -> io::Result<()> {
        // A start of session in version 3 of the protocol, then its end. While it recovers, it answers with an error.
        let mut question = b"\0\0\0\x2c\0\x03\0\0user\0postgres\0database\0postgres\0\0".to_vec();
        question[3] = u8::try_from(question.len()).map_err(io::Error::other)?;
        question.extend_from_slice(b"X\0\0\0\x04");
        probe(addr, timeout, &question, |answer| answer.starts_with(b"R\0\0\0\x08\0\0\0\0"))
    }

    fn url(addr: SocketAddr) -> String {
        format!("postgres://postgres@{addr}/postgres")
    }
}

impl PostgresProgram {
    /// A folder with the system's tables and a user `postgres` without a password.
    fn make(&self) -> anyhow::Result<TempDir> {
        let folder = tempfile::Builder::new().prefix("oarlock-postgres-made-").tempdir()?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711))?;
        let data = folder.path().join(DATA);
        fs::create_dir(&data)?;
        if let Some((user, group)) = self.user {
            chown(&data, Some(user), Some(group))?;
        }
        fs::set_permissions(&data, fs::Permissions::from_mode(0o700))?;
        let mut initdb = Command::new(self.bin.join("initdb"));
        initdb.args(["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync", "-D"]);
        let output = dying_with_us(initdb.arg(&data), self.user).current_dir(folder.path()).output();
        let output = output.context("cannot start initdb")?;
        if !output.status.success() {
            bail!("initdb failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(folder)
    }

    /// Replaces the data by a copy of the primary's, once.
    fn copy(&self, primary: SocketAddr, folder: &Path) -> anyhow::Result<()> {
        let (data, fresh) = (folder.join(DATA), folder.join(DATA).join("base"));
        if data.join("backup_label.old").exists() || data.join("standby.signal").exists() {
            return Ok(());
        }
        if fresh.exists() {
            for entry in fs::read_dir(&data)? {
                let path = entry?.path();
                if path.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
            }
        }
        // Where the server really is, its other programs are too.
        let server = fs::canonicalize(self.bin.join("postgres"))?;
        let mut copy = Command::new(server.with_file_name("pg_basebackup"));
        copy.args(["--checkpoint=fast", "--no-sync", "--write-recovery-conf", "--wal-method=stream"]);
        copy.args(["--username=postgres", "--no-password"]);
        copy.arg(format!("--host={}", primary.ip())).arg(format!("--port={}", primary.port()));
        let output = dying_with_us(copy.arg("-D").arg(&data), self.user).current_dir(folder).output();
        let output = output.context("cannot start pg_basebackup")?;
        if !output.status.success() {
            bail!("pg_basebackup failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }
}

/// The user that the package brings along, or the one that may do nothing: user and group.
pub(super) fn unprivileged() -> Result<(u32, u32), Missing> {
    let text = fs::read_to_string("/etc/passwd").unwrap_or_default();
    ["postgres", "nobody"]
        .iter()
        .find_map(|name| user_in(&text, name))
        .ok_or(Missing { server: PostgresProgram::NAME, file: "user postgres" })
}

/// The user and group of `name` in the text of `/etc/passwd`.
pub(super) fn user_in(passwd: &str, name: &str) -> Option<(u32, u32)> {
    let line = passwd.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let mut fields = line.split(':').skip(1);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_the_whole_name() {
        let passwd =
            "root:x:0:0:root:/root:/bin/bash\npostgres2:x:7:8::/:\npostgres:x:101:104:,,,:/var/lib/postgresql:\n";
        assert_eq!(user_in(passwd, "postgres"), Some((101, 104)));
        assert_eq!(user_in(passwd, "nobody"), None);
    }
}
