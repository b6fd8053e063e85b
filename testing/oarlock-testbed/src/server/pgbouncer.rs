//! PgBouncer.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::postgres::unprivileged;
use super::{Missing, PostgresProgram, Program, Server, Settings, missing};

/// `pgbouncer`, which does not run as root.
#[derive(Debug)]
pub struct PgBouncerProgram {
    program: PathBuf,
    user: Option<(u32, u32)>,
}

impl Server<PgBouncerProgram> {
    /// Starts a pooler in front of the server at `server`, and waits until it answers.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn in_front_of(server: SocketAddr, settings: Settings<'_>) -> anyhow::Result<Self> {
        let (host, port) = (server.ip().to_string(), server.port().to_string());
        let own = [("host", host.as_str()), ("port", port.as_str())];
        Self::start_with(&[&own, settings].concat())
    }

    /// [`Server::in_front_of`] for a test that may be skipped, as with [`Server::start_or_skip`].
    ///
    /// # Errors
    /// As for [`Server::start_or_skip`].
    pub fn in_front_of_or_skip(server: SocketAddr, settings: Settings<'_>) -> anyhow::Result<Option<Self>> {
        match Self::in_front_of(server, settings) {
            Ok(pooler) => Ok(Some(pooler)),
            Err(error) => missing::skip(error).map(|()| None),
        }
    }
}

impl Program for PgBouncerProgram {
    const NAME: &'static str = "pgbouncer";
    const SCHEME: &'static str = "postgres";

    fn find() -> Result<Self, Missing> {
        let program = missing::find(Self::NAME, "pgbouncer", &["/usr/sbin".into()])?;
        let user = if rustix::process::geteuid().is_root() { Some(unprivileged()?) } else { None };
        Ok(Self { program, user })
    }

    fn prepare(&self, folder: &Path) -> anyhow::Result<()> {
        // Its user has to read what is in there.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
        Ok(())
    }

    /// `host` and `port` among the settings are those of the server behind it.
    fn command(&self, folder: &Path, addr: SocketAddr, settings: Settings<'_>) -> anyhow::Result<Command> {
        let (behind, own): (Vec<_>, Vec<_>) = settings.iter().partition(|(name, _)| ["host", "port"].contains(name));
        let behind: Vec<_> = behind.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut text = format!("[databases]\n* = {} user=postgres\n[pgbouncer]\n", behind.join(" "));
        let (host, port) = (addr.ip().to_string(), addr.port().to_string());
        let basics = [
            ("listen_addr", host.as_str()),
            ("listen_port", port.as_str()),
            ("unix_socket_dir", ""),
            ("auth_type", "any"),
            ("pool_mode", "transaction"),
            ("max_client_conn", "500"),
            // A server that restarts is back sooner than the default of 15 s.
            ("server_login_retry", "0.1"),
        ];
        for (name, value) in basics.iter().chain(&own) {
            writeln!(text, "{name} = {value}")?;
        }
        let file = folder.join("pgbouncer.ini");
        super::write_for_all(&file, &text)?;
        let mut command = Command::new(&self.program);
        command.arg(file);
        Ok(command)
    }

    fn user(&self) -> Option<(u32, u32)> {
        self.user
    }

    fn probe(addr: SocketAddr, timeout: Duration) -> io::Result<()> {
        PostgresProgram::probe(addr, timeout)
    }

    fn url(addr: SocketAddr) -> String {
        PostgresProgram::url(addr)
    }
}
