//! The server's own advisory locks, for sharing locks with programs that use them: each is held by a connection.

use std::sync::Arc;
use std::time::Duration;

use crate::session::{self, Mailbox, Seen, Server, SessionLocks};
use oarlock_core::capabilities::WaiterView;
use oarlock_core::driver::SessionEnd;
use oarlock_core::{Error, ErrorKind, Label, ResourceName, Result};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use crate::postgres::config::Config;
use crate::postgres::connection::{Owned, Param, dial, param};
use crate::postgres::error::{SCHEME, STORE, failed, read_only};
use crate::postgres::key::Key;
use crate::postgres::pooler::is_our_own;
use crate::postgres::tls::Tls;

/// A wait is one statement, whose snapshot keeps dead rows from being removed: after so long it begins anew.
const QUEUE_FOR: Duration = Duration::from_secs(60);

/// What the session must be like: $1 is how long it may be idle, $2 how long a statement waits for a lock, in
/// milliseconds, $3 the first in seconds. Settings that a server does not have are left out.
const SETTINGS: &str =
    "SELECT pg_backend_pid() AS pid, count(set_config(name, value, false)) FROM pg_settings JOIN (VALUES
    ('idle_session_timeout', $1), ('tcp_user_timeout', $1), ('tcp_keepalives_idle', $3), ('lock_timeout', $2),
    ('statement_timeout', '0'), ('client_connection_check_interval', '1000')
) AS wanted(name, value) USING (name)";

/// Who has an advisory lock or waits for it: $1 and $2 are its halves, $3 tells the two kinds of keys apart.
const LOCKS_OF_KEY: &str =
    "SELECT pid, granted, coalesce(usename, '')::text, coalesce(application_name, ''), coalesce(host(client_addr), '')
    FROM pg_locks LEFT JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND classid::bigint = $1 AND objid::bigint = $2 AND objsubid = $3 ORDER BY granted DESC, pid";

const CLOCK: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// Whether the server takes no writes: a standby grants advisory locks, too.
const IS_READ_ONLY: &str = "current_setting('transaction_read_only') = 'on'";

/// Advisory locks of a `PostgreSQL` server, for sharing locks with other programs. See the [module](crate::postgres)
/// for what they promise.
pub type PostgresSession = SessionLocks<Advisory>;

/// A server, and how its advisory locks are named.
#[derive(Debug)]
pub struct Advisory {
    config: Config,
}

impl Advisory {
    /// The server with this configuration: [`SessionLocks::connect`] connects to it.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config }
    }
}

impl Server for Advisory {
    type Key = Key;
    type Connection = Connection;

    const SCHEME: &'static str = SCHEME;
    const WAITERS: WaiterView = WaiterView::Counted;

    fn address(&self) -> String {
        format!("{} (advisory locks)", self.config)
    }

    fn session_ttl(&self) -> Duration {
        self.config.session_ttl
    }

    fn key(&self, name: &ResourceName) -> Result<Key> {
        Key::of(self.config.keys, &self.config.prefix, name)
    }

    async fn open(self: Arc<Self>, mailbox: Mailbox) -> Result<Connection> {
        let limit = self.config.connect_timeout;
        tokio::time::timeout(limit, connect(self.config.clone(), mailbox))
            .await
            .unwrap_or_else(|_| Err(STORE.no_answer()))
    }
}

/// A connection that holds advisory locks.
#[derive(Debug)]
pub struct Connection {
    config: Config,
    open: Arc<Open>,
    pid: i32,
    runtime: Handle,
}

/// What the requests of a connection share.
#[derive(Debug)]
struct Open {
    client: Client,
    over: SessionEnd,
    /// Without it the server would keep the locks for as long as a request has a share in the connection.
    task: AbortHandle,
}

impl Open {
    /// A server that is silent for longer than it keeps a session has closed it.
    async fn query(&self, sql: &str, params: &[Owned], limit: Duration) -> Result<Vec<Row>, Failure> {
        let params: Vec<Param<'_>> = params.iter().map(|(value, kind)| (&**value as _, kind.clone())).collect();
        match tokio::time::timeout(limit, self.client.query_typed(sql, &params)).await {
            Ok(answer) => answer.map_err(Failure::Told),
            Err(_) => {
                self.end();
                Err(Failure::Silent)
            }
        }
    }

    fn end(&self) {
        self.over.end();
        self.task.abort();
    }
}

/// Why there is no answer.
enum Failure {
    Told(tokio_postgres::Error),
    Silent,
    /// The runtime of the connection is gone.
    Gone,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Told(error) => failed(error),
            Failure::Silent => STORE.silent(),
            Failure::Gone => STORE.closed(),
        }
    }
}

async fn connect(config: Config, mailbox: Mailbox) -> Result<Connection> {
    let (client, connection) = dial(&config).await?;
    let over = SessionEnd::new();
    let ending = Ending { over: over.clone(), mailbox };
    let task = tokio::spawn(async move {
        let _ending = ending;
        let _ = connection.await;
    });
    let task = task.abort_handle();
    if !is_our_own(&client).await? {
        let message = "advisory locks need connections of their own, and there is a pooler in between";
        return Err(Error::new(ErrorKind::Unsupported, message).on(SCHEME));
    }
    let (idle, queue) = (config.session_ttl.as_millis().to_string(), QUEUE_FOR.as_millis().to_string());
    let seconds = config.session_ttl.as_secs_f64().ceil().to_string();
    let settings = [(&idle as _, Type::TEXT), (&queue as _, Type::TEXT), (&seconds as _, Type::TEXT)];
    let rows = client.query_typed(SETTINGS, &settings).await.map_err(failed)?;
    let pid = first(&rows)?.try_get("pid").map_err(failed)?;
    let open = Arc::new(Open { client, over, task });
    Ok(Connection { config, open, pid, runtime: Handle::current() })
}

