//! One process's way to the server: a few connections for requests, and one for renewals, which has the beacon.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Params, Row, params};
use oarlock_core::{Error, ErrorKind, Result};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::config::{Config, Encryption};
use crate::driver::{ATTEMPT, INSPECT, RELEASE, RENEW};
use crate::error::{NOT_NULL, SCHEME, closed, failed, no_answer, no_connection, silent};
use crate::schema;
use crate::watch::Hub;

/// Requests under way at once: the protocol answers one after the other on each connection.
pub(crate) const REQUESTS: usize = 4;

/// The named locks of a session, of which the first is the beacon. More than there are connections: the server may still have
/// some that we have given up.
const WITNESSES: u32 = 16;

/// A connection that was used so recently is taken for a living one without a question.
const FRESH: Duration = Duration::from_millis(100);

/// Idle connections are not to be ended by the server, and a row that somebody else keeps locked is waited for for ten
/// seconds at most.
const SETTINGS: &str = "SET SESSION wait_timeout = 31536000, innodb_lock_wait_timeout = 10, autocommit = 1";

/// What is open.
#[derive(Debug)]
pub(crate) struct Link {
    config: Config,
    /// Where the connections live, whoever asks for a new one.
    runtime: Handle,
    /// The number of this client, which no other has, and whether its end can be seen by others.
    pub(crate) session: i64,
    lit: AtomicBool,
    requests: Lanes,
    renewals: Lanes,
    closed: AtomicBool,
    pub(crate) hub: Hub,
}

/// Connections of one use, at most so many at once.
struct Lanes {
    permits: Semaphore,
    idle: Mutex<Vec<(Conn, Instant)>>,
    /// The first and the last of the named locks that its connections hold.
    witnesses: (u32, u32),
}

impl Lanes {
    fn new(count: usize, witnesses: (u32, u32)) -> Self {
        Self { permits: Semaphore::new(count), idle: Mutex::default(), witnesses }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(Conn, Instant)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, conn: Conn) {
        self.idle().push((conn, Instant::now()));
    }
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the connections themselves: they show the password.
        f.debug_struct("Lanes").field("idle", &self.idle().len()).finish_non_exhaustive()
    }
}

