//! Notifications to waiters, as datagrams to the sessions of their claims: a grant, or a call to attempt again.
//!
//! A lost datagram costs time, not safety: the engine polls slowly, and a grant that was not received ends with its
//! turn.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oarlock_core::ClaimId;
use oarlock_core::model::{Notified, Session};

use crate::session::{Life, Sessions};
use crate::turn::{self, Handed};

/// The most ids in one datagram.
pub(crate) const MAX_IDS: usize = 256;
/// The bytes of one id.
pub(crate) const ID_BYTES: usize = size_of::<u128>();

/// How many sockets are kept connected.
const MAX_PEERS: usize = if cfg!(target_os = "linux") { 32 } else { 8 };

/// Sends notifications to other sessions.
#[derive(Debug)]
pub(crate) struct Notifier {
    sessions: Arc<Sessions>,
    socket: UnixDatagram,
    /// Sockets connected to those of other sessions: resolving the path again would take longer than sending.
    peers: Mutex<HashMap<Session, UnixDatagram>>,
}

impl Notifier {
    pub(crate) fn open(sessions: Arc<Sessions>) -> io::Result<Self> {
        Ok(Self { sessions, socket: unbound()?, peers: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Session, UnixDatagram>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the process of a session is alive and receives datagrams.
    pub(crate) fn reaches(&self, session: Session) -> bool {
        if self.sessions.life(session) != Life::Alive {
            return false;
        }
        let mut peers = self.lock();
        if peers.contains_key(&session) {
            return true;
        }
        let address = self.sessions.socket_address(session);
        let Ok(peer) = unbound().and_then(|peer| peer.connect(address).map(|()| peer)) else { return false };
        if peers.len() >= MAX_PEERS {
            peers.clear();
        }
        peers.insert(session, peer);
        true
    }

    /// Notifies these claims, which attempt again. Returns those of the session `me`, which need no datagram.
    pub(crate) fn send_hints(&self, notified: &Notified, me: Session) -> Vec<ClaimId> {
        let mut mine = Vec::new();
        let mut others: BTreeMap<Session, Vec<ClaimId>> = BTreeMap::new();
        for (id, session) in notified {
            let ids = if *session == me { &mut mine } else { others.entry(*session).or_default() };
            ids.push(*id);
        }
        for (session, ids) in others {
            for ids in ids.chunks(MAX_IDS) {
                let message: Vec<u8> = ids.iter().flat_map(|id| id.bits().to_be_bytes()).collect();
                self.deliver(session, &message);
            }
        }
        mine
    }

    /// Sends each session its grants. Returns those of the session `me`, which need no datagram.
    pub(crate) fn send_grants(&self, handed: Vec<Handed>, me: Session) -> Vec<Handed> {
        let (mine, mut others): (Vec<_>, Vec<_>) = handed.into_iter().partition(|handed| handed.session == me);
        others.sort_by_key(|handed| handed.session);
        for handed in others.chunk_by(|one, other| one.session == other.session) {
            for message in turn::write(handed) {
                handed.iter().take(1).for_each(|to| self.deliver(to.session, &message));
            }
        }
        mine
    }

    fn deliver(&self, session: Session, message: &[u8]) {
        let mut peers = self.lock();
        let sent = match peers.get(&session) {
            Some(peer) => peer.send(message),
            None => self.socket.send_to(message, self.sessions.socket_address(session)),
        };
        if sent.is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock) {
            peers.remove(&session);
        }
    }
}

fn unbound() -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The ids in a message.
pub(crate) fn ids(message: &[u8]) -> impl Iterator<Item = ClaimId> {
    message.as_chunks().0.iter().map(|bytes| ClaimId::from_bits(u128::from_be_bytes(*bytes)))
}
