//! Opens connections: a socket, with or without TLS, and a login.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::url::current_password;
use oarlock_core::{Error, ErrorKind, Result};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, RedisConnectionInfo, RedisError};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use crate::config::{Config, Host, Tls, write_host};
use crate::error::{SCHEME, no_connection};

/// The address of one server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) => write_host(f, host, *port),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// How to log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Login {
    /// As the user of the store, to its database.
    User,
    /// Not at all: most Sentinels want no password.
    None,
    /// As the same user, to a Sentinel that wants a password. A Sentinel has no databases.
    Sentinel,
}

/// Opens the connections of one store.
pub(crate) struct Connector {
    user: RedisConnectionInfo,
    sentinel: RedisConnectionInfo,
    no_login: RedisConnectionInfo,
    password_file: Option<PathBuf>,
    tls: Option<TlsConnector>,
    /// Where to connect instead.
    detours: HashMap<Host, Host>,
    connect_timeout: Duration,
    silence_timeout: Duration,
}

/// An open connection. Dropping it closes it.
pub(crate) struct Connection {
    pub(crate) client: MultiplexedConnection,
    task: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Connector {
    pub(crate) fn new(config: &Config) -> Result<Self> {
        let no_login = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_lib_name("oarlock", env!("CARGO_PKG_VERSION"));
        let mut sentinel = no_login.clone();
        if let Some(name) = &config.user {
            sentinel = sentinel.set_username(name);
        }
        if let Some(password) = &config.password {
            sentinel = sentinel.set_password(password);
        }
        let password_file = config.password_file.clone();
        Ok(Self {
            user: sentinel.clone().set_db(config.database.into()),
            sentinel,
            no_login,
            password_file,
            tls: config.tls.as_ref().map(connector).transpose()?,
            detours: config.detours.clone(),
            connect_timeout: config.connect_timeout,
            silence_timeout: config.silence_timeout,
        })
    }

    /// Opens a connection. Push messages of the server go to `on_push`, and so does the end of the connection.
    pub(crate) async fn open(
        &self,
        target: &Target,
        login: Login,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<Connection> {
        // Boxed: it is large, and few requests open a connection.
        let connect = Box::pin(self.connect(target, login, on_push));
        let opened = tokio::time::timeout(self.connect_timeout, connect).await;
        opened.unwrap_or_else(|_| {
            let late = io::Error::new(io::ErrorKind::TimedOut, "the server did not answer in time");
            Err(no_connection(target, late.into()))
        })
    }

    async fn connect(
        &self,
        target: &Target,
        login: Login,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<Connection> {
        let broken = |error: io::Error| no_connection(target, error.into());
        let logged_in = match target {
            Target::Unix(path) => self.log_in(UnixStream::connect(path).await.map_err(broken)?, login, on_push).await,
            Target::Tcp(host, port) => {
                let there = (host.clone(), *port);
                let way = self.detours.get(&there).unwrap_or(&there);
                let stream = TcpStream::connect((way.0.as_str(), way.1)).await.map_err(broken)?;
                self.tune(&stream).map_err(broken)?;
                match &self.tls {
                    None => self.log_in(stream, login, on_push).await,
                    Some(tls) => {
                        let name =
                            ServerName::try_from(host.clone()).map_err(|error| broken(io::Error::other(error)))?;
                        let stream = tls.connect(name, stream).await.map_err(|error| unencrypted(target, error))?;
                        self.log_in(stream, login, on_push).await
                    }
                }
            }
        };
        logged_in.map_err(|error| not_logged_in(target, error))
    }

    /// Sends small requests at once, and detects a dead peer also on a connection that only listens.
    fn tune(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let socket = SockRef::from(stream);
        let probe = (self.silence_timeout / 4).max(Duration::from_secs(1));
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(probe).with_interval(probe).with_retries(3))?;
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(Some(self.connect_timeout))?;
        Ok(())
    }

    async fn log_in(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        login: Login,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<Connection, RedisError> {
        let mut who = match login {
            Login::User => self.user.clone(),
            Login::None => self.no_login.clone(),
            Login::Sentinel => self.sentinel.clone(),
        };
        if login != Login::None
            && let Some(password) = current_password(self.password_file.as_deref(), None)
        {
            who = who.set_password(password);
        }
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(self.silence_timeout))
            .set_pipeline_buffer_size(1024)
            .set_push_sender(move |push| {
                on_push(push);
                Ok::<_, std::convert::Infallible>(())
            });
        let (client, work) = MultiplexedConnection::new_with_config(&who, stream, config).await?;
        Ok(Connection { client, task: tokio::spawn(work).abort_handle() })
    }
}

fn connector(tls: &Tls) -> Result<TlsConnector> {
    let wrong = |message: String| Error::new(ErrorKind::Config, message).on(SCHEME);
    let mut roots = RootCertStore::empty();
    if let Some(ca) = &tls.ca {
        for certificate in certificates(ca)? {
            roots
                .add(certificate)
                .map_err(|error| wrong(format!("{} is not a certificate to trust", ca.display())).because(error))?;
        }
    } else {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong("no version of TLS is available".to_owned()).because(error))?
        .with_root_certificates(roots);
    let config = match &tls.identity {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let secret = PrivateKeyDer::from_pem_file(key)
                .map_err(|error| wrong(format!("{} is not a key", key.display())).because(error))?;
            config.with_client_auth_cert(certificates(certificate)?, secret).map_err(|error| {
                wrong("the certificate and the key do not belong together".to_owned()).because(error)
            })?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let certificates: Vec<_> = read.map_err(|error| {
        Error::new(ErrorKind::Config, format!("{} has no certificates", path.display())).on(SCHEME).because(error)
    })?;
    Ok(certificates)
}

/// The first request failed. A server reports only after the handshake that it does not accept the client certificate.
fn not_logged_in(target: &Target, error: RedisError) -> Error {
    let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<io::Error>());
    let cause = cause.and_then(io::Error::get_ref).and_then(|cause| cause.downcast_ref::<rustls::Error>());
    if let Some(rustls::Error::AlertReceived(_)) = cause {
        let message = format!("{target} refused the client certificate, or requires one");
        return Error::new(ErrorKind::Denied, message).on(SCHEME).because(error);
    }
    no_connection(target, error)
}

/// The TLS handshake failed. A certificate that is not trusted is a matter of configuration: a retry does not help.
fn unencrypted(target: &Target, error: io::Error) -> Error {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    if let Some(rustls::Error::InvalidCertificate(_)) = cause {
        let message = format!("the certificate of {target} is not trusted");
        return Error::new(ErrorKind::Config, message).on(SCHEME).because(error);
    }
    no_connection(target, error.into())
}
