//! Notices at once that the process of the claim ahead has died, so that waiters need not poll for it.
//!
//! One connection for each client that waits, and only while it does: it waits in the server for the liveness lock of
//! one session. The result is a hint; without it a waiter polls.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oarlock_core::reconnect::Reopened;
use oarlock_core::{ClaimId, Result};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use crate::postgres::config::Config;
use crate::postgres::connection::{Connection, dial};
use crate::postgres::error::{SCHEME, STORE, failed};
use crate::postgres::tls::Tls;
use crate::postgres::watch::Hub;

/// The server must not end the wait, but end the connection when its client is gone.
const SETTINGS: &str = "SELECT count(set_config(name, value, false)) FROM pg_settings JOIN (VALUES
    ('lock_timeout', '0'), ('statement_timeout', '0'), ('client_connection_check_interval', '1000')
) AS wanted(name, value) USING (name)";

/// The server answers `await_end` within this time: five seconds for the liveness lock, half a second for the other
/// connection.
const AWAIT_END: Duration = Duration::from_millis(5500);

#[derive(Debug)]
pub(crate) struct HolderWatch(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Replaced when the address leads to another server: a connection that is being opened then belongs to the old
    /// one.
    connection: Mutex<Arc<Reopened<Connection>>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The session that is waited for.
    target: Option<i64>,
    /// The claims to notify, and their streams.
    claims: HashMap<ClaimId, Arc<Hub>>,
    /// The task that waits on the connection.
    task: Option<AbortHandle>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connection(&self) -> Arc<Reopened<Connection>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Default for HolderWatch {
    fn default() -> Self {
        Self(Arc::new(Shared { connection: Mutex::new(Arc::new(Reopened::new(SCHEME))), state: Mutex::default() }))
    }
}

impl HolderWatch {
    /// Lets `hub` tell of `claim` when `session` is over, unless others want to know of another one.
    pub(crate) fn watch(&self, session: i64, claim: ClaimId, hub: &Arc<Hub>, config: &Config, runtime: &Handle) {
        let mut state = self.0.lock();
        // A claim may have got its turn before it came here.
        state.claims.retain(|claim, hub| hub.listens(*claim));
        if state.target != Some(session) {
            if state.claims.keys().any(|other| *other != claim) {
                return;
            }
            state.target = Some(session);
            if let (Some(_), Some(connection)) = (&state.task, self.0.connection().current()) {
                let config = config.clone();
                runtime.spawn(async move { cancel(&connection.client, &config).await });
            }
        }
        state.claims.insert(claim, hub.clone());
        if state.task.is_none() {
            let (shared, config) = (self.0.clone(), config.clone());
            let task = runtime.spawn(async move { stand(&shared, &config).await });
            state.task = Some(task.abort_handle());
        }
    }

    /// The wait goes on for a while: the same session is likely to be ahead again.
    pub(crate) fn forget(&self, claim: ClaimId) {
        self.0.lock().claims.remove(&claim);
    }

    pub(crate) fn end(&self) {
        let state = std::mem::take(&mut *self.0.lock());
        if let Some(task) = state.task {
            task.abort();
        }
        let fresh = Arc::new(Reopened::new(SCHEME));
        let old = std::mem::replace(&mut *self.0.connection.lock().unwrap_or_else(PoisonError::into_inner), fresh);
        drop(old.close());
    }

    /// Ends for good.
    pub(crate) fn close(&self) {
        self.end();
        drop(self.0.connection().close());
    }
}

impl Drop for HolderWatch {
    fn drop(&mut self) {
        self.close();
    }
}

/// Ends a wait that no claim needs any more. If the request is lost, the wait ends by itself later.
async fn cancel(client: &Client, config: &Config) {
    if let Ok(tls) = Tls::of(config) {
        let _ = tokio::time::timeout(config.connect_timeout, client.cancel_token().cancel_query(tls)).await;
    }
}

/// Waits for one target after the other, until there is none or the connection fails.
async fn stand(shared: &Shared, config: &Config) {
    while let Some(target) = next_target(shared) {
        let connections = shared.connection();
        let Ok(connection) = connections.get(|| connect(config.clone())).await else {
            // The waiters poll.
            *shared.lock() = State::default();
            return;
        };
        let ended = await_end(&connection.client, target, AWAIT_END + config.silence_timeout).await;
        let cancelled = ended == Err(Some(SqlState::QUERY_CANCELED));
        let nothing = ended == Ok(None);
        let is_closed =
            ended.as_ref().is_err_and(|code| code.as_ref().is_none_or(|code| code.code().starts_with("57P")));
        let mut state = shared.lock();
        state.claims.retain(|claim, hub| hub.listens(*claim));
        if is_closed {
            connections.discard(&connection);
        }
        if state.target != Some(target) || cancelled || (nothing && !state.claims.is_empty()) {
            continue;
        }
        if is_closed && !state.claims.is_empty() {
            // This connection is no more: the wait goes on on another one, and something may have been missed.
            for (claim, hub) in &state.claims {
                hub.notify(*claim, |kept| kept.receive(None));
            }
            continue;
        }
        state.target = None;
        if ended.is_err() {
            connections.discard(&connection);
        }
        for (claim, hub) in state.claims.drain() {
            hub.notify(claim, |kept| kept.receive(None));
        }
    }
}

/// Whether `target` is over; `None` if nothing happened for a while. The error is what the server said, if it said
/// anything.
async fn await_end(client: &Client, target: i64, limit: Duration) -> Result<Option<bool>, Option<SqlState>> {
    let asked = [(&target as _, Type::INT8)];
    let ended = client.query_typed("SELECT oarlock.await_end($1)", &asked);
    // The client crate has no timeout here: a cancel does not reach a connection that a firewall has forgotten.
    let ended = tokio::time::timeout(limit, ended).await.map_err(|_| None)?;
    let rows = ended.map_err(|error| error.code().cloned())?;
    Ok(rows.first().and_then(|row| row.try_get(0).ok()))
}

/// The session to wait for. If there is none, the next claim starts a new task.
fn next_target(shared: &Shared) -> Option<i64> {
    let mut state = shared.lock();
    if state.target.is_none() {
        state.task = None;
    }
    state.target
}

async fn connect(config: Config) -> Result<Connection> {
    let connecting = async {
        let (client, connection) = dial(&config).await?;
        tokio::spawn(connection);
        client.query_typed(SETTINGS, &[]).await.map_err(failed)?;
        Ok(Connection::plain(client))
    };
    tokio::time::timeout(config.connect_timeout, connecting).await.unwrap_or_else(|_| Err(STORE.no_answer()))
}
