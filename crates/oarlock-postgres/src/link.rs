//! One process's way to the server: a connection for requests, and one whose end is the end of its session.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use oarlock_core::reconnect::{Ends, Reopened};
use oarlock_core::{ClaimId, Error, ErrorKind, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Handle;
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Connection, Row, Socket};

use crate::config::Config;
use crate::error::{SCHEME, closed, ends_connection, failed, no_answer, no_connection, not_ours, silent, strange};
use crate::lookout::Lookout;
use crate::schema;
use crate::tls::{AsIs, Encrypted, Tls};
use crate::watch::Hub;

/// Said to the server on a connection of our own.
const PATIENCE: &str = include_str!("sql/patience.sql");

/// A silent server ends a session after this long (idle time and probes), which is longer than most outages. Nothing is asked
/// on that connection, so nobody but the kernel can notice.
const SESSION_IDLE: Duration = Duration::from_secs(60);
const SESSION_PROBES: (Duration, u32) = (Duration::from_secs(15), 4);

/// So many sessions of ours that ended are remembered.
const ENDED: usize = 1024;

/// A parameter and its type: statements are never prepared under a name, so that poolers can serve them.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// The same for a request that owns what it sends.
pub(crate) type Owned = (Box<dyn ToSql + Sync + Send>, Type);

pub(crate) fn param(value: impl ToSql + Sync + Send + 'static, kind: Type) -> Owned {
    (Box::new(value), kind)
}

/// What is open. Every request runs in a task of its own: a caller that stops polling one holds up no other.
#[derive(Debug)]
pub(crate) struct Link {
    config: Config,
    /// Where the connections live, whoever asks for a new one.
    runtime: Handle,
    requests: Reopened<Wire>,
    /// Whatever holds up a request must not hold up these.
    renewals: Reopened<Wire>,
    session: Reopened<Session>,
    /// The last sessions of ours, by number. One that is not there any more has ended.
    sessions: Mutex<Vec<(i64, Weak<Session>)>>,
    /// Sessions at servers that the address has left. Their beacons burn on: belief in what is tethered to them must end before anybody
    /// there sees them go out.
    left: Mutex<Vec<Arc<Session>>>,
    lookout: Lookout,
    closed: AtomicBool,
    pooled: AtomicBool,
    /// Held behind a pooler while a request is under way.
    alone: tokio::sync::Mutex<()>,
    /// The number of the next request, which no other client has.
    next: AtomicI64,
}

/// Which connection a request goes to.
#[derive(Clone, Copy)]
enum Lane {
    Requests,
    Renewals,
}

/// A connection for requests.
pub(crate) struct Wire(pub(crate) Client);

/// A number that lives as long as its connection: the server's beacon for all others, and the address for news.
#[derive(Debug)]
pub(crate) struct Session {
    /// Zero behind a pooler.
    pub(crate) number: i64,
    pub(crate) hub: Arc<Hub>,
    /// `None` behind a pooler: whatever a connection there keeps in the server, it keeps for strangers.
    client: Option<Client>,
    /// Which run of which server saw it begin.
    run: Option<i64>,
    /// The server is another one now.
    left: AtomicBool,
}

impl Session {
    /// Whether it is more than a name: there is a beacon, and news are heard.
    pub(crate) fn is_lit(&self) -> bool {
        self.client.is_some()
    }

    fn unlit() -> Self {
        Self { number: 0, hub: Arc::new(Hub::default()), client: None, run: None, left: AtomicBool::new(false) }
    }

    /// Gives it up, though its connection has not ended.
    fn leave(&self) {
        self.left.store(true, Ordering::Release);
        self.hub.end();
    }
}

pub(crate) trait Open: Ends + Send + Sync + Sized + 'static {
    /// Opens one, and says in which [run](run_of) of the server; `None` behind a pooler.
    fn open(config: Config) -> impl Future<Output = Result<(Self, Option<i64>)>> + Send;
}

