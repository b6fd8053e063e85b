//! One process's way to the server: a few connections for requests, one for renewals, one that listens for the end of the session, and
//! those on which waiters [wait](crate::listener).

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Params, Row, params};
use oarlock_core::reconnect::SharedTask;
use oarlock_core::{Claim, ClaimId, Error, ErrorKind, Result, Weight};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::answer::{first, get};
use crate::beacon::{Begun, SETTLED, Session, Standing, begin, read, stand};
use crate::config::{Config, Encryption};
use crate::driver::{ATTEMPT, INSPECT, RELEASE, RENEW};
use crate::error::{NOT_NULL, SCHEME, closed, ended, failed, no_answer, no_connection, silent, strange};
use crate::flavour::Flavour;
use crate::listener::Listener;
use crate::schema;
use crate::wake::{Keyring, WakeLocks, release_of};
use crate::watch::Hub;

/// Requests under way at once: the protocol answers one after the other on each connection.
pub(crate) const REQUESTS: usize = 4;

/// A connection that was used so recently is taken for a living one without a question.
const FRESH: Duration = Duration::from_millis(100);

/// So many sessions of ours that ended are remembered. Claims tethered to one end within minutes.
const ENDED: usize = 1024;

/// Idle connections are not to be ended by the server, and a row that somebody else keeps locked is waited for for ten
/// seconds at most.
const SETTINGS: &str = "SET SESSION wait_timeout = 31536000, innodb_lock_wait_timeout = 10, autocommit = 1";

/// Renewals have less time than that.
const HASTE: &str = "SET SESSION innodb_lock_wait_timeout = 1";

/// What is open.
#[derive(Debug)]
pub(crate) struct Link {
    config: Config,
    /// Where the connections live, whoever asks for a new one.
    runtime: Handle,
    session: Mutex<Option<Arc<Session>>>,
    /// One task begins a session for all requests that need one.
    beginning: SharedTask,
    /// The numbers of sessions that have ended.
    ended: Mutex<Vec<i64>>,
    lit: AtomicBool,
    requests: Lanes,
    renewals: Lanes,
    closed: AtomicBool,
    wakes: Arc<WakeLocks>,
    pub(crate) listener: Listener,
    pub(crate) hub: Hub,
}

/// Connections of one use, at most so many at once.
struct Lanes {
    permits: Semaphore,
    idle: Mutex<Vec<Wire>>,
}

/// What is asked on a connection.
enum Request {
    /// A statement, and what it is given.
    Step(&'static str, Params),
    /// An attempt of this claim, for everything or not, which lives for so long after it.
    Attempt(ClaimId, bool, Duration, Params),
    /// The release of this claim.
    Release(ClaimId, Params),
    /// The session that renews, whether it waits for names that others have locked, and the batch.
    Renewal(i64, bool, String),
}

impl Request {
    /// The claim whose [wake-up lock](crate::wake) this takes or releases: the connection that holds it is the best one for it.
    fn claim(&self) -> Option<ClaimId> {
        match self {
            Self::Attempt(id, ..) | Self::Release(id, _) => Some(*id),
            Self::Step(..) | Self::Renewal(..) => None,
        }
    }

