//! Notifications: which watches and claims wait for them, on which connections.

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_core::Stream;
use oarlock_core::ClaimId;
use oarlock_core::driver::{Handed, Hint, HintSender, Watch};

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
    /// `id` or `id fence sent ttl [memo]`. Any other payload is a hint without a claim.
    pub(crate) fn read(payload: &[u8]) -> Self {
        let mut parts =
            payload.splitn(5, |byte| *byte == b' ').map(|part| std::str::from_utf8(part).unwrap_or_default());
        let claim = parts.next().and_then(|id| id.parse().ok());
        let memo = payload.splitn(5, |byte| *byte == b' ').nth(4).map(Into::into);
        Self { claim, handed: Handed::read(parts, memo) }
    }
}

/// A connection on which notifications arrive.
pub(crate) type Source = u64;

/// The watches and waiting claims of one client, on all its connections. A watch ends with the connection that it
/// needs.
#[derive(Debug)]
pub(crate) struct Notifications {
    /// The prefix of the mailboxes: the channels that notify claims.
    mail: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last_key: u64,
    last_source: Source,
    /// The open connections, and the channels that each is subscribed to.
    sources: HashMap<Source, HashSet<Arc<str>>>,
    by_topic: HashMap<Topic, Vec<Listener>>,
    /// Waiting claims, from before their request is sent: a notification for one is kept until its next attempt.
    expected: HashMap<ClaimId, Expected>,
}

#[derive(Debug)]
struct Expected {
    source: Source,
    mailbox: Arc<str>,
    /// Whether a notification arrived that no watch has delivered yet.
    notified: bool,
    handed: Option<Handed>,
}

#[derive(Debug)]
struct Listener {
    key: u64,
    source: Source,
    /// The channel that it depends on.
    channel: Arc<str>,
    hints: HintSender,
}

impl Notifications {
    /// For a client whose mailboxes begin with `mail`.
    pub(crate) fn new(mail: String) -> Arc<Self> {
        Arc::new(Self { mail, state: Mutex::default() })
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
        state.by_topic.retain(|topic, listeners| {
            listeners.retain(|listener| *topic != Topic::Mailbox && listener.source != source);
            !listeners.is_empty()
        });
        state.expected.retain(|_, expected| expected.source != source || expected.handed.is_some());
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
        state.by_topic.retain(|_, listeners| {
            listeners.retain(|listener| listener.source != source || *listener.channel != *channel);
            !listeners.is_empty()
        });
        let depends = |expected: &Expected| expected.source == source && *expected.mailbox == *channel;
        state.expected.retain(|_, expected| !depends(expected) || expected.handed.is_some());
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
        let State { sources, by_topic, .. } = &mut *state;
        let heard = |channel: &str| {
            let topics = [Topic::Channel(channel.to_owned()), Topic::Freed(channel.to_owned())];
            channel.starts_with(&self.mail) || topics.iter().any(|topic| by_topic.contains_key(topic))
        };
        sources.get_mut(&source).map_or_else(Vec::new, |it| it.extract_if(|channel| !heard(channel)).collect())
    }

    /// Keeps notifications for a claim that is about to wait, if this connection is subscribed to its mailbox.
    pub(crate) fn expect(&self, claim: ClaimId, mailbox: &str, source: Source) -> bool {
        let mut state = self.lock();
        let Some(mailbox) = state.sources.get(&source).and_then(|channels| channels.get(mailbox)).cloned() else {
            return false;
        };
        let new = Expected { source, mailbox: mailbox.clone(), notified: false, handed: None };
        let expected = state.expected.entry(claim).or_insert(new);
        (expected.source, expected.mailbox) = (source, mailbox);
        true
    }

    /// Whether notifications for this claim are kept.
    pub(crate) fn expects(&self, claim: ClaimId) -> bool {
        self.lock().expected.contains_key(&claim)
    }