impl Open for Wire {
    async fn open(config: Config) -> Result<(Self, Option<i64>)> {
        let (client, connection) = config.to_client().connect(Tls::of(&config)?).await.map_err(no_connection)?;
        tokio::spawn(connection);
        let mut run = None;
        if is_our_own(&client).await? {
            client.query_typed(PATIENCE, &[]).await.map_err(failed)?;
            run = Some(run_of(&client).await?);
        }
        schema::prepare(&client).await?;
        Ok((Self(client), run))
    }
}

impl Ends for Wire {
    fn is_ended(&self) -> bool {
        self.0.is_closed()
    }
}

impl Open for Session {
    async fn open(config: Config) -> Result<(Self, Option<i64>)> {
        let number = random()? | 1;
        let mut client = config.to_client();
        client.keepalives_idle(SESSION_IDLE).keepalives_interval(SESSION_PROBES.0).keepalives_retries(SESSION_PROBES.1);
        let (client, connection) = client.connect(Tls::of(&config)?).await.map_err(no_connection)?;
        let hub = Arc::new(Hub::default());
        tokio::spawn(listen(connection, Ending(hub.clone())));
        if !is_our_own(&client).await? {
            return Ok((Self::unlit(), None));
        }
        client.query_typed(PATIENCE, &[]).await.map_err(failed)?;
        client.query_typed("SELECT oarlock.begin($1)", &[(&number, Type::INT8)]).await.map_err(failed)?;
        client.batch_execute(&format!("LISTEN oarlock_{number:x}")).await.map_err(failed)?;
        let run = Some(run_of(&client).await?);
        Ok((Self { number, hub, client: Some(client), run, left: AtomicBool::new(false) }, run))
    }
}

impl Ends for Session {
    fn is_ended(&self) -> bool {
        self.left.load(Ordering::Acquire) || self.client.as_ref().is_some_and(Client::is_closed)
    }
}

/// When the server started, in microseconds: no two servers that an address leads to did so at the same one.
async fn run_of(client: &Client) -> Result<i64> {
    let run = "SELECT floor(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, $1::bigint AS echo";
    first(client, run).await
}

/// Two bits less than a number has, so that it is positive here and in the two halves that the server shows of a lock.
fn random() -> Result<i64> {
    let mut bits = [0; 8];
    getrandom::fill(&mut bits)
        .map_err(|error| Error::new(ErrorKind::Os, "no random numbers").on(SCHEME).because(error))?;
    Ok(i64::from_ne_bytes(bits) & (i64::MAX >> 1))
}

/// Whether the server's process at the other end is ours alone. A pooler does not know yet which one will serve us when it
/// hands out the key for cancelling requests, so the key names another process than the one that answers.
pub(crate) async fn is_our_own(client: &Client) -> Result<bool> {
    let (mut heard, said) = tokio::io::duplex(ENCRYPT.len() + CANCEL.len() + 8);
    let unheard = |error| strange("no key").because(error);
    // The client crate shows its key to nobody, but writes it wherever it is told to; where it encrypts, it asks for that
    // first. Nothing of it leaves this process.
    heard.write_all(b"S").await.map_err(unheard)?;
    client.cancel_token().cancel_query_raw(said, AsIs).await.map_err(failed)?;
    let mut request = Vec::with_capacity(ENCRYPT.len() + CANCEL.len() + 8);
    heard.read_to_end(&mut request).await.map_err(unheard)?;
    let request = request.strip_prefix(&ENCRYPT).unwrap_or(&request);
    let key = request.strip_prefix(&CANCEL).and_then(|key| key.first_chunk()).map(|pid| i32::from_be_bytes(*pid));
    Ok(key == Some(first(client, "SELECT pg_backend_pid(), $1::bigint AS echo").await?))
}

