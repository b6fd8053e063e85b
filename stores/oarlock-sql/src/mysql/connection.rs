//! The connections of one client: a few for requests, one for renewals, one that waits for the end of the session, and
//! those on which waiters [wait](crate::mysql::listener).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Params, Row, params};
use oarlock_core::driver::Waiters;
use oarlock_core::reconnect::Reopened;
use oarlock_core::{Claim, ClaimId, Error, ErrorKind, Result, Weight};
use tokio::runtime::Handle;

use crate::mysql::config::{Config, Encryption};
use crate::mysql::driver::{ATTEMPT, INSPECT, RELEASE, RENEW};
use crate::mysql::error::{
    NOT_NULL, SCHEME, STORE, ended, failed, is_elsewhere, no_connection, read_only, says_read_only,
};
use crate::mysql::flavour::Flavour;
use crate::mysql::listener::Listener;
use crate::mysql::liveness::{Begun, SETTLED, Session, begin, join, read};
use crate::mysql::request_pool::{Answer, Connection, Request, RequestPool};
use crate::mysql::schema;
use crate::mysql::short::{self, ShortWay, Take};
use crate::mysql::wake::{WakeLocks, release_of};
use crate::route::{Host, Miss};

/// Requests under way at once: the protocol answers one after the other on each connection.
pub const REQUESTS: usize = 4;

/// A connection that was used so recently is taken for a living one without a question.
const FRESH: Duration = Duration::from_millis(100);

/// So many sessions of ours that ended are remembered. Their claims end within minutes.
const ENDED: usize = 1024;

/// The server must not close idle connections. The wait for a row that another transaction keeps locked is ten seconds
/// at most. What does not fit into a column is refused, as in the procedures.
const SETTINGS: &str = "SET SESSION wait_timeout = 31536000, innodb_lock_wait_timeout = 10, autocommit = 1,
    sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'";

/// Renewals have less time than that.
const HASTE: &str = "SET SESSION innodb_lock_wait_timeout = 1";

/// A connection is read only while a request is under way. A short one, because a server may not notice during it that
/// the client is gone.
const MOMENT: &str = "DO SLEEP(0.1)";
/// How long its answer may take at least.
const LEAST_PATIENCE: Duration = Duration::from_secs(1);

/// What is open.
#[derive(Debug)]
pub(crate) struct Pool {
    config: Config,
    /// The runtime of all connections, whichever task opens one.
    runtime: Handle,
    session: Reopened<Arc<Session>>,
    /// The numbers of sessions that have ended.
    ended: Mutex<Vec<i64>>,
    has_lock: AtomicBool,
    requests: RequestPool,
    renewals: RequestPool,
    closed: AtomicBool,
    wakes: Arc<WakeLocks>,
    pub(crate) short: ShortWay,
    pub(crate) listener: Listener,
    pub(crate) hub: Waiters,
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    pub(crate) async fn open(config: Config) -> Result<Arc<Self>> {
        config.check()?;
        let runtime = Handle::try_current().map_err(|error| {
            Error::new(ErrorKind::Config, "not called within a tokio runtime").on(SCHEME).because(error)
        })?;
        let pool = Arc::new(Self {
            config,
            session: Reopened::new(SCHEME).on(runtime.clone()),
            ended: Mutex::default(),
            has_lock: AtomicBool::new(true),
            requests: RequestPool::new(REQUESTS),
            renewals: RequestPool::new(1),
            closed: AtomicBool::new(false),
            wakes: Arc::default(),
            short: ShortWay::default(),
            listener: Listener::default(),
            hub: Waiters::default(),
            runtime,
        });
        let session = pool.session().await?;
        let opened = pool.clone();
        let connection = pool.apart(async move { opened.dial(&session).await }).await?;
        pool.requests.put(connection);
        Ok(pool)
    }

