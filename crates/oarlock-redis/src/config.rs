//! Where the server is, and who asks.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Address {
    /// A host and a port.
    Tcp(String, u16),
    /// A socket on this machine.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Choices for a [`Redis`](crate::Redis) store.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// Where the server listens.
    pub address: Address,
    /// The user; the default one if there is none.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// The numbered database.
    pub database: u32,
    /// What goes before every key and channel.
    pub prefix: String,
    /// How long opening a connection may take, and how long sent data may stay unconfirmed by the other side's
    /// system before a connection counts as ended.
    pub connect_timeout: Duration,
    /// How long a request may stay unanswered before its connection counts as ended and is replaced. Keep it well above
    /// the time that a request may take by the client's settings: it is for peers that fell silent and never hang up.
    pub silence_timeout: Duration,
}

impl Config {
    /// The server at this address: database 0, no password, keys under `oarlock:`.
    #[must_use]
    pub fn new(address: Address) -> Self {
        Self {
            address,
            user: None,
            password: None,
            database: 0,
            prefix: "oarlock:".to_owned(),
            connect_timeout: Duration::from_secs(5),
            silence_timeout: Duration::from_secs(20),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("address", &self.address)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("database", &self.database)
            .field("prefix", &self.prefix)
            .field("connect_timeout", &self.connect_timeout)
            .field("silence_timeout", &self.silence_timeout)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_printed() {
        let mut config = Config::new(Address::Tcp("localhost".into(), 6379));
        config.password = Some("swordfish".into());
        assert!(!format!("{config:?}").contains("swordfish"));
    }
}
