//! The connections of one client: [some for requests](crate::postgres::request_pool), one for renewals, and one whose
//! end is the end of its session.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use oarlock_core::driver::SessionEnd;
use oarlock_core::reconnect::{Ends, Reopened};
use oarlock_core::{ClaimId, Error, ErrorKind, Result};
use tokio::runtime::Handle;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Row, Socket, Statement};

use crate::postgres::config::Config;
use crate::postgres::error::{
    SCHEME, STORE, ends_connection, failed, is_elsewhere, is_read_only, is_stale, no_connection, not_ours,
};
use crate::postgres::holder_watch::HolderWatch;
use crate::postgres::left_open::LeftOpen;
use crate::postgres::listening::{self, Listening};
use crate::postgres::pooler::{first, is_our_own};
use crate::postgres::request_pool::{ConnectionLease, RequestPool};
use crate::postgres::schema;
use crate::postgres::tls::{Encrypted, Tls};
use crate::postgres::watch::{Hub, end, tell};
use crate::route::Miss;

/// Said to the server on a connection of our own.
const PATIENCE: &str = include_str!("sql/patience.sql");

/// A silent server ends a session after this long (idle time and probes), which is longer than most outages. Nothing is
/// asked on that connection, so only the kernel can notice.
const SESSION_IDLE: Duration = Duration::from_secs(60);
const SESSION_PROBES: (Duration, u32) = (Duration::from_secs(15), 4);

/// So many sessions of ours that ended are remembered.
const ENDED: usize = 1024;

/// A parameter and its type.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// The same for a request that owns what it sends.
pub(crate) type Owned = (Box<dyn ToSql + Sync + Send>, Type);

pub(crate) fn param(value: impl ToSql + Sync + Send + 'static, kind: Type) -> Owned {
    (Box::new(value), kind)
}

/// What is open. Every request runs in a task of its own: a caller that stops polling one holds up no other.
#[derive(Debug)]
pub(crate) struct Pool {
    config: Config,
    /// The runtime of all connections, whichever task opens one.
    runtime: Handle,
    requests: Arc<RequestPool>,
    /// Whatever holds up a request must not hold up these.
    renewals: Reopened<Connection>,
    session: Reopened<Session>,
    /// The last sessions of ours, by number. One that is not there any more has ended.
    sessions: Mutex<Vec<(i64, Weak<Session>)>>,
    /// Connections to servers that the address no longer leads to, and of sessions that did not answer.
    left: LeftOpen,
    /// The run of the server to which the last connection was opened.
    last_run: Run,
    /// How often that has changed.
    moves: Mutex<u64>,
    holder_watch: HolderWatch,
    closed: AtomicBool,
    pooled: AtomicBool,
    /// The number of the next request, which no other client has.
    next: AtomicI64,
}

/// What a request is about, and so which connection it goes to.
enum About {
    /// A claim of this name: its last parameter says whether the connection stands for the session.
    Attempt(Vec<u8>),
    Name(Vec<u8>),
    /// No name in particular.
    Nothing,
    Renewals,
}

/// A [run](run_of) of a server that all connections share; zero before the first.
type Run = Arc<AtomicI64>;

/// A connection for requests.
pub(crate) struct Connection {
    pub(crate) client: Client,
    /// In which run of the server it was opened, and which one is the last; `None` behind a pooler.
    run: Option<(i64, Run)>,
    /// The statements that were prepared; `None` behind a pooler, which may give the next request to another backend.
    prepared: Option<Mutex<Vec<(&'static str, Statement)>>>,
}

impl Connection {
    /// One for statements that are sent with all their text.
    pub(crate) fn plain(client: Client) -> Self {
        Self { client, run: None, prepared: None }
    }

    async fn query(&self, sql: &'static str, params: &[Param<'_>]) -> Result<Vec<Row>, tokio_postgres::Error> {
        let Some(prepared) = &self.prepared else { return self.client.query_typed(sql, params).await };
        let known = || prepared.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known().iter().find(|(known, _)| *known == sql).map(|(_, statement)| statement.clone());
        let statement = match found {
            Some(statement) => statement,
            None => {
                let types: Vec<_> = params.iter().map(|(_, kind)| kind.clone()).collect();
                let statement = self.client.prepare_typed(sql, &types).await?;
                known().push((sql, statement.clone()));
                statement
            }
        };
        let values: Vec<_> = params.iter().map(|(value, _)| *value).collect();
        self.client.query(&statement, &values).await
    }
}

