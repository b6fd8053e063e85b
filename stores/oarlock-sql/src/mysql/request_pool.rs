//! Requests, and the idle connections on which they are sent.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Params, Row};
use oarlock_core::ClaimId;
use tokio::sync::Semaphore;

use crate::mysql::driver::{ATTEMPT, RELEASE, RENEW};
use crate::mysql::flavour::Flavour;
use crate::mysql::liveness::{Membership, Session};
use crate::mysql::short::{Take, give};
use crate::mysql::wake::Keyring;
use crate::row::{Row as _, first};

/// Connections of one use, at most so many at once.
pub(super) struct RequestPool {
    pub(super) permits: Semaphore,
    idle: Mutex<Vec<Connection>>,
}

/// What is asked on a connection.
pub(super) enum Request {
    /// A statement, and what it is given.
    Step(&'static str, Params),
    /// An attempt of this claim, for everything or not, which lives for so long after it. The
    /// [short way](crate::mysql::short) first, if there is one.
    Attempt(ClaimId, bool, Duration, Option<Take>, Params),
    /// The release of this claim. The short way first, if the name is given for it.
    Release(ClaimId, Option<Vec<u8>>, Params),
    /// The session that renews, whether it waits for names that others have locked, and the batch.
    Renewal(i64, bool, String),
}

/// What the server answered.
pub(crate) enum Answer {
    /// The rows of a procedure.
    Rows(Vec<Row>),
    /// The short way sufficed: the fence of an attempt, and whether the wake-up lock was taken or released.
    Short(u64, bool),
}

impl Answer {
    /// Whether the wake-up lock was taken or released.
    pub(super) fn wakes(&self) -> bool {
        match self {
            Self::Rows(rows) => matches!(first(rows).and_then(|row| row.boolean("wake")), Ok(Some(true))),
            Self::Short(_, wake) => *wake,
        }
    }

    /// The rows of a request that has no short way.
    pub(super) fn rows(self) -> Vec<Row> {
        match self {
            Self::Rows(rows) => rows,
            Self::Short(..) => Vec::new(),
        }
    }
}

impl Request {
    /// The claim whose [wake-up lock](crate::mysql::wake) this takes or releases: the connection that holds it is the
    /// best one for it.
    pub(super) fn claim(&self) -> Option<ClaimId> {
        match self {
            Self::Attempt(id, ..) | Self::Release(id, ..) => Some(*id),
            Self::Step(..) | Self::Renewal(..) => None,
        }
    }

    /// `wake`: whether an attempt takes the lock of its claim, and whether this connection holds that of a release.
    pub(super) async fn send(self, conn: &mut Conn, flavour: Flavour, wake: bool) -> mysql_async::Result<Answer> {
        let rows = match self {
            Self::Step(sql, params) => flavour.query(conn, sql, params).await,
            Self::Attempt(id, _, _, short, mut params) => {
                if let Some(short) = short
                    && let Some(fence) = short.send(conn, id, wake).await?
                {
                    return Ok(Answer::Short(fence, wake));
                }
                if let Params::Named(named) = &mut params {
                    named.insert(b"wake".to_vec(), wake.into());
                }
                flavour.query(conn, ATTEMPT, params).await
            }
            Self::Release(id, short, params) => {
                if let Some(name) = short
                    && let Some(released) = give(conn, name, id, wake).await?
                {
                    return Ok(Answer::Short(0, released));
                }
                flavour.query(conn, RELEASE, params).await
            }
            Self::Renewal(session, wait, batch) => {
                let kills = flavour.kills(conn).await?;
                conn.exec(RENEW, (session, kills, wait, batch)).await
            }
        };
        rows.map(Answer::Rows)
    }
}

/// A connection of a session.
pub(super) struct Connection {
    pub(super) conn: Conn,
    pub(super) flavour: Flavour,
    /// `None` where sessions have no liveness locks.
    pub(super) membership: Option<Membership>,
    pub(super) keyring: Keyring,
    pub(super) made: Instant,
    pub(super) used: Instant,
}

impl Connection {
    pub(super) fn is_of(&self, session: &Arc<Session>) -> bool {
        self.membership
            .as_ref()
            .map_or(!session.has_liveness_lock(), |membership| Arc::ptr_eq(&membership.session, session))
    }
}

impl RequestPool {
    pub(super) fn new(count: usize) -> Self {
        Self { permits: Semaphore::new(count), idle: Mutex::default() }
    }

    pub(super) fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection `best`, or the one that was used last, if it is of this session. Others are of one that has
    /// ended.
    pub(super) fn take(&self, session: &Arc<Session>, best: Option<u64>) -> Option<Connection> {
        let mut idle = self.idle();
        idle.retain(|connection| connection.is_of(session));
        let at = idle.iter().position(|connection| Some(connection.keyring.number) == best);
        at.map(|at| idle.remove(at)).or_else(|| idle.pop())
    }

    /// This connection, if it is idle.
    pub(super) fn take_this(&self, number: u64) -> Option<Connection> {
        let mut idle = self.idle();
        let at = idle.iter().position(|connection| connection.keyring.number == number)?;
        Some(idle.remove(at))
    }

    pub(super) fn put(&self, mut connection: Connection) {
        connection.used = Instant::now();
        self.idle().push(connection);
    }
}

impl fmt::Debug for RequestPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the connections themselves: they show the password.
        f.debug_struct("RequestPool").field("idle", &self.idle().len()).finish_non_exhaustive()
    }
}
