//! Encrypted connections.

use std::future::{Ready, ready};
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use oarlock_core::driver::BoxFuture;
use oarlock_core::{Error, ErrorKind, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    self, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

use crate::postgres::config::{Config, Encryption};
use crate::postgres::error::SCHEME;

/// How to encrypt, and whom to trust.
#[derive(Clone)]
pub(crate) struct Tls(Arc<ClientConfig>);

impl Tls {
    pub(crate) fn of(config: &Config) -> Result<Self> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong("no version of TLS can be had").because(error))?;
        let builder = if !config.encryption.checks(config.root_certificate.is_some()) {
            let any = Arc::new(AnyCertificate(provider));
            builder.dangerous().with_custom_certificate_verifier(any)
        } else if config.encryption == Encryption::VerifyCa {
            let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots(config)?), provider).build();
            let verifier = verifier.map_err(|error| wrong("there is no certificate to trust").because(error))?;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyName(verifier)))
        } else {
            builder.with_root_certificates(roots(config)?)
        };
        let client = match &config.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let unread = |error| wrong(format!("{} has no private key", key.display())).because(error);
                let secret = PrivateKeyDer::from_pem_file(key).map_err(unread)?;
                builder
                    .with_client_auth_cert(certificates(certificate)?, secret)
                    .map_err(|error| wrong("the certificate and the key do not belong together").because(error))?
            }
        };
        Ok(Self(Arc::new(client)))
    }
}

fn roots(config: &Config) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let Some(path) = &config.root_certificate else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    for certificate in certificates(path)? {
        roots
            .add(certificate)
            .map_err(|error| wrong(format!("{} cannot be trusted", path.display())).because(error))?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = read.map_err(|error| wrong(format!("{} cannot be read", path.display())).because(error))?;
    if found.is_empty() {
        return Err(wrong(format!("{} has no certificates", path.display())));
    }
    Ok(found)
}

fn wrong(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Config, message).on(SCHEME)
}

/// Accepts every certificate: the connection is encrypted, but the server is not authenticated.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Accepts every certificate that a trusted authority has signed, whichever host it names.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        above: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        status: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.0.verify_server_cert(certificate, above, name, status, now) {
            // The name is checked last: everything else about the certificate is right.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// A server to be spoken to; `None` where it has no name to be proven, as on a socket of this machine.
pub(crate) struct Handshake(TlsConnector, Option<ServerName<'static>>);

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Tls {
    type Stream = Encrypted<S>;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Handshake> {
        Ok(Handshake(self.0.clone().into(), ServerName::try_from(host.to_owned()).ok()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Handshake {
    type Stream = Encrypted<S>;
    type Error = io::Error;
    type Future = BoxFuture<io::Result<Encrypted<S>>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let name =
                self.1.ok_or_else(|| io::Error::other("the server has no name that a certificate could prove"))?;
            Ok(Encrypted(self.0.connect(name, stream).await?))
        })
    }
}

/// What is said on it is encrypted.
pub(crate) struct Encrypted<S>(tokio_rustls::client::TlsStream<S>);

/// Pretends to encrypt, for what never leaves this process.
pub(crate) struct AsIs;

/// What is said on it is not encrypted.
pub(crate) struct Unencrypted<S>(S);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsConnect<S> for AsIs {
    type Stream = Unencrypted<S>;
    type Error = io::Error;
    type Future = Ready<io::Result<Unencrypted<S>>>;

    fn connect(self, stream: S) -> Self::Future {
        ready(Ok(Unencrypted(stream)))
    }
}

macro_rules! passes_on {
    ($stream:ident) => {
        impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for $stream<S> {
            fn poll_read(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                Pin::new(&mut self.0).poll_read(cx, buf)
            }
        }

        impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for $stream<S> {
            fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
                Pin::new(&mut self.0).poll_write(cx, buf)
            }

            fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Pin::new(&mut self.0).poll_flush(cx)
            }

            fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Pin::new(&mut self.0).poll_shutdown(cx)
            }
        }

        impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for $stream<S> {
            fn channel_binding(&self) -> ChannelBinding {
                ChannelBinding::none()
            }
        }
    };
}
passes_on!(Encrypted);
passes_on!(Unencrypted);
