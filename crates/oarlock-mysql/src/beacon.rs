//! The session of a client: what others see end when its process does, and how the client hears of it first.
//!
//! Nobody reads on an idle connection of this protocol. So one connection of a session always waits for an answer: it asks for the
//! named lock of another one, the beacon, which ends with the process like all of them. The server lets go of that lock at once when
//! the process is gone, and the client hears at once when the connection is.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use oarlock_core::{Error, ErrorKind, Result};
use tokio::task::AbortHandle;

use crate::error::{NOT_ALLOWED_IN_GROUP, SCHEME, failed, is_killed};
use crate::flavour::Flavour;
use crate::link::{Link, random};

/// The named locks of a session. More than there are connections: the server may still have some that we have given up.
const WITNESSES: u32 = 16;

/// The bound of a statement would end the reading. Only one of the two servers has it.
const PATIENCE: &str = "SET SESSION max_statement_time = 0";

/// A connection that is younger than this may have come after the end of another that we have just heard of.
pub(crate) const SETTLED: Duration = Duration::from_secs(1);

/// A number that no other has, and the connections that stand for it.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) number: i64,
    /// Whether others see it when this process ends.
    lit: AtomicBool,
    ended: AtomicBool,
    /// The run of the server that saw it begin.
    run: OnceLock<Vec<u8>>,
    /// The server's numbers of its connections.
    living: Mutex<HashSet<u64>>,
    reader: Mutex<Option<Reader>>,
}

/// Who listens for the end of a session.
#[derive(Debug)]
struct Reader {
    connection: u64,
    since: Instant,
    task: AbortHandle,
}

/// One of the connections of a session, as long as this is kept.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) session: Arc<Session>,
    connection: u64,
}

impl Drop for Standing {
    fn drop(&mut self) {
        lock(&self.session.living).remove(&self.connection);
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            number: i64::from_ne_bytes(random()?) & (i64::MAX >> 1) | 1,
            lit: AtomicBool::new(true),
            ended: AtomicBool::new(false),
            run: OnceLock::new(),
            living: Mutex::default(),
            reader: Mutex::default(),
        })
    }

    pub(crate) fn is_lit(&self) -> bool {
        self.lit.load(Ordering::Acquire)
    }

    pub(crate) fn put_out(&self) {
        self.lit.store(false, Ordering::Release);
    }

    /// Whether others may have seen it end.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.stop_reading();
    }

    /// Whether its end would be heard of.
    pub(crate) fn is_read(&self) -> bool {
        !self.is_lit() || lock(&self.reader).is_some()
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

    fn lock_name(&self, witness: u32) -> String {
        format!("oarlock_{:x}_{witness}", self.number)
    }
}

/// Lets a connection take one of the named locks of a session. Answers which.
pub(crate) async fn stand(conn: &mut Conn, session: &Arc<Session>) -> Result<(Standing, String)> {
    let connection = u64::from(conn.id());
    lock(&session.living).insert(connection);
    let standing = Standing { session: session.clone(), connection };
    for witness in 0..WITNESSES {
        let name = session.lock_name(witness);
        if take(conn, &name, 0).await? {
            return Ok((standing, name));
        }
    }
    // The server still has connections that we have given up. It would keep them for hours, and they are ours to end.
    let mut given_up = Vec::new();
    for witness in 0..WITNESSES {
        let name = session.lock_name(witness);
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
            return Ok((standing, name));
        }
    }
    Err(Error::new(ErrorKind::Unreachable, "the server has not yet let go of earlier connections")
        .on(SCHEME)
        .retry_later())
}

async fn take(conn: &mut Conn, name: &str, seconds: u32) -> Result<bool> {
    let taken: Option<Option<i64>> = conn.exec_first("SELECT GET_LOCK(?, ?)", (name, seconds)).await.map_err(failed)?;
    Ok(taken.flatten() == Some(1))
}

/// Where a session stands after it was to be written down.
pub(crate) enum Begun {
    Here,
    /// Nothing can be written down here that tells others of its end.
    Dark,
    /// It began on another server, or in another run of this one, which may have told others that it is over.
    Elsewhere,
}

/// Writes a session down for all others, once its end would be heard of.
pub(crate) async fn begin(conn: &mut Conn, flavour: Flavour, session: &Session) -> Result<Begun> {
    let before = session.run.get();
    if before.is_some() && run(conn).await?.as_ref() != before {
        return Ok(Begun::Elsewhere);
    }
    let random = random::<16>()?;
    let kills = flavour.kills(conn).await.map_err(failed)?;
    match conn.exec_drop("CALL oarlock_begin(?, ?, ?)", (session.number, random.as_slice(), kills)).await {
        // Group replication takes no changes to what is not replicated.
        Err(mysql_async::Error::Server(told)) if told.code == NOT_ALLOWED_IN_GROUP => return Ok(Begun::Dark),
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

/// Lets `conn` wait for the end of whoever holds the lock `beacon`, and so for its own.
pub(crate) fn read(link: Weak<Link>, conn: Conn, standing: Standing, beacon: String) {
    let (session, connection) = (standing.session.clone(), standing.connection);
    let task = tokio::spawn(listen(link, conn, standing, beacon)).abort_handle();
    let before = lock(&session.reader).replace(Reader { connection, since: Instant::now(), task });
    if let Some(before) = before {
        // It goes on to listen, for it may have something to tell yet, but nobody misses it.
        lock(&session.living).remove(&before.connection);
    }
}

async fn listen(link: Weak<Link>, mut conn: Conn, standing: Standing, beacon: String) {
    let _ = conn.query_drop(PATIENCE).await;
    let heard = conn.query_drop(format!("DO GET_LOCK('{beacon}', 31536000)")).await;
    let (session, Some(link)) = (standing.session.clone(), link.upgrade()) else { return };
    let replaced_for = session.replaced_for(standing.connection);
    if replaced_for.is_none() {
        lock(&session.reader).take();
    }
    let is_lit = match heard {
        // Whoever came in its place was there before its end.
        _ if replaced_for.is_some_and(|span| span > SETTLED) => return,
        // Who was killed is counted: nobody takes us for dead, and the next renewal lights the beacon.
        Err(mysql_async::Error::Server(told)) if is_killed(told.code) => return,
        // The beacon is gone, and this one has stood for the session until now.
        Ok(()) | Err(mysql_async::Error::Server(_)) if replaced_for.is_some() => return,
        Ok(()) | Err(mysql_async::Error::Server(_)) => true,
        Err(_) => replaced_for.is_none() && link.has_witness(&session).await,
    };
    if !is_lit || link.relight(&session).await.is_err() {
        link.end(&session);
    }
    drop((conn, standing));
}
