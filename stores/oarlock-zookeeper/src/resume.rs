//! Where a session begins, and where it goes on after its connection was lost.
//!
//! Every server has its own bounds for session time-outs. A session has the time-out of the last server that it was
//! presented to, from that moment on. A server that gives two seconds therefore shortens a session of ten seconds at
//! once, also when its answer never arrives. So the client first opens another session at that server, which ends at
//! once (a *probe*), to learn its time-out. The session is presented to the server only when every belief ends soon
//! enough: see [`Life::fits`]. A server that does not answer the probe is not shown the session at all: that would
//! prolong the session, and a client that is cut off from answers alone would keep its locks from others.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use oarlock_core::Result;
use oarlock_core::clock::{BootClock, Clock as _, Moment};
use oarlock_core::reconnect::Backoff;
use zookeeper_client as zk;

use crate::config::Config;
use crate::connection::Connection;
use crate::error::from_zk;
use crate::servers::Servers;

/// The pause between two rounds over all servers, at first.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// A session, whatever connection it has at the moment. Once it is over it never comes back.
pub(crate) struct Life {
    pub(crate) id: i64,
    credentials: zk::SessionInfo,
    /// What every server is asked for first: the time-out that it began with.
    timeout: Duration,
    over: AtomicBool,
    /// When the last belief ends that an answer of this session has given, in nanoseconds.
    believed: AtomicU64,
}

impl Life {
    /// Belief for at most so long was given just now.
    pub(crate) fn promise(&self, until: Moment) {
        self.believed.fetch_max(until.as_nanos(), Ordering::AcqRel);
    }

    fn believed_until(&self) -> Moment {
        Moment::from_nanos(self.believed.load(Ordering::Acquire))
    }

    /// Whether it may be presented now to a server that gives sessions this time-out: no belief lasts for longer than
    /// an answer of that server would give. No belief is added meanwhile, because there is no connection.
    fn fits(&self, timeout: Duration) -> bool {
        self.believed_until() <= BootClock.now() + believable(timeout)
    }

