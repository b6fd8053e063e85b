//! A user of Redis with the rights that a command gives it, and no other.

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use tempfile::NamedTempFile;

use super::redis_command;

/// A user whose password is [`PASSWORD`](Self::PASSWORD). The default user of its servers may do everything.
#[derive(Debug)]
pub struct RedisUser {
    rights: String,
    /// The file in which a server finds it, also after a restart.
    file: NamedTempFile,
}

impl RedisUser {
    /// Its password.
    pub const PASSWORD: &'static str = "swordfish";

    /// The user that this command (`ACL SETUSER …`) makes.
    ///
    /// # Errors
    /// When the file cannot be written, or the server that is installed cannot be started.
    pub fn new(command: &str) -> io::Result<Self> {
        let mut rights = command.trim_end().replacen("ACL SETUSER ", "", 1);
        let mut all = "~* &* +@all";
        if redis_version()?.is_some_and(|version| version < (6, 2)) {
            // There are no rights on channels yet.
            let is_known = |rule: &&str| *rule != "resetchannels" && !rule.starts_with('&');
            rights = rights.split(' ').filter(is_known).collect::<Vec<_>>().join(" ");
            all = "~* +@all";
        }
        let mut file = NamedTempFile::new()?;
        write!(file, "user default on nopass {all}\nuser {rights} >{}\n", Self::PASSWORD)?;
        Ok(Self { rights, file })
    }

    /// Its name and its rules.
    #[must_use]
    pub fn rights(&self) -> &str {
        &self.rights
    }

    /// The value of `aclfile` for a server that has it.
    #[must_use]
    pub fn file(&self) -> String {
        self.file.path().display().to_string()
    }

    /// Makes the user on a server that runs.
    ///
    /// # Errors
    /// When the server refuses it.
    pub fn join(&self, addr: SocketAddr) -> io::Result<()> {
        let password = format!(">{}", Self::PASSWORD);
        let words: Vec<_> = ["ACL", "SETUSER"].into_iter().chain(self.rights.split(' ')).chain([&*password]).collect();
        redis_command(addr, &words).map(|_| ())
    }
}

/// The commands that servers were asked for.
#[derive(Debug, Default)]
pub struct UsedCommands(Mutex<BTreeSet<String>>);

impl UsedCommands {
    /// Reads the counters of a server, which end with its process.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn note(&self, addr: SocketAddr) -> io::Result<()> {
        let stats = redis_command(addr, &["INFO", "commandstats"])?;
        let names = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split([':', '|']).next());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(names.map(str::to_owned));
        Ok(())
    }

    /// The commands among these rules that no server was asked for.
    pub fn unused<'a>(&self, rights: &'a str) -> Vec<&'a str> {
        let used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let commands = rights.split_whitespace().filter_map(|rule| rule.strip_prefix('+')?.split('|').next());
        commands.filter(|command| !used.contains(*command)).collect()
    }
}

/// The version of the server that is installed, as far as it is one of Redis.
///
/// # Errors
/// When it cannot be started.
pub fn redis_version() -> io::Result<Option<(u32, u32)>> {
    let said = match Command::new("redis-server").arg("--version").output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        said => String::from_utf8_lossy(&said?.stdout).into_owned(),
    };
    let mut numbers = said.split_once("v=").map_or("", |(_, version)| version).split('.').map(str::parse);
    Ok(numbers.next().zip(numbers.next()).and_then(|(major, minor)| major.ok().zip(minor.ok())))
}