    /// Does this in a task of its own, where the connections live: it goes on whether or not its caller does, and holds
    /// up no other request.
    async fn apart<T: Send + 'static>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        let gone = |error| {
            Error::new(ErrorKind::Closed, "the tokio runtime of this client has ended").on(SCHEME).because(error)
        };
        self.runtime.spawn(work).await.map_err(gone)?
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(STORE.closed()) } else { Ok(()) }
    }

    /// Whether other clients see it when this process ends.
    pub(crate) fn has_liveness_lock(&self) -> bool {
        self.has_lock.load(Ordering::Acquire)
    }

    /// The session, if it has not ended.
    pub(crate) fn living_session(&self) -> Option<Arc<Session>> {
        self.session.current().map(|session| Arc::clone(&*session))
    }

    /// The session, a new one if the last has ended.
    pub(crate) async fn session(self: &Arc<Self>) -> Result<Arc<Session>> {
        let pool = self.clone();
        Ok(Arc::clone(&*self.session.get(|| async move { pool.begin().await }).await?))
    }

    async fn begin(self: &Arc<Self>) -> Result<Arc<Session>> {
        let session = Arc::new(Session::new()?);
        // The connection that waits for its end would take the liveness lock again.
        let connection = self.take_liveness_lock(&session).await.inspect_err(|_| session.end())?;
        self.renewals.put(connection);
        self.still_open().inspect_err(|_| session.end())?;
        if session.has_ended() {
            return Err(ended());
        }
        Ok(session)
    }

    /// Closed while a connection was put in its place: `close` may have run before, and would not drop it.
    fn still_open(&self) -> Result<()> {
        self.check().inspect_err(|_| self.abandon())
    }

    /// Whether this is a session of ours that has ended.
    pub(crate) fn is_ended(&self, session: i64) -> bool {
        lock(&self.ended).contains(&session)
    }

    /// Others may have seen this session end: all claims that end with it are lost.
    pub(crate) fn end(&self, session: &Arc<Session>) {
        if self.check().is_ok() && !session.has_ended() {
            let mut ended = lock(&self.ended);
            ended.push(session.number);
            let many = ended.len().saturating_sub(ENDED);
            ended.drain(..many);
            drop(ended);
            session.end();
            for pool in [&self.requests, &self.renewals] {
                pool.idle().retain(|connection| !connection.is_of(session));
            }
            self.listener.forget_idle();
            self.hub.check_all();
            self.hub.end_mailboxes();
        }
    }

    /// A request, one round trip.
    pub(crate) async fn query(self: &Arc<Self>, sql: &'static str, params: impl Into<Params>) -> Result<Vec<Row>> {
        let (pool, params) = (self.clone(), params.into());
        self.apart(async move { pool.on(Request::Step(sql, params)).await.map(Answer::rows) }).await
    }

    /// An attempt of a claim that lives for `span` after it: one round trip, two if the short way does not suffice.
    pub(crate) async fn attempt(
        self: &Arc<Self>,
        claim: &Claim,
        span: Duration,
        short: Option<Take>,
        params: Params,
    ) -> Result<Answer> {
        let (pool, id, whole) = (self.clone(), claim.id, claim.weight == Weight::All);
        self.apart(async move { pool.on(Request::Attempt(id, whole, span, short, params)).await }).await
    }

    /// The release of a claim: one round trip, two if the short way does not suffice.
    pub(crate) async fn release(
        self: &Arc<Self>,
        id: ClaimId,
        short: Option<Vec<u8>>,
        params: impl Into<Params>,
    ) -> Result<Answer> {
        let (pool, params) = (self.clone(), params.into());
        self.apart(async move { pool.on(Request::Release(id, short, params)).await }).await
    }

    /// A renewal of what a session has, which waits for no other request, and takes the liveness lock again if it was
    /// lost.
    pub(crate) async fn keep(self: &Arc<Self>, session: i64, wait: bool, batch: String) -> Result<Vec<Row>> {
        let pool = self.clone();
        self.apart(async move { pool.on(Request::Renewal(session, wait, batch)).await.map(Answer::rows) }).await
    }

    async fn on(self: &Arc<Self>, request: Request) -> Result<Answer> {
        self.check()?;
        let pool = match request {
            Request::Step(..) | Request::Attempt(..) | Request::Release(..) => &self.requests,
            Request::Renewal(..) => &self.renewals,
        };
        let gone = |error| STORE.closed().because(error);
        let _permit = pool.permits.acquire().await.map_err(gone)?;
        let about = request.claim();
        let mut connection = self.take(pool, about.and_then(|id| self.wakes.holder(id))).await?;
        self.check_primary(&mut connection, &request).await?;
        let number = connection.keyring.number;
        let takes = match request {
            Request::Attempt(id, whole, span, ..)
                if connection.membership.is_some() && self.wakes.may_take(id, number) =>
            {
                Some((whole, span))
            }
            _ => None,
        };
        let releases = || matches!(request, Request::Release(id, ..) if self.wakes.holder(id) == Some(number));
        let wake = takes.is_some() || releases();
        // The client crate has no timeout for a server that does not answer.
        let asked = request.send(&mut connection.conn, connection.flavour, wake);
        let answer = tokio::time::timeout(self.config.silence_timeout, asked).await;
        // Only after an answer is it fit for another request: whatever was interrupted may have left a transaction open
        // in the server, which ends with the connection.
        let answer = answer.map_err(|_| STORE.silent())?.map_err(|error| {
            if says_read_only(&error) {
                self.leave(&connection);
            }
            failed(error)
        })?;
        if let (Some(id), true) = (about, answer.wakes()) {
            match takes {
                Some((whole, span)) => self.wakes.took(id, number, whole, span),
                None => self.wakes.released(id, number),
            }
        }
        self.give_back(pool, connection);
        Ok(answer)
    }

    /// The server of this connection takes no writes. Where another one may, the session does not stay.
    fn leave(&self, connection: &Connection) {
        if let Some(membership) = connection.membership.as_ref().filter(|_| self.config.route().has_choice()) {
            self.end(&membership.session);
        }
    }

    /// Where another server may be the primary: whether this one still takes writes. It would take those of an
    /// administrator in any case.
    async fn check_primary(&self, connection: &mut Connection, request: &Request) -> Result<()> {
        let counts = matches!(request, Request::Attempt(..) | Request::Renewal(..));
        if !counts || !self.config.route().has_choice() {
            return Ok(());
        }
        let asked = tokio::time::timeout(self.config.silence_timeout, is_read_only(&mut connection.conn)).await;
        if asked.map_err(|_| STORE.silent())?.map_err(failed)? {
            self.leave(connection);
            return Err(read_only());
        }
        Ok(())
    }

    /// A connection is not used any more. What it owed meanwhile is released now.
    fn give_back(self: &Arc<Self>, pool: &RequestPool, connection: Connection) {
        let number = connection.keyring.number;
        pool.put(connection);
        if self.check().is_err() {
            // Closed meanwhile: `close` did not see this connection.
            pool.idle().clear();
        } else if self.wakes.is_due(number) {
            self.release_soon(number);
        }
    }

    /// Whether an attempt of this claim takes the short way. One whose wake-up lock a connection holds has been in the
    /// queue, and that connection would be given the lock twice.
    pub(crate) fn takes_the_short_way(&self, claim: &Claim) -> bool {
        let span = claim.ttl.saturating_add(self.config.silence_timeout);
        self.wakes.holder(claim.id).is_none() && self.short.takes(claim, span)
    }

    /// The claim was renewed for `span`, and so is the use of its wake-up lock.
    pub(crate) fn keep_wake(&self, id: ClaimId, span: Duration) {
        self.wakes.keep(id, span);
    }

    /// The claim has left, or makes room for others now: the next in line is to wake up, at once if there may be one.
    pub(crate) fn wake(self: &Arc<Self>, id: ClaimId, is_pressing: bool) {
        if let Some(number) = self.wakes.owe(id, is_pressing) {
            self.release_soon(number);
        }
    }

    /// Whether the claim was for everything when it was written down.
    pub(crate) fn was_whole(&self, id: ClaimId) -> bool {
        self.wakes.is_whole(id)
    }

    /// Lets an idle connection release the wake-up locks that it owes. One that is not idle comes here when it is given
    /// back.
    fn release_soon(self: &Arc<Self>, number: u64) {
        let pool = self.clone();
        self.runtime.spawn(async move {
            let Ok(_permit) = pool.requests.permits.acquire().await else { return };
            let Some(mut connection) = pool.requests.take_this(number) else { return };
            let owed = pool.wakes.take_owed(number);
            if !owed.is_empty() {
                let release = connection.conn.query_drop(release_of(&owed));
                // If it fails, the locks end with the connection.
                if !matches!(tokio::time::timeout(pool.config.connect_timeout, release).await, Ok(Ok(()))) {
                    return;
                }
            }
            pool.give_back(&pool.requests, connection);
        });
    }

    /// A connection that is fit for a request, `best` if it is idle.
    async fn take(self: &Arc<Self>, pool: &RequestPool, best: Option<u64>) -> Result<Connection> {
        let session = self.session().await?;
        let renews = std::ptr::eq(pool, &raw const self.renewals);
        if let Some(mut connection) = pool.take(&session, best) {
            // A MySQL client does not notice that an idle connection was closed: only a request shows it.
            let is_fresh = connection.used.elapsed() < FRESH;
            if (is_fresh || self.answers(&mut connection.conn).await) && (!renews || session.is_read()) {
                return Ok(connection);
            }
            // Whatever ended this one is likely to have ended the others.
            pool.idle().clear();
        }
        if renews { self.take_liveness_lock(&session).await } else { self.dial(&session).await }
    }

    /// Whether this connection is alive.
    pub(super) async fn answers(&self, conn: &mut Conn) -> bool {
        let pong = tokio::time::timeout(self.config.connect_timeout, conn.ping()).await;
        pong.is_ok_and(|pong| pong.is_ok())
    }

    /// Reads this connection for a moment: its end is noticed at once.
    pub(super) async fn read_for_a_moment(&self, conn: &mut Conn) -> Result<()> {
        // A short time-out for connecting must not end a session whose server only takes its moment.
        let bound = self.config.connect_timeout.max(LEAST_PATIENCE);
        let answer = tokio::time::timeout(bound, conn.query_drop(MOMENT)).await;
        answer.map_err(|_| STORE.silent())?.map_err(failed)
    }

    /// One of the idle connections of a session that was there all the time, and whether it is for requests.
    pub(super) async fn settled_connection(&self, session: &Arc<Session>) -> Option<(Connection, bool)> {
        for (pool, for_requests) in [(&self.renewals, false), (&self.requests, true)] {
            while let Some(mut connection) = pool.take(session, None) {
                let is_settled = connection.made.elapsed() > SETTLED;
                if is_settled && self.answers(&mut connection.conn).await {
                    return Some((connection, for_requests));
                }
            }
        }
        None
    }

    /// Gives a connection back, for requests.
    pub(super) fn put_back(self: &Arc<Self>, connection: Connection) {
        self.give_back(&self.requests, connection);
    }

    /// Takes the liveness lock of a living session again.
    pub(crate) async fn restore_liveness_lock(self: &Arc<Self>, session: &Arc<Session>) -> Result<()> {
        let connection = self.take_liveness_lock(session).await?;
        if session.has_ended() {
            session.stop_reading();
            return Err(ended());
        }
        self.renewals.idle().clear();
        self.renewals.put(connection);
        self.still_open()
    }

    /// A new connection for renewals, whose end is heard of, as is that of the session.
    async fn take_liveness_lock(self: &Arc<Self>, session: &Arc<Session>) -> Result<Connection> {
        let of = session.clone();
        let (config, session, pool) = (self.config.clone(), session.clone(), Arc::downgrade(self));
        let wakes = self.wakes.clone();
        let connection = self.in_time(async move {
            let (mut connection, liveness_lock) = open(&config, &session, &wakes).await?;
            connection.conn.query_drop(HASTE).await.map_err(failed)?;
            let Some(liveness_lock) = liveness_lock else { return Ok(connection) };
            let mut reader = dial_for(&config, &session).await?;
            let (membership, _) = join(&mut reader, &session).await?;
            read(pool.clone(), reader, membership, liveness_lock);
            match begin(&mut connection.conn, connection.flavour, &session).await? {
                Begun::Here => {}
                Begun::Dark => {
                    session.give_up_liveness_lock();
                    session.stop_reading();
                    connection.membership = None;
                }
                Begun::Elsewhere => {
                    if let Some(pool) = pool.upgrade() {
                        pool.end(&session);
                    }
                    return Err(ended());
                }
            }
            Ok(connection)
        });
        let connection = connection.await;
        self.noted(&of, connection)
    }

    /// A new connection that stands for a session.
    async fn dial(&self, of: &Arc<Session>) -> Result<Connection> {
        let (config, session, wakes) = (self.config.clone(), of.clone(), self.wakes.clone());
        let connection =
            self.in_time(async move { open(&config, &session, &wakes).await.map(|(connection, _)| connection) });
        let connection = connection.await;
        self.noted(of, connection)
    }

    fn noted(&self, session: &Arc<Session>, connection: Result<Connection>) -> Result<Connection> {
        if session.has_left() {
            self.end(session);
        }
        let connection = connection?;
        self.check()?;
        self.has_lock.fetch_and(connection.membership.is_some(), Ordering::AcqRel);
        Ok(connection)
    }

    async fn in_time(&self, opening: impl Future<Output = Result<Connection>>) -> Result<Connection> {
        self.check()?;
        // The client crate has no timeout here: a server may accept a connection and never answer.
        tokio::time::timeout(self.config.connect_timeout, opening).await.unwrap_or_else(|_| Err(STORE.no_answer()))
    }

    /// Ends the session at once, also while a request is under way.
    pub(crate) fn abandon(&self) {
        self.shut();
        for pool in [&self.requests, &self.renewals] {
            pool.idle().clear();
        }
    }

    /// No request begins any more. Belief in what ends with the session is over before its connections are.
    fn shut(&self) {
        self.closed.store(true, Ordering::Release);
        if let Some(session) = self.session.close() {
            session.end();
        }
        self.hub.end();
        self.listener.end();
    }

    /// A name as it is stored.
    pub(crate) fn stored(&self, name: &str) -> Vec<u8> {
        [self.config.prefix.as_bytes(), name.as_bytes()].concat()
    }

    /// Where the connections live.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) async fn close(&self) {
        self.shut();
        let idle: Vec<_> =
            [&self.requests, &self.renewals].into_iter().flat_map(|pool| pool.idle().split_off(0)).collect();
        for (at, mut connection) in idle.into_iter().enumerate() {
            let leaves = at == 0 && !self.short.has_any();
            if let (true, Some(membership)) = (leaves, &connection.membership) {
                let leaving = connection.conn.exec_drop(LEAVE, (membership.session.number, membership.session.number));
                let _ = tokio::time::timeout(self.config.connect_timeout, leaving).await;
            }
            // A server that is gone has closed it too.
            let _ = connection.conn.disconnect().await;
        }
    }
}