    /// For how many claims notifications are kept.
    #[cfg(test)]
    pub(crate) fn expected(&self) -> usize {
        self.lock().expected.len()
    }

    /// The grant that was handed to this claim. It is returned once: a second attempt asks the store.
    pub(crate) fn handed(&self, claim: ClaimId) -> Option<Handed> {
        self.lock().expected.get_mut(&claim)?.handed.take()
    }

    /// Drops the notifications for this claim.
    pub(crate) fn forget(&self, claim: ClaimId) {
        self.lock().expected.remove(&claim);
    }

    /// A watch. It has already ended if the connection has.
    pub(crate) fn listen(self: &Arc<Self>, topic: Topic, channel: &str, source: Source) -> Watch {
        let (hints, heard) = Watch::channel();
        let mut state = self.lock();
        state.last_key += 1;
        let key = state.last_key;
        if state.sources.contains_key(&source) {
            let unheard = match &topic {
                Topic::Turn(id) => {
                    state.expected.get_mut(id).is_some_and(|expected| std::mem::take(&mut expected.notified))
                }
                Topic::Mailbox | Topic::Channel(_) | Topic::Freed(_) => false,
            };
            if unheard {
                hints.send(Hint::ANY);
            }
            state.by_topic.entry(topic.clone()).or_default().push(Listener {
                key,
                source,
                channel: channel.into(),
                hints,
            });
        }
        drop(state);
        Watch::new(Listening { key, topic, heard, notifications: self.clone() })
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
        let mut state = self.lock();
        let notification = channel.starts_with(&self.mail).then(|| Notification::read(payload));
        let expected = notification.as_ref().and_then(|notification| state.expected.get_mut(&notification.claim?));
        if let (Some(expected), Some(notification)) = (expected, &notification) {
            // Of several notifications the last one counts: a turn may have been taken back.
            expected.handed.clone_from(&notification.handed);
            expected.notified = true;
        }
        let tell = |topic: &Topic, hint: Hint| {
            let listeners = state.by_topic.get(topic);
            for listener in listeners.into_iter().flatten() {
                listener.hints.send(hint);
            }
            listeners.is_some()
        };
        let Some(Notification { claim, .. }) = notification else {
            tell(&Topic::Channel(channel.to_owned()), Hint::ANY);
            if payload == FREE {
                tell(&Topic::Freed(channel.to_owned()), Hint::ANY);
            }
            return;
        };
        let hint = claim.map_or(Hint::ANY, Hint::about);
        if !claim.is_some_and(|id| tell(&Topic::Turn(id), hint)) {
            tell(&Topic::Mailbox, hint);
        }
    }
}

/// The stream of one watch. Dropping it disarms the watch.
struct Listening {
    key: u64,
    topic: Topic,
    heard: Watch,
    notifications: Arc<Notifications>,
}

impl Stream for Listening {
    type Item = Hint;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Hint>> {
        self.heard.poll_changed(cx)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut state = self.notifications.lock();
        if let Some(listeners) = state.by_topic.get_mut(&self.topic) {
            listeners.retain(|listener| listener.key != self.key);
            if listeners.is_empty() {
                state.by_topic.remove(&self.topic);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "000000000000000000000000000000ff";

    #[test]
    fn notifications_are_read_as_they_are_written() {
        let claim = Some(ClaimId::from_bits(255));
        assert_eq!(Notification::read(ID.as_bytes()), Notification { claim, handed: None });
        let handed = Handed::read(["7", "5", "2"].into_iter(), Some(b"a b \xff"[..].into()));
        assert!(handed.is_some());
        assert_eq!(Notification::read(&[ID.as_bytes(), b" 7 5 2 a b \xff"].concat()), Notification { claim, handed });
        assert_eq!(Notification::read(b"something else"), Notification { claim: None, handed: None });
        assert_eq!(Notification::read(format!("{ID} 7 x 2").as_bytes()), Notification { claim, handed: None });
    }
}