    /// `wake`: whether an attempt takes the lock of its claim.
    async fn ask(self, conn: &mut Conn, flavour: Flavour, wake: bool) -> mysql_async::Result<Vec<Row>> {
        match self {
            Self::Step(sql, params) => flavour.ask(conn, sql, params).await,
            Self::Attempt(.., mut params) => {
                if let Params::Named(named) = &mut params {
                    named.insert(b"wake".to_vec(), wake.into());
                }
                flavour.ask(conn, ATTEMPT, params).await
            }
            Self::Release(_, params) => flavour.ask(conn, RELEASE, params).await,
            Self::Renewal(session, wait, batch) => {
                let kills = flavour.kills(conn).await?;
                conn.exec(RENEW, (session, kills, wait, batch)).await
            }
        }
    }
}

/// A connection of a session.
struct Wire {
    conn: Conn,
    flavour: Flavour,
    /// `None` where nobody sees sessions end.
    standing: Option<Standing>,
    keyring: Keyring,
    made: Instant,
    used: Instant,
}

impl Wire {
    fn is_of(&self, session: &Arc<Session>) -> bool {
        self.standing.as_ref().map_or(!session.is_lit(), |standing| Arc::ptr_eq(&standing.session, session))
    }
}

impl Lanes {
    fn new(count: usize) -> Self {
        Self { permits: Semaphore::new(count), idle: Mutex::default() }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Wire>> {
        lock(&self.idle)
    }

    /// The connection `best`, or the one that was used last, if it is of this session. Others are of one that has ended.
    fn take(&self, session: &Arc<Session>, best: Option<u64>) -> Option<Wire> {
        let mut idle = self.idle();
        idle.retain(|wire| wire.is_of(session));
        let at = idle.iter().position(|wire| Some(wire.keyring.number) == best);
        at.map(|at| idle.remove(at)).or_else(|| idle.pop())
    }

    /// This connection, if it is idle.
    fn take_this(&self, number: u64) -> Option<Wire> {
        let mut idle = self.idle();
        let at = idle.iter().position(|wire| wire.keyring.number == number)?;
        Some(idle.remove(at))
    }

    fn put(&self, mut wire: Wire) {
        wire.used = Instant::now();
        self.idle().push(wire);
    }
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the connections themselves: they show the password.
        f.debug_struct("Lanes").field("idle", &self.idle().len()).finish_non_exhaustive()
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    pub(crate) async fn open(config: Config) -> Result<Arc<Self>> {
        config.check()?;
        let runtime = Handle::try_current()
            .map_err(|error| Error::new(ErrorKind::Config, "connect on a runtime").on(SCHEME).because(error))?;
        let link = Arc::new(Self {
            config,
            session: Mutex::default(),
            beginning: SharedTask::new(SCHEME).on(runtime.clone()),
            ended: Mutex::default(),
            lit: AtomicBool::new(true),
            requests: Lanes::new(REQUESTS),
            renewals: Lanes::new(1),
            closed: AtomicBool::new(false),
            wakes: Arc::default(),
            listener: Listener::default(),
            hub: Hub::default(),
            runtime,
        });
        let session = link.session().await?;
        let opened = link.clone();
        let wire = link.apart(async move { opened.dial(&session).await }).await?;
        link.requests.put(wire);
        Ok(link)
    }

    /// Does this in a task of its own, where the connections live: it goes on whether or not its caller does, and holds up no other request.
    async fn apart<T: Send + 'static>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        let gone = |error| Error::new(ErrorKind::Closed, "its runtime is gone").on(SCHEME).because(error);
        self.runtime.spawn(work).await.map_err(gone)?
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    /// Whether others see it when this process ends.
    pub(crate) fn is_lit(&self) -> bool {
        self.lit.load(Ordering::Acquire)
    }

    /// The session, if it has not ended.
    pub(crate) fn living_session(&self) -> Option<Arc<Session>> {
        lock(&self.session).as_ref().filter(|session| !session.has_ended()).cloned()
    }

    /// The session, a new one if the last has ended.
    pub(crate) async fn session(self: &Arc<Self>) -> Result<Arc<Session>> {
        if let Some(session) = self.living_session() {
            return Ok(session);
        }
        let link = self.clone();
        self.beginning.join(|| async move { link.begin().await }).done().await?;
        self.living_session().ok_or_else(ended)
    }

    async fn begin(self: &Arc<Self>) -> Result<()> {
        // Another task may have begun one since the caller looked.
        if self.living_session().is_some() {
            return Ok(());
        }
        let session = Arc::new(Session::new()?);
        // The connection that listens for its end would light it again.
        let wire = self.light(&session).await.inspect_err(|_| session.end())?;
        *lock(&self.session) = Some(session);
        self.renewals.put(wire);
        self.still_open()
    }

    /// Closed while a session or connection was put in its place: `close` may have looked before, and would not let go of it.
    fn still_open(&self) -> Result<()> {
        self.check().inspect_err(|_| self.abandon())
    }

    /// Whether this is a session of ours that has ended.
    pub(crate) fn is_ended(&self, session: i64) -> bool {
        lock(&self.ended).contains(&session)
    }

    /// Whether any session of ours has ended.
    pub(crate) fn has_ended_sessions(&self) -> bool {
        !lock(&self.ended).is_empty()
    }

    /// Others may have seen this session end: all that is tethered to it is lost.
    pub(crate) fn end(&self, session: &Arc<Session>) {
        if self.check().is_ok() && !session.has_ended() {
            let mut ended = lock(&self.ended);
            ended.push(session.number);
            let many = ended.len().saturating_sub(ENDED);
            ended.drain(..many);
            drop(ended);
            session.end();
            for lanes in [&self.requests, &self.renewals] {
                lanes.idle().retain(|wire| !wire.is_of(session));
            }
            self.listener.forget_idle();
            self.hub.end_mailbox();
        }
    }

    /// A request, one round trip.
    pub(crate) async fn ask(self: &Arc<Self>, sql: &'static str, params: impl Into<Params>) -> Result<Vec<Row>> {
        let (link, params) = (self.clone(), params.into());
        self.apart(async move { link.on(Request::Step(sql, params)).await }).await
    }

    /// An attempt of a claim that lives for `span` after it, one round trip.
    pub(crate) async fn attempt(self: &Arc<Self>, claim: &Claim, span: Duration, params: Params) -> Result<Vec<Row>> {
        let (link, id, whole) = (self.clone(), claim.id, claim.weight == Weight::All);
        self.apart(async move { link.on(Request::Attempt(id, whole, span, params)).await }).await
    }

    /// The release of a claim, one round trip.
    pub(crate) async fn release(self: &Arc<Self>, id: ClaimId, params: impl Into<Params>) -> Result<Vec<Row>> {
        let (link, params) = (self.clone(), params.into());
        self.apart(async move { link.on(Request::Release(id, params)).await }).await
    }

    /// A renewal of what a session has, which waits for no other request, and lights the beacon again if it went out.
    pub(crate) async fn keep(self: &Arc<Self>, session: i64, wait: bool, batch: String) -> Result<Vec<Row>> {
        let link = self.clone();
        self.apart(async move { link.on(Request::Renewal(session, wait, batch)).await }).await
    }

    async fn on(self: &Arc<Self>, request: Request) -> Result<Vec<Row>> {
        self.check()?;
        let lanes = match request {
            Request::Step(..) | Request::Attempt(..) | Request::Release(..) => &self.requests,
            Request::Renewal(..) => &self.renewals,
        };
        let gone = |error| closed().because(error);
        let _permit = lanes.permits.acquire().await.map_err(gone)?;
        let about = request.claim();
        let mut wire = self.line(lanes, about.and_then(|id| self.wakes.holder(id))).await?;
        let number = wire.keyring.number;
        let takes = match request {
            Request::Attempt(id, whole, span, _) if wire.standing.is_some() && self.wakes.may_take(id, number) => {
                Some((whole, span))
            }
            _ => None,
        };
        // The client crate has no bound for a peer that is there and says nothing, and nobody else can replace its connection.
        let asked = request.ask(&mut wire.conn, wire.flavour, takes.is_some());
        let answer = tokio::time::timeout(self.config.silence_timeout, asked).await;
        // Only after an answer is it fit for another request: whatever was interrupted may have left a transaction open in the
        // server, which ends with the connection.
        let rows = answer.map_err(|_| silent())?.map_err(failed)?;
        if let (Some(id), Ok(true)) = (about, first(&rows).and_then(|row| get::<bool>(row, "wake"))) {
            match takes {
                Some((whole, span)) => self.wakes.took(id, number, whole, span),
                None => self.wakes.released(id, number),
            }
        }
        self.give_back(lanes, wire);
        if self.wakes.is_due(number) {
            self.release_soon(number);
        }
        Ok(rows)
    }

    fn give_back(&self, lanes: &Lanes, wire: Wire) {
        lanes.put(wire);
        if self.check().is_err() {
            // Closed meanwhile: nobody else would let go of it.
            lanes.idle().clear();
        }
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

    /// Lets an idle connection release the wake-up locks that it owes. One that is not idle comes here after its request.
    fn release_soon(self: &Arc<Self>, number: u64) {
        let link = self.clone();
        self.runtime.spawn(async move {
            let Ok(_permit) = link.requests.permits.acquire().await else { return };
            // Once more after each: a claim may have left while the connection released the lock of another.
            while link.wakes.is_due(number) {
                let Some(mut wire) = link.requests.take_this(number) else { return };
                let owed = link.wakes.take_owed(number);
                if !owed.is_empty() {
                    let release = wire.conn.query_drop(release_of(&owed));
                    // If it fails, the locks end with the connection.
                    if !matches!(tokio::time::timeout(link.config.connect_timeout, release).await, Ok(Ok(()))) {
                        return;
                    }
                }
                link.give_back(&link.requests, wire);
            }
        });
    }

    /// A connection that is fit for a request, `best` if it is idle.
    async fn line(self: &Arc<Self>, lanes: &Lanes, best: Option<u64>) -> Result<Wire> {
        let session = self.session().await?;
        let is_beacon = std::ptr::eq(lanes, &raw const self.renewals);
        if let Some(mut wire) = lanes.take(&session, best) {
            // Nobody reads on an idle connection: that it has ended is seen only by using it.
            let is_fresh = wire.used.elapsed() < FRESH;
            if (is_fresh || self.is_alive(&mut wire).await) && (!is_beacon || session.is_read()) {
                return Ok(wire);
            }
            // Whatever ended this one is likely to have ended the others.
            lanes.idle().clear();
        }
        if is_beacon { self.light(&session).await } else { self.dial(&session).await }
    }

    async fn is_alive(&self, wire: &mut Wire) -> bool {
        let pong = tokio::time::timeout(self.config.connect_timeout, wire.conn.ping()).await;
        pong.is_ok_and(|pong| pong.is_ok())
    }

    /// Whether one of the idle connections of a session was there all the time.
    pub(crate) async fn has_witness(&self, session: &Arc<Session>) -> bool {
        for lanes in [&self.renewals, &self.requests] {
            while let Some(mut wire) = lanes.take(session, None) {
                let is_settled = wire.made.elapsed() > SETTLED;
                if is_settled && self.is_alive(&mut wire).await {
                    lanes.put(wire);
                    return true;
                }
            }
        }
        false
    }

    /// Lights the beacon of a living session anew.
    pub(crate) async fn relight(self: &Arc<Self>, session: &Arc<Session>) -> Result<()> {
        let wire = self.light(session).await?;
        if session.has_ended() {
            session.stop_reading();
            return Err(ended());
        }
        self.renewals.idle().clear();
        self.renewals.put(wire);
        self.still_open()
    }

    /// A new connection for renewals, whose end is heard of, as is that of the session.
    async fn light(self: &Arc<Self>, session: &Arc<Session>) -> Result<Wire> {
        let (config, session, link) = (self.config.clone(), session.clone(), Arc::downgrade(self));
        let wakes = self.wakes.clone();
        let wire = self.in_time(async move {
            let (mut wire, beacon) = open(&config, &session, &wakes).await?;
            wire.conn.query_drop(HASTE).await.map_err(failed)?;
            let Some(beacon) = beacon else { return Ok(wire) };
            let mut ear = dial(&config).await?;
            let (standing, _) = stand(&mut ear, &session).await?;
            read(link.clone(), ear, standing, beacon);
            match begin(&mut wire.conn, wire.flavour, &session).await? {
                Begun::Here => {}
                Begun::Dark => {
                    session.put_out();
                    session.stop_reading();
                    wire.standing = None;
                }
                Begun::Elsewhere => {
                    if let Some(link) = link.upgrade() {
                        link.end(&session);
                    }
                    return Err(ended());
                }
            }
            Ok(wire)
        });
        self.noted(wire.await?)
    }

    /// A new connection that stands for a session.
    async fn dial(&self, session: &Arc<Session>) -> Result<Wire> {
        let (config, session, wakes) = (self.config.clone(), session.clone(), self.wakes.clone());
        let wire = self.in_time(async move { open(&config, &session, &wakes).await.map(|(wire, _)| wire) });
        self.noted(wire.await?)
    }

    fn noted(&self, wire: Wire) -> Result<Wire> {
        self.check()?;
        self.lit.fetch_and(wire.standing.is_some(), Ordering::AcqRel);
        Ok(wire)
    }

    async fn in_time(&self, opening: impl Future<Output = Result<Wire>>) -> Result<Wire> {
        self.check()?;
        // Nobody else bounds this: a server that accepts a connection and says nothing would be waited for for ever.
        tokio::time::timeout(self.config.connect_timeout, opening).await.unwrap_or_else(|_| Err(no_answer()))
    }

    /// Ends the session at once, also while a request is under way.
    pub(crate) fn abandon(&self) {
        self.closed.store(true, Ordering::Release);
        self.hub.end();
        self.listener.end();
        if let Some(session) = lock(&self.session).take() {
            session.stop_reading();
        }
        for lanes in [&self.requests, &self.renewals] {
            lanes.idle().clear();
        }
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
        self.closed.store(true, Ordering::Release);
        self.hub.end();
        self.listener.end();
        if let Some(session) = lock(&self.session).take() {
            session.stop_reading();
        }
        let idle: Vec<_> =
            [&self.requests, &self.renewals].into_iter().flat_map(|lanes| lanes.idle().split_off(0)).collect();
        for (at, mut wire) in idle.into_iter().enumerate() {
            if let (0, Some(standing)) = (at, &wire.standing) {
                let leaving = wire.conn.exec_drop(LEAVE, (standing.session.number, standing.session.number));
                let _ = tokio::time::timeout(self.config.connect_timeout, leaving).await;
            }
            // A server that is gone has let go of it too.
            let _ = wire.conn.disconnect().await;
        }
    }
}

/// Only where nothing is left that ends with a session does it end without a trace: for that the server has to know it.
const LEAVE: &str =
    "DELETE FROM oarlock_session WHERE number = ? AND NOT EXISTS (SELECT 1 FROM oarlock_claim WHERE session = ?)";

/// A connection that stands for nobody yet.
pub(crate) async fn dial(config: &Config) -> Result<Conn> {
    let encrypted = config.encryption != Encryption::Disable;
    if encrypted {
        // The client crate takes whichever provider the process has; without one it would panic.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let mut conn = Conn::new(config.to_client()).await.map_err(|error| no_connection(error, encrypted))?;
    conn.query_drop(SETTINGS).await.map_err(failed)?;
    Ok(conn)
}

/// A connection that stands for a session, and the lock that it holds for that, where others see it end.
async fn open(config: &Config, session: &Arc<Session>, wakes: &Arc<WakeLocks>) -> Result<(Wire, Option<String>)> {
    let mut conn = dial(config).await?;
    schema::prepare(&mut conn).await?;
    let (is_alone, flavour) = look(&mut conn).await?;
    if !is_alone {
        session.put_out();
    }
    let (mut standing, mut beacon) = (None, None);
    if session.is_lit() {
        let stands = stand(&mut conn, session).await?;
        (standing, beacon) = (Some(stands.0), Some(stands.1));
    }
    warm(&mut conn).await?;
    let now = Instant::now();
    Ok((Wire { conn, flavour, standing, keyring: wakes.keyring(), made: now, used: now }, beacon))
}

/// Whether named locks mean something here: it is one server, and the connection is ours. And which kind of server it is.
pub(crate) async fn look(conn: &mut Conn) -> Result<(bool, Flavour)> {
    let told: Option<(u32, String)> = conn.query_first("SELECT CONNECTION_ID(), VERSION()").await.map_err(failed)?;
    let (id, version) = told.ok_or_else(|| strange("no answer"))?;
    let galera: Option<(String, String)> = conn.query_first("SHOW VARIABLES LIKE 'wsrep_on'").await.map_err(failed)?;
    // A pooler does not know yet which connection will serve us when it greets us.
    Ok((id == conn.id() && !is_cluster(galera.as_ref().map(|(_, on)| on.as_str())), Flavour::of(&version)))
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
        "weight" => 0, "wait" => false, "behind" => 0, "lease" => 0, "place" => 0, "label" => "", "value" => nothing,
        "wake" => false,
    }).await;
    // A lock without a name is refused once it has been read.
    if !matches!(&refused, Err(mysql_async::Error::Server(told)) if told.code == NOT_NULL) {
        refused.map_err(failed)?;
    }
    conn.exec_drop(RELEASE, (nothing, nothing, nothing, nothing, 0)).await.map_err(failed)?;
    conn.exec_drop(RENEW, (0, nothing, false, "[]")).await.map_err(failed)?;
    conn.exec_drop(INSPECT, ("", "", nothing, 1)).await.map_err(failed)
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
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
