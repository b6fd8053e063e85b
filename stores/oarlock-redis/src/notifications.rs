//! Notifications: which watches and claims wait for them, on which connections.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oarlock_core::ClaimId;
use oarlock_core::driver::{Handed, Hint, HintSender, Waiters, Watch};
use redis::{Msg, PushInfo, PushKind, Value};

/// What a watch listens for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    /// Notifications for this claim.
    Turn(ClaimId),
    /// Notifications for all claims without a watch of their own.
    Mailbox,
    /// A message on this channel.
    Channel(String),
    /// A message on this channel that a lock was released.
    Freed(String),
}

/// The message that a lock of the plain layout was released.
const FREE: &[u8] = b"free";

/// A message that a script publishes for a claim: its id, and the grant that was handed to it, if any.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Notification {
    pub(crate) claim: Option<ClaimId>,
    pub(crate) handed: Option<Handed>,
}

impl Notification {
    /// The 16 bytes of an id, alone or with fence, sent and ttl of 8 bytes each, and `=` and a memo if there is one. The
    /// other layouts send an id as text. Any other payload is a hint without a claim.
    pub(crate) fn read(payload: &[u8]) -> Self {
        if payload.len() == 32 {
            return Self { claim: std::str::from_utf8(payload).ok().and_then(|id| id.parse().ok()), handed: None };
        }
        let Some((id, rest)) = payload.split_first_chunk() else { return Self { claim: None, handed: None } };
        let claim = Some(ClaimId::from_bits(u128::from_be_bytes(*id)));
        match rest {
            [] => Self { claim, handed: None },
            _ => handed(rest).map_or(Self { claim: None, handed: None }, |handed| Self { claim, handed: Some(handed) }),
        }
    }
}

/// A grant: three numbers, and `=` and a memo if there is one.
fn handed(bytes: &[u8]) -> Option<Handed> {
    let (numbers, memo) = bytes.split_at_checked(24)?;
    let mut numbers = numbers.chunks_exact(8).map(|bytes| bytes.try_into().map(u64::from_be_bytes).ok());
    let mut number = || numbers.next().flatten();
    let memo = match memo {
        [] => None,
        [b'=', memo @ ..] => Some(memo.into()),
        _ => return None,
    };
    Some(Handed::new(number()?, number()?, number()?, memo))
}

/// A connection on which notifications arrive.
pub(crate) type Source = u64;

/// The watches and waiting claims of one client, on all its connections. A watch ends with the connection that it
/// needs.
#[derive(Debug)]
pub(crate) struct Notifications {
    /// The prefix of the mailboxes: the channels that notify claims.
    mail: String,
    waiters: Waiters<ExpectedClaim>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last_source: Source,
    /// The open connections, and the channels that each is subscribed to.
    sources: HashMap<Source, HashSet<Arc<str>>>,
    /// The watches for messages on channels other than mailboxes, by channel and whether only for releases.
    channels: HashMap<(String, bool), Vec<(Source, HintSender)>>,
}

/// How a claim is notified, and the grant that was handed to it.
#[derive(Debug, Default)]
struct ExpectedClaim {
    source: Source,
    mailbox: Arc<str>,
    handed: Option<Handed>,
}

