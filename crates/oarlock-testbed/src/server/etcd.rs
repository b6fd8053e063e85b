//! etcd.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Missing, Program, Settings, ask, contains, missing};

/// `etcd`.
#[derive(Debug)]
pub struct EtcdProgram {
    program: PathBuf,
}

impl Program for EtcdProgram {
    const NAME: &'static str = "etcd";
    const SCHEME: &'static str = "etcd";

    fn find() -> Result<Self, Missing> {
        Ok(Self { program: missing::find(Self::NAME, "etcd", &[])? })
    }

    fn command(&self, folder: &Path, addr: SocketAddr, settings: Settings<'_>) -> anyhow::Result<Command> {
        // The only member never talks to another, so any port will do for that.
        const PEER: &str = "http://127.0.0.1:0";
        let url = format!("http://{addr}");
        let cluster = format!("alone={PEER}");
        let mut command = Command::new(&self.program);
        // It reads every setting from the environment as well.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"ETCD_")) {
            command.env_remove(name);
        }
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
        command.args(own.iter().chain(settings).map(|(name, value)| format!("--{name}={value}")));
        Ok(command)
    }

    fn probe(addr: SocketAddr, timeout: Duration) -> io::Result<()> {
        // It is healthy once there is a leader and a write has gone through.
        let question = format!("GET /health HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n");
        ask(addr, timeout, question.as_bytes(), |answer| contains(answer, r#""health":"true""#))
    }
}
