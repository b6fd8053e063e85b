//! ZooKeeper.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Missing, Program, Settings, ask, contains, missing};

/// Where Debian keeps Java archives. That of ZooKeeper names those it needs itself.
const ARCHIVES: &str = "/usr/share/java";

/// `java`, and the archive it runs.
#[derive(Debug)]
pub struct ZooKeeperProgram {
    java: PathBuf,
    archive: PathBuf,
}

impl Program for ZooKeeperProgram {
    const NAME: &'static str = "zookeeper";
    const SCHEME: &'static str = "zk";

    fn find() -> Result<Self, Missing> {
        Ok(Self {
            java: missing::find(Self::NAME, "java", &[])?,
            archive: missing::find(Self::NAME, "zookeeper.jar", &[ARCHIVES.into()])?,
        })
    }

    fn command(&self, folder: &Path, addr: SocketAddr, settings: Settings<'_>) -> anyhow::Result<Command> {
        let config = folder.join("zoo.cfg");
        let data = folder.join("data").display().to_string();
        let (host, port) = (addr.ip().to_string(), addr.port().to_string());
        let own = [
            ("dataDir", data.as_str()),
            ("clientPortAddress", host.as_str()),
            ("clientPort", port.as_str()),
            ("tickTime", "500"),
            ("maxClientCnxns", "0"),
            ("admin.enableServer", "false"),
            ("4lw.commands.whitelist", "srvr,ruok,mntr,cons,dump,wchs"),
        ];
        let mut text = String::new();
        for (name, value) in own.iter().chain(settings) {
            writeln!(text, "{name}={value}")?;
        }
        std::fs::write(&config, text)?;
        let mut command = Command::new(&self.java);
        // A JVM that starts fast and stays small: this saves two thirds of the time to the first answer.
        command.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-cp"]);
        command.arg(format!("{}:{ARCHIVES}/slf4j-simple.jar", self.archive.display()));
        command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(config);
        Ok(command)
    }

    fn probe(addr: SocketAddr, timeout: Duration) -> io::Result<()> {
        // `ruok` is answered before it serves; a mode is named only once it does.
        ask(addr, timeout, b"srvr", |answer| contains(answer, "\nMode: "))
    }
}
