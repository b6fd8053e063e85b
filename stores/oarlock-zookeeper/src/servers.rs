//! The servers of the configuration by their addresses, and the order in which they are tried.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use oarlock_core::clock::{BootClock, Clock as _, Moment};
use oarlock_core::{Error, Result};

use crate::error::SCHEME;

/// The port of a server that is named without one.
const PORT: u16 = 2181;

/// What a client knows of its servers. It outlives connections and sessions.
#[derive(Debug, Default)]
pub(crate) struct Servers {
    hosts: Vec<String>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The last addresses of each host.
    found: HashMap<String, Vec<SocketAddr>>,
    /// When a server failed that has not served since.
    failed: HashMap<SocketAddr, Moment>,
    /// Where the session is, or was last.
    at: Option<SocketAddr>,
}

impl Servers {
    pub(crate) fn of(hosts: &[String]) -> Self {
        Self { hosts: hosts.to_vec(), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This server serves the session from now on.
    pub(crate) fn joined(&self, server: SocketAddr) {
        let mut state = self.state();
        state.failed.remove(&server);
        state.at = Some(server);
    }

    /// The connection to the server of the session was lost.
    pub(crate) fn left(&self) {
        let at = self.state().at.take();
        if let Some(server) = at {
            self.failed(server);
        }
    }

    /// This server could not be used.
    pub(crate) fn failed(&self, server: SocketAddr) {
        self.state().failed.insert(server, BootClock.now());
    }

    /// All servers as they were found last. Servers that failed come last, the latest failure at the end: a silent
    /// server costs a good part of a session. The others are in random order, so that clients spread over them.
    pub(crate) fn known(&self) -> Vec<SocketAddr> {
        let (state, random) = (self.state(), RandomState::new());
        let mut all: Vec<_> = self.hosts.iter().filter_map(|host| state.found.get(host)).flatten().copied().collect();
        all.sort_by_cached_key(|server| (state.failed.get(server).copied(), random.hash_one(server), *server));
        all.dedup();
        all
    }

    /// Resolves all hosts within this time. A host that is not found keeps the addresses that it had.
    pub(crate) async fn look_up(&self, limit: Duration) -> Result<Vec<SocketAddr>> {
        let found = join_all(self.hosts.iter().map(|host| async move {
            let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            let named = if has_port { host.clone() } else { format!("{host}:{PORT}") };
            let found = tokio::time::timeout(limit, tokio::net::lookup_host(named)).await;
            (host, found.unwrap_or_else(|late| Err(late.into())).map(Iterator::collect::<Vec<_>>))
        }));
        let mut missing = None;
        for (host, found) in found.await {
            match found {
                Ok(addresses) => drop(self.state().found.insert(host.clone(), addresses)),
                Err(error) => missing = Some((host, error)),
            }
        }
        match (self.known(), missing) {
            (known, Some((host, error))) if known.is_empty() => {
                let message = format!("the address of {host:?} was not found");
                Err(Error::unreachable(message).because(error).on(SCHEME))
            }
            (known, _) => Ok(known),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses() -> [SocketAddr; 3] {
        [1, 2, 3].map(|last| SocketAddr::from(([127, 0, 0, last], PORT)))
    }

    #[tokio::test]
    async fn a_server_that_failed_is_tried_last() {
        let [one, two, three] = addresses();
        let servers = Servers::of(&[one, two, three].map(|server| server.to_string()));
        assert_eq!(servers.look_up(Duration::from_secs(10)).await.unwrap().len(), 3);
        servers.joined(one);
        // Sixteen orders by chance would hide it in one of 6^16 runs.
        for _ in 0..16 {
            servers.left();
            servers.failed(two);
            assert_eq!(servers.known(), [three, one, two]);
            servers.joined(two);
            servers.left();
            assert_eq!(servers.known(), [three, one, two]);
            servers.joined(one);
            assert_eq!(servers.known()[2], two);
        }
    }

    #[tokio::test]
    async fn a_host_that_is_not_found_keeps_its_addresses() {
        let [one, ..] = addresses();
        let servers = Servers::of(&["no-such-host.invalid".into()]);
        let limit = Duration::from_secs(2);
        assert!(servers.look_up(limit).await.is_err());
        servers.state().found.insert("no-such-host.invalid".into(), vec![one]);
        assert_eq!(servers.look_up(limit).await.unwrap(), [one]);
    }
}