/// Only where nothing is left that ends with a session does it end without a trace: for that the server has to know it.
const LEAVE: &str =
    "DELETE FROM oarlock_session WHERE number = ? AND NOT EXISTS (SELECT 1 FROM oarlock_claim WHERE session = ?)";

/// A connection that belongs to no session yet.
pub async fn dial(config: &Config) -> Result<Conn> {
    config.route().open(STORE, config.connect_timeout, async |host| dial_at(config, &host).await).await
}

/// A connection to this server. Where another one could be the primary, it is checked whether this one takes writes.
async fn dial_at(config: &Config, host: &Host) -> Result<Conn, Miss> {
    let encrypted = config.encryption != Encryption::Disable;
    if encrypted {
        // The client crate takes whichever provider the process has; without one it would panic.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let mut conn = Conn::new(config.to_client(host)).await.map_err(|error| {
        let next = is_elsewhere(&error);
        Miss::new(no_connection(error, encrypted), next)
    })?;
    let missed = |error| {
        let next = is_elsewhere(&error);
        Miss::new(failed(error), next)
    };
    if config.route().has_choice() && is_read_only(&mut conn).await.map_err(missed)? {
        // The server's log would have a warning of it.
        let _ = conn.disconnect().await;
        return Err(Miss::Next(read_only()));
    }
    conn.query_drop(SETTINGS).await.map_err(missed)?;
    Ok(conn)
}

