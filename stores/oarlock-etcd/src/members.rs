//! The members of a cluster, and the one that gets the requests: always the same, until it fails or falls silent.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oarlock_core::driver::BoxFuture;
use oarlock_core::{Error, ErrorKind, Result};
use tokio::sync::watch;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::config::{Config, Tls};
use crate::error::SCHEME;

/// Servers end connections that ask for a sign of life more often than every 5 s.
const PING_AFTER: Duration = Duration::from_secs(6);
const PONG_WITHIN: Duration = Duration::from_secs(4);

/// The flow-control window. Frames for a stream that was dropped count against it for good, and the connection ends
/// when half of it is used up: every wait leaves one such frame. This window outlasts any connection.
const WINDOW: u32 = 1 << 30;

/// A member that has not answered a request for so long gets no more requests while there are others, unless answers
/// take that long in this cluster: see [`State::patience`]. Well below a third of the shortest lease, after which a
/// renewal is sent again.
const SILENT_AFTER: Duration = Duration::from_millis(500);

/// However slow the cluster is, a member that is silent for so long is left.
const SILENT_AT_LAST: Duration = Duration::from_secs(5);

/// Where requests go.
#[derive(Debug)]
pub(crate) struct Members {
    channels: Vec<Channel>,
    state: Mutex<State>,
    /// Notified when requests leave that member, for the watches on it.
    left: Vec<watch::Sender<()>>,
}

#[derive(Debug, Default)]
struct State {
    /// The one that is asked now.
    at: usize,
    /// Requests under way, by number: the member, and since when.
    open: BTreeMap<u64, (usize, Instant)>,
    next: u64,
    /// The longest that an answer took of late. All members answer by the same majority.
    latency: Duration,
}

impl State {
    fn silent(&self, member: usize, now: Instant) -> bool {
        let mut open = self.open.values().filter(|(to, _)| *to == member);
        open.any(|(_, since)| now.duration_since(*since) >= self.patience())
    }

    /// How long a member may take to answer: twice the longest latency of late. In a slow cluster the other members
    /// are as slow, and leaving a member ends the watches on it.
    fn patience(&self) -> Duration {
        (self.latency * 2).clamp(SILENT_AFTER, SILENT_AT_LAST)
    }

    /// The request with this number was answered.
    fn answered(&mut self, number: u64, now: Instant) {
        if let Some((_, since)) = self.open.get(&number) {
            self.latency = now.duration_since(*since).max(self.latency - self.latency / 8);
        }
    }

    /// The one asked now, or the next that is not silent if it is.
    fn choose(&mut self, members: usize, now: Instant) -> usize {
        let next = (0..members).map(|step| (self.at + step) % members).find(|member| !self.silent(*member, now));
        self.at = next.unwrap_or((self.at + 1) % members);
        self.at
    }

    fn leave(&mut self, member: usize, members: usize) {
        if self.at == member {
            self.at = (member + 1) % members;
        }
    }
}

/// A request under way.
pub(crate) struct InFlight<'a> {
    members: &'a Members,
    number: u64,
    member: usize,
    pub(crate) channel: Channel,
}

impl InFlight<'_> {
    /// The member has answered.
    pub(crate) fn answered(&self) {
        self.members.lock().answered(self.number, Instant::now());
    }

    /// The request failed there; the next one goes to another member.
    pub(crate) fn failed(&self) {
        self.members.lock().leave(self.member, self.members.channels.len());
        self.members.tell(self.member);
    }

    /// Resolves when the member is left.
    pub(crate) fn left(&self) -> BoxFuture<()> {
        let mut left = self.members.left[self.member].subscribe();
        Box::pin(async move {
            // An error is the end of all members.
            let _ = left.changed().await;
        })
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.members.lock().open.remove(&self.number);
    }
}

