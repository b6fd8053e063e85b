//! What all requests share.

use std::fmt;
use std::sync::Arc;

use oarlock::{Locks, Result};
use oarlock_core::capabilities::Liveness;
use oarlock_core::clock::{BootClock, Clock as _, Moment};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::audit::Audit;
use crate::board::Board;
use crate::config::Config;
use crate::connection;
use crate::followers::Followers;
use crate::graph::Graphs;
use crate::history::History;
use crate::leases::{LeaseQuota, Leases};
use crate::limiter::Limiter;
use crate::listings::Listings;
use crate::metrics::Metrics;
use crate::origin::Hosts;
use crate::pending::Pending;
use crate::quota::Quota;
use crate::reload::Present;

/// One token at all addresses may send so many times what it may at one.
const OF_A_TOKEN: u32 = 50;

/// The same for an address that stands for many clients.
const OF_MANY: u32 = 50;

/// Renewals and releases of one lease, a second: more than the shortest lease needs.
const OF_A_LEASE: u32 = 100;

/// Wrong tokens of one address: so many at once, and then one a second.
const WRONG_TOKENS: u32 = 10;

pub(crate) struct State {
    pub(crate) locks: Locks,
    pub(crate) hosts: Hosts,
    pub(crate) limiter: Limiter,
    /// By token: one that is used at many addresses.
    pub(crate) of_tokens: Limiter,
    /// By lease: what others send must cost no client its lock.
    pub(crate) renewals: Limiter,
    pub(crate) wrong_tokens: Limiter,
    /// By address: requests of clients that are not known, and of those that stand for many.
    pub(crate) strangers: [Limiter; 2],
    pub(crate) leases: Leases,
    /// Those of one client, with the requests that wait.
    pub(crate) lease_quota: LeaseQuota,
    pub(crate) pending: Pending,
    pub(crate) board: Board,
    pub(crate) graphs: Graphs,
    pub(crate) listings: Listings,
    pub(crate) followers: Followers,
    /// One for each stream that may still be opened.
    pub(crate) streams: Arc<Semaphore>,
    /// Those of one client.
    pub(crate) streams_of: Arc<Quota<String>>,
    pub(crate) history: History,
    pub(crate) audit: Audit,
    pub(crate) metrics: Metrics,
    /// The findings of the last examination, as JSON; `null` before the first.
    pub(crate) findings: watch::Sender<serde_json::Value>,
    /// Who is let in, and with which certificate.
    pub(crate) present: Present,
    /// Cancelled when the server ends.
    pub(crate) closing: CancellationToken,
    /// Without `access`, which can change.
    pub(crate) config: Config,
}

impl State {
    pub(crate) fn new(locks: Locks, mut config: Config) -> Result<Self> {
        let tls = connection::acceptor(&config)?;
        Ok(Self {
            present: Present::new(std::mem::take(&mut config.access), tls),
            hosts: Hosts::new(&config.hosts),
            limiter: Limiter::new(config.rate, config.rate.saturating_mul(2)),
            of_tokens: Limiter::new(config.rate.saturating_mul(OF_A_TOKEN), config.rate.saturating_mul(2 * OF_A_TOKEN)),
            renewals: Limiter::new(OF_A_LEASE, 2 * OF_A_LEASE),
            wrong_tokens: Limiter::new(1, WRONG_TOKENS),
            strangers: [1, OF_MANY]
                .map(|times| config.rate.saturating_mul(times))
                .map(|rate| Limiter::new(rate, rate.saturating_mul(2))),
            leases: Leases::default(),
            lease_quota: LeaseQuota::default(),
            pending: Pending::default(),
            board: Board::default(),
            graphs: Graphs::default(),
            listings: Listings::default(),
            followers: Followers::default(),
            streams: Arc::new(Semaphore::new(config.streams.min(Semaphore::MAX_PERMITS))),
            streams_of: Quota::new(config.streams.div_ceil(4)),
            history: History::open(config.history.as_deref())?,
            audit: Audit::open(config.audit.as_deref())?,
            metrics: Metrics::new(locks.info().scheme),
            findings: watch::Sender::new(serde_json::Value::Null),
            closing: CancellationToken::new(),
            locks,
            config,
        })
    }

    /// Whether clients can be told apart by their names.
    pub(crate) fn has_names(&self) -> bool {
        self.config.has_names(&self.present.admission().access)
    }

    /// Whether the store tells what is left of a lease. A hold that ends with a session has the same lease at all times.
    pub(crate) fn counts_down(&self) -> bool {
        self.locks.info().capabilities.liveness != Liveness::Session
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("locks", &self.locks).field("config", &self.config).finish_non_exhaustive()
    }
}

/// The present moment, on the clock of leases: it counts suspend.
pub(crate) fn now() -> Moment {
    BootClock.now()
}

/// Milliseconds since the epoch, for people.
pub(crate) fn wall_millis() -> i64 {
    i64::try_from(BootClock.wall_micros() / 1000).unwrap_or(i64::MAX)
}

pub(crate) fn millis(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
