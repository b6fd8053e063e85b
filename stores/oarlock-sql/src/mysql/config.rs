//! Where the store is.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mysql_async::{ClientIdentity, Opts, OptsBuilder, SslOpts};
use oarlock_core::driver::DynDriver;
use oarlock_core::url::{Setup, Store, Url, current_password};
use oarlock_core::{Error, ErrorKind, Result};

use crate::config::{self, check_prefix, write_address};
pub use crate::config::{Encryption, Keys};
use crate::mysql::doctor::DOCTOR;
use crate::mysql::error::SCHEME;
use crate::mysql::guarantees::GUARANTEES;
use crate::mysql::{MySql, MySqlSession, Named};
use crate::route::{Host, Last, Route};

/// `MySQL` and `MariaDB` and its scheme `mysql://`.
pub static STORE: Store =
    Store::new(SCHEME, &[config::scheme(SCHEME, "MySQL or MariaDB").alias(&["mariadb"]).port(3306)], |url| {
        Box::pin(async move {
            let config = Config::from_url(&url)?;
            if config::is_session(&url) {
                return Ok(Arc::new(MySqlSession::connect(Named::new(config)).await?) as Arc<dyn DynDriver>);
            }
            Ok(Arc::new(MySql::connect(config).await?) as _)
        })
    })
    .guarantees(GUARANTEES)
    .doctor(DOCTOR)
    .setup(Setup {
        script: crate::mysql::script,
        run: |url, grant| Box::pin(async move { crate::mysql::init(Config::from_url(&url)?, grant.as_deref()).await }),
    });

/// Choices for a [`MySql`](crate::mysql::MySql) store.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// The server's name or address, or the absolute path of its socket.
    pub host: String,
    /// The server's port.
    pub port: u16,
    /// Further servers and their ports, of which one at a time takes writes: the client passes over servers that are
    /// unreachable or read-only, and stays with the one that served it last.
    pub others: Vec<(String, u16)>,
    /// The user; `None` = `root`.
    pub user: Option<String>,
    /// The database that has the tables.
    pub database: String,
    /// Whether to encrypt.
    pub encryption: Encryption,
    /// A file of the certificates to trust, in PEM; `None` = those of the public authorities. If it is given, the
    /// certificate of the server must be signed by one of them and name the host.
    pub root_certificate: Option<PathBuf>,
    /// The files of this client's certificate and its key, in PEM, for servers that require one.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// What goes before every name.
    pub prefix: String,
    /// How long making a connection may take.
    pub connect_timeout: Duration,
    /// How long the server may be silent on a request before its connection is given up. Keep it well above the time
    /// that a client waits for a request: it is there to replace dead connections, not to answer sooner.
    pub silence_timeout: Duration,
    /// What named locks are called; for [`MySqlSession`](crate::mysql::MySqlSession) alone.
    pub keys: Keys,
    /// How long the server keeps a silent connection that holds named locks, in whole seconds, and so the longest lease
    /// there is on one; for [`MySqlSession`](crate::mysql::MySqlSession) alone.
    pub session_ttl: Duration,
    /// Which of the servers served last.
    last: Last,
    password: Option<String>,
    /// It is read again for each connection.
    password_file: Option<PathBuf>,
}

