//! MySQL, as `cargo xtask setup` unpacks it: with libraries of its own, under the folder of build products.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::{Missing, Program, Server, Settings, dying_with_us, probe};
use crate::ports::Port;

/// The folder of servers under that of build products, and of this one in it.
const UNPACKED: &str = "servers/mysql";

/// The folder of plugins in what is unpacked.
const PLUGINS: &str = "usr/lib/mysql/plugin";

/// What a server keeps.
const DATA: &str = "data";

/// The setting that makes a replica: the address of its primary.
const REPLICA_OF: &str = "replica_of";

/// A server that no replica follows needs no log of its changes.
const NO_LOG: &str = "disable-log-bin";

/// What the data is made with, which later starts have to say too.
const FILES: [&str; 2] = ["--innodb-redo-log-capacity=8M", "--innodb-doublewrite=0"];

/// The users and the database that every server has. With names of hosts left alone, no user comes from `localhost`.
const MAKE: &str = "CREATE USER 'root'@'%';
GRANT ALL ON *.* TO 'root'@'%' WITH GRANT OPTION;
CREATE DATABASE locks;
";

/// Tables of measurements that no test reads: most of what a server takes of memory.
const UNREAD: [&str; 7] = [
    "digests-size",
    "error-size",
    "events-stages-history-long-size",
    "events-statements-history-long-size",
    "events-statements-history-size",
    "events-transactions-history-long-size",
    "events-waits-history-long-size",
];

/// `mysqld`, and the loader that finds its libraries.
#[derive(Debug)]
pub struct MySqlProgram {
    home: PathBuf,
    loader: PathBuf,
}

impl Server<MySqlProgram> {
    /// The statements that make a replica a primary of its own.
    pub const PROMOTE: &str = "STOP REPLICA; RESET REPLICA ALL; SET GLOBAL read_only = OFF";

    /// [`Server::start_or_skip`] for a server that can have replicas.
    ///
    /// # Errors
    /// As for [`Server::start_or_skip`].
    pub fn primary_or_skip() -> anyhow::Result<Option<Self>> {
        Self::start_with_or_skip(&[(NO_LOG, "0")])
    }

    /// [`Server::start_or_skip`] for a server that can begin a replication group (`group_replication_bootstrap_group`).
    /// It has begun none.
    ///
    /// # Errors
    /// As for [`Server::start_or_skip`].
    pub fn member_of_group_or_skip() -> anyhow::Result<Option<Self>> {
        // Without the program, the start below says what is missing.
        let plugins = MySqlProgram::find().map_or_else(|_| PathBuf::new(), |program| program.home.join(PLUGINS));
        let port = Port::reserve()?;
        Self::start_with_or_skip(&[
            (NO_LOG, "0"),
            ("gtid-mode", "ON"),
            ("enforce-gtid-consistency", "ON"),
            ("plugin-dir", &plugins.display().to_string()),
            ("plugin-load-add", "group_replication.so"),
            ("loose-group-replication-group-name", "6f61726c-6f63-4b00-8000-000000000001"),
            ("loose-group-replication-start-on-boot", "OFF"),
            ("loose-group-replication-local-address", &port.addr().to_string()),
            ("report-host", "127.0.0.1"),
        ])
    }

    /// Starts a replica that follows the server at `primary` without holding it up, and waits until it answers. It only
    /// reads until [`PROMOTE`](Self::PROMOTE) makes it a primary of its own.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn replica_of(primary: SocketAddr) -> anyhow::Result<Self> {
        Self::start_with(&[(NO_LOG, "0"), (REPLICA_OF, &primary.to_string())])
    }
}

impl Program for MySqlProgram {
    const NAME: &'static str = "mysql";
    const SCHEME: &'static str = "mysql";
    const KILLABLE: bool = true;

    fn find() -> Result<Self, Missing> {
        let missing = Missing { server: Self::NAME, file: "servers/mysql under the folder of build products" };
        let program = std::env::current_exe().map_err(|_| missing.clone())?;
        let mut homes = program.ancestors().map(|folder| folder.join(UNPACKED));
        homes.find_map(|home| Some(Self { loader: loader(&home)?, home })).ok_or(missing)
    }

    fn prepare(&self, folder: &Path) -> anyhow::Result<()> {
        let copied =
            Command::new("cp").args(["-a", "--sparse=always"]).arg(self.made()?).arg(folder.join(DATA)).status();
        if !copied.context("cannot start cp")?.success() {
            bail!("the data could not be copied");
        }
        Ok(())
    }

