//! Opens connections: a socket, perhaps encrypted, on which a user has said hello.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

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

/// Where one server listens.
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

/// Who says hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Greeting {
    /// The user of the store.
    User,
    /// Nobody: most Sentinels want no password.
    Nobody,
    /// The same user, to a Sentinel that wants a password. It has no databases.
    Sentinel,
}

/// Knows how to open the connections of one store.
pub(crate) struct Dialler {
    user: RedisConnectionInfo,
    sentinel: RedisConnectionInfo,
    nobody: RedisConnectionInfo,
    tls: Option<TlsConnector>,
    /// Where to go instead.
    detours: HashMap<Host, Host>,
    connect_timeout: Duration,
    silence_timeout: Duration,
}

/// An open connection; it ends when this is dropped.
pub(crate) struct Wire {
    pub(crate) connection: MultiplexedConnection,
    task: AbortHandle,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Dialler {
    pub(crate) fn new(config: &Config) -> Result<Self> {
        let nobody = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_lib_name("oarlock", env!("CARGO_PKG_VERSION"));
        let mut sentinel = nobody.clone();
        if let Some(name) = &config.user {
            sentinel = sentinel.set_username(name);
        }
        if let Some(password) = &config.password {
            sentinel = sentinel.set_password(password);
        }
        Ok(Self {
            user: sentinel.clone().set_db(config.database.into()),
            sentinel,
            nobody,
            tls: config.tls.as_ref().map(connector).transpose()?,
            detours: config.detours.clone(),
            connect_timeout: config.connect_timeout,
            silence_timeout: config.silence_timeout,
        })
    }

    /// Opens a connection; what it is told without asking goes to `heard`, its end included.
    pub(crate) async fn open(
        &self,
        target: &Target,
        greeting: Greeting,
        heard: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<Wire> {
        // Large, and seldom needed: not a part of every request's future.
        let connect = Box::pin(self.connect(target, greeting, heard));
        let opened = tokio::time::timeout(self.connect_timeout, connect).await;
        opened.unwrap_or_else(|_| {
            let late = io::Error::new(io::ErrorKind::TimedOut, "it did not answer in time");
            Err(no_connection(target, late.into()))
        })
    }

    async fn connect(
        &self,
        target: &Target,
        greeting: Greeting,
        heard: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<Wire> {
        let broken = |error: io::Error| no_connection(target, error.into());
        let greeted = match target {
            Target::Unix(path) => self.greet(UnixStream::connect(path).await.map_err(broken)?, greeting, heard).await,
            Target::Tcp(host, port) => {
                let there = (host.clone(), *port);
                let way = self.detours.get(&there).unwrap_or(&there);
                let stream = TcpStream::connect((way.0.as_str(), way.1)).await.map_err(broken)?;
                self.tune(&stream).map_err(broken)?;
                match &self.tls {
                    None => self.greet(stream, greeting, heard).await,
                    Some(tls) => {
                        let name =
                            ServerName::try_from(host.clone()).map_err(|error| broken(io::Error::other(error)))?;
                        let stream = tls.connect(name, stream).await.map_err(|error| unencrypted(target, error))?;
                        self.greet(stream, greeting, heard).await
                    }
                }
            }
        };
        greeted.map_err(|error| no_connection(target, error))
    }

    /// Requests are small and wait for nobody; a peer that is gone is noticed, also by who only listens.
    fn tune(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let socket = SockRef::from(stream);
        let probe = (self.silence_timeout / 4).max(Duration::from_secs(1));
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(probe).with_interval(probe).with_retries(3))?;
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(Some(self.connect_timeout))?;
        Ok(())
    }

    async fn greet(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        greeting: Greeting,
        heard: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<Wire, RedisError> {
        let who = match greeting {
            Greeting::User => &self.user,
            Greeting::Nobody => &self.nobody,
            Greeting::Sentinel => &self.sentinel,
        };
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(self.silence_timeout))
            .set_pipeline_buffer_size(1024)
            .set_push_sender(move |push| {
                heard(push);
                Ok::<_, std::convert::Infallible>(())
            });
        let (connection, work) = MultiplexedConnection::new_with_config(who, stream, config).await?;
        Ok(Wire { connection, task: tokio::spawn(work).abort_handle() })
    }
}

fn connector(tls: &Tls) -> Result<TlsConnector> {
    let wrong = |message: String| Error::new(ErrorKind::Config, message).on(SCHEME);
    let mut roots = RootCertStore::empty();
    if let Some(ca) = &tls.ca {
        for certificate in certificates(ca)? {
            roots
                .add(certificate)
                .map_err(|error| wrong(format!("{} cannot be trusted", ca.display())).because(error))?;
        }
    } else {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong("no version of TLS can be had".to_owned()).because(error))?
        .with_root_certificates(roots);
    let config = match &tls.identity {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let secret = PrivateKeyDer::from_pem_file(key)
                .map_err(|error| wrong(format!("{} is not a key", key.display())).because(error))?;
            config
                .with_client_auth_cert(certificates(certificate)?, secret)
                .map_err(|error| wrong("the certificate and its key do not go together".to_owned()).because(error))?
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

/// No encrypted connection could be had. A certificate that is not trusted today is not trusted tomorrow.
fn unencrypted(target: &Target, error: io::Error) -> Error {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    if let Some(rustls::Error::InvalidCertificate(_)) = cause {
        let message = format!("the certificate of {target} is not trusted");
        return Error::new(ErrorKind::Config, message).on(SCHEME).because(error);
    }
    no_connection(target, error.into())
}
