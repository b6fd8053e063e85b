//! The servers of the configuration by their addresses, and the order in which they are tried.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
#[cfg(feature = "tls")]
use oarlock_core::ErrorKind;
use oarlock_core::clock::{BootClock, Clock as _, Moment};
use oarlock_core::{Error, Result};
use zookeeper_client as zk;

use crate::config::Config;
use crate::connection::Connection;
use crate::error::SCHEME;
#[cfg(feature = "tls")]
use crate::tls::Encryption;

/// The port of a server that is named without one.
const PORT: u16 = 2181;

/// What a client knows of its servers. It outlives connections and sessions.
#[derive(Debug, Default)]
pub(crate) struct Servers {
    hosts: Vec<String>,
    #[cfg(feature = "tls")]
    encryption: Option<Encryption>,
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
        Self { hosts: hosts.to_vec(), ..Self::default() }
    }

    /// The servers of this configuration.
    pub(crate) fn from_config(config: &Config) -> Result<Self> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &config.tls {
            let encryption = Some(Encryption::of(tls, &config.hosts)?);
            return Ok(Self { encryption, ..Self::of(&config.hosts) });
        }
        Ok(Self::of(&config.hosts))
    }

    /// Connects to this server, once.
    pub(crate) async fn connect(&self, connector: zk::Connector, server: SocketAddr) -> Result<Connection, zk::Error> {
        #[cfg(feature = "tls")]
        if let Some(encryption) = &self.encryption {
            // By its name, which the certificate has to prove.
            let host = self.host(server).ok_or(zk::Error::NoHosts)?;
            return Connection::open(encryption.add_to(connector), &format!("tcp+tls://{host}")).await;
        }
        Connection::open(connector, &server.to_string()).await
    }

    /// Why this server and this client refuse each other, if they do so for a reason that does not pass.
    pub(crate) async fn refusal(&self, server: SocketAddr, limit: Duration) -> Option<Error> {
        #[cfg(feature = "tls")]
        if let Some(encryption) = &self.encryption {
            return encryption.refusal(&self.host(server)?, limit).await;
        }
        let _ = (server, limit);
        None
    }

    /// The host that was found at this address, with its port.
    #[cfg(feature = "tls")]
    fn host(&self, server: SocketAddr) -> Option<String> {
        let state = self.state();
        let found = |host: &&String| state.found.get(*host).is_some_and(|found| found.contains(&server));
        self.hosts.iter().find(found).map(|host| with_port(host))
    }

    /// The addresses of a host, as they are used. The client crate encrypts connections by name, so that it chooses
    /// among the addresses itself. They must be those of one server: a session is presented to the server that was
    /// probed before, and to no other.
    fn usable(&self, host: &str, addresses: Vec<SocketAddr>) -> Result<Vec<SocketAddr>> {
        #[cfg(feature = "tls")]
        if self.encryption.is_some() {
            let four = addresses.iter().filter(|address| address.is_ipv4()).count();
            if four > 1 || addresses.len() - four > 1 {
                let message = format!("{host} has several addresses: name each server, as in zks://zk-1,zk-2");
                return Err(Error::new(ErrorKind::Config, message).on(SCHEME));
            }
            return Ok(addresses.into_iter().take(1).collect());
        }
        let _ = host;
        Ok(addresses)
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
            let found = tokio::time::timeout(limit, tokio::net::lookup_host(with_port(host))).await;
            (host, found.unwrap_or_else(|late| Err(late.into())).map(Iterator::collect::<Vec<_>>))
        }));
        let mut missing = None;
        for (host, found) in found.await {
            match found {
                Ok(addresses) => {
                    let addresses = self.usable(host, addresses)?;
                    self.state().found.insert(host.clone(), addresses);
                }
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

fn with_port(host: &str) -> String {
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if has_port { host.to_owned() } else { format!("{host}:{PORT}") }
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

    /// The client crate would choose one of them at each connection, and a session may go only to the one that was
    /// probed.
    #[cfg(feature = "tls")]
    #[tokio::test]
    async fn a_name_of_several_servers_is_refused_with_encryption() {
        let folder = oarlock_testbed::CertificateFolder::make("zookeeper").unwrap();
        let mut config = Config::new(["zk"]);
        config.tls = Some(crate::Tls::new(folder.file("ca.pem")));
        let servers = Servers::from_config(&config).unwrap();
        let ([one, two, _], six) = (addresses(), SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], PORT)));
        assert_eq!(servers.usable("zk", vec![one, two]).unwrap_err().kind(), ErrorKind::Config);
        assert_eq!(servers.usable("zk", vec![six, one]).unwrap(), [six]);
        assert_eq!(Servers::of(&["zk".into()]).usable("zk", vec![one, two]).unwrap(), [one, two]);
    }
}
