//! What is exchanged while a server runs: tokens, certificates, the file of the audit log.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use oarlock::Result;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::access::Access;
use crate::config::Config;
use crate::connection;
use crate::state::State;

/// Who is let in, from one reload to the next.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) access: Access,
    /// Cancelled when other tokens or rights take its place: streams must not go on with rights that are gone.
    pub(crate) revoked: CancellationToken,
}

/// What new requests and connections meet.
pub(crate) struct Present {
    admission: RwLock<Arc<Admission>>,
    tls: RwLock<Option<TlsAcceptor>>,
}

impl Present {
    pub(crate) fn new(access: Access, tls: Option<TlsAcceptor>) -> Self {
        let admission = Admission { access, revoked: CancellationToken::new() };
        Self { admission: RwLock::new(Arc::new(admission)), tls: RwLock::new(tls) }
    }

    pub(crate) fn admission(&self) -> Arc<Admission> {
        self.admission.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn tls(&self) -> Option<TlsAcceptor> {
        self.tls.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn admit(&self, access: Access) {
        let mut admission = self.admission.write().unwrap_or_else(PoisonError::into_inner);
        if admission.access != access {
            let next = Admission { access, revoked: CancellationToken::new() };
            std::mem::replace(&mut *admission, Arc::new(next)).revoked.cancel();
        }
    }
}

/// Exchanges what a server was started with: its tokens, its certificates and the file of its audit log.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock::Result<()> {
/// use oarlock_serve::{Access, Config, Server};
///
/// let mut config = Config::default();
/// config.listen.set_port(0);
/// config.access = Access::token("an-old-token-of-ours")?;
/// let server = Server::bind(oarlock::connect("mem:").await?, config).await?;
/// let reload = server.reload();
/// // While it runs:
/// reload.with(Access::token("the-next-token-of-ours")?)?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Reload(Arc<State>);

impl fmt::Debug for Reload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reload").field(&self.0).finish()
    }
}

impl Reload {
    pub(crate) fn of(state: Arc<State>) -> Self {
        Self(state)
    }

    /// Reads the certificates and the key again, opens the audit log again, and lets in clients with these tokens.
    ///
    /// Leases, and requests that wait, go on. A request with a token that is gone is refused from now on. If tokens or
    /// rights have changed, all streams end, and clients open them again. Open connections keep their certificate.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](oarlock::ErrorKind::Config) if these settings are unsafe, or a file cannot be read or
    /// written: then nothing has changed.
    pub fn with(&self, access: Access) -> Result<()> {
        let state = &self.0;
        let config = Config { access, ..state.config.clone() };
        config.check()?;
        let tls = connection::acceptor(&config)?;
        state.audit.reopen(config.audit.as_deref())?;
        *state.present.tls.write().unwrap_or_else(PoisonError::into_inner) = tls;
        state.present.admit(config.access);
        Ok(())
    }
}
