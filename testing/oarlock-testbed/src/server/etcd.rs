//! etcd.

use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::ensure;

use super::{Missing, Program, Server, Settings, contains, missing, probe, program_in};

/// How long looking at it from outside may take.
const POLL_TIMEOUT: Duration = Duration::from_secs(5);

/// `etcd`.
#[derive(Debug)]
pub struct EtcdProgram {
    program: PathBuf,
}

impl Server<EtcdProgram> {
    /// What it says of itself: the sum of everything it counts under this name.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn metric(&self, name: &str) -> anyhow::Result<f64> {
        self.metric_where(name, "")
    }

    /// The same of those alone that have this in one of their labels.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn metric_where(&self, name: &str, label: &str) -> anyhow::Result<f64> {
        let mut stream = TcpStream::connect_timeout(&self.addr(), POLL_TIMEOUT)?;
        stream.set_read_timeout(Some(POLL_TIMEOUT))?;
        write!(stream, "GET /metrics HTTP/1.0\r\nHost: {}\r\n\r\n", self.addr())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let values = answer.lines().filter_map(|line| {
            let (what, value) = line.rsplit_once(' ')?;
            let named = what == name || what.starts_with(&format!("{name}{{"));
            (named && what.contains(label)).then(|| value.parse::<f64>().ok())?
        });
        Ok(values.sum())
    }

    /// What `etcdctl` says when asked this.
    ///
    /// # Errors
    /// When it is not installed, or fails.
    pub fn ctl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut ctl = self.ctl_command()?;
        let done = ctl.args(arguments).stdin(Stdio::null()).output()?;
        ensure!(done.status.success(), "etcdctl {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    }

    /// `etcdctl` with the address of this server.
    ///
    /// # Errors
    /// When it is not installed.
    pub fn ctl_command(&self) -> anyhow::Result<Command> {
        let mut ctl = Command::new(missing::find(EtcdProgram::NAME, "etcdctl", &[])?);
        ctl.env("ETCDCTL_API", "3").arg(format!("--endpoints=http://{}", self.addr()));
        Ok(ctl)
    }
}

impl Program for EtcdProgram {
    const NAME: &'static str = "etcd";
    const SCHEME: &'static str = "etcd";

    fn find() -> Result<Self, Missing> {
        Ok(Self { program: missing::find(Self::NAME, "etcd", &[])? })
    }

    fn command(&self, folder: &Path, addr: SocketAddr, settings: Settings<'_>) -> anyhow::Result<Command> {
        // The only member has no peers, so any port will do.
        const PEER: &str = "http://127.0.0.1:0";
        let url = format!("http://{addr}");
        let cluster = format!("alone={PEER}");
        let (program, settings) = program_in(settings, &self.program);
        let mut command = Command::new(program);
        // It reads every setting from the environment as well, and calls through what is named there.
        let is_read = |name: &OsStr| {
            let name = name.as_encoded_bytes().to_ascii_uppercase();
            name.starts_with(b"ETCD_") || name.ends_with(b"_PROXY")
        };
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_read(name)) {
            command.env_remove(name);
        }
        let (environment, settings): (Vec<_>, Vec<_>) =
            settings.into_iter().partition(|(name, _)| *name == "HTTP_PROXY");
        command.envs(environment);
        command.arg("--data-dir").arg(folder.join("data"));
        let own = [
            ("name", "alone"),
            ("listen-client-urls", url.as_str()),
            ("advertise-client-urls", url.as_str()),
            ("listen-peer-urls", PEER),
            ("initial-advertise-peer-urls", PEER),
            ("initial-cluster", cluster.as_str()),
            ("logger", "zap"),
        ];
        command.args(own.into_iter().chain(settings).map(|(name, value)| format!("--{name}={value}")));
        Ok(command)
    }

    fn probe(addr: SocketAddr, timeout: Duration) -> io::Result<()> {
        // It is healthy once there is a leader and a write has gone through.
        let question = format!("GET /health HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n");
        probe(addr, timeout, question.as_bytes(), |answer| contains(answer, r#""health":"true""#))
    }
}
