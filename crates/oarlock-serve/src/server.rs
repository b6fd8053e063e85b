//! The server: binds, accepts, and ends.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use oarlock::{Error, ErrorKind, Locks, Result};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::quota::{self, Quota};
use crate::reload::Reload;
use crate::state::State;
use crate::{board, connection, doctor, leases};

/// How long requests may take to end after the server was told to.
pub(crate) const FAREWELL: Duration = Duration::from_secs(2);

/// A server that is bound to its address.
///
/// # Guarantees
/// - A lease that it gave to a client lives by that client's renewals alone. It outlives the server: another server on
///   the same store renews it as well.
/// - It answers within the `op_timeout` of its [`Locks`], long polls, streams and lists of all locks excepted: requests for
///   lists take turns.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock::Result<()> {
/// let mut config = oarlock_serve::Config::default();
/// config.listen.set_port(0);
/// let server = oarlock_serve::Server::bind(oarlock::connect("mem:").await?, config).await?;
/// println!("http://{}/", server.address());
/// server.run(async { /* resolves when it is to end */ }).await;
/// # Ok(()) }
/// ```
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    state: Arc<State>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).field("state", &self.state).finish_non_exhaustive()
    }
}

impl Server {
    /// Checks the settings, opens the history and the audit log, and binds the address.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for settings that are unsafe or cannot be used; [`ErrorKind::Os`] if the address cannot be
    /// bound.
    ///
    /// # Cancel safety
    /// If the future is dropped there is no server.
    pub async fn bind(locks: Locks, config: Config) -> Result<Self> {
        config.check()?;
        let os = |error| Error::new(ErrorKind::Os, format!("cannot listen on {}", config.listen)).because(error);
        let listener = TcpListener::bind(config.listen).await.map_err(os)?;
        let address = listener.local_addr().map_err(os)?;
        Ok(Self { listener, address, state: Arc::new(State::new(locks, config)?) })
    }

    /// Exchanges tokens, certificates and the audit log while it runs.
    #[must_use]
    pub fn reload(&self) -> Reload {
        Reload::of(self.state.clone())
    }

    /// The address; with the port that the system chose.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Raises the limit of open files of this process as far as the system permits, and serves until `stop` resolves;
    /// then ends streams and waits for other requests, for two seconds at most.
    ///
    /// # Cancel safety
    /// If the future is dropped, connections are cut. Leases live on to their end, and can be renewed elsewhere.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Self { listener, state, .. } = self;
        let most = quota::fitting(state.config.connections).min(Semaphore::MAX_PERMITS);
        let (tasks, connections) = (TaskTracker::new(), Arc::new(Semaphore::new(most)));
        let of_one = Quota::new(most.div_ceil(4));
        tasks.spawn(board::sample(state.clone()));
        tasks.spawn(doctor::examine(state.clone()));
        tasks.spawn(leases::sweep(state.clone()));
        tokio::pin!(stop);
        loop {
            let accepted = async {
                // A client beyond the limit waits in the queue of the system.
                let permit = connections.clone().acquire_owned().await;
                (permit, listener.accept().await)
            };
            let (permit, accepted) = tokio::select! {
                () = &mut stop => break,
                accepted = accepted => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    // An address that has its share is closed at once.
                    let is_one = !state.config.is_shared(peer.ip());
                    let Some(of_one) = of_one.take(is_one.then(|| quota::network(peer.ip()))) else { continue };
                    let (tls, state) = (state.present.tls(), state.clone());
                    tasks.spawn(async move {
                        connection::serve(stream, tls, state).await;
                        drop((permit, of_one));
                    });
                }
                // Out of descriptors, mostly: others must end first.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
        drop(listener);
        state.closing.cancel();
        tasks.close();
        let _ = tokio::time::timeout(FAREWELL + Duration::from_millis(500), tasks.wait()).await;
    }
}