/// A number that lives as long as its connection, which holds the liveness lock and receives notifications.
#[derive(Debug)]
pub(crate) struct Session {
    /// Zero behind a pooler.
    pub(crate) number: i64,
    pub(crate) hub: Arc<Hub>,
    pub(crate) listening: Listening,
    /// `None` behind a pooler: a connection there is shared with unknown clients.
    client: Option<Client>,
    /// Which run of which server saw it begin.
    run: Option<i64>,
    /// Its connection has ended, or the server is another one now.
    over: SessionEnd,
}

impl Session {
    /// Whether it holds a liveness lock and receives notifications: not behind a pooler.
    pub(crate) fn has_liveness_lock(&self) -> bool {
        self.client.is_some()
    }

    fn without_liveness_lock() -> Self {
        let (hub, listening) = (Arc::default(), Listening::default());
        Self { number: 0, hub, listening, client: None, run: None, over: SessionEnd::new() }
    }

    /// Its end, for the grants that end with it.
    pub(crate) fn end(&self) -> Option<SessionEnd> {
        self.has_liveness_lock().then(|| self.over.clone())
    }

    /// Runs a statement on its connection.
    pub(crate) async fn execute(&self, sql: &str) -> Result<(), tokio_postgres::Error> {
        match &self.client {
            Some(client) => client.batch_execute(sql).await,
            None => Ok(()),
        }
    }

    /// Ends it for this client, though its connection has not ended.
    fn leave(&self) {
        self.over.end();
        self.listening.give_up();
        end(&self.hub);
    }
}

pub(crate) trait Open: Ends + Send + Sync + Sized + 'static {
    /// Opens one, and says in which [run](run_of) of the server; `None` behind a pooler.
    fn open(config: Config, last_run: Run) -> impl Future<Output = Result<(Self, Option<i64>)>> + Send;
}

impl Open for Connection {
    async fn open(config: Config, last_run: Run) -> Result<(Self, Option<i64>)> {
        let (client, connection) = dial(&config).await?;
        tokio::spawn(connection);
        let (mut run, mut prepared) = (None, None);
        if is_our_own(&client).await? {
            client.query_typed(PATIENCE, &[]).await.map_err(failed)?;
            (run, prepared) = (Some(run_of(&client).await?), Some(Mutex::default()));
        }
        schema::prepare(&client).await?;
        Ok((Self { client, run: run.map(|run| (run, last_run)), prepared }, run))
    }
}

impl Ends for Connection {
    /// Also when the address leads to another server now: requests and the session must be at the same one.
    fn is_ended(&self) -> bool {
        let is_old = |(run, last): &(i64, Run)| last.load(Ordering::Acquire) != *run;
        self.client.is_closed() || self.run.as_ref().is_some_and(is_old)
    }
}

impl Open for Session {
    async fn open(config: Config, _: Run) -> Result<(Self, Option<i64>)> {
        let number = STORE.random_number()? | 1;
        let (client, connection) = dial_with(&config, |client| {
            client
                .keepalives_idle(SESSION_IDLE)
                .keepalives_interval(SESSION_PROBES.0)
                .keepalives_retries(SESSION_PROBES.1);
        })
        .await?;
        let (hub, over) = (Arc::new(Hub::default()), SessionEnd::new());
        tokio::spawn(listen(connection, Ending { hub: hub.clone(), over: over.clone() }));
        if !is_our_own(&client).await? {
            return Ok((Self::without_liveness_lock(), None));
        }
        client.query_typed(PATIENCE, &[]).await.map_err(failed)?;
        client.query_typed("SELECT oarlock.begin($1)", &[(&number, Type::INT8)]).await.map_err(failed)?;
        let run = Some(run_of(&client).await?);
        let listening = Listening::default();
        Ok((Self { number, hub, listening, client: Some(client), run, over }, run))
    }
}

impl Ends for Session {
    fn is_ended(&self) -> bool {
        self.over.has_ended() || self.client.as_ref().is_some_and(Client::is_closed)
    }
}

/// A client of the crate, and what serves it.
type Dialled = (Client, tokio_postgres::Connection<Socket, Encrypted<Socket>>);

/// A connection that belongs to no session yet.
pub(crate) async fn dial(config: &Config) -> Result<Dialled> {
    dial_with(config, |_| ()).await
}

async fn dial_with(config: &Config, adjust: impl Fn(&mut tokio_postgres::Config)) -> Result<Dialled> {
    let tls = Tls::of(config)?;
    config
        .route()
        .open(STORE, config.connect_timeout, async |host| {
            let mut client = config.to_client(&host);
            adjust(&mut client);
            client.connect(tls.clone()).await.map_err(|error| {
                let next = is_elsewhere(&error);
                Miss::new(no_connection(error), next)
            })
        })
        .await
}

