//! Encrypted connections (feature `tls`).
//!
//! The client crate encrypts, and checks the certificate of a server. It does not report why a handshake failed, and
//! panics where a host has no name that a certificate could have. So the names are checked first, and after a failure
//! the handshake is done once more here, to learn the reason.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::{Error, ErrorKind, Result};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};
use zookeeper_client as zk;

use crate::error::SCHEME;

/// How long a server may take to refuse a client after the handshake.
const REFUSAL_TIMEOUT: Duration = Duration::from_millis(500);

/// The certificates of an encrypted connection. The certificate of a server must be trusted and name its host.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Tls {
    /// A file of the certificates to trust, in PEM.
    pub ca: PathBuf,
    /// The files of this client's certificate and its key, in PEM, for servers that require one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// Trusts the certificates in this file.
    #[must_use]
    pub fn new(ca: impl Into<PathBuf>) -> Self {
        Self { ca: ca.into(), identity: None }
    }
}

/// What encrypts a connection.
#[derive(Clone)]
pub(crate) struct Encryption {
    options: zk::TlsOptions,
    check: TlsConnector,
}

impl Encryption {
    /// Reads the certificates.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for files without them, and for hosts that no certificate can name.
    pub(crate) fn of(tls: &Tls, hosts: &[String]) -> Result<Self> {
        for host in hosts {
            server_name(host)?;
        }
        if CryptoProvider::get_default().is_none() {
            // Another thread may have been faster: then the process has one.
            let _ = ring::default_provider().install_default();
        }
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&tls.ca)? {
            let untrusted = |error| wrong(format!("{} is not a certificate to trust", tls.ca.display())).because(error);
            roots.add(certificate).map_err(untrusted)?;
        }
        let builder = ClientConfig::builder().with_root_certificates(roots);
        let unusable = |error| wrong("the certificates cannot be used".to_owned()).because(error);
        let mut options = zk::TlsOptions::new().with_pem_ca(&text(&tls.ca)?).map_err(unusable)?;
        let client = match &tls.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let secret = PrivateKeyDer::from_pem_file(key)
                    .map_err(|error| wrong(format!("{} has no private key", key.display())).because(error))?;
                options = options.with_pem_identity(&text(certificate)?, &text(key)?).map_err(unusable)?;
                builder.with_client_auth_cert(certificates(certificate)?, secret).map_err(|error| {
                    wrong("the certificate and the key do not belong together".to_owned()).because(error)
                })?
            }
        };
        Ok(Self { options, check: Arc::new(client).into() })
    }

    /// The connector with encryption.
    pub(crate) fn add_to(&self, connector: zk::Connector) -> zk::Connector {
        connector.with_tls(self.options.clone())
    }

    /// Why this server and this client refuse each other; `None` if the handshake succeeds, or fails for a reason that
    /// can pass.
    pub(crate) async fn refusal(&self, host: &str, limit: Duration) -> Option<Error> {
        let name = match server_name(host) {
            Ok(name) => name,
            Err(error) => return Some(error),
        };
        let handshake = async {
            let mut stream = self.check.connect(name, TcpStream::connect(host).await?).await?;
            // A server that requires a certificate says so only after the handshake.
            let read = tokio::time::timeout(REFUSAL_TIMEOUT, stream.read_u8()).await;
            read.unwrap_or(Ok(0)).map(drop)
        };
        let error = tokio::time::timeout(limit, handshake).await.ok()?.err()?;
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>())?;
        let refused = match cause {
            rustls::Error::InvalidCertificate(_) => wrong(format!("the certificate of {host} is not trusted")),
            rustls::Error::AlertReceived(_) => {
                let message = format!("{host} refused the client certificate, or requires one (cert=…&key=…)");
                Error::new(ErrorKind::Denied, message).on(SCHEME)
            }
            _ => return None,
        };
        Some(refused.because(error))
    }
}

impl fmt::Debug for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Encryption")
    }
}

/// The name that the certificate of this host must have.
fn server_name(host: &str) -> Result<ServerName<'static>> {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    ServerName::try_from(name.to_owned())
        .map_err(|error| wrong(format!("no certificate can name the host {name:?}")).because(error))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(wrong(format!("{} has no certificates", path.display()))),
        Err(error) => Err(wrong(format!("{} cannot be read", path.display())).because(error)),
    }
}

fn text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| wrong(format!("{} cannot be read", path.display())).because(error))
}

fn wrong(message: String) -> Error {
    Error::new(ErrorKind::Config, message).on(SCHEME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_a_name_is_refused_before_the_client_crate_sees_it() {
        for (host, named) in [
            ("zk-1.example:2281", true),
            ("127.0.0.1:2281", true),
            ("[::1]:2281", true),
            ("zk 1:2281", false),
            ("-:2281", false),
            (":2281", false),
        ] {
            assert_eq!(server_name(host).is_ok(), named, "{host}");
        }
    }
}
