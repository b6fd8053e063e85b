//! Where the store is.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::Result;
use oarlock_core::driver::DynDriver;
use oarlock_core::url::{Setup, Store, Url, current_password};
use tokio_postgres::config::{SslMode, TargetSessionAttrs};

use crate::config::{self, check_prefix, write_address};
pub use crate::config::{Encryption, Keys};
use crate::postgres::doctor::DOCTOR;
use crate::postgres::error::SCHEME;
use crate::postgres::guarantees::GUARANTEES;
use crate::postgres::{Advisory, Postgres, PostgresSession};
use crate::route::{Host, Last, Route};

/// `PostgreSQL` and its scheme `postgres://`.
pub static STORE: Store =
    Store::new(SCHEME, &[config::scheme(SCHEME, "PostgreSQL").alias(&["postgresql"]).port(5432)], |url| {
        Box::pin(async move {
            let config = Config::from_url(&url)?;
            if config::is_session(&url) {
                return Ok(Arc::new(PostgresSession::connect(Advisory::new(config)).await?) as Arc<dyn DynDriver>);
            }
            Ok(Arc::new(Postgres::connect(config).await?) as _)
        })
    })
    .guarantees(GUARANTEES)
    .doctor(DOCTOR)
    .setup(Setup {
        script: crate::postgres::script,
        run: |url, grant| {
            Box::pin(async move { crate::postgres::init(Config::from_url(&url)?, grant.as_deref()).await })
        },
    });

/// Choices for a [`Postgres`](crate::postgres::Postgres) store.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// The server's name or address, or the absolute path of the directory of its socket.
    pub host: String,
    /// The server's port.
    pub port: u16,
    /// Further servers and their ports, of which one at a time takes writes: the client passes over servers that are
    /// unreachable or read-only, and stays with the one that served it last.
    pub others: Vec<(String, u16)>,
    /// The user; `None` = the one this process runs as.
    pub user: Option<String>,
    /// The database; `None` = the one named like the user.
    pub database: Option<String>,
    /// Whether to encrypt.
    pub encryption: Encryption,
    /// A file of the certificates to trust, in PEM; `None` = those of the system. If it is given, the certificate of a
    /// server that encrypts must be signed by one of them and, unless the encryption is `VerifyCa`, name the host.
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
    /// What advisory locks are called; for [`PostgresSession`](crate::postgres::PostgresSession) alone.
    pub keys: Keys,
    /// How long the server keeps a silent connection that holds advisory locks, and so the longest lease there is on
    /// one; for [`PostgresSession`](crate::postgres::PostgresSession) alone.
    pub session_ttl: Duration,
    /// Which of the servers served last.
    last: Last,
    password: Option<String>,
    /// It is read again for each connection.
    password_file: Option<PathBuf>,
}

impl Config {
    /// The server at `host` and `port`, without a password and not encrypted.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
            others: Vec::new(),
            last: Arc::default(),
            user: None,
            database: None,
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

    /// The server and the database that a `postgres://` URL names.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](oarlock_core::ErrorKind::Config) for options that exclude each other;
    /// [`ErrorKind::Unsupported`](oarlock_core::ErrorKind::Unsupported) for `mode=transaction`.
    pub fn from_url(url: &Url) -> Result<Self> {
        let ((host, port), others) = config::checked_hosts(url)?;
        let mut config = Self::new(host, port);
        config.database = Some(url.path().trim_start_matches('/').to_owned()).filter(|name| !name.is_empty());
        config.others = others;
        config.user = url.user().map(str::to_owned);
        config.password = url.password()?.map(|secret| secret.reveal().to_owned());
        config.password_file = url.password_file();
        config.prefix = url.prefix().to_owned();
        config.encryption = Encryption::from_url(url)?;
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
        check_prefix(SCHEME, &self.prefix)
    }

    /// Options of the client crate for one of the servers.
    pub(crate) fn to_client(&self, (host, port): &Host) -> tokio_postgres::Config {
        let mut client = tokio_postgres::Config::new();
        client.host(host).port(*port).application_name("oarlock");
        if !self.others.is_empty() {
            client.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        client.ssl_mode(match self.encryption {
            Encryption::Disable => SslMode::Disable,
            Encryption::Prefer => SslMode::Prefer,
            Encryption::Require | Encryption::VerifyCa | Encryption::VerifyFull => SslMode::Require,
        });
        if let Some(user) = &self.user {
            client.user(user);
        }
        if let Some(database) = &self.database {
            client.dbname(database);
        }
        if let Some(password) = current_password(self.password_file.as_deref(), self.password.as_deref()) {
            client.password(password);
        }
        client
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let database = self.database.as_deref().or(self.user.as_deref()).unwrap_or_default();
        write_address(f, &self.route(), database, &self.prefix)
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
    use oarlock_core::ErrorKind;
    use oarlock_core::url::Stores;

    use super::*;

    #[test]
    fn databases_and_name_spaces_have_addresses_of_their_own() {
        let mut config = Config::new("db", 5432);
        config.database = Some("app".into());
        assert_eq!(config.to_string(), "db:5432/app");
        config.prefix = "team:".into();
        assert_eq!(config.to_string(), "db:5432/app?prefix=team:");
    }

    #[test]
    fn names_must_fit_beside_a_prefix() {
        let mut config = Config::new("db", 5432);
        config.prefix = "x".repeat(512);
        assert!(config.check().is_ok());
        config.prefix.push('x');
        assert_eq!(config.check().unwrap_err().kind(), ErrorKind::Config);
    }

    fn from_text(url: &str) -> Result<Config> {
        static STORES: Stores = Stores { built_in: &[&STORE], missing: &[] };
        Config::from_url(&Url::parse(url, &STORES)?)
    }

    /// They would have no effect, and the server would not be checked.
    #[test]
    fn a_certificate_without_encryption_is_refused() {
        for file in ["sslrootcert=ca.pem", "sslcert=me.pem&sslkey=me.key"] {
            for mode in ["", "&sslmode=disable"] {
                let error = from_text(&format!("postgres://h/db?{file}{mode}")).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Config, "{file}{mode}");
                assert!(error.to_string().contains("sslmode=verify-full"), "{error}");
            }
            assert!(from_text(&format!("postgres://h/db?{file}&sslmode=require")).is_ok());
        }
    }

    #[test]
    fn a_password_that_was_changed_is_read_again() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let sent = |config: &Config| config.to_client(config.route().current()).get_password().map(<[u8]>::to_vec);
        std::fs::write(file.path(), "one\n").unwrap();
        let config = from_text(&format!("postgres://me@h/db?password_file={}", file.path().display())).unwrap();
        std::fs::write(file.path(), "two\n").unwrap();
        assert_eq!(sent(&config).as_deref(), Some(&b"two"[..]));
        // It is being written, or gone for a moment.
        std::fs::write(file.path(), "").unwrap();
        assert_eq!(sent(&config).as_deref(), Some(&b"one"[..]));
    }

    #[test]
    fn a_password_is_never_shown() {
        let config = Config::new("db", 5432).password("hunter2");
        assert!(!format!("{config} {config:?} {:?}", config.to_client(config.route().current())).contains("hunter2"));
    }
}
