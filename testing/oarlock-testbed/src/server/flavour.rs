//! MariaDB or MySQL: two servers behind the same URLs, for tests that run on both.

use std::fmt;
use std::net::SocketAddr;

use super::{MariaDb, MySql, Settings};

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// MariaDB.
    MariaDb,
    /// MySQL.
    MySql,
}

impl Flavour {
    /// The statements that make a replica a primary of its own.
    #[must_use]
    pub fn promote(self) -> &'static str {
        match self {
            Self::MariaDb => MariaDb::PROMOTE,
            Self::MySql => MySql::PROMOTE,
        }
    }

    /// The statement that lets a replica apply nothing more.
    #[must_use]
    pub fn stop_following(self) -> &'static str {
        match self {
            Self::MariaDb => "STOP SLAVE",
            Self::MySql => "STOP REPLICA",
        }
    }

    /// The statement that says how far a primary has come.
    #[must_use]
    pub fn position(self) -> &'static str {
        match self {
            Self::MariaDb => "SELECT @@gtid_binlog_pos",
            Self::MySql => "SELECT @@GLOBAL.gtid_executed",
        }
    }

    /// The statement that answers 0 once a replica has come as far, or something else after so many seconds.
    #[must_use]
    pub fn catch_up(self, position: &str, seconds: u64) -> String {
        match self {
            Self::MariaDb => format!("SELECT MASTER_GTID_WAIT('{position}', {seconds})"),
            Self::MySql => format!("SELECT WAIT_FOR_EXECUTED_GTID_SET('{position}', {seconds})"),
        }
    }
}

/// A server of either kind.
pub enum SqlServer {
    /// MariaDB.
    MariaDb(MariaDb),
    /// MySQL.
    MySql(MySql),
}

/// Does the same to whichever it is.
macro_rules! either {
    ($server:expr, $inner:ident => $done:expr) => {
        match $server {
            SqlServer::MariaDb($inner) => $done,
            SqlServer::MySql($inner) => $done,
        }
    };
}

impl SqlServer {
    /// [`Server::start_with_or_skip`](super::Server::start_with_or_skip).
    ///
    /// # Errors
    /// As there.
    pub fn start_with_or_skip(flavour: Flavour, settings: Settings<'_>) -> anyhow::Result<Option<Self>> {
        Ok(match flavour {
            Flavour::MariaDb => MariaDb::start_with_or_skip(settings)?.map(Self::MariaDb),
            Flavour::MySql => MySql::start_with_or_skip(settings)?.map(Self::MySql),
        })
    }

    /// The same for one that can have replicas.
    ///
    /// # Errors
    /// As there.
    pub fn primary_or_skip(flavour: Flavour) -> anyhow::Result<Option<Self>> {
        Ok(match flavour {
            Flavour::MariaDb => MariaDb::primary_or_skip()?.map(Self::MariaDb),
            Flavour::MySql => MySql::primary_or_skip()?.map(Self::MySql),
        })
    }

    /// A replica of the server at `primary`, which only reads until [promoted](Flavour::promote).
    ///
    /// # Errors
    /// As for [`Server::start`](super::Server::start).
    pub fn replica_of(flavour: Flavour, primary: SocketAddr) -> anyhow::Result<Self> {
        Ok(match flavour {
            Flavour::MariaDb => Self::MariaDb(MariaDb::replica_of(primary)?),
            Flavour::MySql => Self::MySql(MySql::replica_of(primary)?),
        })
    }

    /// Which of the two it is.
    #[must_use]
    pub fn flavour(&self) -> Flavour {
        match self {
            Self::MariaDb(_) => Flavour::MariaDb,
            Self::MySql(_) => Flavour::MySql,
        }
    }

    /// [`Server::addr`](super::Server::addr).
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        either!(self, server => server.addr())
    }

    /// [`Server::url`](super::Server::url).
    #[must_use]
    pub fn url(&self) -> String {
        either!(self, server => server.url())
    }

    /// Whether it has a process.
    #[must_use]
    pub fn is_running(&self) -> bool {
        either!(self, server => server.pid().is_some())
    }

    /// [`Server::pause`](super::Server::pause).
    ///
    /// # Errors
    /// As there.
    pub fn pause(&self) -> anyhow::Result<()> {
        either!(self, server => server.pause())
    }

    /// [`Server::resume`](super::Server::resume).
    ///
    /// # Errors
    /// As there.
    pub fn resume(&self) -> anyhow::Result<()> {
        either!(self, server => server.resume())
    }

    /// [`Server::kill`](super::Server::kill).
    ///
    /// # Errors
    /// As there.
    pub fn kill(&self) -> anyhow::Result<()> {
        either!(self, server => server.kill())
    }

    /// [`Server::stop`](super::Server::stop).
    ///
    /// # Errors
    /// As there.
    pub fn stop(&self) -> anyhow::Result<()> {
        either!(self, server => server.stop())
    }

    /// [`Server::restart`](super::Server::restart).
    ///
    /// # Errors
    /// As there.
    pub fn restart(&self) -> anyhow::Result<()> {
        either!(self, server => server.restart())
    }
}

impl fmt::Debug for SqlServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        either!(self, server => server.fmt(f))
    }
}