/// The server of a connection.
pub(crate) fn host_of(conn: &Conn) -> Host {
    let options = conn.opts();
    (options.socket().unwrap_or_else(|| options.ip_or_hostname()).to_owned(), options.tcp_port())
}

/// A connection to the server of a session, or to the first that serves if it has none yet. If that server gives none
/// and another does, the session is over. It takes less than `connect_timeout`, also if the server is silent.
async fn dial_for(config: &Config, session: &Session) -> Result<Conn> {
    let Some(host) = session.host.get().filter(|_| config.route().has_choice()) else {
        let conn = dial(config).await?;
        let _ = session.host.set(host_of(&conn));
        return Ok(conn);
    };
    let error = match tokio::time::timeout(config.connect_timeout / 3, dial_at(config, host)).await {
        Ok(Ok(conn)) => return Ok(conn),
        Ok(Err(Miss::Stop(error))) => return Err(error),
        Ok(Err(Miss::Next(error))) => error,
        Err(_) => STORE.no_answer(),
    };
    let Some(others) = config.route().without(host) else { return Err(error) };
    let opened = others.open(STORE, config.connect_timeout / 3, async |host| dial_at(config, &host).await).await;
    let _ = opened.map_err(|_| error)?.disconnect().await;
    session.leave();
    Err(ended())
}