impl Config {
    /// `database` of the server at `host` and `port`, without a password and not encrypted.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16, database: impl Into<String>) -> Self {
        Self {
            host: host.into(),
            port,
            others: Vec::new(),
            last: Arc::default(),
            user: None,
            database: database.into(),
            encryption: Encryption::default(),
            root_certificate: None,
            identity: None,
            prefix: String::new(),
            connect_timeout: Duration::from_secs(5),
            silence_timeout: Duration::from_secs(20),
            keys: Keys::default(),
            session_ttl: Duration::from_secs(30),
            password: None,
            password_file: None,
        }
    }

    /// The server and the database that a `mysql://` URL names.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](oarlock_core::ErrorKind::Config) for options that exclude each other;
    /// [`ErrorKind::Unsupported`](oarlock_core::ErrorKind::Unsupported) for `mode=transaction`, and for `sslmode=prefer` and
    /// `verify-ca`.
    pub fn from_url(url: &Url) -> Result<Self> {
        let ((host, port), others) = config::checked_hosts(url)?;
        let mut config = Self::new(host, port, url.path().trim_start_matches('/'));
        config.others = others;
        config.user = url.user().map(str::to_owned);
        config.password = url.password()?.map(|secret| secret.reveal().to_owned());
        config.password_file = url.password_file();
        config.prefix = url.prefix().to_owned();
        config.encryption = Encryption::from_url(url)?;
        config.check_encryption()?;
        config.root_certificate = url.file("sslrootcert");
        config.identity = config::identity(url)?;
        config.keys = Keys::from_url(url);
        config.session_ttl = url.ttl().unwrap_or(config.session_ttl);
        config.connect_timeout = url.connect_timeout();
        config.silence_timeout = url.silence_timeout(config.silence_timeout);
        Ok(config)
    }

    /// This configuration, with a password.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// The same configuration for one of its servers alone.
    pub(crate) fn only(&self, host: &Host) -> Self {
        let mut config = self.clone();
        (config.host, config.port) = host.clone();
        config.others.clear();
        config
    }

    /// The way to the server.
    pub(crate) fn route(&self) -> Route {
        Route::new((self.host.clone(), self.port), &self.others, self.last.clone())
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.database.is_empty() {
            let message = "name the database that has the tables: mysql://host/database";
            return Err(Error::new(ErrorKind::Config, message).on(SCHEME));
        }
        self.check_encryption()?;
        check_prefix(SCHEME, &self.prefix)
    }

    fn check_encryption(&self) -> Result<()> {
        if !matches!(self.encryption, Encryption::Prefer | Encryption::VerifyCa) {
            return Ok(());
        }
        // The client crate cannot go on unencrypted on the same connection, and does not forgive a wrong name.
        let message = "sslmode is disable, require or verify-full here";
        Err(Error::new(ErrorKind::Unsupported, message).on(SCHEME))
    }

    /// Options of the client crate for one of the servers.
    pub(crate) fn to_client(&self, (host, port): &Host) -> Opts {
        let socket = host.starts_with('/').then(|| host.clone());
        let mut client = OptsBuilder::default()
            .tcp_port(*port)
            .user(Some(self.user.as_deref().unwrap_or("root")))
            .pass(current_password(self.password_file.as_deref(), self.password.as_deref()))
            .db_name(Some(&self.database))
            // It would leave the way it was told for the server's socket, if that is on this machine.
            .prefer_socket(false)
            .tcp_keepalive(Some(Duration::from_secs(60)));
        client = if socket.is_some() { client.socket(socket) } else { client.ip_or_hostname(host) };
        if self.encryption != Encryption::Disable {
            let checked = self.encryption.checks(self.root_certificate.is_some());
            let mut tls = SslOpts::default().with_danger_accept_invalid_certs(!checked);
            if let Some((certificate, key)) = self.identity.clone() {
                tls = tls.with_client_identity(Some(ClientIdentity::new(certificate.into(), key.into())));
            }
            if let Some(path) = &self.root_certificate {
                tls = tls.with_root_certs(vec![path.clone().into()]).with_disable_built_in_roots(true);
            }
            client = client.ssl_opts(tls);
        }
        client.into()
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_address(f, &self.route(), &self.database, &self.prefix)
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("others", &self.others)
            .field("user", &self.user)
            .field("database", &self.database)
            .field("encryption", &self.encryption)
            .field("root_certificate", &self.root_certificate)
            .field("identity", &self.identity)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_and_name_spaces_have_addresses_of_their_own() {
        let mut config = Config::new("db", 3306, "app");
        assert_eq!(config.to_string(), "db:3306/app");
        config.prefix = "team:".into();
        assert_eq!(config.to_string(), "db:3306/app?prefix=team:");
    }

    #[test]
    fn a_password_is_never_shown() {
        let config = Config::new("db", 3306, "app").password("hunter2");
        assert!(!format!("{config} {config:?}").contains("hunter2"));
    }

    #[test]
    fn a_database_must_be_named_and_names_must_fit() {
        assert!(Config::new("db", 3306, "app").check().is_ok());
        assert_eq!(Config::new("db", 3306, "").check().unwrap_err().kind(), ErrorKind::Config);
        let mut config = Config::new("db", 3306, "app");
        config.prefix = "x".repeat(513);
        assert_eq!(config.check().unwrap_err().kind(), ErrorKind::Config);
    }
}