    /// It has ended, or a server has replaced it.
    pub(crate) fn finish(&self) {
        self.over.store(true, Ordering::Release);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Life({:#x})", self.id)
    }
}

/// How long an answer may be believed that was given in a session with this time-out.
///
/// Only the leader ends sessions. It learns of requests that other servers answer when it pings them, every half tick.
/// Until then it counts from the last ping of the client, which comes after 9/80 of a session without a request. A
/// quarter covers both in sessions of four ticks and more, which is what the page asks for.
pub(crate) fn believable(timeout: Duration) -> Duration {
    timeout * 3 / 4
}

/// Begins a session on any server.
pub(crate) async fn begin(config: &Config, servers: &Servers) -> Result<(Connection, Arc<Life>)> {
    let mut rounds = Rounds::within(config.session_timeout);
    let mut round = servers.known();
    loop {
        let mut refusal = None;
        if round.is_empty() {
            round = servers.look_up(patience(config.session_timeout)).await?;
        }
        for server in std::mem::take(&mut round) {
            match new_session(config, servers, server).await {
                Ok(connection) => {
                    servers.joined(server);
                    let (id, timeout) = (connection.client.session_id().0, connection.client.session_timeout());
                    let credentials = connection.client.session().clone();
                    let (over, believed) = (AtomicBool::new(false), AtomicU64::new(0));
                    return Ok((connection, Arc::new(Life { id, credentials, timeout, over, believed })));
                }
                Err(error) => {
                    servers.failed(server);
                    rounds.failed(error)?;
                    refusal = refusal.or(servers.refusal(server, patience(config.session_timeout)).await);
                }
            }
        }
        if let Some(error) = refusal {
            return Err(error);
        }
        rounds.pause().await?;
    }
}

/// Continues a session on any server, once that makes no belief wrong. Marks the session if it is over.
pub(crate) async fn resume(config: &Config, servers: &Servers, life: &Arc<Life>) -> Result<Connection> {
    let mut rounds = Rounds::within(life.timeout);
    servers.left();
    // The known addresses are good enough for the first round: DNS may be slow while something is broken.
    let mut round = servers.known();
    loop {
        let mut longest = None;
        if round.is_empty() {
            round = servers.look_up(life.timeout / 10).await?;
        }
        for server in std::mem::take(&mut round) {
            match present(config, servers, life, server).await {
                Ok(Presented::Connected(connection)) => {
                    servers.joined(server);
                    return Ok(connection);
                }
                Ok(Presented::TooShort(timeout)) => longest = longest.max(Some(timeout)),
                Err(zk::Error::SessionExpired) => {
                    life.finish();
                    return Err(from_zk(zk::Error::SessionExpired));
                }
                Err(error) => {
                    servers.failed(server);
                    rounds.failed(error)?;
                }
            }
        }
        match longest {
            // All servers that answered give a shorter time-out. Belief runs down to that before the session ends.
            Some(timeout) => {
                let wait = life.believed_until().since(BootClock.now() + believable(timeout));
                tokio::time::sleep(wait.max(FIRST_PAUSE)).await;
            }
            None => rounds.pause().await?,
        }
    }
}

enum Presented {
    Connected(Connection),
    /// It was not presented to this server, which gives this time-out.
    TooShort(Duration),
}

async fn present(config: &Config, servers: &Servers, life: &Life, server: SocketAddr) -> Result<Presented, zk::Error> {
    // Also without a belief: presenting a session prolongs it, so a client that hears no answers, and whose requests
    // still arrive, would keep its locks from others for as long as that lasts.
    let probe = servers.connect(connector(config, life.timeout), server).await?;
    let timeout = probe.client.session_timeout();
    drop(probe);
    if !life.fits(timeout) {
        return Ok(Presented::TooShort(timeout));
    }
    let mut connection = continued(config, servers, life, timeout, server).await?;
    let given = connection.client.session_timeout();
    if given != timeout {
        // Again, with the intervals of the time-out given. The session must not be closed with the first connection.
        let (stop, end) = (connection.stop(), connection.end());
        stop();
        end.await;
        connection = continued(config, servers, life, given, server).await?;
    }
    Ok(Presented::Connected(connection))
}

/// The session on this server, with all intervals of the client by this time-out.
async fn continued(
    config: &Config,
    servers: &Servers,
    life: &Life,
    timeout: Duration,
    server: SocketAddr,
) -> Result<Connection, zk::Error> {
    let connector = connector(config, timeout).with_session(life.credentials.clone());
    let connection = servers.connect(connector, server).await?;
    if connection.client.session_id().0 != life.id {
        // Some servers replace a client's session silently.
        return Err(zk::Error::SessionExpired);
    }
    Ok(connection)
}

/// A new session on this server, with all intervals of the client by the time-out that the server gives.
async fn new_session(config: &Config, servers: &Servers, server: SocketAddr) -> Result<Connection, zk::Error> {
    let connection = servers.connect(connector(config, config.session_timeout), server).await?;
    let given = connection.client.session_timeout();
    if given == config.session_timeout {
        return Ok(connection);
    }
    drop(connection);
    servers.connect(connector(config, given), server).await
}

/// How long a client in a session with this time-out waits for a silent server.
pub(crate) fn patience(timeout: Duration) -> Duration {
    timeout * 3 / 10
}

fn connector(config: &Config, timeout: Duration) -> zk::Connector {
    // A dead server is given up on early enough for another to be found within the lease.
    let connector = zk::Client::connector().with_session_timeout(timeout).with_connection_timeout(patience(timeout));
    match config.credentials() {
        Some(credentials) => connector.with_auth("digest", credentials.as_bytes()),
        None => connector,
    }
}

/// Rounds over all servers, until one has answered or the time is over.
struct Rounds {
    end: Moment,
    pauses: Backoff,
    last: Option<zk::Error>,
}

impl Rounds {
    fn within(timeout: Duration) -> Self {
        let pauses = Backoff::new(FIRST_PAUSE, (timeout / 20).max(FIRST_PAUSE));
        Self { end: BootClock.now() + timeout, pauses, last: None }
    }

    /// A server could not be used. That may be different in the next round, unless it refused us.
    fn failed(&mut self, error: zk::Error) -> Result<()> {
        if error == zk::Error::AuthFailed {
            return Err(from_zk(error));
        }
        self.last = Some(error);
        Ok(())
    }

    async fn pause(&mut self) -> Result<()> {
        if BootClock.now() + self.pauses.peek() >= self.end {
            return Err(from_zk(self.last.take().unwrap_or(zk::Error::NoHosts)));
        }
        tokio::time::sleep(self.pauses.pause()).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