impl Members {
    pub(crate) fn of(config: &Config) -> Result<Self> {
        let tls = config.tls.as_ref().map(|tls| encryption(tls, config.connect_timeout)).transpose()?;
        let wrong =
            |error| Error::new(ErrorKind::Config, "this is not the address of a member").on(SCHEME).because(error);
        let channel = |member: &String| {
            let scheme = if tls.is_some() { "https" } else { "http" };
            let endpoint = Endpoint::from_shared(format!("{scheme}://{member}")).map_err(wrong)?;
            let endpoint = match tls.clone() {
                Some(tls) => endpoint.tls_config(tls).map_err(|error| unusable("the certificates").because(error))?,
                None => endpoint,
            };
            let endpoint = endpoint.connect_timeout(config.connect_timeout).http2_keep_alive_interval(PING_AFTER);
            Ok(endpoint.keep_alive_timeout(PONG_WITHIN).initial_connection_window_size(WINDOW).connect_lazy())
        };
        let channels = config.members.iter().map(channel).collect::<Result<Vec<_>>>()?;
        if channels.is_empty() {
            return Err(Error::new(ErrorKind::Config, "no member is named").on(SCHEME));
        }
        let left = channels.iter().map(|_| watch::Sender::new(())).collect();
        Ok(Self { channels, state: Mutex::default(), left })
    }

    pub(crate) fn len(&self) -> usize {
        self.channels.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, member: usize) {
        if self.channels.len() > 1 {
            self.left[member].send_replace(());
        }
    }

    /// Begins a request: chooses its member.
    pub(crate) fn begin(&self) -> InFlight<'_> {
        let (mut state, now) = (self.lock(), Instant::now());
        let before = state.at;
        let member = state.choose(self.channels.len(), now);
        if member != before {
            self.tell(before);
        }
        let number = state.next;
        state.next += 1;
        state.open.insert(number, (member, now));
        drop(state);
        InFlight { members: self, number, member, channel: self.channels[member].clone() }
    }
}

fn encryption(tls: &Tls, patience: Duration) -> Result<ClientTlsConfig> {
    let mut encryption = match &tls.ca {
        Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(file(ca)?)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    // The time to connect ends before the greeting begins.
    encryption = encryption.timeout(patience);
    if let Some((certificate, key)) = &tls.identity {
        encryption = encryption.identity(Identity::from_pem(file(certificate)?, file(key)?));
    }
    Ok(encryption)
}

fn file(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| unusable(&path.display().to_string()).because(error))
}

fn unusable(what: &str) -> Error {
    Error::new(ErrorKind::Config, format!("{what} cannot be used")).on(SCHEME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_member_gets_no_requests_while_there_are_others() {
        let (mut state, start) = (State::default(), Instant::now());
        let later = start + SILENT_AFTER;
        state.open.insert(0, (0, start));
        assert_eq!(state.choose(3, start), 0);
        assert_eq!(state.choose(3, later), 1);
        assert_eq!(state.choose(3, later), 1, "it stays there");
        state.open.insert(1, (1, start));
        state.open.insert(2, (2, start));
        let tried: Vec<_> = (0..3).map(|_| state.choose(3, later)).collect();
        assert_eq!(tried, [2, 0, 1], "where all are silent each has its turn");
        assert_eq!(state.choose(1, later), 0);
        state.open.clear();
        assert_eq!(state.choose(3, later), 0);
    }

    #[test]
    fn a_slow_cluster_is_not_a_silent_member() {
        let (mut state, start) = (State::default(), Instant::now());
        let slow = SILENT_AFTER * 2;
        state.open.insert(0, (0, start));
        state.answered(0, start + slow);
        assert_eq!(state.choose(3, start + slow), 0, "all answer so slowly");
        assert_eq!(state.choose(3, start + slow * 2), 1, "slower than any answer of late");
        state.open.clear();
        state.at = 0;
        // Quick answers are what is expected again after a while.
        for number in 1..64 {
            state.open.insert(number, (0, start));
            state.answered(number, start);
            state.open.remove(&number);
        }
        state.open.insert(64, (0, start));
        assert_eq!(state.choose(3, start + SILENT_AFTER), 1);
        // One answer that took for ever does not make the client wait for ever.
        state.answered(64, start + SILENT_AT_LAST * 10);
        assert_eq!(state.patience(), SILENT_AT_LAST);
    }

    #[test]
    fn a_failed_member_is_left_once() {
        let mut state = State::default();
        state.leave(0, 3);
        state.leave(0, 3);
        assert_eq!(state.at, 1);
    }

    /// A peer that accepts the connection and sends nothing is given up, with TLS or without.
    #[tokio::test]
    async fn a_peer_that_does_not_greet_is_given_up_on() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut config = Config::new([silent.local_addr().unwrap().to_string()]);
        (config.tls, config.connect_timeout) = (Some(Tls::default()), Duration::from_millis(200));
        let opened = tokio::time::timeout(Duration::from_secs(30), crate::Etcd::open(config));
        let error = opened.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
    }
}