/// Whether the server takes no writes of ordinary users.
pub(crate) async fn is_read_only(conn: &mut Conn) -> mysql_async::Result<bool> {
    let told: Option<String> = conn.query_first("SELECT CAST(@@global.read_only AS CHAR)").await?;
    Ok(told.is_some_and(|told| !matches!(told.as_str(), "0" | "OFF")))
}

/// Opens a connection of a session, which takes a liveness lock if the server has them. Returns the name of that lock.
async fn open(config: &Config, session: &Arc<Session>, wakes: &Arc<WakeLocks>) -> Result<(Connection, Option<String>)> {
    let mut conn = dial_for(config, session).await?;
    schema::prepare(&mut conn).await?;
    let (is_alone, flavour) = probe(&mut conn).await?;
    if !is_alone && session.has_begun() {
        // Claims end with it that no connection could stand for any more.
        session.leave();
        return Err(ended());
    }
    if !is_alone {
        session.give_up_liveness_lock();
    }
    let (mut membership, mut liveness_lock) = (None, None);
    if session.has_liveness_lock() {
        let joined = join(&mut conn, session).await?;
        (membership, liveness_lock) = (Some(joined.0), Some(joined.1));
    }
    warm(&mut conn).await?;
    let now = Instant::now();
    Ok((Connection { conn, flavour, membership, keyring: wakes.keyring(), made: now, used: now }, liveness_lock))
}