/// A connection was opened while the address moved. Nothing was asked on it.
fn moved() -> Error {
    STORE.error(ErrorKind::Unreachable, "the address leads to another server").retry_now()
}

/// When the server started, in microseconds: no two servers that an address leads to did so at the same one.
async fn run_of(client: &Client) -> Result<i64> {
    let run = "SELECT floor(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, $1::bigint AS echo";
    first(client, run).await
}

/// Ends a session and its streams, however its task ends.
struct Ending {
    hub: Arc<Hub>,
    over: SessionEnd,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.over.end();
        end(&self.hub);
    }
}

/// Passes notifications on until the connection ends. Belief in what ends with the session ends first, and the streams
/// end when the connection is closed.
async fn listen(mut connection: tokio_postgres::Connection<Socket, Encrypted<Socket>>, ending: Ending) {
    while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
        if let AsyncMessage::Notification(news) = message {
            tell(&ending.hub, news.payload());
        }
    }
    ending.over.end();
    drop(connection);
}

impl Pool {
    pub(crate) async fn open(config: Config) -> Result<Arc<Self>> {
        let runtime = Handle::try_current().map_err(|error| {
            Error::new(ErrorKind::Config, "not called within a tokio runtime").on(SCHEME).because(error)
        })?;
        config.check()?;
        let left = LeftOpen::new(runtime.clone());
        let requests = Arc::new(RequestPool::new(runtime.clone(), left.clone()));
        let renewals = Reopened::new(SCHEME).on(runtime.clone());
        let (session, sessions) = (Reopened::new(SCHEME).on(runtime.clone()), Mutex::default());
        let (closed, pooled) = (AtomicBool::new(false), AtomicBool::new(false));
        let (next, holder_watch) = (AtomicI64::new(STORE.random_number()?), HolderWatch::default());
        let (last_run, moves) = (Run::default(), Mutex::default());
        let pool = Arc::new(Self {
            config,
            runtime,
            requests,
            renewals,
            session,
            sessions,
            left,
            last_run,
            moves,
            holder_watch,
            closed,
            pooled,
            next,
        });
        pool.ready(&pool.requests.first).await?;
        pool.session().await?;
        Ok(pool)
    }

    /// What is open there, or opened now.
    pub(super) async fn ready<T: Open>(self: &Arc<Self>, kept: &Reopened<T>) -> Result<Arc<T>> {
        self.check()?;
        kept.get(|| {
            let pool = self.clone();
            async move { pool.open_connection().await }
        })
        .await
    }

    /// A new connection.
    pub(crate) async fn open_connection<T: Open>(&self) -> Result<T> {
        self.check()?;
        let moves = *self.moves();
        // The client crate has no timeout here: a server may accept a connection and never answer.
        let opening = T::open(self.config.clone(), self.last_run.clone());
        let opened = tokio::time::timeout(self.config.connect_timeout, opening).await;
        let (opened, run) = opened.unwrap_or_else(|_| Err(STORE.no_answer()))?;
        self.arrive(run, moves)?;
        Ok(opened)
    }

