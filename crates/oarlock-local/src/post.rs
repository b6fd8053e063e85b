//! Telling waiters that they should look: one datagram per session, with the ids of the claims it is about.
//!
//! Losing one is no harm, only a delay: the engine looks by itself now and then.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

use oarlock_core::ClaimId;
use oarlock_core::model::{Calls, Session};

use crate::session::Sessions;

/// The most ids in one datagram.
pub(crate) const MAX_IDS: usize = 256;
/// The bytes of one id.
pub(crate) const ID_BYTES: usize = size_of::<u128>();

/// The way to other sessions.
#[derive(Debug)]
pub(crate) struct Post {
    sessions: Arc<Sessions>,
    socket: UnixDatagram,
}

impl Post {
    pub(crate) fn open(sessions: Arc<Sessions>) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self { sessions, socket })
    }

    /// Tells everyone in `calls` but `me`, whose claims are handed back.
    pub(crate) fn send(&self, calls: &Calls, me: Session) -> Vec<ClaimId> {
        let mut mine = Vec::new();
        let mut others: BTreeMap<Session, Vec<ClaimId>> = BTreeMap::new();
        for (id, session) in calls {
            let ids = if *session == me { &mut mine } else { others.entry(*session).or_default() };
            ids.push(*id);
        }
        for (session, ids) in others {
            let address = self.sessions.socket_address(session);
            for ids in ids.chunks(MAX_IDS) {
                let message: Vec<u8> = ids.iter().flat_map(|id| id.bits().to_be_bytes()).collect();
                let _ = self.socket.send_to(&message, &address);
            }
        }
        mine
    }
}

/// The ids in a message.
pub(crate) fn ids(message: &[u8]) -> impl Iterator<Item = ClaimId> {
    message.as_chunks().0.iter().map(|bytes| ClaimId::from_bits(u128::from_be_bytes(*bytes)))
}
