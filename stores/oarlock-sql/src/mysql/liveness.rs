//! The session of a client: liveness locks show other clients that its process has ended, and the client itself learns
//! of the end first.
//!
//! A MySQL client does not notice that an idle connection was closed. So one connection of a session always waits for
//! an answer: it asks for the liveness lock that another one holds, a named lock that ends with the process. The server
//! releases that lock at once when the process is gone, and the client is told at once when the connection is.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use oarlock_core::driver::SessionEnd;
use oarlock_core::reconnect::Ends;
use oarlock_core::{Error, ErrorKind, Result};
use tokio::task::AbortHandle;

use crate::mysql::connection::Pool;
use crate::mysql::error::{NOT_ALLOWED_IN_GROUP, SCHEME, STORE, failed, is_killed};
use crate::mysql::flavour::Flavour;
use crate::mysql::request_pool::Connection;
use crate::route::Host;

/// The liveness locks of a session. More than it has connections: the server may still have some that the client has
/// closed.
const LIVENESS_LOCKS: u32 = 16;

/// The bound of a statement would end the reading. Only one of the two servers has it.
const PATIENCE: &str = "SET SESSION max_statement_time = 0";

/// A connection that is younger than this may have come after the end of another that we have just heard of.
pub(crate) const SETTLED: Duration = Duration::from_secs(1);

/// A unique number, and the connections that hold its liveness locks.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) number: i64,
    /// Whether others see it when this process ends.
    has_lock: AtomicBool,
    over: SessionEnd,
    /// It does not go on where it began.
    left: AtomicBool,
    /// The server that it began on.
    pub(crate) host: OnceLock<Host>,
    /// The run of the server that saw it begin.
    run: OnceLock<Vec<u8>>,
    /// The server's numbers of its connections.
    living: Mutex<HashSet<u64>>,
    reader: Mutex<Option<Reader>>,
}

/// The connection that waits for the end of a session.
#[derive(Debug)]
struct Reader {
    connection: u64,
    since: Instant,
    task: AbortHandle,
}

/// One of the connections of a session, as long as this is kept.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) session: Arc<Session>,
    connection: u64,
}

impl Drop for Membership {
    fn drop(&mut self) {
        lock(&self.session.living).remove(&self.connection);
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ends for Session {
    fn is_ended(&self) -> bool {
        self.has_ended()
    }

    fn end(&self) {
        Session::end(self);
    }
}

impl Session {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            number: STORE.random_number()? | 1,
            has_lock: AtomicBool::new(true),
            over: SessionEnd::new(),
            left: AtomicBool::new(false),
            host: OnceLock::new(),
            run: OnceLock::new(),
            living: Mutex::default(),
            reader: Mutex::default(),
        })
    }

    pub(crate) fn has_liveness_lock(&self) -> bool {
        self.has_lock.load(Ordering::Acquire)
    }

    pub(crate) fn give_up_liveness_lock(&self) {
        self.has_lock.store(false, Ordering::Release);
    }

    /// Whether others may have seen it end.
    pub(crate) fn has_ended(&self) -> bool {
        self.over.has_ended()
    }

    pub(crate) fn end(&self) {
        self.over.end();
        self.stop_reading();
    }

    /// Its end, for the grants that end with it.
    pub(crate) fn over(&self) -> SessionEnd {
        self.over.clone()
    }

    /// It does not go on: its server gives no connection and another one does, or shows nothing of its end any more.
    pub(crate) fn leave(&self) {
        self.left.store(true, Ordering::Release);
    }

    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// Whether it is in the table of sessions, so that its claims may end with it.
    pub(crate) fn has_begun(&self) -> bool {
        self.run.get().is_some()
    }

    /// Whether its end would be noticed.
    pub(crate) fn is_read(&self) -> bool {
        !self.has_liveness_lock() || lock(&self.reader).is_some()
    }

    pub(crate) fn stop_reading(&self) {
        if let Some(reader) = lock(&self.reader).take() {
            reader.task.abort();
        }
    }

    /// For how long another connection has listened instead of this one.
    fn replaced_for(&self, connection: u64) -> Option<Duration> {
        lock(&self.reader)
            .as_ref()
            .filter(|reader| reader.connection != connection)
            .map(|reader| reader.since.elapsed())
    }

    fn lock_name(&self, index: u32) -> String {
        format!("oarlock_{:x}_{index}", self.number)
    }
}

/// Lets a connection take one of the named locks of a session. Answers which.
pub(crate) async fn join(conn: &mut Conn, session: &Arc<Session>) -> Result<(Membership, String)> {
    let connection = u64::from(conn.id());
    lock(&session.living).insert(connection);
    let membership = Membership { session: session.clone(), connection };
    for index in 0..LIVENESS_LOCKS {
        let name = session.lock_name(index);
        if take(conn, &name, 0).await? {
            return Ok((membership, name));
        }
    }
    // The server still has connections that this client has closed. It would keep them for hours, so the client kills
    // them.
    let mut given_up = Vec::new();
    for index in 0..LIVENESS_LOCKS {
        let name = session.lock_name(index);
        let owner: Option<Option<u64>> =
            conn.exec_first("SELECT IS_USED_LOCK(?)", (name.as_str(),)).await.map_err(failed)?;
        if let Some(owner) = owner.flatten().filter(|owner| !lock(&session.living).contains(owner)) {
            // It may be gone by now.
            let _ = conn.query_drop(format!("KILL {owner}")).await;
            given_up.push(name);
        }
    }
    for name in given_up {
        if take(conn, &name, 1).await? {
            return Ok((membership, name));
        }
    }
    Err(Error::new(ErrorKind::Unreachable, "the server has not yet closed earlier connections of this client")
        .on(SCHEME)
        .retry_later())
}