    /// The runtime of all connections.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(STORE.closed()) } else { Ok(()) }
    }

    /// The session, a new one if the last has ended.
    pub(crate) async fn session(self: &Arc<Self>) -> Result<Arc<Session>> {
        let session = self.ready(&self.session).await?;
        if session.run.is_some_and(|run| run != self.last_run.load(Ordering::Acquire)) {
            // It was being opened while the address moved.
            self.leave(&session);
            return Err(moved());
        }
        self.pooled.store(!session.has_liveness_lock(), Ordering::Release);
        let mut sessions = self.sessions();
        if session.has_liveness_lock() && sessions.iter().all(|(number, _)| *number != session.number) {
            self.requests.begin_session();
            sessions.push((session.number, Arc::downgrade(&session)));
            let many = sessions.len().saturating_sub(ENDED);
            sessions.drain(..many);
        }
        Ok(session)
    }

    /// Whether something between here and the server shares its processes among clients.
    pub(crate) fn is_pooled(&self) -> bool {
        self.pooled.load(Ordering::Acquire)
    }

    /// The session, if it has not ended.
    pub(crate) fn living_session(&self) -> Option<Arc<Session>> {
        self.session.current()
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<(i64, Weak<Session>)>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moves(&self) -> MutexGuard<'_, u64> {
        self.moves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection was made to this run of the server, and begun after so many moves. If the last one was made to
    /// another run, the address has moved: this server does not see the end of our session and sends it no
    /// notifications. What is left of the other connections may be silent for hours, or lead to a server that no other
    /// client uses any more.
    fn arrive(&self, run: Option<i64>, moves: u64) -> Result<()> {
        let Some(run) = run else { return Ok(()) };
        let mut count = self.moves();
        if self.last_run.load(Ordering::Acquire) == run {
            return Ok(());
        }
        if *count != moves {
            // It may lead to the server that the address led to before.
            return Err(moved());
        }
        *count += 1;
        // Before they count as ended, and are closed.
        for connection in [self.requests.first.take(), self.renewals.take()].into_iter().flatten() {
            self.left.keep(connection);
        }
        self.last_run.store(run, Ordering::Release);
        if let Some(session) = self.session.current().filter(|session| session.run.is_some_and(|other| other != run)) {
            self.leave(&session);
        }
        self.holder_watch.end();
        Ok(())
    }

    /// Gives up a session whose connection is still there, and leaves that open.
    fn leave(&self, session: &Arc<Session>) {
        session.leave();
        self.left.keep(session.clone());
        self.session.discard(session);
    }

    /// Lets the session listen, in a task of its own. A session whose connection does not answer is over.
    pub(crate) async fn start_listening(self: &Arc<Self>, session: &Arc<Session>) -> Result<()> {
        let (pool, session) = (self.clone(), session.clone());
        let started = self.runtime.spawn(async move {
            let started = tokio::time::timeout(pool.config.silence_timeout, listening::start(&session)).await;
            started.unwrap_or_else(|_| {
                pool.leave(&session);
                Err(STORE.silent())
            })
        });
        started.await.map_err(|error| STORE.closed().because(error))?
    }

    /// The same, without waiting for it.
    pub(crate) fn listen_in_background(self: &Arc<Self>, session: &Arc<Session>) {
        let (pool, session) = (self.clone(), session.clone());
        self.runtime.spawn(async move { pool.start_listening(&session).await });
    }

    /// The sessions of ours that have ended. Their claims end within the hour.
    pub(crate) fn ended_sessions(&self) -> Vec<i64> {
        let has_ended = |session: &Weak<Session>| session.upgrade().is_none_or(|session| session.is_ended());
        self.sessions().iter().filter(|(_, session)| has_ended(session)).map(|(number, _)| *number).collect()
    }

    /// Notifies `claim` through `hub` when the session `nearest` is over.
    pub(crate) fn watch_holder(&self, nearest: i64, claim: ClaimId, hub: &Arc<Hub>) {
        if self.check().is_ok() && !self.is_pooled() {
            self.holder_watch.watch(nearest, claim, hub, &self.config, &self.runtime);
        }
    }

    /// `claim` does not wait any more.
    pub(crate) fn forget(&self, claim: ClaimId) {
        self.holder_watch.forget(claim);
        if let Some(session) = self.living_session() {
            session.hub.forget(claim);
        }
    }

    /// One request, one round trip. `sql` has one parameter more than `params`, which comes back as `echo` in every
    /// row.
    pub(crate) async fn query(self: &Arc<Self>, sql: &'static str, params: Vec<Owned>) -> Result<Vec<Row>> {
        self.query_on(About::Nothing, sql, params).await
    }

    /// The same about `name`, as it is stored.
    pub(crate) async fn step(
        self: &Arc<Self>,
        name: Vec<u8>,
        sql: &'static str,
        params: Vec<Owned>,
    ) -> Result<Vec<Row>> {
        self.query_on(About::Name(name), sql, params).await
    }

    /// The same for an attempt, which has another parameter more: whether the connection stands for the session.
    pub(crate) async fn attempt(
        self: &Arc<Self>,
        name: Vec<u8>,
        sql: &'static str,
        params: Vec<Owned>,
    ) -> Result<Vec<Row>> {
        self.query_on(About::Attempt(name), sql, params).await
    }

    /// The same for a renewal, which waits for no other request, unless a pooler lets us have one connection only.
    pub(crate) async fn keep(self: &Arc<Self>, sql: &'static str, params: Vec<Owned>) -> Result<Vec<Row>> {
        self.query_on(if self.is_pooled() { About::Nothing } else { About::Renewals }, sql, params).await
    }

    async fn query_on(self: &Arc<Self>, about: About, sql: &'static str, params: Vec<Owned>) -> Result<Vec<Row>> {
        self.check()?;
        let pool = self.clone();
        // In a task: the request keeps its connection until it is answered, whether or not its caller goes on.
        let asked = self.runtime.spawn(async move { pool.query_now(about, sql, params).await });
        let gone = |error| {
            Error::new(ErrorKind::Closed, "the tokio runtime of this client has ended").on(SCHEME).because(error)
        };
        asked.await.map_err(gone)?
    }

    async fn query_now(self: &Arc<Self>, about: About, sql: &'static str, mut params: Vec<Owned>) -> Result<Vec<Row>> {
        let _permit = match &about {
            About::Attempt(name) | About::Name(name) => Some(self.requests.permit(name).await?),
            About::Nothing | About::Renewals => None,
        };
        let (connection, mut lease) = self.connection_for(&about).await?;
        self.check()?;
        let (sent, mut stands) = (Instant::now(), matches!(about, About::Renewals));
        if let About::Attempt(_) = about {
            stands = lease.as_ref().is_none_or(ConnectionLease::stands);
            params.push(param(stands, Type::BOOL));
        }
        let answer = self.ask(&connection, sql, &params).await;
        match &mut lease {
            Some(lease) if stands && lease.spare().is_some() => lease.stood(),
            _ if stands && answer.is_ok() => self.requests.stood(sent),
            _ => {}
        }
        answer.map_err(|(error, is_sound)| {
            match &mut lease {
                _ if is_sound => {}
                Some(lease) => lease.discard(&connection),
                None => self.renewals.discard(&connection),
            }
            error
        })
    }

    /// A connection for a request, and the lease of it; without a lease it is that for renewals.
    async fn connection_for(self: &Arc<Self>, about: &About) -> Result<(Arc<Connection>, Option<ConnectionLease>)> {
        if let About::Renewals = about {
            match self.ready(&self.renewals).await {
                Ok(connection) => return Ok((connection, None)),
                // Nothing was sent. Those for requests are there, and a renewal that waits for one is better than none.
                Err(_) if self.requests.has_spares() || self.requests.first.current().is_some() => {}
                Err(error) => return Err(error),
            }
        }
        let lease = self.requests.take(self).await?;
        if let Some(spare) = lease.spare() {
            return Ok((spare, Some(lease)));
        }
        let error = match self.ready(&self.requests.first).await {
            Ok(first) => return Ok((first, Some(lease))),
            Err(error) => error,
        };
        if !self.requests.has_spares() {
            return Err(error);
        }
        // They are busy. This request keeps the first meanwhile, so that it gets a spare.
        match tokio::time::timeout(self.config.connect_timeout, self.requests.take(self)).await {
            Ok(Ok(other)) => match other.spare() {
                Some(spare) => Ok((spare, Some(other))),
                None => Err(error),
            },
            _ => Err(error),
        }
    }

    /// The answer, or why there is none and whether the connection is sound.
    async fn ask(
        &self,
        connection: &Connection,
        sql: &'static str,
        params: &[Owned],
    ) -> Result<Vec<Row>, (Error, bool)> {
        let pooled = self.is_pooled();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let params = params.iter().map(|(value, kind)| (&**value as &(dyn ToSql + Sync), kind.clone()));
        let params: Vec<Param<'_>> = params.chain([(&number as _, Type::INT8)]).collect();
        // The client crate has no timeout for a server that does not answer.
        let answer = tokio::time::timeout(self.config.silence_timeout, connection.query(sql, &params)).await;
        // A pooler may answer one client with what is another's: no answer is believed that is not ours.
        let is_ours = |row: &Row| row.try_get::<_, i64>("echo").is_ok_and(|echo| echo == number);
        match answer {
            Ok(Ok(rows)) if !rows.is_empty() && rows.iter().all(is_ours) => Ok(rows),
            Ok(Ok(_)) => Err((not_ours(), false)),
            Ok(Err(error)) if !pooled && !ends_connection(&error) => {
                // Another server may take writes.
                let is_left = self.config.route().has_choice() && is_read_only(&error);
                let is_sound = !is_stale(&error) && !is_left;
                Err((failed(error), is_sound))
            }
            Ok(Err(error)) => Err((failed(error).applied_unknown(), false)),
            Err(_) => Err((STORE.silent(), false)),
        }
    }

    /// A name as it is stored.
    pub(crate) fn stored(&self, name: &str) -> Vec<u8> {
        [self.config.prefix.as_bytes(), name.as_bytes()].concat()
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let session = self.session.close();
        // Before the server can learn of it from the connection.
        if let Some(session) = &session {
            session.leave();
        }
        drop((session, self.renewals.close()));
        self.requests.close();
        self.left.close();
        self.holder_watch.close();
    }
}
