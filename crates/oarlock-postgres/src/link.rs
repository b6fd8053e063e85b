//! One process's way to the server: a connection for requests, and one whose end is the end of its session.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oarlock_core::{Error, ErrorKind, Result};
use tokio::runtime::Handle;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls, Row, Socket, tls::NoTlsStream};

use crate::config::Config;
use crate::error::{SCHEME, closed, failed, no_answer, no_connection, strange};
use crate::watch::Hub;

/// The format of tables and functions that this code speaks.
const FORMAT: i32 = 1;

/// Makes what is missing; run by at most one client at a time.
const SCHEMA: [&str; 6] = [
    include_str!("sql/schema.sql"),
    include_str!("sql/step.sql"),
    include_str!("sql/attempt.sql"),
    include_str!("sql/renew.sql"),
    include_str!("sql/release.sql"),
    include_str!("sql/observe.sql"),
];
const SCHEMA_LOCK: i64 = 0x006f_6172_6c6f_636b;

/// Requests that the network swallows fail after this long, and the next one gets a new connection.
const REQUEST_SILENCE: Duration = Duration::from_secs(10);

/// A silent server ends a session after this long (idle time and probes), which is longer than most outages.
const SESSION_IDLE: Duration = Duration::from_secs(60);
const SESSION_PROBES: (Duration, u32) = (Duration::from_secs(15), 4);

/// A parameter and its type: statements are never prepared under a name, so that poolers can serve them.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// What is open.
#[derive(Debug)]
pub(crate) struct Link {
    config: Config,
    /// Where the connections live, whoever asks for a new one.
    runtime: Handle,
    requests: Kept<Client>,
    session: Kept<Session>,
    closed: AtomicBool,
}

/// A number that lives as long as its connection: the server's beacon for all others, and the address for news.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) number: i64,
    pub(crate) hub: Arc<Hub>,
    client: Client,
}

impl Session {
    pub(crate) fn has_ended(&self) -> bool {
        self.client.is_closed()
    }
}

/// What is opened anew when it has failed, by one at a time.
#[derive(Debug)]
struct Kept<T> {
    open: Mutex<Option<Arc<T>>>,
    opening: tokio::sync::Mutex<()>,
}

impl<T: Open> Kept<T> {
    fn new() -> Self {
        Self { open: Mutex::new(None), opening: tokio::sync::Mutex::new(()) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<T>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self) -> Option<Arc<T>> {
        self.lock().as_ref().filter(|open| !open.client().is_closed()).cloned()
    }

    async fn get_or_open(&self, link: &Link) -> Result<Arc<T>> {
        if let Some(open) = self.get() {
            return Ok(open);
        }
        let _alone = self.opening.lock().await;
        if let Some(open) = self.get() {
            return Ok(open);
        }
        link.check()?;
        let (limit, opening) = (link.config.connect_timeout, T::open(link.config.clone()));
        // Nobody else bounds this: a server that accepts a connection and says nothing would be waited for for ever.
        let opened = link
            .runtime
            .spawn(async move { tokio::time::timeout(limit, opening).await.unwrap_or_else(|_| Err(no_answer())) });
        let opened = opened.await;
        let gone = |error| Error::new(ErrorKind::Closed, "its runtime is gone").on(SCHEME).because(error);
        let opened = Arc::new(opened.map_err(gone)??);
        *self.lock() = Some(opened.clone());
        link.check().inspect_err(|_| drop(self.lock().take()))?;
        Ok(opened)
    }
}

trait Open: Send + Sync + Sized + 'static {
    fn open(config: Config) -> impl Future<Output = Result<Self>> + Send;
    fn client(&self) -> &Client;
}

impl Open for Client {
    async fn open(config: Config) -> Result<Self> {
        let mut client = config.to_client();
        client.tcp_user_timeout(REQUEST_SILENCE);
        let (client, connection) = client.connect(NoTls).await.map_err(no_connection)?;
        tokio::spawn(connection);
        prepare(&client).await?;
        Ok(client)
    }