impl Link {
    pub(crate) async fn open(config: Config) -> Result<Self> {
        config.check()?;
        let runtime = Handle::try_current()
            .map_err(|error| Error::new(ErrorKind::Config, "connect on a runtime").on(SCHEME).because(error))?;
        let link = Self {
            config,
            runtime,
            session: i64::from_ne_bytes(random()?) & (i64::MAX >> 1) | 1,
            lit: AtomicBool::new(true),
            requests: Lanes::new(REQUESTS, (1, WITNESSES - 1)),
            renewals: Lanes::new(1, (0, 0)),
            closed: AtomicBool::new(false),
            hub: Hub::default(),
        };
        for lanes in [&link.renewals, &link.requests] {
            let conn = link.dial(lanes).await?;
            lanes.put(conn);
        }
        Ok(link)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    /// Whether others see it when this process ends.
    pub(crate) fn is_lit(&self) -> bool {
        self.lit.load(Ordering::Acquire)
    }

    /// A request, one round trip.
    pub(crate) async fn ask(&self, sql: &str, params: impl Into<Params>) -> Result<Vec<Row>> {
        let params = params.into();
        self.on(&self.requests, async |conn| conn.exec(sql, params).await).await
    }

    /// A renewal, which waits for no other request, and lights the beacon again if it went out.
    pub(crate) async fn keep(&self, sql: &str, params: impl Into<Params>) -> Result<Vec<Row>> {
        let params = params.into();
        self.on(&self.renewals, async |conn| conn.exec(sql, params).await).await
    }

    async fn on<F>(&self, lanes: &Lanes, request: F) -> Result<Vec<Row>>
    where
        F: AsyncFnOnce(&mut Conn) -> mysql_async::Result<Vec<Row>>,
    {
        self.check()?;
        let gone = |error| closed().because(error);
        let _permit = lanes.permits.acquire().await.map_err(gone)?;
        let mut conn = self.line(lanes).await?;
        // The client crate has no bound for a peer that is there and says nothing, and nobody else can replace its connection.
        let answer = tokio::time::timeout(self.config.silence_timeout, request(&mut conn)).await;
        // Only after an answer is it fit for another request: whatever was interrupted may have left a transaction open in the
        // server, which ends with the connection.
        let rows = answer.map_err(|_| silent())?.map_err(failed)?;
        if self.check().is_ok() {
            lanes.put(conn);
        }
        Ok(rows)
    }

    /// A connection that is fit for a request.
    async fn line(&self, lanes: &Lanes) -> Result<Conn> {
        let idle = lanes.idle().pop();
        if let Some((mut conn, since)) = idle {
            // Nobody reads on an idle connection: that it has ended is seen only by using it.
            let is_fresh = since.elapsed() < FRESH;
            if is_fresh
                || tokio::time::timeout(self.config.connect_timeout, conn.ping()).await.is_ok_and(|pong| pong.is_ok())
            {
                return Ok(conn);
            }
            // Whatever ended this one is likely to have ended the others.
            lanes.idle().clear();
        }
        self.dial(lanes).await
    }

    /// A new connection that stands for this session.
    async fn dial(&self, lanes: &Lanes) -> Result<Conn> {
        self.check()?;
        let (config, session, witnesses) = (self.config.clone(), self.session, lanes.witnesses);
        let limit = config.connect_timeout;
        let opening = open(config, session, witnesses);
        // Nobody else bounds this: a server that accepts a connection and says nothing would be waited for for ever.
        let opened = self
            .runtime
            .spawn(async move { tokio::time::timeout(limit, opening).await.unwrap_or_else(|_| Err(no_answer())) });
        let gone = |error| Error::new(ErrorKind::Closed, "its runtime is gone").on(SCHEME).because(error);
        let (conn, lit) = opened.await.map_err(gone)??;
        self.lit.fetch_and(lit, Ordering::AcqRel);
        Ok(conn)
    }

    /// A name as it is stored.
    pub(crate) fn stored(&self, name: &str) -> Vec<u8> {
        [self.config.prefix.as_bytes(), name.as_bytes()].concat()
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.hub.end();
        let idle: Vec<_> =
            [&self.requests, &self.renewals].into_iter().flat_map(|lanes| lanes.idle().split_off(0)).collect();
        for (conn, _) in idle {
            // A server that is gone has let go of it too.
            let _ = conn.disconnect().await;
        }
    }
}

/// A connection that stands for nobody yet.
pub(crate) async fn dial(config: &Config) -> Result<Conn> {
    if config.encryption != Encryption::Disable {
        // The client crate takes whichever provider the process has; without one it would panic.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let mut conn = Conn::new(config.to_client()).await.map_err(no_connection)?;
    conn.query_drop(SETTINGS).await.map_err(failed)?;
    Ok(conn)
}

/// A connection that stands for a session, and whether others see it when that ends.
async fn open(config: Config, session: i64, witnesses: (u32, u32)) -> Result<(Conn, bool)> {
    let mut conn = dial(&config).await?;
    schema::prepare(&mut conn).await?;
    let lit = is_alone(&mut conn).await?;
    if lit {
        stand(&mut conn, session, witnesses).await?;
    }
    warm(&mut conn).await?;
    Ok((conn, lit))
}

/// Whether named locks mean something here: it is one server, and the connection is ours.
pub(crate) async fn is_alone(conn: &mut Conn) -> Result<bool> {
    let id: Option<u32> = conn.query_first("SELECT CONNECTION_ID()").await.map_err(failed)?;
    let galera: Option<(String, String)> = conn.query_first("SHOW VARIABLES LIKE 'wsrep_on'").await.map_err(failed)?;
    // A pooler does not know yet which connection will serve us when it greets us.
    Ok(id == Some(conn.id()) && !is_cluster(galera.as_ref().map(|(_, on)| on.as_str())))
}

/// Named locks are not those of a Galera cluster, whatever else is.
fn is_cluster(wsrep_on: Option<&str>) -> bool {
    wsrep_on == Some("ON")
}

/// Lets the server read the procedures now instead of under the first lock: that takes it some milliseconds for each connection.
async fn warm(conn: &mut Conn) -> Result<()> {
    let nothing: Option<&[u8]> = None;
    let refused: mysql_async::Result<()> = conn.exec_drop(ATTEMPT, params! {
        "name" => nothing, "id" => nothing, "session" => 0, "tethered" => false, "kind" => "", "capacity" => nothing, "adopt" => true,
        "weight" => 0, "fair" => false, "wait" => false, "behind" => 0, "lease" => 0, "place" => 0, "label" => "", "value" => nothing,
    }).await;
    // A lock without a name is refused once it has been read.
    if !matches!(&refused, Err(mysql_async::Error::Server(told)) if told.code == NOT_NULL) {
        refused.map_err(failed)?;
    }
    conn.exec_drop(RELEASE, (nothing, nothing, nothing, nothing, 0)).await.map_err(failed)?;
    conn.exec_drop(RENEW, (0, "[]")).await.map_err(failed)?;
    conn.exec_drop(INSPECT, ("", "", nothing, 1)).await.map_err(failed)
}

/// Takes one of the named locks of a session; with the first one it begins.
async fn stand(conn: &mut Conn, session: i64, (first, last): (u32, u32)) -> Result<()> {
    for witness in first..=last {
        let name = format!("oarlock_{session:x}_{witness}");
        let taken: Option<Option<i64>> = conn.exec_first("SELECT GET_LOCK(?, 0)", (name,)).await.map_err(failed)?;
        if taken.flatten() == Some(1) {
            if witness == 0 {
                conn.exec_drop("CALL oarlock_begin(?, ?)", (session, random::<16>()?.as_slice()))
                    .await
                    .map_err(failed)?;
            }
            return Ok(());
        }
    }
    // The server still has connections that we have given up.
    Err(Error::new(ErrorKind::Unreachable, "the server has not yet let go of earlier connections")
        .on(SCHEME)
        .retry_later())
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bits = [0; N];
    getrandom::fill(&mut bits)
        .map_err(|error| Error::new(ErrorKind::Os, "no random numbers").on(SCHEME).because(error))?;
    Ok(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_locks_are_not_those_of_a_cluster() {
        assert!(is_cluster(Some("ON")));
        assert!(!is_cluster(Some("OFF")) && !is_cluster(None));
    }
}