/// Ends what is held on a connection, however its task ends.
struct Ending {
    over: SessionEnd,
    mailbox: Mailbox,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.over.end();
        self.mailbox.notify();
    }
}

impl Connection {
    /// One request, in a task of its own: it goes on whether or not its caller does, and so do the others on this
    /// connection.
    async fn query(&self, sql: impl Into<String>, params: Vec<Owned>, limit: Duration) -> Result<Vec<Row>, Failure> {
        let (open, sql) = (self.open.clone(), sql.into());
        let asked = self.runtime.spawn(async move { open.query(&sql, &params, limit).await });
        asked.await.unwrap_or(Err(Failure::Gone))
    }

    fn patience(&self) -> Duration {
        self.config.silence_timeout.min(self.config.session_ttl)
    }

    /// The first row, whose second column says whether the server takes no writes. Where another one may be the primary,
    /// this connection and its locks are over then: other clients do not ask this server any more.
    fn of_a_primary<'a>(&self, rows: &'a [Row]) -> Result<&'a Row> {
        let row = first(rows)?;
        if self.config.route().has_choice() && get::<bool>(row, 1)? {
            session::Connection::end(self);
            return Err(read_only());
        }
        Ok(row)
    }

    /// Calls a function of the server on `key`.
    async fn call(&self, sql: &str, key: &Key, limit: Duration) -> Result<Vec<Row>, Failure> {
        match key {
            Key::One(one) => self.query(sql.replace("KEY", "$1"), vec![param(*one, Type::INT8)], limit).await,
            Key::Two(one, two) => {
                let params = vec![param(*one, Type::INT4), param(*two, Type::INT4)];
                self.query(sql.replace("KEY", "$1, $2"), params, limit).await
            }
        }
    }
}

fn first(rows: &[Row]) -> Result<&Row> {
    rows.first().ok_or_else(|| STORE.unexpected("no answer"))
}

fn get<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, column: usize) -> Result<T> {
    row.try_get(column).map_err(failed).map_err(Error::applied_unknown)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

impl session::Connection for Connection {
    type Key = Key;

    async fn take(&self, key: &Key) -> Result<Option<u64>> {
        // The clock is read once it is taken, and not before.
        let take = format!("SELECT CASE WHEN pg_try_advisory_lock(KEY) THEN {CLOCK} END, {IS_READ_ONLY}");
        let taken = self.call(&take, key, self.patience()).await;
        let taken = taken.map_err(Error::from).and_then(|rows| get::<Option<i64>>(self.of_a_primary(&rows)?, 0));
        if taken.is_err() && !self.is_over() {
            // It may have been taken before the statement failed, and the client would not know.
            self.release(key).await.inspect_err(|_| self.end())?;
        }
        taken.map(|clock| clock.map(unsigned))
    }

    async fn queue(&self, key: &Key) -> Result<bool> {
        let limit = QUEUE_FOR + self.patience();
        let Err(failure) = self.call("SELECT pg_advisory_lock(KEY)", key, limit).await else { return Ok(true) };
        let stopped = matches!(&failure, Failure::Told(error)
            if matches!(error.code(), Some(&SqlState::LOCK_NOT_AVAILABLE | &SqlState::QUERY_CANCELED)));
        if !stopped {
            self.end();
            return Err(failure.into());
        }
        // The server may grant it and give up at once. Nothing else is held here.
        self.query("SELECT pg_advisory_unlock_all()", Vec::new(), self.patience()).await.inspect_err(|_| self.end())?;
        Ok(false)
    }

    async fn stop(&self) -> Result<()> {
        let told = self.open.client.cancel_token();
        let told = tokio::time::timeout(self.config.connect_timeout, told.cancel_query(Tls::of(&self.config)?)).await;
        told.map_err(|_| STORE.silent())?.map_err(failed)
    }

    async fn release(&self, key: &Key) -> Result<bool> {
        let rows = self.call("SELECT pg_advisory_unlock(KEY)", key, self.patience()).await?;
        get(first(&rows)?, 0)
    }

    async fn ping(&self) -> Result<u64> {
        let rows = self.query(format!("SELECT {CLOCK}, {IS_READ_ONLY}"), Vec::new(), self.patience()).await?;
        get(self.of_a_primary(&rows)?, 0).map(unsigned)
    }

    async fn peek(&self, key: &Key) -> Result<Seen> {
        let (class, object, kind) = key.shown();
        let params = vec![param(class, Type::INT8), param(object, Type::INT8), param(kind, Type::INT2)];
        let rows = self.query(LOCKS_OF_KEY, params, self.patience()).await?;
        let (mut seen, mut waiting) = (Seen::default(), 0);
        for row in &rows {
            if get::<bool>(row, 1)? {
                let mut label = Label::default();
                label.pid = get::<i32>(row, 0)?.unsigned_abs();
                (label.user, label.host) = (get(row, 2)?, get(row, 4)?);
                label.reason = Some(get::<String>(row, 3)?).filter(|program| !program.is_empty());
                seen.holders.push((label.pid.into(), label));
            } else {
                waiting += 1;
            }
        }
        // Another session may be about to enter the queue: none is seen, which does not mean that there is none.
        seen.waiting = (waiting > 0).then_some(waiting);
        Ok(seen)
    }

    fn number(&self) -> u64 {
        self.pid.unsigned_abs().into()
    }

    fn end(&self) {
        self.open.end();
    }

    fn over(&self) -> &SessionEnd {
        &self.open.over
    }

    fn is_over(&self) -> bool {
        self.open.over.has_ended() || self.open.client.is_closed()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.open.task.abort();
    }
}