impl Notifications {
    /// For a client whose mailboxes begin with `mail`.
    pub(crate) fn new(mail: String) -> Arc<Self> {
        Arc::new(Self { mail, waiters: Waiters::default(), state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection.
    pub(crate) fn begin(&self) -> Source {
        let mut state = self.lock();
        state.last_source += 1;
        let source = state.last_source;
        state.sources.insert(source, HashSet::new());
        source
    }

    pub(crate) fn is_ended(&self, source: Source) -> bool {
        !self.lock().sources.contains_key(&source)
    }

    /// A connection ended: the watches that need it end, and so does that of the mailbox, which needs all connections.
    pub(crate) fn end(&self, source: Source) {
        let mut state = self.lock();
        if state.sources.remove(&source).is_none() {
            return;
        }
        self.waiters.end_mailboxes();
        self.waiters.lose(|kept| kept.source == source, |kept| kept.handed.is_some());
        state.channels.values_mut().for_each(|listeners| listeners.retain(|(of, _)| *of != source));
    }

    /// This connection is subscribed to this channel.
    fn subscribed(&self, channel: &str, source: Source) {
        if let Some(channels) = self.lock().sources.get_mut(&source)
            && !channels.contains(channel)
        {
            channels.insert(channel.into());
        }
    }

    /// This connection is not subscribed to this channel any more: another node serves its slot. The watches that need
    /// it end, so that they are armed again and the claims are checked.
    fn unsubscribed(&self, channel: &str, source: Source) {
        let mut state = self.lock();
        if !state.sources.get_mut(&source).is_some_and(|channels| channels.remove(channel)) {
            return;
        }
        let depends = |kept: &ExpectedClaim| kept.source == source && *kept.mailbox == *channel;
        self.waiters.lose(depends, |kept| kept.handed.is_some());
        for freed in [false, true] {
            if let Some(listeners) = state.channels.get_mut(&(channel.to_owned(), freed)) {
                listeners.retain(|(of, _)| *of != source);
            }
        }
    }

    /// Whether this connection is subscribed to this channel.
    pub(crate) fn is_subscribed(&self, channel: &str, source: Source) -> bool {
        self.lock().sources.get(&source).is_some_and(|channels| channels.contains(channel))
    }

    /// Whether any connection is subscribed to this channel.
    pub(crate) fn is_subscribed_anywhere(&self, channel: &str) -> bool {
        self.lock().sources.values().any(|channels| channels.contains(channel))
    }

    /// Removes and returns the channels of this connection that no watch needs.
    pub(crate) fn take_unused(&self, source: Source) -> Vec<Arc<str>> {
        let mut state = self.lock();
        let State { sources, channels, .. } = &mut *state;
        channels.retain(|_, listeners| {
            listeners.retain(|(_, hints)| !hints.is_closed());
            !listeners.is_empty()
        });
        let heard = |channel: &str| {
            let is_watched = |freed| channels.contains_key(&(channel.to_owned(), freed));
            channel.starts_with(&self.mail) || is_watched(false) || is_watched(true)
        };
        sources.get_mut(&source).map_or_else(Vec::new, |it| it.extract_if(|channel| !heard(channel)).collect())
    }

    /// Keeps notifications for a claim that is about to wait, if this connection is subscribed to its mailbox.
    pub(crate) fn expect(&self, claim: ClaimId, mailbox: &str, source: Source) -> bool {
        let state = self.lock();
        let mailbox = state.sources.get(&source).and_then(|channels| channels.get(mailbox)).cloned();
        mailbox
            .is_some_and(|mailbox| self.waiters.expect(claim, |kept| (kept.source, kept.mailbox) = (source, mailbox)))
    }

    /// Whether notifications for this claim are kept.
    pub(crate) fn expects(&self, claim: ClaimId) -> bool {
        self.waiters.expects(claim)
    }

    /// For how many claims notifications are kept.
    #[cfg(test)]
    pub(crate) fn expected(&self) -> usize {
        self.waiters.expected()
    }

    /// The grant that was handed to this claim. It is returned once: a second attempt asks the store.
    pub(crate) fn handed(&self, claim: ClaimId) -> Option<Handed> {
        self.waiters.kept(claim, |kept| kept.handed.take()).flatten()
    }

    /// The claim is not in the store.
    pub(crate) fn unexpect(&self, claim: ClaimId) {
        self.waiters.unexpect(claim);
    }

    /// The claim does not wait any more.
    pub(crate) fn forget(&self, claim: ClaimId) {
        self.waiters.forget(claim);
    }

    /// A watch. It has already ended if the connection has.
    pub(crate) fn listen(&self, topic: Topic, channel: &str, source: Source) -> Watch {
        let mut state = self.lock();
        if !state.sources.contains_key(&source) {
            return Watch::ended();
        }
        let (hints, watch) = Watch::channel();
        let (channel, freed) = match topic {
            Topic::Mailbox => return self.waiters.mailbox(),
            Topic::Turn(id) => {
                self.waiters.arm(id, hints, |kept| (kept.source, kept.mailbox) = (source, channel.into()));
                return watch;
            }
            Topic::Channel(channel) => (channel, false),
            Topic::Freed(channel) => (channel, true),
        };
        state.channels.entry((channel, freed)).or_default().push((source, hints));
        watch
    }

    /// Handles a push message of a connection.
    pub(crate) fn push(&self, source: Source, push: PushInfo) {
        let channel = match push.data.first() {
            Some(Value::BulkString(channel)) => std::str::from_utf8(channel).unwrap_or_default(),
            _ => "",
        };
        match push.kind {
            PushKind::Disconnection => self.end(source),
            PushKind::Subscribe | PushKind::SSubscribe => self.subscribed(channel, source),
            // The server sends it also without a request, when a slot moves.
            PushKind::SUnsubscribe => self.unsubscribed(channel, source),
            _ => {
                if let Some(message) = Msg::from_push_info(push) {
                    self.notify(message.get_channel_name(), message.get_payload_bytes());
                }
            }
        }
    }

    fn notify(&self, channel: &str, payload: &[u8]) {
        if !channel.starts_with(&self.mail) {
            let mut state = self.lock();
            for freed in [false, true].into_iter().filter(|freed| !freed || payload == FREE) {
                if let Some(listeners) = state.channels.get_mut(&(channel.to_owned(), freed)) {
                    listeners.retain(|(_, hints)| hints.send(Hint::ANY));
                }
            }
            return;
        }
        match Notification::read(payload) {
            // Of several notifications the last one counts: a turn may have been taken back.
            Notification { claim: Some(id), handed } => _ = self.waiters.notify(id, |kept| kept.handed = handed),
            Notification { claim: None, .. } => self.waiters.check_all(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(parts: &[&[u8]]) -> Vec<u8> {
        [&255_u128.to_be_bytes()[..], &parts.concat()].concat()
    }

    #[test]
    fn notifications_are_read_as_they_are_written() {
        let claim = Some(ClaimId::from_bits(255));
        let told = Notification { claim, handed: None };
        assert_eq!(Notification::read(&payload(&[])), told);
        assert_eq!(Notification::read(b"000000000000000000000000000000ff"), told, "as the other layouts send it");
        let numbers: Vec<u8> = [7_u64, 5, 2].iter().flat_map(|number| number.to_be_bytes()).collect();
        for (memo, read) in [(&b""[..], None), (b"=", Some(&b""[..])), (b"=a b \xff", Some(b"a b \xff"))] {
            let handed = Some(Handed::new(7, 5, 2, read.map(Into::into)));
            assert_eq!(Notification::read(&payload(&[&numbers, memo])), Notification { claim, handed });
        }
        let hint = Notification { claim: None, handed: None };
        for other in [b"something else".to_vec(), payload(&[b"x"]), payload(&[&numbers, b"memo"]), vec![b'x'; 32]] {
            assert_eq!(Notification::read(&other), hint);
        }
    }
}