    fn command(&self, folder: &Path, addr: SocketAddr, settings: Settings<'_>) -> anyhow::Result<Command> {
        let (host, port) = (addr.ip().to_string(), addr.port().to_string());
        let mut command = self.server(&folder.join(DATA));
        command.arg(format!("--tmpdir={}", folder.display()));
        command.arg(format!("--socket={}", folder.join("socket").display()));
        command.arg(format!("--pid-file={}", folder.join("pid").display()));
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
            ("sync-binlog", "0"),
            ("innodb-buffer-pool-size", "32M"),
            ("table-open-cache", "400"),
            ("table-definition-cache", "400"),
        ];
        for (name, value) in own.iter().chain(settings.iter().filter(|(name, _)| ![REPLICA_OF, NO_LOG].contains(name)))
        {
            command.arg(format!("--{name}={value}"));
        }
        command.args(UNREAD.map(|table| format!("--performance-schema-{table}=0")));
        if !settings.iter().any(|(name, _)| *name == NO_LOG) {
            command.arg(format!("--{NO_LOG}"));
        }
        if let Some((_, primary)) = settings.iter().find(|(name, _)| *name == REPLICA_OF) {
            command.args(follow(folder, primary.parse()?)?);
        }
        Ok(command)
    }

    fn probe(addr: SocketAddr, timeout: Duration) -> io::Result<()> {
        // The server sends the first packet, with the version of its protocol, 10.
        probe(addr, timeout, b"", |answer| answer.len() > 5 && answer[4] == 10)
    }

    fn url(addr: SocketAddr) -> String {
        format!("mysql://root@{addr}/locks")
    }
}

impl MySqlProgram {
    /// The server with this data, as the user that runs the tests.
    fn server(&self, data: &Path) -> Command {
        let mut command = Command::new(&self.loader);
        command.arg("--library-path").arg(self.loader.parent().unwrap_or(&self.home));
        command.arg(self.home.join("usr/sbin/mysqld")).args(["--no-defaults", "--mysqlx=0", "--secure-file-priv="]);
        if rustix::process::geteuid().is_root() {
            // As root it runs only with this option. Another user could not read what is unpacked in root's own folder.
            command.arg("--user=root");
        }
        command.arg(format!("--datadir={}", data.display())).args(FILES);
        command
    }

    /// What new folders of data are copied from: making the system's tables takes seconds, so it is kept beside the
    /// program.
    fn made(&self) -> anyhow::Result<PathBuf> {
        let made = self.home.join(format!("made-{}", rustix::process::geteuid().as_raw()));
        if made.is_dir() {
            return Ok(made);
        }
        let folder = tempfile::Builder::new().prefix("making-").tempdir_in(&self.home)?;
        let (data, script) = (folder.path().join(DATA), folder.path().join("make.sql"));
        fs::write(&script, MAKE)?;
        let mut make = self.server(&data);
        make.args(["--initialize-insecure", "--disable-log-bin"]).arg(format!("--init-file={}", script.display()));
        let output = dying_with_us(&make, None).current_dir(folder.path()).output().context("cannot start mysqld")?;
        if !output.status.success() {
            bail!("mysqld --initialize failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        // The name of a server: of those that follow each other, no two may have the same.
        fs::remove_file(data.join("auto.cnf"))?;
        match fs::rename(&data, &made) {
            Err(error) if !made.is_dir() => Err(error.into()),
            // Another was faster.
            _ => Ok(made),
        }
    }
}

/// The loader of the libraries that were unpacked there, if there is a whole server.
fn loader(home: &Path) -> Option<PathBuf> {
    if !home.join("usr/sbin/mysqld").is_file() {
        return None;
    }
    // The folder of a machine's libraries has the name of its kind.
    let folders = fs::read_dir(home.join("usr/lib")).ok()?.flatten();
    let files = folders.filter_map(|folder| fs::read_dir(folder.path()).ok()).flatten().flatten();
    files.map(|file| file.path()).find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("ld-linux") && path.is_file()
    })
}

/// What lets a server follow its primary, as long as it was not promoted: it begins once, and remembers it.
fn follow(folder: &Path, primary: SocketAddr) -> anyhow::Result<Vec<String>> {
    let (begin, again) = (folder.join("follow.sql"), folder.join("again.sql"));
    let script = if begin.exists() {
        fs::write(&again, "SET GLOBAL read_only = (SELECT COUNT(*) > 0 FROM mysql.slave_master_info);\n")?;
        again
    } else {
        let (host, port) = (primary.ip(), primary.port());
        let change =
            format!("CHANGE REPLICATION SOURCE TO SOURCE_HOST = '{host}', SOURCE_PORT = {port}, SOURCE_USER = 'root'");
        fs::write(&begin, format!("{change}, SOURCE_AUTO_POSITION = 1, SOURCE_CONNECT_RETRY = 1;\nSTART REPLICA;\n"))?;
        begin
    };
    Ok(vec![format!("--init-file={}", script.display()), "--read-only=1".to_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_found_only_when_it_is_whole() {
        let home = tempfile::tempdir().expect("a folder");
        let make = |file: &str| {
            let path = home.path().join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, "").expect("written");
        };
        make("usr/lib/riscv64-linux-gnu/ld-linux-riscv64-lp64d.so.1");
        make("usr/lib/mysql/plugin/component.so");
        assert_eq!(loader(home.path()), None);
        make("usr/sbin/mysqld");
        let found = home.path().join("usr/lib/riscv64-linux-gnu/ld-linux-riscv64-lp64d.so.1");
        assert_eq!(loader(home.path()), Some(found));
    }
}
