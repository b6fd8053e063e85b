//! Connections: TLS, HTTP/1.1, and an end for those that are slow.

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::{TokioIo, TokioTimer};
use oarlock::{Error, ErrorKind, Result};
use rustix::net::sockopt::set_socket_send_buffer_size;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::config::Config;
use crate::state::State;

/// The longest head of a request.
const MAX_HEAD_BYTES: usize = 32 * 1024;

/// What a client that is behind must take of an answer within [`Config::patience`](crate::Config::patience): else a few
/// bytes now and then would keep a large answer here for hours.
const LEAST_TAKEN: usize = 64 * 1024;

/// What the system keeps of an answer. It tells that a client has taken a part only when a third of this is free. Its
/// own choice may be 4 MiB: a client could take much, and be cut off.
const SEND_BUFFER: usize = 64 * 1024;

/// How long a connection may take to its first request.
const FIRST_HEAD: Duration = Duration::from_secs(5);

/// Serves one connection to its end.
pub(crate) async fn serve(stream: TcpStream, tls: Option<TlsAcceptor>, state: Arc<State>) {
    let Ok(peer) = stream.peer_addr() else { return };
    // Events are small, and wanted at once.
    let _ = stream.set_nodelay(true);
    // Linux doubles it, for what it needs itself.
    let _ = set_socket_send_buffer_size(&stream, SEND_BUFFER);
    let patience = state.config.patience;
    let stream = Patient::new(stream, patience);
    match tls {
        None => http(stream, Peer { address: peer.ip(), certificate: None }, state).await,
        Some(acceptor) => {
            if let Ok(Ok(stream)) = tokio::time::timeout(FIRST_HEAD.min(patience), acceptor.accept(stream)).await {
                let certificate =
                    stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).map(fingerprint);
                http(stream, Peer { address: peer.ip(), certificate }, state).await;
            }
        }
    }
}

pub(crate) async fn http<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, peer: Peer, state: Arc<State>) {
    let (closing, patience) = (state.closing.clone(), state.config.patience);
    let has_asked = Arc::new(AtomicBool::new(false));
    let asked = has_asked.clone();
    let service = hyper::service::service_fn(move |request| {
        asked.store(true, Ordering::Relaxed);
        let (state, peer) = (state.clone(), peer.clone());
        async move { Ok::<_, std::convert::Infallible>(crate::service::handle(&state, &peer, request).await) }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(patience).max_buf_size(MAX_HEAD_BYTES);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let says_nothing = async {
        tokio::time::sleep(FIRST_HEAD.min(patience)).await;
        if has_asked.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    };
    // What a connection fails with is its client's matter.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = says_nothing => return,
        () = closing.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    let _ = tokio::time::timeout(crate::server::FAREWELL, connection).await;
}

/// The other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    /// The SHA-256 of its certificate, if it has shown one that is trusted.
    pub(crate) certificate: Option<String>,
}

fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    Sha256::digest(certificate).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads the certificate chain and its key, if there is to be TLS; with `client_ca`, clients need a certificate of one
/// of its authorities.
pub(crate) fn acceptor(config: &Config) -> Result<Option<TlsAcceptor>> {
    let Some((chain, key)) = &config.tls else { return Ok(None) };
    let unusable = |path: &Path, error: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Config, format!("cannot use {}: {error}", path.display()))
    };
    let certificates = CertificateDer::pem_file_iter(chain).map_err(|error| unusable(chain, &error))?;
    let certificates =
        certificates.collect::<std::result::Result<Vec<_>, _>>().map_err(|error| unusable(chain, &error))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, &error))?;
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    let builder = match config.client_ca.as_deref() {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            for authority in CertificateDer::pem_file_iter(file).map_err(|error| unusable(file, &error))? {
                let authority = authority.map_err(|error| unusable(file, &error))?;
                roots.add(authority).map_err(|error| unusable(file, &error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| unusable(file, &error))?)
        }
    };
    let mut server = builder.with_single_cert(certificates, private).map_err(|error| unusable(chain, &error))?;
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(server))))
}

/// A stream that fails when its reader is too slow: a client that asks, and does not read or reads little, must not keep
/// memory here.
struct Patient<S> {
    stream: S,
    patience: Duration,
    /// Since a write had to wait, until all is written or enough was taken.
    stuck: Option<Stuck>,
}

struct Stuck {
    end: Pin<Box<Sleep>>,
    /// Bytes that the reader took since.
    taken: usize,
}

impl<S> Patient<S> {
    fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, stuck: None }
    }

    fn written(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let Poll::Ready(Ok(bytes)) = polled else { return self.judge(cx, polled) };
        if let Some(stuck) = &mut self.stuck {
            stuck.taken = stuck.taken.saturating_add(bytes);
            if stuck.taken >= LEAST_TAKEN {
                self.stuck = None;
            }
        }
        polled
    }

    /// The end of a flush, or of the stream, or a wait.
    fn judge<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.stuck = None;
            return polled;
        }
        let patience = self.patience;
        let stuck = self.stuck.get_or_insert_with(|| Stuck { end: Box::pin(tokio::time::sleep(patience)), taken: 0 });
        match stuck.end.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.written(cx, polled)
    }

    /// An answer is sent from where it is: large ones are shared, and must not be copied for each client that is slow.
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.written(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_flush(cx);
        this.judge(cx, polled)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_shutdown(cx);
        this.judge(cx, polled)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// A stream with little room, and its reader.
    fn pair() -> (Patient<DuplexStream>, DuplexStream) {
        let (reader, stream) = tokio::io::duplex(1024);
        (Patient::new(stream, PATIENCE), reader)
    }

    /// Takes so many bytes every 19 seconds.
    async fn trickle(mut reader: DuplexStream, bytes: usize) {
        let mut part = vec![0; bytes];
        while reader.read_exact(&mut part).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(19)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_a_little_now_and_then_is_cut_off() {
        for bytes in [1, 1000, 30_000] {
            let (mut stream, reader) = pair();
            let (began, reader) = (tokio::time::Instant::now(), tokio::spawn(trickle(reader, bytes)));
            let failed = stream.write_all(&vec![0; 1 << 20]).await.expect_err("it is too slow");
            assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
            assert!(began.elapsed() < 3 * PATIENCE, "{bytes}: {:?}", began.elapsed());
            reader.abort();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_enough_may_take_long() {
        let (mut stream, reader) = pair();
        let (began, _reader) = (tokio::time::Instant::now(), tokio::spawn(trickle(reader, LEAST_TAKEN + 1024)));
        stream.write_all(&vec![0; 1 << 20]).await.expect("it is slow, and takes enough");
        assert!(began.elapsed() > 10 * PATIENCE, "{:?}", began.elapsed());
    }

    /// Small events on a stream that is open for hours: each wait counts for itself once all is written.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_has_caught_up_begins_anew() {
        let (mut stream, mut reader) = pair();
        for _ in 0..20 {
            let read = async {
                tokio::time::sleep(Duration::from_secs(15)).await;
                reader.read_exact(&mut [0; 1500]).await.expect("all of it");
            };
            let write = async {
                stream.write_all(&[0; 1500]).await?;
                stream.flush().await
            };
            let ((), written) = tokio::join!(read, write);
            written.expect("it took all there was");
            tokio::time::sleep(10 * PATIENCE).await;
        }
    }
}
