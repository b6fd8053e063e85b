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

use super::{Missing, Program, Settings, ask, missing, tethered};

/// Where Debian keeps the programs of each version.
const VERSIONS: &str = "/usr/lib/postgresql";

/// `initdb` and `postgres`, neither of which runs as root.
#[derive(Debug)]
pub struct PostgresProgram {
    bin: PathBuf,
    user: Option<(u32, u32)>,
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
        Ok(Self { bin, user })
    }

    fn prepare(&self, folder: &Path) -> anyhow::Result<()> {
        let data = folder.join("data");
        fs::create_dir(&data)?;
        if let Some((user, group)) = self.user {
            chown(&data, Some(user), Some(group))?;
        }
        // Others have to pass through on the way to the folder that is theirs.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o711))?;
        fs::set_permissions(&data, fs::Permissions::from_mode(0o700))?;
        let mut initdb = Command::new(self.bin.join("initdb"));
        initdb.args(["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync", "-D"]);
        let output =
            tethered(initdb.arg(&data), self.user).current_dir(folder).output().context("cannot start initdb")?;
        if !output.status.success() {
            bail!("initdb failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    fn command(&self, folder: &Path, addr: SocketAddr, settings: Settings<'_>) -> anyhow::Result<Command> {
        let (host, port) = (addr.ip().to_string(), addr.port().to_string());
        let own = [
            ("listen_addresses", host.as_str()),
            ("port", port.as_str()),
            ("unix_socket_directories", ""),
            ("max_connections", "200"),
            ("fsync", "off"),
        ];
        let mut command = Command::new(self.bin.join("postgres"));
        command.arg("-D").arg(folder.join("data"));
        for (name, value) in own.iter().chain(settings) {
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
        ask(addr, timeout, &question, |answer| answer.starts_with(b"R\0\0\0\x08\0\0\0\0"))
    }

    fn url(addr: SocketAddr) -> String {
        format!("postgres://postgres@{addr}/postgres")
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