/// What is in the first row of the answer to `sql`, if it is the answer to this very request: before we know that there is no
/// pooler in between, it may be another's.
pub(crate) async fn first<T: for<'a> FromSql<'a>>(client: &Client, sql: &str) -> Result<T> {
    let number = random()?;
    let rows = client.query_typed(sql, &[(&number, Type::INT8)]).await.map_err(failed)?;
    let ours = rows.first().filter(|row| row.try_get::<_, i64>("echo").is_ok_and(|echo| echo == number));
    ours.ok_or_else(not_ours)?.try_get(0).map_err(failed)
}

/// How a request to cancel begins: its length and its code. The number of a process and a secret follow.
const CANCEL: [u8; 8] = [0, 0, 0, 16, 0x04, 0xd2, 0x16, 0x2e];

/// A question whether to encrypt.
const ENCRYPT: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// Tells everyone that the session is over, however its task ends.
struct Ending(Arc<Hub>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Passes on notices until the connection ends, which is closed before anybody hears of it.
async fn listen(mut connection: Connection<Socket, Encrypted<Socket>>, hub: Ending) {
    while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
        if let AsyncMessage::Notification(news) = message {
            hub.0.tell(news.payload());
        }
    }
    drop(connection);
}

impl Link {
    pub(crate) async fn open(config: Config) -> Result<Arc<Self>> {
        let runtime = Handle::try_current()
            .map_err(|error| Error::new(ErrorKind::Config, "connect on a runtime").on(SCHEME).because(error))?;
        config.check()?;
        let (requests, renewals) =
            (Reopened::new(SCHEME).on(runtime.clone()), Reopened::new(SCHEME).on(runtime.clone()));
        let (session, sessions) = (Reopened::new(SCHEME).on(runtime.clone()), Mutex::default());
        let (closed, pooled) = (AtomicBool::new(false), AtomicBool::new(false));
        let (alone, next) = (tokio::sync::Mutex::default(), AtomicI64::new(random()?));
        let (left, lookout) = (Mutex::default(), Lookout::default());
        let link = Arc::new(Self {
            config,
            runtime,
            requests,
            renewals,
            session,
            sessions,
            left,
            lookout,
            closed,
            pooled,
            alone,
            next,
        });
        link.ready(&link.requests).await?;
        link.session().await?;
        Ok(link)
    }