/// Whether named locks mean something here: it is one server, and the connection is ours. And which kind of server it
/// is.
pub(crate) async fn probe(conn: &mut Conn) -> Result<(bool, Flavour)> {
    let told: Option<(u32, String)> = conn.query_first("SELECT CONNECTION_ID(), VERSION()").await.map_err(failed)?;
    let (id, version) = told.ok_or_else(|| STORE.unexpected("no answer"))?;
    let galera: Option<(String, String)> = conn.query_first("SHOW VARIABLES LIKE 'wsrep_on'").await.map_err(failed)?;
    // A pooler does not know yet which connection will serve us when it greets us.
    Ok((id == conn.id() && !is_cluster(galera.as_ref().map(|(_, on)| on.as_str())), Flavour::of(&version)))
}

/// Named locks are not those of a Galera cluster, whatever else is.
fn is_cluster(wsrep_on: Option<&str>) -> bool {
    wsrep_on == Some("ON")
}

/// Lets the server read the procedures now instead of under the first lock: that takes it some milliseconds for each
/// connection.
async fn warm(conn: &mut Conn) -> Result<()> {
    let nothing: Option<&[u8]> = None;
    let refused: mysql_async::Result<()> = conn.exec_drop(ATTEMPT, params! {
        "name" => nothing, "id" => nothing, "session" => 0, "tethered" => false, "kind" => "", "capacity" => nothing, "adopt" => true,
        "weight" => 0, "wait" => false, "behind" => 0, "lease" => 0, "place" => 0, "label" => "", "value" => nothing,
        "wake" => false,
    }).await;
    // A lock without a name is refused once it has been read.
    if !matches!(&refused, Err(mysql_async::Error::Server(told)) if told.code == NOT_NULL) {
        refused.map_err(failed)?;
    }
    conn.exec_drop(RELEASE, (nothing, nothing, nothing, nothing, 0)).await.map_err(failed)?;
    conn.exec_drop(RENEW, (0, nothing, false, "[]")).await.map_err(failed)?;
    short::warm(conn).await.map_err(failed)?;
    conn.exec_drop(INSPECT, ("", "", nothing, 1)).await.map_err(failed)
}

#[cfg(test)]
mod tests {
    use oarlock_testbed::SqlServer;

    use super::*;

    /// It may owe a lock since it was taken to show that its session goes on.
    #[tokio::test]
    async fn a_connection_that_comes_back_releases_what_it_owes() {
        let start = || SqlServer::start_with_or_skip(oarlock_testbed::Flavour::MariaDb, &[]);
        let Some(server) = tokio::task::spawn_blocking(start).await.unwrap().unwrap() else { return };
        let addr = server.addr();
        let pool = Pool::open(Config::new(addr.ip().to_string(), addr.port(), "locks")).await.unwrap();
        let session = pool.session().await.unwrap();
        let connection = pool.requests.take(&session, None).unwrap();
        let (id, number) = (ClaimId::from_bits(1), connection.keyring.number);
        pool.wakes.took(id, number, true, Duration::from_secs(60));
        pool.wake(id, true);
        // Tasks of this runtime run in order: the connection is away when it is looked for.
        tokio::spawn(async {}).await.unwrap();
        assert!(pool.wakes.is_due(number));
        pool.put_back(connection);
        let released = async {
            while pool.wakes.is_due(number) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), released).await.expect("a waiter goes on waiting for the lock");
    }

    #[test]
    fn named_locks_are_not_those_of_a_cluster() {
        assert!(is_cluster(Some("ON")));
        assert!(!is_cluster(Some("OFF")) && !is_cluster(None));
    }
}