    fn client(&self) -> &Client {
        self
    }
}

impl Open for Session {
    async fn open(config: Config) -> Result<Self> {
        let mut bits = [0; 8];
        getrandom::fill(&mut bits)
            .map_err(|error| Error::new(ErrorKind::Os, "no random numbers").on(SCHEME).because(error))?;
        // Two bits less, so that it is positive here and in the two halves that the server shows.
        let number = (i64::from_ne_bytes(bits) & (i64::MAX >> 1)) | 1;
        let mut client = config.to_client();
        client.keepalives_idle(SESSION_IDLE).keepalives_interval(SESSION_PROBES.0).keepalives_retries(SESSION_PROBES.1);
        let (client, connection) = client.connect(NoTls).await.map_err(no_connection)?;
        let hub = Arc::new(Hub::default());
        tokio::spawn(listen(connection, Ending(hub.clone())));
        client.query_typed(include_str!("sql/session.sql"), &[(&number, Type::INT8)]).await.map_err(failed)?;
        client.batch_execute(&format!("LISTEN oarlock_{number:x}")).await.map_err(failed)?;
        Ok(Self { number, hub, client })
    }

    fn client(&self) -> &Client {
        &self.client
    }
}

/// Tells everyone that the session is over, however its task ends.
struct Ending(Arc<Hub>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Passes on notices until the connection ends, which is closed before anybody hears of it.
async fn listen(mut connection: Connection<Socket, NoTlsStream>, hub: Ending) {
    while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
        if let AsyncMessage::Notification(news) = message {
            hub.0.tell(news.payload());
        }
    }
    drop(connection);
}

/// Checks the format of what is there, makes it if there is nothing, and tries it. After an error the connection is of no
/// more use.
async fn prepare(client: &Client) -> Result<()> {
    let known = "SELECT to_regclass('oarlock.format') IS NOT NULL";
    let known: bool = client.query_typed_one(known, &[]).await.and_then(|row| row.try_get(0)).map_err(failed)?;
    if !known {
        let make = SCHEMA.join("\n");
        let made = format!("INSERT INTO oarlock.format (version) VALUES ({FORMAT}) ON CONFLICT DO NOTHING");
        let all = format!("BEGIN; SELECT pg_advisory_xact_lock({SCHEMA_LOCK}); {make} {made}; COMMIT");
        client.batch_execute(&all).await.map_err(failed)?;
    }
    let row = client.query_typed_one("SELECT version FROM oarlock.format", &[]).await.map_err(failed)?;
    let version: i32 = row.try_get(0).map_err(failed)?;
    match version {
        FORMAT => client.batch_execute(include_str!("sql/warm.sql")).await.map_err(failed),
        newer if newer > FORMAT => {
            let message = format!("its tables have format {newer}, and this version knows {FORMAT}");
            Err(Error::new(ErrorKind::NewerFormat, message).on(SCHEME))
        }
        older => Err(strange(format!("its tables have format {older}"))),
    }
}

impl Link {
    pub(crate) async fn open(config: Config) -> Result<Self> {
        let runtime = Handle::try_current()
            .map_err(|error| Error::new(ErrorKind::Config, "connect on a runtime").on(SCHEME).because(error))?;
        let (requests, session) = (Kept::new(), Kept::new());
        let link = Self { config, runtime, requests, session, closed: AtomicBool::new(false) };
        link.requests.get_or_open(&link).await?;
        link.session().await?;
        Ok(link)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    /// The session, a new one if the last has ended.
    pub(crate) async fn session(&self) -> Result<Arc<Session>> {
        self.session.get_or_open(self).await
    }

    /// The session, if it has not ended.
    pub(crate) fn living_session(&self) -> Option<Arc<Session>> {
        self.session.get()
    }

    /// One request, one round trip.
    pub(crate) async fn ask(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        self.check()?;
        let client = self.requests.get_or_open(self).await?;
        client.query_typed(sql, params).await.map_err(failed)
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
        self.session.lock().take();
        self.requests.lock().take();
    }
}