    /// What is open there, or opened now.
    async fn ready<T: Open>(self: &Arc<Self>, kept: &Reopened<T>) -> Result<Arc<T>> {
        self.check()?;
        kept.get(|| {
            let link = self.clone();
            async move {
                let opening = T::open(link.config.clone());
                // Nothing else bounds this: a server that accepts a connection and says nothing would be waited for for ever.
                let opened = tokio::time::timeout(link.config.connect_timeout, opening).await;
                let (opened, run) = opened.unwrap_or_else(|_| Err(no_answer()))?;
                link.arrive(run);
                Ok(opened)
            }
        })
        .await
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    /// The session, a new one if the last has ended.
    pub(crate) async fn session(self: &Arc<Self>) -> Result<Arc<Session>> {
        let session = self.ready(&self.session).await?;
        self.pooled.store(!session.is_lit(), Ordering::Release);
        let mut sessions = self.sessions();
        if session.is_lit() && sessions.iter().all(|(number, _)| *number != session.number) {
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

    /// A connection was made to this run of the server. If the session began in another one, the address has moved: here nobody
    /// sees its end, and it hears nothing. What is left of the other connections may be silent for hours.
    fn arrive(&self, run: Option<i64>) {
        let session = self.session.current();
        let Some(session) = session.filter(|session| run.is_some() && session.run.is_some() && session.run != run)
        else {
            return;
        };
        session.leave();
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.retain(|session| session.client.as_ref().is_some_and(|client| !client.is_closed()));
        left.push(session.clone());
        drop(left);
        self.session.discard(&session);
        drop((self.requests.take(), self.renewals.take()));
        self.lookout.end();
    }

    /// The sessions of ours that have ended. Claims tethered to one of them end within the hour.
    pub(crate) fn ended_sessions(&self) -> Vec<i64> {
        let has_ended = |session: &Weak<Session>| session.upgrade().is_none_or(|session| session.is_ended());
        self.sessions().iter().filter(|(_, session)| has_ended(session)).map(|(number, _)| *number).collect()
    }

    /// Lets `hub` tell of `claim` when the session `nearest` is over.
    pub(crate) fn look_out(&self, nearest: i64, claim: ClaimId, hub: &Arc<Hub>) {
        if self.check().is_ok() && !self.is_pooled() {
            self.lookout.watch(nearest, claim, hub, &self.config, &self.runtime);
        }
    }

    /// Nobody waits for the turn of `claim` any more.
    pub(crate) fn forget(&self, claim: ClaimId) {
        self.lookout.forget(claim);
        if let Some(session) = self.living_session() {
            session.hub.forget(claim);
        }
    }

    /// One request, one round trip. `sql` has one parameter more than `params`, which comes back as `echo` in every row.
    pub(crate) async fn ask(self: &Arc<Self>, sql: &'static str, params: Vec<Owned>) -> Result<Vec<Row>> {
        self.ask_on(Lane::Requests, sql, params).await
    }

    /// The same for a renewal, which waits for no other request, unless a pooler lets us have one connection only.
    pub(crate) async fn keep(self: &Arc<Self>, sql: &'static str, params: Vec<Owned>) -> Result<Vec<Row>> {
        self.ask_on(if self.is_pooled() { Lane::Requests } else { Lane::Renewals }, sql, params).await
    }

    async fn ask_on(self: &Arc<Self>, lane: Lane, sql: &'static str, params: Vec<Owned>) -> Result<Vec<Row>> {
        self.check()?;
        let link = self.clone();
        // In a task: while one answer is not read, no other on that connection is, and behind a pooler none is asked for.
        let asked = self.runtime.spawn(async move { link.ask_now(lane, sql, &params).await });
        let gone = |error| Error::new(ErrorKind::Closed, "its runtime is gone").on(SCHEME).because(error);
        asked.await.map_err(gone)?
    }

    async fn ask_now(self: &Arc<Self>, lane: Lane, sql: &str, params: &[Owned]) -> Result<Vec<Row>> {
        let kept = match lane {
            Lane::Requests => &self.requests,
            Lane::Renewals => &self.renewals,
        };
        let pooled = self.is_pooled();
        // A pooler may lose count of requests that follow each other without waiting, and answer one client with what is
        // another's. So there is one at a time, and no answer is believed that is not ours.
        let _alone = if pooled { Some(self.alone.lock().await) } else { None };
        let wire = self.ready(kept).await?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let params = params.iter().map(|(value, kind)| (&**value as &(dyn ToSql + Sync), kind.clone()));
        let params: Vec<Param<'_>> = params.chain([(&number as _, Type::INT8)]).collect();
        // The client crate has no bound for a peer that is there and says nothing, and nobody else can replace its connection.
        let answer = tokio::time::timeout(self.config.silence_timeout, wire.0.query_typed(sql, &params)).await;
        let is_ours = |row: &Row| row.try_get::<_, i64>("echo").is_ok_and(|echo| echo == number);
        let is_sound = match &answer {
            Ok(Ok(rows)) => !rows.is_empty() && rows.iter().all(is_ours),
            Ok(Err(error)) => !pooled && !ends_connection(error),
            Err(_) => false,
        };
        if !is_sound {
            kept.discard(&wire);
        }
        match answer {
            Ok(Ok(rows)) if is_sound => Ok(rows),
            Ok(Ok(_)) => Err(not_ours()),
            Ok(Err(error)) if is_sound => Err(failed(error)),
            Ok(Err(error)) => Err(failed(error).applied_unknown()),
            Err(_) => Err(silent()),
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
        drop((self.session.close(), self.requests.close(), self.renewals.close()));
        self.left.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.lookout.end();
    }
}