async fn take(conn: &mut Conn, name: &str, seconds: u32) -> Result<bool> {
    let taken: Option<Option<i64>> = conn.exec_first("SELECT GET_LOCK(?, ?)", (name, seconds)).await.map_err(failed)?;
    Ok(taken.flatten() == Some(1))
}

/// Whether a session is in the table of sessions.
pub(crate) enum Begun {
    Here,
    /// This server cannot show other clients that the session has ended.
    Dark,
    /// It began on another server, in another run of this one, or before this one became dark: others may be told that it
    /// is over.
    Elsewhere,
}

/// Writes a session to the table, once its end would be noticed.
pub(crate) async fn begin(conn: &mut Conn, flavour: Flavour, session: &Session) -> Result<Begun> {
    let before = session.run.get();
    if before.is_some() && run(conn).await?.as_ref() != before {
        return Ok(Begun::Elsewhere);
    }
    let random: [u8; 16] = STORE.random()?;
    let kills = flavour.kills(conn).await.map_err(failed)?;
    match conn.exec_drop("CALL oarlock_begin(?, ?, ?)", (session.number, random.as_slice(), kills)).await {
        // Group replication takes no changes to what is not replicated.
        Err(mysql_async::Error::Server(told)) if told.code == NOT_ALLOWED_IN_GROUP => {
            return Ok(if session.has_begun() { Begun::Elsewhere } else { Begun::Dark });
        }
        begun => begun.map_err(failed)?,
    }
    if let (None, Some(run)) = (before, run(conn).await?) {
        let _ = session.run.set(run);
    }
    Ok(Begun::Here)
}

/// The run of this server in which sessions begin, if one has.
async fn run(conn: &mut Conn) -> Result<Option<Vec<u8>>> {
    conn.query_drop("CALL oarlock_boot(@oarlock_run)").await.map_err(failed)?;
    let run: Option<Option<Vec<u8>>> = conn.query_first("SELECT @oarlock_run").await.map_err(failed)?;
    Ok(run.flatten())
}

/// Lets `conn` wait until the connection that holds `liveness_lock` ends, and so for its own end.
pub(crate) fn read(pool: Weak<Pool>, conn: Conn, membership: Membership, liveness_lock: String) {
    let (session, connection) = (membership.session.clone(), membership.connection);
    let task = tokio::spawn(listen(pool, conn, membership, liveness_lock)).abort_handle();
    let before = lock(&session.reader).replace(Reader { connection, since: Instant::now(), task });
    if let Some(before) = before {
        // It goes on to listen, because it may still report something. Its own end no longer matters.
        lock(&session.living).remove(&before.connection);
    }
}

async fn listen(pool: Weak<Pool>, mut conn: Conn, membership: Membership, liveness_lock: String) {
    let _ = conn.query_drop(PATIENCE).await;
    let heard = conn.query_drop(format!("DO GET_LOCK('{liveness_lock}', 31536000)")).await;
    let (session, Some(pool)) = (membership.session.clone(), pool.upgrade()) else { return };
    let replaced_for = session.replaced_for(membership.connection);
    if replaced_for.is_none() {
        lock(&session.reader).take();
    }
    // Another connection of the session, which was there all the time.
    let mut other = match heard {
        // The connection that replaced it was there before its end.
        _ if replaced_for.is_some_and(|span| span > SETTLED) => return,
        // Killed connections are counted, so no client takes this one for dead, and the next renewal takes the lock
        // again.
        Err(mysql_async::Error::Server(told)) if is_killed(told.code) => return,
        // The liveness lock was released, and this connection was part of the session until now.
        Ok(()) | Err(mysql_async::Error::Server(_)) if replaced_for.is_some() => return,
        Ok(()) | Err(mysql_async::Error::Server(_)) => Some(Other::Reader(conn, membership)),
        Err(_) if replaced_for.is_some() => None,
        Err(_) => pool.settled_connection(&session).await.map(|(connection, kept)| Other::Settled(connection, kept)),
    };
    let is_whole = match &mut other {
        Some(other) => restore(&pool, &session, other.conn()).await.is_ok(),
        None => false,
    };
    match other {
        _ if !is_whole => pool.end(&session),
        Some(Other::Settled(connection, true)) => pool.put_back(connection),
        // Part of the session until others have taken its place.
        Some(Other::Reader(conn, membership)) => drop((conn, membership)),
        Some(Other::Settled(_, false)) | None => {}
    }
}

/// Opens the connections of a session anew, and reads `other` meanwhile: if that ends, other clients may have seen no
/// connection at all, and the session is over at once. It must answer a request that was sent after the new ones were
/// there.
async fn restore(pool: &Arc<Pool>, session: &Arc<Session>, other: &mut Conn) -> Result<()> {
    let is_restored = AtomicBool::new(false);
    let restoring = async {
        pool.restore_liveness_lock(session).await?;
        is_restored.store(true, Ordering::Release);
        Ok(())
    };
    let reading = async {
        loop {
            let is_last = is_restored.load(Ordering::Acquire);
            pool.read_for_a_moment(other).await?;
            if is_last {
                return Ok(());
            }
        }
    };
    tokio::try_join!(restoring, reading).map(drop)
}

/// A connection that shows that a session went on.
enum Other {
    Reader(Conn, Membership),
    /// One of the pool, and whether it goes back there: that for renewals was replaced.
    Settled(Connection, bool),
}

impl Other {
    fn conn(&mut self) -> &mut Conn {
        match self {
            Self::Reader(conn, _) => conn,
            Self::Settled(connection, _) => &mut connection.conn,
        }
    }
}
